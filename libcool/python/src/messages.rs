//! Messages from rank to rank, on NumPy arrays.

#![allow(unsafe_code, reason = "received data is put into arrays that the request holds")]

use crate::arrays::Data;
use crate::comm::Comm;
use crate::error::{raised, wrong};
use crate::request::{Message, Request};
use cool_rust::Message as Letter;
use pyo3::prelude::*;

#[pymethods]
impl Comm {
    /// Sends an array to a rank, which receives it with the same type and tag. Messages from one rank to another are
    /// received in the order in which they were sent, among those that a receive takes.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>, dest: usize, tag: u32) -> PyResult<()> {
        let rank = self.get_rank(py)?;
        let data = Data::new("data", data)?;
        let array = data.sent().ok_or_else(|| wrong(py, "data ends within an element"))?;
        let sent = py.detach(|| rank.message(Letter::Send { data: array, dest, tag }));
        sent.map(drop).map_err(|e| raised(py, &e))
    }

    /// Starts `send`.
    #[pyo3(signature = (data, dest, tag = 0))]
    fn isend(&self, py: Python<'_>, data: &Bound<'_, PyAny>, dest: usize, tag: u32) -> PyResult<Request> {
        let rank = self.get_rank(py)?;
        let data = Data::new("data", data)?;
        let array = data.sent().ok_or_else(|| wrong(py, "data ends within an element"))?;
        let started = py.detach(|| rank.start().message(Letter::Send { data: array, dest, tag }));
        Ok(Request::new(started.map_err(|e| raised(py, &e))?, None))
    }

    /// Receives into an array, which may be longer than what comes, from a rank (None: any) with a tag (None: any).
    /// Returns who sent it, its tag, and how many elements came.
    #[pyo3(signature = (recv, source = None, tag = None))]
    fn recv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Message> {
        let rank = self.get_rank(py)?;
        let room = Data::writeable("recv", recv)?;
        // SAFETY: `room` holds the array until it has been received; nobody else uses it, as the program was told.
        let data = unsafe { room.received() }.ok_or_else(|| wrong(py, "recv ends within an element"))?;
        let got = py.detach(|| rank.message(Letter::Receive { data, source, tag }));
        let got = got.map_err(|e| raised(py, &e))?;
        Ok((got.source, got.tag, got.count))
    }

    /// Starts `recv`; `message` of the request then says what came.
    #[pyo3(signature = (recv, source = None, tag = None))]
    fn irecv(
        &self,
        py: Python<'_>,
        recv: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Request> {
        let rank = self.get_rank(py)?;
        let room = Data::writeable("recv", recv)?;
        // SAFETY: the request holds the array, and its call goes first; nobody else uses it, as the program was told.
        let data = unsafe { room.received() }.ok_or_else(|| wrong(py, "recv ends within an element"))?;
        let started = py.detach(|| rank.start().message(Letter::Receive { data, source, tag }));
        Ok(Request::of_message(started.map_err(|e| raised(py, &e))?, room))
    }
}
