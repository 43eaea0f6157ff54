//! The collectives on NumPy arrays. Each has a blocking form and, with the prefix `i`, one that
//! starts it.

#![allow(unsafe_code, reason = "received data is written to arrays that the request keeps alive")]

use crate::arguments::CollectiveArguments;
use crate::arrays::Data;
use crate::comm::PyComm;
use crate::error::unsigned;
use crate::functions::CombineFunction;
use crate::interrupts::waiting;
use crate::request::PyRequest;
use cool_rust::{Arrays, Collective, Comm, Error, Operation, Pending};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The array that a call received into, or `None` at a rank that receives nothing.
type ReceivedArray = Option<Py<PyAny>>;

fn start(rank: &Comm, collective: Collective<'_, 'static>) -> Result<Pending<'static>, Error> {
    rank.start().collective(collective)
}

impl CollectiveArguments<'_, '_> {
    /// Starts the call.
    fn start(self, py: Python<'_>, comm: &PyComm) -> PyResult<PyRequest> {
        if let Some(function) = self.op.filter(|op| op.is_callable()) {
            let function = function.clone().unbind();
            let start =
                |rank: &Comm, collective: Collective<'_, 'static>, element, combine: CombineFunction| {
                    rank.start().fold(collective, element, combine)
                };
            let (pending, recv, failed) = self.with_fold(py, comm, function, start)?;
            return Ok(PyRequest::for_function(pending, recv, failed));
        }
        let (pending, recv) = self.with_collective(py, comm, start)?;
        Ok(PyRequest::new(pending, recv))
    }

    /// Executes the call, by the agents or by a function of the program.
    fn run(self, py: Python<'_>, comm: &PyComm) -> PyResult<ReceivedArray> {
        match self.op.filter(|op| op.is_callable()) {
            Some(function) => {
                let function = function.clone().unbind();
                let fold = |rank: &Comm,
                            collective: Collective<'_, 'static>,
                            element,
                            mut combine: CombineFunction| {
                    rank.fold(collective, element, &mut combine)
                };
                let rank = comm.get_rank(py)?;
                let nothing = self.operation == Operation::Reduce && rank.rank() != self.root;
                let ((), recv, failed) = self.with_fold(py, comm, function, fold)?;
                failed.check()?;
                Ok((!nothing).then_some(recv.array))
            }
            None => {
                let ((), recv) = self.with_collective(py, comm, Comm::collective)?;
                Ok(recv.map(|data| data.array))
            }
        }
    }
}

impl PyComm {
    fn with_bcast<R: Send>(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        root: usize,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error> + Send,
    ) -> PyResult<(R, Data)> {
        let rank = self.get_rank(py)?;
        // At the root the array is only read.
        let data =
            if rank.rank() == root { Data::new("data", data)? } else { Data::writeable("data", data)? };
        // SAFETY: as in `CollectiveArguments::with_collective`.
        let arrays = unsafe { data.received() }.map_or(Arrays::None, Arrays::InPlace);
        let collective = Collective { root, ..Collective::new(Operation::Bcast, arrays) };
        let done = waiting(py, || then(&rank, collective));
        Ok((done?, data))
    }
}

