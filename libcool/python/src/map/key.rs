//! Keys of tables: Python objects that are equal exactly if their bytes are equal, on all ranks.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};
use serde::{Deserialize, Serialize};

/// A key. Tables are sorted in this order: None, numbers, texts, bytes, tuples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum PyKey {
    /// None.
    None,
    /// An int of 64 bits. True is 1, as in a dict.
    Int(i64),
    /// A str.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A tuple of keys.
    Tuple(Vec<PyKey>),
}

impl PyKey {
    /// Returns the key that an object represents.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> PyResult<PyKey> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(PyKey::Text(text.extract()?));
        }
        if let Ok(tuple) = object.cast::<PyTuple>() {
            return tuple
                .iter()
                .map(|part| PyKey::from_object(&part))
                .collect::<PyResult<_>>()
                .map(PyKey::Tuple);
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(PyKey::Bytes(bytes.as_bytes().to_vec()));
        }
        if object.is_none() {
            return Ok(PyKey::None);
        }
        // NumPy's integers are not ints but can be converted.
        object.extract().map(PyKey::Int).map_err(|error| PyKey::refused(object, &error))
    }

    fn refused(object: &Bound<'_, PyAny>, error: &PyErr) -> PyErr {
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            return PyOverflowError::new_err(format!("key {object} does not fit 64 bits; use str({object})"));
        }
        let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("a {kind} cannot be a key; use int, str, bytes, None or tuples of them"))
    }

    /// Returns the object that a key represents.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            PyKey::None => py.None().into_bound(py),
            PyKey::Int(number) => PyInt::new(py, *number).into_any(),
            PyKey::Text(text) => PyString::new(py, text).into_any(),
            PyKey::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            PyKey::Tuple(parts) => {
                let parts = parts.iter().map(|part| part.object(py)).collect::<PyResult<Vec<_>>>()?;
                PyTuple::new(py, parts)?.into_any()
            }
        })
    }
}
