//! Numbers in place of pointers: what was freed is refused, not followed.

use crate::error::Wrong;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// Values by numbers that are never used again.
pub(crate) struct Handles<T> {
    what: &'static str,
    table: LazyLock<Mutex<Table<T>>>,
}

struct Table<T> {
    last: u64,
    values: HashMap<u64, T>,
}

impl<T> Handles<T> {
    /// None yet; `what` is the word for one.
    pub(crate) const fn new(what: &'static str) -> Handles<T> {
        Handles { what, table: LazyLock::new(|| Mutex::new(Table { last: 0, values: HashMap::new() })) }
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
    pub(crate) fn take(&self, number: u64) -> Result<T, Wrong> {
        self.with(|table| table.values.remove(&number)).ok_or_else(|| self.none(number))
    }

    /// Puts a value back that was taken out.
    pub(crate) fn put_back(&self, number: u64, value: T) {
        self.with(|table| table.values.insert(number, value));
    }

    /// Looks at a value.
    pub(crate) fn look<R>(&self, number: u64, f: impl FnOnce(&T) -> R) -> Result<R, Wrong> {
        self.with(|table| table.values.get(&number).map(f)).ok_or_else(|| self.none(number))
    }

    fn none(&self, number: u64) -> Wrong {
        Wrong::Argument(format!("there is no {} {number}: it was freed, or never made", self.what))
    }

    // Every change to the table is whole, so a panic elsewhere spoils nothing.
    fn with<R>(&self, f: impl FnOnce(&mut Table<T>) -> R) -> R {
        f(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
