//! NumPy arrays in memory that is shared with the agent.

use crate::error::{argument_error, exception_for};
use cool_rust::{Buffer, Comm};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Owner of the memory of an array that `array` returns. NumPy keeps a reference to it.
#[pyclass(module = "cool", name = "Memory", frozen)]
struct ArrayMemory {
    buffer: Buffer<u8>,
}

#[pymethods]
impl ArrayMemory {
    /// Returns the memory in the form that NumPy expects.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.buffer.len(),))?;
        interface.set_item("data", (self.buffer.as_ptr().addr(), false))?;
        Ok(interface)
    }
}

/// Returns an array of zeros; the default type is float64.
pub(crate) fn array<'py>(
    py: Python<'py>,
    rank: &Comm,
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let float = || numpy.getattr("float64");
    let dtype = numpy.call_method1("dtype", (dtype.cloned().map_or_else(float, Ok)?,))?;
    let shape: Vec<usize> = shape.extract::<usize>().map(|n| vec![n]).or_else(|_| shape.extract())?;
    let itemsize = dtype.getattr("itemsize")?.extract::<usize>()?;
    let bytes = shape.iter().try_fold(itemsize, |bytes, n| bytes.checked_mul(*n));
    let bytes = bytes.ok_or_else(|| {
        let reason = format!("an array of shape {shape:?} and type {dtype} is larger than the address space");
        argument_error(py, reason)
    })?;
    let buffer = py.detach(|| rank.alloc::<u8>(bytes)).map_err(|e| exception_for(py, &e))?;
    let flat = numpy.call_method1("asarray", (ArrayMemory { buffer },))?;
    flat.call_method1("view", (dtype,))?.call_method1("reshape", (PyTuple::new(py, shape)?,))
}
