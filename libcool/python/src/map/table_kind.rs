//! The kinds of tables, and the choice of the kind that a Python object represents.

use super::keyed::Objects;
use super::table::PyTable;
use cool_map::Rows;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// An operation on a table of any kind.
pub(crate) trait WithTable {
    /// Result of the operation.
    type Result;

    /// Executes the operation on tables of one kind.
    fn apply<T: PyTable>(self) -> PyResult<Self::Result>;
}

/// Executes an operation on the kind of table that an object represents.
pub(crate) fn with_kind<W: WithTable>(table: &Bound<'_, PyAny>, work: W) -> PyResult<W::Result> {
    let kinds = table.py().import("cool.map")?;
    if table.is_instance(&kinds.getattr("Keyed")?)? {
        return work.apply::<Objects>();
    }
    if !table.is_instance(&kinds.getattr("Rows")?)? {
        let kind = table.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a {kind} is not a table; use cool.map.Keyed or cool.map.Rows"
        )));
    }
    match table.getattr("dtype")?.getattr("name")?.extract::<String>()?.as_str() {
        "int32" => work.apply::<Rows<i32>>(),
        "int64" => work.apply::<Rows<i64>>(),
        "float32" => work.apply::<Rows<f32>>(),
        "float64" => work.apply::<Rows<f64>>(),
        name => Err(PyTypeError::new_err(format!(
            "rows of {name} are not supported; use int32, int64, float32 or float64"
        ))),
    }
}
