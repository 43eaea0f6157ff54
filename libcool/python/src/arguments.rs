//! Conversion of the arguments of a collective from Python to those of the library.

#![allow(unsafe_code, reason = "received data is written to arrays that the request keeps alive")]

use crate::arrays::Data;
use crate::comm::PyComm;
use crate::error::argument_error;
use crate::interrupts::waiting;
use cool_rust::{Arrays, Collective, Comm, Error, Op, Operation};
use pyo3::prelude::*;

/// The arguments of a collective, as passed by Python.
pub(crate) struct CollectiveArguments<'a, 'py> {
    pub(crate) operation: Operation,
    pub(crate) send: &'a Bound<'py, PyAny>,
    pub(crate) recv: Option<&'a Bound<'py, PyAny>>,
    pub(crate) op: Option<&'a Bound<'py, PyAny>>,
    pub(crate) counts: Option<Vec<usize>>,
    pub(crate) root: usize,
}

impl CollectiveArguments<'_, '_> {
    /// Passes the collective to `then`. Returns its result and the array that is received into.
    pub(crate) fn with_collective<R: Send>(
        self,
        py: Python<'_>,
        comm: &PyComm,
        then: impl FnOnce(&Comm, Collective<'_, 'static>) -> Result<R, Error> + Send,
    ) -> PyResult<(R, Option<Data>)> {
        let rank = comm.get_rank(py)?;
        let op = self.op.map(|op| parse_op(op)).transpose()?;
        let to_root = matches!(self.operation, Operation::Reduce | Operation::Gather);
        let receives = !to_root || rank.rank() == self.root;
        let sends = self.operation != Operation::Scatter || rank.rank() == self.root;
        let send = if sends { Some(Data::new("send", self.send)?) } else { None };
        if let (Some(op), Some(send)) = (op, &send)
            && let Some(reason) = send.why_not_combined_by(op)
        {
            return Err(argument_error(py, reason));
        }
        let recv = match (self.recv, &send) {
            _ if !receives => None,
            (Some(recv), _) => Some(Data::writeable("recv", recv)?),
            (None, Some(send)) => Some(self.space(py, &rank, send)?),
            (None, None) => {
                return Err(argument_error(py, "recv is missing, and only the root knows its length"));
            }
        };
        // SAFETY: the arrays are held until the call is complete; the one that is received into is
        // held by the request, which drops the call first. The documentation requires the program
        // not to access them.
        let arrays = match (&send, &recv) {
            (Some(send), Some(recv)) if send.array.is(&recv.array) => {
                unsafe { recv.received() }.map_or(Arrays::None, Arrays::InPlace)
            }
            (Some(send), Some(recv)) if send.overlaps(recv) => {
                unsafe { Data::within(send, recv) }.ok_or_else(|| {
                    let reason = "send and recv overlap, and neither lies within the other with the same type; pass the \
                                  same array as both to work in place";
                    argument_error(py, reason)
                })?
            }
            _ => {
                let received = recv.as_ref().and_then(|recv| unsafe { recv.received() });
                Arrays::Apart(send.as_ref().and_then(Data::sent), received)
            }
        };
        let counts = self.counts.as_deref();
        let collective = Collective { operation: self.operation, root: self.root, op, counts, arrays };
        let done = waiting(py, || then(&rank, collective));
        Ok((done?, recv))
    }

    /// Returns a new array for received data.
    pub(crate) fn space(&self, py: Python<'_>, rank: &Comm, send: &Data) -> PyResult<Data> {
        let mut shape = send.shape();
        if let Some(counts) = &self.counts {
            let own = counts.get(rank.rank()).copied().unwrap_or(0);
            let column = || counts.iter().skip(rank.rank()).step_by(rank.size()).sum();
            shape = match self.operation {
                Operation::Scatter | Operation::ReduceScatter => vec![own],
                Operation::Alltoall => vec![column()],
                _ => vec![counts.iter().sum()],
            };
        } else {
            match self.operation {
                Operation::Gather | Operation::Allgather => shape.insert(0, rank.size()),
                Operation::Scatter | Operation::ReduceScatter => {
                    if shape.first() != Some(&rank.size()) {
                        let reason =
                            format!("send must have one part for each rank, a shape ({}, ...)", rank.size());
                        return Err(argument_error(py, reason));
                    }
                    shape.remove(0);
                }
                _ => {}
            }
        }
        // Rank 0 of an exscan receives nothing, so its array must be initialized.
        send.like(py, shape, self.operation == Operation::Exscan)
    }
}

/// Returns the operation with a name.
fn parse_op(op: &Bound<'_, PyAny>) -> PyResult<Op> {
    let name: String =
        op.extract().map_err(|_| argument_error(op.py(), "op must be a name or a function"))?;
    Op::ALL.into_iter().find(|op| op.to_string() == name).ok_or_else(|| {
        let all: Vec<String> = Op::ALL.iter().map(Op::to_string).collect();
        argument_error(op.py(), format!("there is no op {name:?}; valid ops are {}", all.join(", ")))
    })
}
