//! Tables of keys with values, which map tasks produce and ranks exchange. There are two kinds:
//! [`Keyed`] has any keys and values; [`Rows`] has rows of numbers, which are numbered from 0 and
//! summed.

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
    /// Whether merges in any order and grouping give the same bits, as sums of integers do. If not,
    /// tables are merged along a tree over the partitions, in their order. Merging values must then
    /// be associative except for rounding, but need not be commutative. A rank then sends up to 2
    /// log2(partitions) tables instead of one.
    const ANY_ORDER: bool;

    /// Returns a table of the same shape without values.
    fn empty(&self) -> Self;

    /// Returns the number of keys with a value.
    fn len(&self) -> usize;

    /// Returns whether no key has a value.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Merges a table of later partitions into this one. Where both have a value, this table's
    /// value is first.
    fn merge(&mut self, later: Self);

    /// Returns the serialized table in one piece per owner, each with the keys of that owner. All
    /// ranks must assign a key to the same owner.
    ///
    /// # Errors
    /// If a key or a value cannot be serialized.
    fn to_bytes(&self, owners: usize) -> Result<Vec<Vec<u8>>, Error>;

    /// Merges a serialized table of later partitions into this one, as [`Table::merge`] does.
    ///
    /// # Errors
    /// If the bytes are not a table of this shape. A part of it may have been merged in this case.
    fn merge_bytes(&mut self, bytes: &[u8]) -> Result<(), Malformed>;

    /// Returns the largest magnitude of a number in the table, if the agents can sum its values and
    /// tables can be merged in any order; otherwise `None`.
    fn magnitude(&self) -> Option<u64> {
        None
    }

    /// Returns the size in bytes of a vector with a value for every key, including zeros, if its
    /// numbers have at most this magnitude. It is called only if [`Table::magnitude`] returns a
    /// number.
    fn dense_bytes(&self, _magnitude: u64) -> u64 {
        u64::MAX
    }

    /// Lets the agents sum the tables of all ranks, as vectors with a value for every key. No sum
    /// may exceed the magnitude. Returns the sums of the keys that this rank owns. It is called
    /// only if [`Table::magnitude`] returns a number at all ranks.
    ///
    /// # Errors
    /// If the call fails.
    fn reduce_scatter(self, _comm: &Comm, _magnitude: u64) -> Result<Self, Error> {
        Ok(self)
    }
}
