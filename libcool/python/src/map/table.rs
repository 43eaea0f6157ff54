//! What tables of `cool-map` must do for Python besides.

use super::keyed::Objects;
use super::map_failure::MapFailure;
use cool_map::{Job, Rows, Table};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A table that Python has as an object of a class of its own.
pub(crate) trait PyTable: Table + Sync + 'static {
    /// The table that an object is.
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self>;

    /// Adds what a map task has returned.
    fn take(&mut self, result: &Bound<'_, PyAny>) -> PyResult<()>;

    /// It as an object.
    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;

    /// Lets the ranks go on only if all have merged without an exception, where merging may raise one.
    fn settle(&self, _job: &Job<'_>) -> Result<(), MapFailure> {
        Ok(())
    }
}

/// What partitions were mapped to, of any kind of table.
pub(crate) trait AnyMapped: Send {
    /// Regroups it.
    fn regroup(self: Box<Self>, job: &Job<'_>) -> Result<Py<PyAny>, MapFailure>;
}

/// With a table of the kind that was mapped.
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

/// What can be done with a table of any kind.
pub(crate) trait WithTable {
    /// What comes of it.
    type Result;

    /// Does it with tables of one kind.
    fn apply<T: PyTable>(self) -> PyResult<Self::Result>;
}

/// Does something with the kind of table that an object is.
pub(crate) fn with_kind<W: WithTable>(table: &Bound<'_, PyAny>, work: W) -> PyResult<W::Result> {
    let kinds = table.py().import("cool.map")?;
    if table.is_instance(&kinds.getattr("Keyed")?)? {
        return work.apply::<Objects>();
    }
    if !table.is_instance(&kinds.getattr("Rows")?)? {
        let kind = table.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "a {kind} is no table; cool.map.Keyed and cool.map.Rows are"
        )));
    }
    match table.getattr("dtype")?.getattr("name")?.extract::<String>()?.as_str() {
        "int32" => work.apply::<Rows<i32>>(),
        "int64" => work.apply::<Rows<i64>>(),
        "float32" => work.apply::<Rows<f32>>(),
        "float64" => work.apply::<Rows<f64>>(),
        name => Err(PyTypeError::new_err(format!(
            "rows of {name} are not carried; int32, int64, float32 and float64 are"
        ))),
    }
}
