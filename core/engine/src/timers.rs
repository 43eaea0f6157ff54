//! A queue of deadlines that returns the earliest one first.

use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Holds at most one deadline for each key.
#[derive(Debug)]
pub(crate) struct TimerQueue<K> {
    by_key: BTreeMap<K, Time>,
    by_time: BTreeSet<(Time, K)>,
}

impl<K: Copy + Ord> TimerQueue<K> {
    pub(crate) fn new() -> TimerQueue<K> {
        TimerQueue { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }

    /// Sets, moves or clears a deadline.
    pub(crate) fn set(&mut self, key: K, at: Option<Time>) {
        let before = match at {
            Some(at) => self.by_key.insert(key, at),
            None => self.by_key.remove(&key),
        };
        if before != at {
            if let Some(before) = before {
                self.by_time.remove(&(before, key));
            }
            if let Some(at) = at {
                self.by_time.insert((at, key));
            }
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes a deadline that has passed, and returns its key.
    pub(crate) fn due(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&(at, key));
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_deadline_expires_once_and_a_cleared_one_never() {
        let at = Time::from_nanos;
        let mut timers = TimerQueue::new();
        timers.set('a', Some(at(5)));
        timers.set('b', Some(at(3)));
        timers.set('c', Some(at(1)));
        timers.set('a', Some(at(2)));
        timers.set('c', None);
        assert_eq!(timers.next(), Some(at(2)));
        assert_eq!((timers.due(at(4)), timers.due(at(4)), timers.due(at(4))), (Some('a'), Some('b'), None));
        assert_eq!(timers.next(), None);
    }
}
