//! What map tasks emit and what ranks exchange: tables of keys with values, of two kinds. [`Keyed`] has any keys and
//! values; [`Rows`] has rows of numbers, which are numbered from 0 and added up.

mod keyed;
mod number;
mod rows;
mod values;

pub use keyed::{Keyed, owner};
pub use number::Number;
pub use rows::Rows;
pub use values::{List, Max, Min, Sum, Value};

use crate::error::{Error, Malformed};
use cool::Comm;

/// Keys with values, each key once.
pub trait Table: Sized + Send {
    /// Whether merges in any order and grouping give the same bits, as sums of integers do. If not, tables are merged
    /// along a tree over the partitions, in their order: the merge of values must be associative, but for rounding,
    /// and need not be commutative. A rank then sends up to 2 log2(partitions) tables in place of one.
    const ANY_ORDER: bool;

    /// One without values, otherwise as this one.
    fn empty(&self) -> Self;

    /// Keys that have a value.
    fn len(&self) -> usize;

    /// Whether no key has a value.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a table of later partitions: where both have a value, the two are merged, this one's first.
    fn merge(&mut self, later: Self);

    /// As bytes, in one piece for each owner: every rank gives a key to the same owner.
    ///
    /// # Errors
    /// If a key or a value has no form as bytes.
    fn to_bytes(&self, owners: usize) -> Result<Vec<Vec<u8>>, Error>;

    /// As [`Table::merge`] of the table that the bytes stand for.
    ///
    /// # Errors
    /// If they are none. The table may then have a part of it.
    fn merge_bytes(&mut self, bytes: &[u8]) -> Result<(), Malformed>;

    /// Of tables whose values the agents can add on the way, and that merge in any order: the largest magnitude of
    /// a number in it.
    fn magnitude(&self) -> Option<u64> {
        None
    }

    /// Bytes of the whole table with a value for every key, zeros too, if its numbers have up to this magnitude; of
    /// tables with [`Table::magnitude`].
    fn dense_bytes(&self, _magnitude: u64) -> u64 {
        u64::MAX
    }

    /// Adds up all ranks' tables with a value for every key, by the agents; the keys that this rank owns. Of tables
    /// with [`Table::magnitude`].
    ///
    /// # Errors
    /// If the call fails.
    fn reduce_scatter(self, _comm: &Comm, _magnitude: u64) -> Result<Self, Error> {
        Ok(self)
    }
}
