//! Messages between ranks, on NumPy arrays.

#![allow(unsafe_code, reason = "received data is written to arrays that the request keeps alive")]

use crate::arrays::Data;
use crate::comm::PyComm;
use crate::error::{argument_error, exception_for, unsigned};
use crate::interrupts::waiting;
use crate::request::{MessageInfo, PyRequest};
use cool_rust::{Comm, Error, Message as PointToPointMessage, Pending};
use pyo3::prelude::*;

fn start(rank: &Comm, message: PointToPointMessage<'_, 'static>) -> Result<Pending<'static>, Error> {
    rank.start().message(message)
}

impl PyComm {
    fn with_send<R: Send>(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        (dest, tag, synchronous): (usize, u32, bool),
        then: impl FnOnce(&Comm, PointToPointMessage<'_, 'static>) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let rank = self.get_rank(py)?;
        let data = Data::new("data", data)?;
        let array = data.sent().ok_or_else(|| argument_error(py, "data ends within an element"))?;
        let message = match synchronous {
            true => PointToPointMessage::SynchronousSend { data: array, dest, tag },
            false => PointToPointMessage::Send { data: array, dest, tag },
        };
        waiting(py, || then(&rank, message))
    }

    /// Passes a receive to `then`. Returns its result and the array that is received into.
    fn with_receive<R: Send>(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        (source, tag): (Option<usize>, Option<u32>),
        then: impl FnOnce(&Comm, PointToPointMessage<'_, 'static>) -> Result<R, Error> + Send,
    ) -> PyResult<(R, Data)> {
        let rank = self.get_rank(py)?;
        let room = Data::writeable("recv", recv)?;
        // SAFETY: the array is held until the message has arrived, here or by its request, which
        // drops the call first. The documentation requires the program not to access it.
        let data =
            unsafe { room.received() }.ok_or_else(|| argument_error(py, "recv ends within an element"))?;
        let done = waiting(py, || then(&rank, PointToPointMessage::Receive { data, source, tag }));
        Ok((done?, room))
    }
}

#[pymethods]
impl PyComm {
    /// Sends an array to rank `dest`, which must receive it with the same type and tag. Among the
    /// messages that match a receive, those from one rank are received in the order in which they
    /// were sent.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] dest: usize,
        #[pyo3(from_py_with = unsigned)] tag: u32,
    ) -> PyResult<()> {
        self.with_send(py, data, (dest, tag, false), Comm::message).map(drop)
    }

    /// Starts `send` and returns a Request.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn isend(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] dest: usize,
        #[pyo3(from_py_with = unsigned)] tag: u32,
    ) -> PyResult<PyRequest> {
        Ok(PyRequest::new(self.with_send(py, data, (dest, tag, false), start)?, None))
    }

    /// As `send`, but returns only when a receive has matched the message.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn ssend(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] dest: usize,
        #[pyo3(from_py_with = unsigned)] tag: u32,
    ) -> PyResult<()> {
        self.with_send(py, data, (dest, tag, true), Comm::message).map(drop)
    }

    /// Starts `ssend` and returns a Request.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn issend(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] dest: usize,
        #[pyo3(from_py_with = unsigned)] tag: u32,
    ) -> PyResult<PyRequest> {
        Ok(PyRequest::new(self.with_send(py, data, (dest, tag, true), start)?, None))
    }

    /// Waits for a message from a rank (None: any) with a tag (None: any). Returns its sender, its
    /// tag, and its length in bytes. The message stays queued.
    #[pyo3(signature = (source = None, tag = None))]
    fn probe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] source: Option<usize>,
        #[pyo3(from_py_with = unsigned)] tag: Option<u32>,
    ) -> PyResult<MessageInfo> {
        let rank = self.get_rank(py)?;
        let found = waiting(py, || rank.probe(source, tag))?;
        Ok((found.source, found.tag, found.bytes))
    }

    /// As `probe`, but does not wait: returns None if there is no such message.
    #[pyo3(signature = (source = None, tag = None))]
    fn iprobe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = unsigned)] source: Option<usize>,
        #[pyo3(from_py_with = unsigned)] tag: Option<u32>,
    ) -> PyResult<Option<MessageInfo>> {
        let rank = self.get_rank(py)?;
        let found = py.detach(|| rank.iprobe(source, tag)).map_err(|e| exception_for(py, &e))?;
        Ok(found.map(|found| (found.source, found.tag, found.bytes)))
    }

    /// Receives a message from a rank (None: any) with a tag (None: any) into an array, which may
    /// be longer than the message. Returns the sender, the tag, and the number of received
    /// elements.
    ///
    /// If the message is longer than the array, it is lost and TruncatedError is raised; the group
    /// stays usable.
    #[pyo3(signature = (recv, source = None, tag = None))]
    fn recv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] source: Option<usize>,
        #[pyo3(from_py_with = unsigned)] tag: Option<u32>,
    ) -> PyResult<MessageInfo> {
        let (got, _) = self.with_receive(py, recv, (source, tag), Comm::message)?;
        Ok((got.source, got.tag, got.count))
    }

    /// Starts `recv` and returns a Request. Its attribute `message` describes the received message
    /// after a wait.
    #[pyo3(signature = (recv, source = None, tag = None))]
    fn irecv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = unsigned)] source: Option<usize>,
        #[pyo3(from_py_with = unsigned)] tag: Option<u32>,
    ) -> PyResult<PyRequest> {
        let (pending, room) = self.with_receive(py, recv, (source, tag), start)?;
        Ok(PyRequest::for_message(pending, room))
    }
}
