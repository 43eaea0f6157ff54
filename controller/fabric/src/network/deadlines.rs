//! A timer table with one deadline for each key.

use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Keys with their deadlines.
#[derive(Debug)]
pub(crate) struct Deadlines<K> {
    by_key: BTreeMap<K, Time>,
    by_time: BTreeSet<(Time, K)>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Deadlines<K> {
        Deadlines { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Copy + Ord> Deadlines<K> {
    /// Sets or moves the deadline of a key.
    pub(crate) fn set(&mut self, key: K, at: Time) {
        self.clear(key);
        self.by_key.insert(key, at);
        self.by_time.insert((at, key));
    }

    /// Removes the deadline of a key.
    pub(crate) fn clear(&mut self, key: K) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Removes and returns the key with the earliest deadline if that has passed.
    pub(crate) fn expired(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.clear(key);
        Some(key)
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Returns whether a key has a deadline.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    /// Returns the deadline of a key.
    pub(crate) fn next_of(&self, key: &K) -> Option<Time> {
        self.by_key.get(key).copied()
    }

    /// Returns whether no key has a deadline.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_time.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_machine::Duration;

    #[test]
    fn a_moved_or_cleared_deadline_does_not_expire() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut deadlines = Deadlines::default();
        for (key, seconds) in [('a', 3), ('b', 2), ('c', 1), ('a', 4)] {
            deadlines.set(key, at(seconds));
        }
        deadlines.clear('b');
        assert_eq!((deadlines.next(), deadlines.expired(at(0))), (Some(at(1)), None));
        assert_eq!([deadlines.expired(at(3)), deadlines.expired(at(3))], [Some('c'), None]);
        assert_eq!((deadlines.expired(at(4)), deadlines.is_empty()), (Some('a'), true));
    }
}
