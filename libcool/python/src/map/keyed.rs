//! Tables with arbitrary keys and Python objects as values, which a function of the program merges.

use super::key::PyKey;
use super::map_failure::MapFailure;
use super::pickled::{dumps, loads, not_sent};
use super::table::PyTable;
use cool_map::{Error, Job, Malformed, Table, owner};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

/// How two values of a key are merged, in all tables of a stage.
#[derive(Debug)]
struct Merge {
    function: Py<PyAny>,
    /// The attribute `merge` of the Python table: a function, or the name of one.
    name: Py<PyAny>,
    /// The first exception of the function, or of an object that could not be unpickled.
    failed: Mutex<Option<PyErr>>,
}

impl Merge {
    fn record(&self, error: PyErr) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Returns the merged value. After an exception, which is later reported to all ranks, returns
    /// the first value.
    fn merged(&self, py: Python<'_>, value: &Py<PyAny>, later: &Py<PyAny>) -> Py<PyAny> {
        self.function.call1(py, (value, later)).unwrap_or_else(|error| {
            self.record(error);
            value.clone_ref(py)
        })
    }
}

/// Keys with objects. Merges keep their order, because the function may depend on it.
#[derive(Debug)]
pub(crate) struct Objects {
    merge: Arc<Merge>,
    values: BTreeMap<PyKey, Py<PyAny>>,
}

impl Objects {
    fn add(&mut self, py: Python<'_>, key: PyKey, value: Py<PyAny>) {
        match self.values.entry(key) {
            Entry::Occupied(mut known) => {
                let merged = self.merge.merged(py, known.get(), &value);
                known.insert(merged);
            }
            Entry::Vacant(new) => {
                new.insert(value);
            }
        }
    }

    fn pieces(&self, py: Python<'_>, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut pieces = vec![Vec::new(); owners];
        for (key, value) in &self.values {
            let key = postcard::to_allocvec(key).map_err(Error::Value)?;
            let value = dumps(value.bind(py)).map_err(not_sent)?;
            let piece = &mut pieces[owner(&key, owners)];
            piece.extend_from_slice(&key);
            // The encoding of a byte slice in postcard.
            *piece =
                postcard::to_extend(&value.as_bytes().len(), std::mem::take(piece)).map_err(Error::Value)?;
            piece.extend_from_slice(value.as_bytes());
        }
        Ok(pieces)
    }
}

impl Table for Objects {
    const ANY_ORDER: bool = false;

    fn empty(&self) -> Self {
        Self { merge: self.merge.clone(), values: BTreeMap::new() }
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn merge(&mut self, later: Self) {
        Python::attach(|py| later.values.into_iter().for_each(|(key, value)| self.add(py, key, value)));
    }

    fn to_bytes(&self, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
        Python::attach(|py| self.pieces(py, owners))
    }

    fn merge_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        Python::attach(|py| {
            while !bytes.is_empty() {
                let ((key, value), rest) = postcard::take_from_bytes::<(PyKey, &[u8])>(bytes)?;
                match loads(py, value) {
                    Ok(value) => self.add(py, key, value),
                    Err(error) => self.merge.record(error),
                }
                bytes = rest;
            }
            Ok(())
        })
    }
}

impl PyTable for Objects {
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (function, name) = (object.getattr("_function")?.unbind(), object.getattr("merge")?.unbind());
        let merge = Arc::new(Merge { function, name, failed: Mutex::default() });
        let mut table = Self { merge, values: BTreeMap::new() };
        table.add_result(object)?;
        Ok(table)
    }

    fn add_result(&mut self, result: &Bound<'_, PyAny>) -> PyResult<()> {
        for pair in result.cast::<PyMapping>()?.items()? {
            let (key, value) = pair.extract::<(Bound<'_, PyAny>, Py<PyAny>)>()?;
            self.add(result.py(), PyKey::from_object(&key)?, value);
        }
        Ok(())
    }

    fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let values = PyDict::new(py);
        for (key, value) in &self.values {
            values.set_item(key.object(py)?, value)?;
        }
        Ok(py.import("cool.map")?.call_method1("Keyed", (&self.merge.name, values))?.unbind())
    }

    fn settle(&self, job: &Job<'_>) -> Result<(), MapFailure> {
        let failed = self.merge.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        job.agree(failed.map_or(Ok(()), |error| Err(MapFailure::Raised(error))))
    }
}
