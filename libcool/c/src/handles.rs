//! Numbers in place of pointers: what was freed is refused, not followed.

use crate::error::CError;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Values by numbers that are never used again.
pub(crate) struct HandleTable<T> {
    what: &'static str,
    table: LazyLock<Mutex<HandleEntries<T>>>,
}

struct HandleEntries<T> {
    last: u64,
    values: HashMap<u64, T>,
}

impl<T> HandleTable<T> {
    /// None yet; `what` is the word for one.
    pub(crate) const fn new(what: &'static str) -> HandleTable<T> {
        HandleTable {
            what,
            table: LazyLock::new(|| Mutex::new(HandleEntries { last: 0, values: HashMap::new() })),
        }
    }

    /// A new number for a value.
    pub(crate) fn add(&self, value: T) -> u64 {
        self.with(|table| {
            table.last += 1;
            table.values.insert(table.last, value);
            table.last
        })
    }

    /// Takes a value out.
    pub(crate) fn take(&self, number: u64) -> Result<T, CError> {
        self.with(|table| table.values.remove(&number)).ok_or_else(|| self.unknown(number))
    }

    /// Puts a value back that was taken out.
    pub(crate) fn put_back(&self, number: u64, value: T) {
        self.with(|table| table.values.insert(number, value));
    }

    /// Looks at a value.
    pub(crate) fn get<R>(&self, number: u64, f: impl FnOnce(&T) -> R) -> Result<R, CError> {
        self.with(|table| table.values.get(&number).map(f)).ok_or_else(|| self.unknown(number))
    }

    fn unknown(&self, number: u64) -> CError {
        CError::Argument(format!("there is no {} {number}: it was freed, or never made", self.what))
    }

    // Every change to the table is whole, so a panic elsewhere spoils nothing.
    fn with<R>(&self, f: impl FnOnce(&mut HandleEntries<T>) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
