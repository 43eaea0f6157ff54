//! Tables with any keys and values.

use super::{Table, Value};
use crate::error::{Error, Malformed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::{Entry, IntoIter, Iter};
use std::hash::Hasher;

/// Keys in order, each with a value. The FNV-1a hash of a key's bytes (in postcard's encoding)
/// determines its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed<K, V> {
    values: BTreeMap<K, V>,
}

impl<K, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new() }
    }
}

impl<K: Ord, V: Value> Keyed<K, V> {
    /// Creates a table without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key, or merges the value into the present value of the key, as a later one.
    pub fn add(&mut self, key: K, value: V) {
        match self.values.entry(key) {
            Entry::Occupied(mut known) => known.get_mut().merge(value),
            Entry::Vacant(new) => {
                new.insert(value);
            }
        }
    }

    /// Returns the value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.values.get(key)
    }

    /// Returns all keys in order, with their values.
    pub fn iter(&self) -> Iter<'_, K, V> {
        self.values.iter()
    }
}

impl<K, V> IntoIterator for Keyed<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        self.values.into_iter()
    }
}

impl<'a, K: Ord, V: Value> IntoIterator for &'a Keyed<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Ord, V: Value> FromIterator<(K, V)> for Keyed<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut table = Self::new();
        pairs.into_iter().for_each(|(key, value)| table.add(key, value));
        table
    }
}

impl<K: Ord + Serialize + DeserializeOwned + Send, V: Value> Table for Keyed<K, V> {
    const ANY_ORDER: bool = V::ANY_ORDER;

    fn empty(&self) -> Self {
        Self::new()
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn merge(&mut self, later: Self) {
        later.into_iter().for_each(|(key, value)| self.add(key, value));
    }

    fn to_bytes(&self, owners: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut pieces = vec![Vec::new(); owners];
        for (key, value) in &self.values {
            let key = postcard::to_allocvec(key).map_err(Error::Value)?;
            let piece = &mut pieces[owner(&key, owners)];
            piece.extend_from_slice(&key);
            *piece = postcard::to_extend(value, std::mem::take(piece)).map_err(Error::Value)?;
        }
        Ok(pieces)
    }

    fn merge_bytes(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let ((key, value), rest) = postcard::take_from_bytes::<(K, V)>(bytes)?;
            if rest.len() == bytes.len() {
                // Neither key nor value has bytes, so the loop would not end.
                return Err(Malformed::Form);
            }
            self.add(key, value);
            bytes = rest;
        }
        Ok(())
    }
}

/// Returns the number of a key's owner, which is below `owners`. It is computed from the FNV-1a
/// hash of the key's serialized bytes, so it is the same at all ranks.
pub fn owner(key: &[u8], owners: usize) -> usize {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(key);
    (hasher.finish() % owners as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{List, Sum};
    use proptest::prelude::*;

    type Words = Keyed<String, Sum<u64>>;

    proptest! {
        #[test]
        fn bytes_round_trip_for_any_number_of_owners(
            words in prop::collection::vec(("[a-z]{0,3}", 0u64..1000), 0..50),
            owners in 1usize..9,
        ) {
            let table: Words = words.into_iter().map(|(word, n)| (word, Sum(n))).collect();
            let pieces = table.to_bytes(owners).expect("bytes");
            let mut again = Words::new();
            for piece in &pieces {
                again.merge_bytes(piece).expect("a table");
            }
            prop_assert_eq!(again, table);
        }

        #[test]
        fn any_bytes_are_a_table_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut table = Keyed::<(u16, String), List<f32>>::new();
            let _ = table.merge_bytes(&bytes);
            let pieces = table.to_bytes(1).expect("bytes");
            let mut again = Keyed::<(u16, String), List<f32>>::new();
            again.merge_bytes(&pieces[0]).expect("what was read can be written");
            prop_assert_eq!(again.len(), table.len());
        }
    }

    #[test]
    fn a_prefix_of_a_table_is_refused_or_shorter() {
        let table: Words = [("rose".to_owned(), Sum(3))].into_iter().collect();
        let bytes = &table.to_bytes(1).expect("bytes")[0];
        for end in 1..bytes.len() {
            assert_eq!(Words::new().merge_bytes(&bytes[..end]), Err(Malformed::Short));
        }
    }
}
