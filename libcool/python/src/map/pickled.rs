//! Pickling of the program's objects, for other ranks and for checkpoints.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::Cell;

/// Pickle protocol: the newest that Python 3.9 supports.
const PROTOCOL: u8 = 5;

thread_local! {
    /// The exception of the last failed conversion, because serde's errors contain only a message.
    static REFUSAL: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Returns the exception of this thread's last failed conversion.
pub(crate) fn refusal() -> Option<PyErr> {
    REFUSAL.take()
}

/// Returns the bytes of an object.
pub(crate) fn dumps<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = object.py().import("pickle")?.call_method1("dumps", (object, PROTOCOL))?;
    Ok(bytes.cast_into()?)
}

/// Returns the object with these bytes.
pub(crate) fn loads(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    Ok(py.import("pickle")?.call_method1("loads", (PyBytes::new(py, bytes),))?.unbind())
}

/// An object of the program that is sent to other ranks or written to files.
#[derive(Debug)]
pub(crate) struct Object(pub(crate) Py<PyAny>);

impl Object {
    /// Returns another reference to the object.
    pub(crate) fn clone_object(&self) -> Py<PyAny> {
        Python::attach(|py| self.0.clone_ref(py))
    }
}

/// Records the exception and returns the job's error.
pub(crate) fn not_sent(error: PyErr) -> cool_map::Error {
    REFUSAL.set(Some(error));
    cool_map::Error::Value(postcard::Error::SerdeSerCustom)
}

/// Records the exception and returns its message for serde.
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
