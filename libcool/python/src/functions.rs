//! Reductions by Python functions.

#![allow(unsafe_code, reason = "received data is written to arrays that the request keeps alive")]

use crate::arguments::CollectiveArguments;
use crate::arrays::Data;
use crate::comm::PyComm;
use crate::error::argument_error;
use crate::interrupts::waiting;
use cool_rust::{Arrays, Collective, Comm, Error, Operation};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

impl CollectiveArguments<'_, '_> {
    /// Passes a reduction by a function to `then`. Returns its result, the array that is received
    /// into, and the place of the function's exception.
    pub(crate) fn with_fold<R: Send>(
        self,
        py: Python<'_>,
        comm: &PyComm,
        function: Py<PyAny>,
        then: impl FnOnce(&Comm, Collective<'_, 'static>, usize, CombineFunction) -> Result<R, Error> + Send,
    ) -> PyResult<(R, Data, FunctionError)> {
        let rank: Arc<Comm> = comm.get_rank(py)?;
        let send = Data::new("send", self.send)?;
        let recv = match self.recv {
            Some(recv) => Data::writeable("recv", recv)?,
            None => self.space(py, &rank, &send)?,
        };
        // The first axis of the array numbers its elements. In a reduce_scatter, the first axis
        // numbers the parts, and the second axis the elements. With counts, elements are single
        // numbers.
        let axes = match (self.operation, &self.counts) {
            (Operation::ReduceScatter, Some(_)) => usize::MAX,
            (Operation::ReduceScatter, None) => 2,
            _ => 1,
        };
        let tail: Vec<usize> = send.shape().into_iter().skip(axes).collect();
        let element = send.elements().bytes() * tail.iter().product::<usize>();
        let kind = FunctionArrays { dtype: send.numpy_dtype(py)?, tail };
        let failed = FunctionError::default();
        let found = failed.clone();
        let combine: CombineFunction = Box::new(move |left: &mut [u8], right: &[u8]| {
            found.run_unless_failed(|| Python::attach(|py| call_function(py, &function, &kind, left, right)));
        });
        // The elements are copied, so that the arrays may overlap.
        let sent = send.bytes().to_vec();
        // SAFETY: `recv` is held here or by the request, and the documentation requires the program
        // not to access it.
        let received: &mut [u8] = unsafe { recv.bytes_mut() };
        let arrays = if send.array.is(&recv.array) {
            Arrays::InPlace(received.into())
        } else {
            Arrays::Apart(Some(sent.as_slice().into()), Some(received.into()))
        };
        let (operation, root, counts) = (self.operation, self.root, self.counts.as_deref());
        let collective = Collective { operation, root, op: None, counts, arrays };
        let done = waiting(py, || then(&rank, collective, element, combine));
        failed.check()?;
        Ok((done?, recv, failed))
    }
}

/// A function that combines two vectors, as the library calls it.
pub(crate) type CombineFunction = Box<dyn FnMut(&mut [u8], &[u8]) + Send + Sync>;

/// The first exception that a function raised.
#[derive(Clone, Default)]
pub(crate) struct FunctionError(Arc<Mutex<Option<PyErr>>>);

impl FunctionError {
    /// Runs `act`, unless the function has raised before.
    fn run_unless_failed(&self, act: impl FnOnce() -> PyResult<()>) {
        // The mutex is not locked meanwhile, because `act` acquires the interpreter lock, and a
        // thread that holds the interpreter lock may wait for the mutex.
        if self.first().is_none() {
            let error = act().err();
            *self.first() = error;
        }
    }

    fn first(&self) -> MutexGuard<'_, Option<PyErr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the recorded exception and returns it as an error.
    ///
    /// # Errors
    /// If the function has raised one.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.first().take().map_or(Ok(()), Err)
    }
}

/// Type and element shape of the arrays that are passed to a function.
struct FunctionArrays {
    dtype: Py<PyAny>,
    /// Shape of an element; empty for numbers.
    tail: Vec<usize>,
}

/// Calls a function on two vectors and overwrites the first one with the result.
fn call_function(
    py: Python<'_>,
    function: &Py<PyAny>,
    kind: &FunctionArrays,
    left: &mut [u8],
    right: &[u8],
) -> PyResult<()> {
    let (numpy, dtype) = (py.import("numpy")?, kind.dtype.bind(py));
    let element = dtype.getattr("itemsize")?.extract::<usize>()? * kind.tail.iter().product::<usize>();
    let array = |bytes: &[u8]| {
        let flat = numpy.call_method1("frombuffer", (PyBytes::new(py, bytes), dtype))?;
        let shape: Vec<usize> =
            std::iter::once(bytes.len() / element.max(1)).chain(kind.tail.clone()).collect();
        flat.call_method1("reshape", (PyTuple::new(py, shape)?,))
    };
    let result = function.call1(py, (array(left)?, array(right)?))?;
    let result = numpy.call_method1("ascontiguousarray", (result, dtype))?;
    let result = Data::new("the function's result", &result)?;
    if result.bytes().len() != left.len() {
        return Err(argument_error(py, "the function's result and its arguments differ in length"));
    }
    left.copy_from_slice(result.bytes());
    Ok(())
}
