//! Conversion of the tables of `cool-map` from and to Python objects.

use super::keyed::Objects;
use super::map_failure::MapFailure;
use cool_map::{Job, Rows, Table};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A table with a Python class of its own.
pub(crate) trait PyTable: Table + Sync + 'static {
    /// Returns the table that an object represents.
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self>;

    /// Adds the result of a map task.
    fn take(&mut self, result: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Returns the Python object of the table.
    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;

    /// Checks that no rank's merges raised an exception, for tables whose merges may raise one.
    fn settle(&self, _job: &Job<'_>) -> Result<(), MapFailure> {
        Ok(())
    }
}

/// The output of map tasks, for any kind of table.
pub(crate) trait AnyMapped: Send {
    /// Regroups the output.
    fn regroup(self: Box<Self>, job: &Job<'_>) -> Result<Py<PyAny>, MapFailure>;
}

/// The output of map tasks, with a table of the same kind.
pub(crate) struct MappedTo<T: PyTable> {
    pub(crate) empty: T,
    pub(crate) mapped: cool_map::Mapped<T>,
}

impl<T: PyTable> AnyMapped for MappedTo<T> {
    fn regroup(self: Box<Self>, job: &Job<'_>) -> Result<Py<PyAny>, MapFailure> {
        let table = job.regroup(self.mapped)?;
        self.empty.settle(job)?;
        Ok(Python::attach(|py| table.object(py))?)
    }
}

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
