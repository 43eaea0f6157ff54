//! Values of keys, and how two values of one key are merged.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// The value of a key. Its encoding must depend on the value only. For example, it must not contain
/// a `HashMap`, because the elements of one have no fixed order.
pub trait Value: Serialize + DeserializeOwned + Send {
    /// Whether merges in any order and grouping give the same bits; see
    /// [`Table::ANY_ORDER`](crate::Table::ANY_ORDER).
    const ANY_ORDER: bool;

    /// Merges the value of later partitions into this one.
    fn merge(&mut self, later: Self);
}

/// A sum. Integers wrap on overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Sum<T>(pub T);

/// The minimum.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Min<T>(pub T);

/// The maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct Max<T>(pub T);

/// A list of all values, in the order of partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct List<T>(pub Vec<T>);

macro_rules! sums {
    ($any_order:literal, $add:ident; $($number:ty),*) => {$(
        impl Value for Sum<$number> {
            const ANY_ORDER: bool = $any_order;

            fn merge(&mut self, later: Self) {
                self.0 = self.0.$add(later.0);
            }
        }
    )*};
}

sums!(true, wrapping_add; i8, i16, i32, i64, i128, u8, u16, u32, u64, u128);
sums!(false, add; f32, f64);

impl<T: Ord + Serialize + DeserializeOwned + Send> Value for Min<T> {
    const ANY_ORDER: bool = true;

    fn merge(&mut self, later: Self) {
        if later.0 < self.0 {
            *self = later;
        }
    }
}

impl<T: Ord + Serialize + DeserializeOwned + Send> Value for Max<T> {
    const ANY_ORDER: bool = true;

    fn merge(&mut self, later: Self) {
        if later.0 > self.0 {
            *self = later;
        }
    }
}

impl<T: Serialize + DeserializeOwned + Send> Value for List<T> {
    const ANY_ORDER: bool = false;

    fn merge(&mut self, mut later: Self) {
        self.0.append(&mut later.0);
    }
}
