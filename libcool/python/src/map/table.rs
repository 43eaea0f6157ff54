//! Conversion of the tables of `cool-map` from and to Python objects.

use super::map_failure::MapFailure;
use cool_map::{Job, Table};
use pyo3::prelude::*;

/// A table with a Python class of its own.
pub(crate) trait PyTable: Table + Sync + 'static {
    /// Returns the table that an object represents.
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self>;

    /// Adds the result of a map task.
    fn add_result(&mut self, result: &Bound<'_, PyAny>) -> PyResult<()>;

    /// Returns the Python object of the table.
    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;

    /// Returns an error at all ranks if the table's merge function raised an exception at one.
    /// Tables without such a function return `Ok`. All ranks must call this.
    fn settle(&self, _job: &Job<'_>) -> Result<(), MapFailure> {
        Ok(())
    }
}

/// The output of map tasks, for any kind of table.
pub(crate) trait AnyMapOutput: Send {
    /// Regroups the output.
    fn regroup(self: Box<Self>, job: &Job<'_>) -> Result<Py<PyAny>, MapFailure>;
}

/// The output of map tasks, with a table of the same kind.
pub(crate) struct MapOutput<T: PyTable> {
    pub(crate) empty: T,
    pub(crate) mapped: cool_map::Mapped<T>,
}

impl<T: PyTable> AnyMapOutput for MapOutput<T> {
    fn regroup(self: Box<Self>, job: &Job<'_>) -> Result<Py<PyAny>, MapFailure> {
        let table = job.regroup(self.mapped)?;
        self.empty.settle(job)?;
        Ok(Python::attach(|py| table.object(py))?)
    }
}
