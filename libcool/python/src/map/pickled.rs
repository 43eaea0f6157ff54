//! The program's objects as bytes, between ranks of one program and in its checkpoints: pickle's.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::Cell;

/// The form of the bytes: the newest that Python 3.9 reads.
const PROTOCOL: u8 = 5;

thread_local! {
    /// Why an object did not become bytes or back: serde's errors carry words only.
    static REFUSAL: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Why the last object of this thread, that did not become bytes or back, did not.
pub(crate) fn refusal() -> Option<PyErr> {
    REFUSAL.take()
}

/// An object as bytes.
pub(crate) fn dumps<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = object.py().import("pickle")?.call_method1("dumps", (object, PROTOCOL))?;
    Ok(bytes.cast_into()?)
}

/// The object that bytes stand for.
pub(crate) fn loads(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    Ok(py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))?.unbind())
}

/// An object of the program that goes to other ranks and into files.
#[derive(Debug)]
pub(crate) struct Object(pub(crate) Py<PyAny>);

impl Object {
    /// Another reference to it.
    pub(crate) fn clone_object(&self) -> Py<PyAny> {
        Python::attach(|py| self.0.clone_ref(py))
    }
}

/// The job's error when an object does not become bytes, and keeps why.
pub(crate) fn not_sent(error: PyErr) -> cool_map::Error {
    REFUSAL.set(Some(error));
    cool_map::Error::Value(postcard::Error::SerdeSerCustom)
}

/// Keeps why it did not work, and tells serde so.
fn refused(error: PyErr) -> String {
    let words = error.to_string();
    REFUSAL.set(Some(error));
    words
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Python::attach(|py| {
            let bytes = dumps(self.0.bind(py)).map_err(|error| S::Error::custom(refused(error)))?;
            serializer.serialize_bytes(bytes.as_bytes())
        })
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object, D::Error> {
        let bytes = <&'de [u8]>::deserialize(deserializer)?;
        let loaded = Python::attach(|py| loads(py, bytes));
        loaded.map(Object).map_err(|error| D::Error::custom(refused(error)))
    }
}
