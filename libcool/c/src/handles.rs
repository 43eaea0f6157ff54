//! Tables of values that C refers to by number. A freed number is rejected instead of dereferenced.

use crate::error::CError;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// A table of values with numbers that are never reused.
pub(crate) struct HandleTable<T> {
    what: &'static str,
    table: LazyLock<Mutex<HandleEntries<T>>>,
}

struct HandleEntries<T> {
    last: u64,
    values: HashMap<u64, T>,
}

impl<T> HandleTable<T> {
    /// Returns an empty table. `what` names its values in error messages.
    pub(crate) const fn new(what: &'static str) -> HandleTable<T> {
        HandleTable {
            what,
            table: LazyLock::new(|| Mutex::new(HandleEntries { last: 0, values: HashMap::new() })),
        }
    }

    /// Adds a value and returns its number.
    pub(crate) fn add(&self, value: T) -> u64 {
        self.with(|table| {
            table.last += 1;
            table.values.insert(table.last, value);
            table.last
        })
    }

    /// Removes a value and returns it.
    pub(crate) fn take(&self, number: u64) -> Result<T, CError> {
        self.with(|table| table.values.remove(&number)).ok_or_else(|| self.unknown(number))
    }

    /// Puts back a value that was removed.
    pub(crate) fn put_back(&self, number: u64, value: T) {
        self.with(|table| table.values.insert(number, value));
    }

    /// Passes a value to `f`.
    pub(crate) fn get<R>(&self, number: u64, f: impl FnOnce(&T) -> R) -> Result<R, CError> {
        self.with(|table| table.values.get(&number).map(f)).ok_or_else(|| self.unknown(number))
    }

    fn unknown(&self, number: u64) -> CError {
        CError::Argument(format!("there is no {} {number}: it was freed or never created", self.what))
    }

    // Every change to the table is complete when the lock is released, so a panic elsewhere is
    // harmless.
    fn with<R>(&self, f: impl FnOnce(&mut HandleEntries<T>) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