#[pymethods]
impl PyComm {
    /// Combines the `send` arrays of all ranks, element by element. Returns the result at the root,
    /// and None at other ranks. `op` is a name (sum, prod, min, max, average, bit_and, ...,
    /// min_loc) or a function of two arrays, which need not be commutative. Arrays of bool have no
    /// sum; use logical_or, logical_and or logical_xor.
    #[pyo3(signature = (send, recv = None, op = None, root = 0))]
    fn reduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<ReceivedArray> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Reduce,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root,
        };
        call.run(py, self)
    }

    /// Starts `reduce` and returns a Request. The thread that waits for it calls the function.
    #[pyo3(signature = (send, recv = None, op = None, root = 0))]
    fn ireduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<PyRequest> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Reduce,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root,
        };
        call.start(py, self)
    }

    /// Combines the `send` arrays of all ranks, element by element, and returns the result at every
    /// rank. See `reduce` for `op`. Pass `recv=send` to work in place.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn allreduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReceivedArray> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Allreduce,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.run(py, self)
    }

    /// Starts `allreduce` and returns a Request. The thread that waits for it calls the function.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn iallreduce(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRequest> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Allreduce,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.start(py, self)
    }

    /// Combines the `send` arrays of all ranks, of shape (size, ...). Rank i returns the i-th part
    /// of the result. With `counts`, the parts have unequal lengths.
    #[pyo3(signature = (send, recv = None, op = None, counts = None))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<ReceivedArray> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::ReduceScatter,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts,
            root: 0,
        };
        call.run(py, self)
    }

    /// Starts `reduce_scatter` and returns a Request. The thread that waits for it calls the
    /// function.
    #[pyo3(signature = (send, recv = None, op = None, counts = None))]
    fn ireduce_scatter(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<PyRequest> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::ReduceScatter,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts,
            root: 0,
        };
        call.start(py, self)
    }

    /// Combines the `send` arrays of this rank and all preceding ranks, and returns the result.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn scan(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReceivedArray> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Scan,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.run(py, self)
    }

    /// Starts `scan` and returns a Request. The thread that waits for it calls the function.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn iscan(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRequest> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Scan,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.start(py, self)
    }

    /// Combines the `send` arrays of all preceding ranks, and returns the result. At rank 0, `recv`
    /// is unchanged.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn exscan(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReceivedArray> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Exscan,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.run(py, self)
    }

    /// Starts `exscan` and returns a Request. The thread that waits for it calls the function.
    #[pyo3(signature = (send, recv = None, op = None))]
    fn iexscan(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        op: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRequest> {
        let sum = PyString::new(py, "sum").into_any();
        let call = CollectiveArguments {
            operation: Operation::Exscan,
            send,
            recv,
            op: Some(op.unwrap_or(&sum)),
            counts: None,
            root: 0,
        };
        call.start(py, self)
    }

    /// Concatenates the `send` arrays of all ranks, in rank order. Returns an array of shape (size,
    /// ...) at the root, and None at other ranks. With `counts`, the parts have unequal lengths;
    /// all ranks must pass the length of each.
    #[pyo3(signature = (send, recv = None, counts = None, root = 0))]
    fn gather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<ReceivedArray> {
        let call = CollectiveArguments { operation: Operation::Gather, send, recv, op: None, counts, root };
        call.run(py, self)
    }

    /// Starts `gather` and returns a Request.
    #[pyo3(signature = (send, recv = None, counts = None, root = 0))]
    fn igather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<PyRequest> {
        let call = CollectiveArguments { operation: Operation::Gather, send, recv, op: None, counts, root };
        call.start(py, self)
    }

    /// Concatenates the `send` arrays of all ranks, in rank order, and returns an array of shape
    /// (size, ...) at every rank. For `counts`, see `gather`.
    #[pyo3(signature = (send, recv = None, counts = None))]
    fn allgather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<ReceivedArray> {
        let call =
            CollectiveArguments { operation: Operation::Allgather, send, recv, op: None, counts, root: 0 };
        call.run(py, self)
    }

    /// Starts `allgather` and returns a Request.
    #[pyo3(signature = (send, recv = None, counts = None))]
    fn iallgather(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<PyRequest> {
        let call =
            CollectiveArguments { operation: Operation::Allgather, send, recv, op: None, counts, root: 0 };
        call.start(py, self)
    }

    /// Distributes the root's `send` of shape (size, ...): rank i returns the i-th part. `send` is
    /// ignored at other ranks.
    #[pyo3(signature = (send, recv = None, counts = None, root = 0))]
    fn scatter(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<ReceivedArray> {
        let call = CollectiveArguments { operation: Operation::Scatter, send, recv, op: None, counts, root };
        call.run(py, self)
    }

    /// Starts `scatter` and returns a Request.
    #[pyo3(signature = (send, recv = None, counts = None, root = 0))]
    fn iscatter(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<PyRequest> {
        let call = CollectiveArguments { operation: Operation::Scatter, send, recv, op: None, counts, root };
        call.start(py, self)
    }

    /// Distributes every rank's `send` of shape (size, ...): the i-th part is sent to rank i. With
    /// `counts`, `counts[i * size + j]` elements are sent from rank i to rank j.
    #[pyo3(signature = (send, recv = None, counts = None))]
    fn alltoall(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<ReceivedArray> {
        let call =
            CollectiveArguments { operation: Operation::Alltoall, send, recv, op: None, counts, root: 0 };
        call.run(py, self)
    }

    /// Starts `alltoall` and returns a Request.
    #[pyo3(signature = (send, recv = None, counts = None))]
    fn ialltoall(
        &self,
        py: Python<'_>,
        send: &Bound<'_, PyAny>,
        recv: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = unsigned)] counts: Option<Vec<usize>>,
    ) -> PyResult<PyRequest> {
        let call =
            CollectiveArguments { operation: Operation::Alltoall, send, recv, op: None, counts, root: 0 };
        call.start(py, self)
    }

    /// Sends the root's `data` to all ranks, where it overwrites `data`. Returns `data`.
    #[pyo3(signature = (data, root = 0))]
    fn bcast(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<ReceivedArray> {
        let ((), data) = self.with_bcast(py, data, root, Comm::collective)?;
        Ok(Some(data.array))
    }

    /// Starts `bcast` and returns a Request.
    #[pyo3(signature = (data, root = 0))]
    fn ibcast(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] root: usize,
    ) -> PyResult<PyRequest> {
        let (pending, data) = self.with_bcast(py, data, root, start)?;
        Ok(PyRequest::new(pending, Some(data)))
    }

    /// Returns when all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.ibarrier(py)?.wait(py, None).map(drop)
    }

    /// Starts `barrier` and returns a Request.
    fn ibarrier(&self, py: Python<'_>) -> PyResult<PyRequest> {
        let rank = self.get_rank(py)?;
        Ok(PyRequest::new(waiting(py, || rank.start().barrier())?, None))
    }
}
