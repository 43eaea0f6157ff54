//! Rendezvous: collects ranks that find each other by a common key.
//!
//! Each rank knows only the key, its own rank and the size of the group. The caller forms the group
//! once all ranks have joined.

use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ranks in a group.
const MAX_RANKS: u32 = u16::MAX as u32;

/// Maximum number of waiting ranks, over all groups.
const MAX_WAITING: usize = 1 << 20;

/// Maximum length of a key.
const MAX_KEY_BYTES: usize = 1 << 8;

/// Maximum number of ranks that a message lists as missing.
const MAX_NAMED_RANKS: usize = 8;

/// Groups that still wait for ranks. `P` is a rank's location.
#[derive(Debug)]
pub(crate) struct Rendezvous<P> {
    by_key: BTreeMap<String, PendingRendezvous<P>>,
    /// The deadlines of all groups, so that the next one is found without a search.
    deadlines: BTreeSet<(Time, String)>,
    waiting: usize,
}

#[derive(Debug)]
struct PendingRendezvous<P> {
    size: u32,
    arrived: BTreeMap<u32, P>,
    deadline: Time,
}

/// A rank's request to join a group.
#[derive(Clone, Debug)]
pub(crate) struct Enlistment<P> {
    /// The key that all ranks of the group have in common.
    pub(crate) key: String,
    /// The rank's number in the group.
    pub(crate) rank: u32,
    /// Number of ranks in the group.
    pub(crate) size: u32,
    /// The rank's location.
    pub(crate) place: P,
    /// When the rank's timeout expires.
    pub(crate) deadline: Time,
}

/// A group that will not be formed, with the ranks that waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedRendezvous<P> {
    /// Its key.
    pub(crate) key: String,
    /// Locations of the ranks that had joined.
    pub(crate) places: Vec<P>,
    /// Why the group will not be formed, for messages.
    pub(crate) reason: String,
}

/// Why a request is refused. The other ranks continue to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnlistRefusal {
    /// The rank or the size is out of range.
    #[error("rank {rank} of {size}: a group has 1 to {MAX_RANKS} ranks, numbered from 0")]
    Rank {
        /// Its rank.
        rank: u32,
        /// The size that it gave.
        size: u32,
    },
    /// The rank gave another size than the ranks that joined earlier.
    #[error("rank {rank} gives {size} ranks for {key}, but rank {other} gives {others}")]
    Size {
        /// The key.
        key: String,
        /// Its rank.
        rank: u32,
        /// The size that it gave.
        size: u32,
        /// A rank that joined earlier.
        other: u32,
        /// The size that the earlier rank gave.
        others: u32,
    },
    /// Another process has already joined with this rank.
    #[error("two processes claim to be rank {rank} of {key}")]
    Twice {
        /// The key.
        key: String,
        /// The rank.
        rank: u32,
    },
    /// The key is empty or too long.
    #[error("the key has {0} bytes; it must have 1 to {MAX_KEY_BYTES}")]
    Key(usize),
    /// Too many ranks are already waiting.
    #[error("{MAX_WAITING} processes are already waiting for others; try again later")]
    Full,
}

impl<P> Default for Rendezvous<P> {
    fn default() -> Rendezvous<P> {
        Rendezvous { by_key: BTreeMap::new(), deadlines: BTreeSet::new(), waiting: 0 }
    }
}

impl<P> Rendezvous<P> {
    /// Adds a rank to its group. If all ranks have joined, returns their locations in rank order
    /// and forgets the group.
    ///
    /// # Errors
    /// Returns why the request is refused.
    pub(crate) fn enlist(&mut self, member: Enlistment<P>) -> Result<Option<Vec<P>>, EnlistRefusal> {
        let Enlistment { key, rank, size, place, deadline } = member;
        if rank >= size || size > MAX_RANKS {
            return Err(EnlistRefusal::Rank { rank, size });
        }
        if !(1..=MAX_KEY_BYTES).contains(&key.len()) {
            return Err(EnlistRefusal::Key(key.len()));
        }
        if self.waiting >= MAX_WAITING {
            return Err(EnlistRefusal::Full);
        }
        let gathering = self.by_key.entry(key.clone()).or_insert(PendingRendezvous {
            size,
            arrived: BTreeMap::new(),
            deadline,
        });
        if gathering.size != size {
            let other = gathering.arrived.keys().next().copied().unwrap_or_default();
            return Err(EnlistRefusal::Size { key, rank, size, other, others: gathering.size });
        }
        if gathering.arrived.contains_key(&rank) {
            return Err(EnlistRefusal::Twice { key, rank });
        }
        gathering.arrived.insert(rank, place);
        if gathering.arrived.len() == 1 {
            self.deadlines.insert((gathering.deadline, key.clone()));
        } else if deadline < gathering.deadline {
            self.deadlines.remove(&(gathering.deadline, key.clone()));
            self.deadlines.insert((deadline, key.clone()));
            gathering.deadline = deadline;
        }
        self.waiting += 1;
        if gathering.arrived.len() < size as usize {
            return Ok(None);
        }
        Ok(self.remove(&key).map(|gathering| gathering.arrived.into_values().collect()))
    }

    /// Removes a waiting rank. Its group then fails, because it can no longer become complete. Does
    /// nothing and returns `None` unless `is_here` returns true for the waiting rank's location.
    pub(crate) fn withdraw(
        &mut self,
        key: &str,
        rank: u32,
        is_here: impl Fn(&P) -> bool,
    ) -> Option<FailedRendezvous<P>> {
        self.by_key.get(key)?.arrived.get(&rank).filter(|place| is_here(place))?;
        let mut gathering = self.remove(key)?;
        gathering.arrived.remove(&rank);
        Some(gathering.failed(key, format!("rank {rank} of {key} left before all ranks had joined")))
    }

    /// Removes all waiting ranks at locations for which `gone` returns true. Returns the groups
    /// that fail because of this; `why` becomes part of their reason.
    pub(crate) fn lose(&mut self, why: &str, gone: impl Fn(&P) -> bool) -> Vec<FailedRendezvous<P>> {
        let lost = |gathering: &PendingRendezvous<P>| {
            gathering.arrived.iter().find(|(_, place)| gone(place)).map(|(rank, _)| *rank)
        };
        let keys: Vec<(String, u32)> =
            self.by_key.iter().filter_map(|(key, gathering)| Some((key.clone(), lost(gathering)?))).collect();
        let fail = |(key, rank): (String, u32)| {
            let mut gathering = self.remove(&key)?;
            gathering.arrived.retain(|_, place| !gone(place));
            Some(
                gathering
                    .failed(&key, format!("rank {rank} of {key} left before all ranks had joined: {why}")),
            )
        };
        keys.into_iter().filter_map(fail).collect()
    }

    /// Returns when [`Rendezvous::expire`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Removes and returns all groups past their deadline.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<FailedRendezvous<P>> {
        let late = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
        let keys: Vec<String> = late.map(|(_, key)| key.clone()).collect();
        let fail = |key: String| {
            let gathering = self.remove(&key)?;
            let reason = format!(
                "{} of {key} did not join in time; check that every rank was started",
                gathering.missing()
            );
            Some(gathering.failed(&key, reason))
        };
        keys.into_iter().filter_map(fail).collect()
    }

    fn remove(&mut self, key: &str) -> Option<PendingRendezvous<P>> {
        let gathering = self.by_key.remove(key)?;
        self.waiting -= gathering.arrived.len();
        self.deadlines.remove(&(gathering.deadline, key.to_owned()));
        Some(gathering)
    }
}

impl<P> PendingRendezvous<P> {
    fn failed(self, key: &str, reason: String) -> FailedRendezvous<P> {
        FailedRendezvous { key: key.to_owned(), places: self.arrived.into_values().collect(), reason }
    }

    fn missing(&self) -> String {
        let mut missing = (0..self.size).filter(|rank| !self.arrived.contains_key(rank));
        let named: Vec<String> =
            missing.by_ref().take(MAX_NAMED_RANKS).map(|rank| rank.to_string()).collect();
        match (named.len(), missing.count()) {
            (1, 0) => format!("rank {}", named[0]),
            (_, 0) => format!("ranks {}", named.join(", ")),
            (_, more) => format!("ranks {} and {more} more", named.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(key: &str, rank: u32, size: u32) -> Enlistment<u32> {
        let deadline = Time::from_nanos(u64::from(10 + rank));
        Enlistment { key: key.to_owned(), rank, size, place: 100 + rank, deadline }
    }

    #[test]
    fn the_last_rank_completes_its_group_and_no_other() {
        let mut rendezvous = Rendezvous::default();
        for (key, rank) in [("a", 2), ("b", 0), ("a", 0)] {
            assert_eq!(rendezvous.enlist(member(key, rank, 3)), Ok(None));
        }
        assert_eq!(rendezvous.enlist(member("a", 1, 3)), Ok(Some(vec![100, 101, 102])));
        assert_eq!(rendezvous.waiting, 1);
        // The key can be used again.
        assert_eq!(rendezvous.enlist(member("a", 0, 1)), Ok(Some(vec![100])));
    }

    #[test]
    fn an_enlistment_that_does_not_fit_is_refused_with_a_reason() {
        let mut rendezvous = Rendezvous::default();
        let mut refusal = |member: Enlistment<u32>| rendezvous.enlist(member).unwrap_err().to_string();
        assert!(refusal(member("a", 3, 3)).contains("rank 3 of 3"));
        assert!(refusal(member("", 0, 1)).contains("the key has 0 bytes"));
        assert!(refusal(member(&"x".repeat(300), 0, 1)).contains("300 bytes"));
        rendezvous.enlist(member("a", 1, 3)).unwrap();
        let mut refusal = |member: Enlistment<u32>| rendezvous.enlist(member).unwrap_err().to_string();
        assert_eq!(refusal(member("a", 0, 4)), "rank 0 gives 4 ranks for a, but rank 1 gives 3");
        assert_eq!(refusal(member("a", 1, 3)), "two processes claim to be rank 1 of a");
    }

    #[test]
    fn a_failed_rendezvous_names_the_missing_ranks() {
        let mut rendezvous = Rendezvous::default();
        for rank in [0, 1] {
            rendezvous.enlist(member("a", rank, 12)).unwrap();
            rendezvous.enlist(member("b", rank, 3)).unwrap();
        }
        assert_eq!(rendezvous.deadline(), Some(Time::from_nanos(10)));
        assert_eq!(rendezvous.withdraw("b", 2, |_| true), None);
        assert_eq!(rendezvous.withdraw("b", 1, |_| false), None);
        let failed = rendezvous.withdraw("b", 1, |place| *place == 101).unwrap();
        assert_eq!(
            (failed.places, failed.reason.as_str()),
            (vec![100], "rank 1 of b left before all ranks had joined")
        );
        assert_eq!(rendezvous.expire(Time::from_nanos(9)), []);
        let failed = rendezvous.expire(Time::from_nanos(10));
        assert_eq!(failed[0].places, [100, 101]);
        let text = "ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more of a did not join in time; check that every rank was started";
        assert_eq!(failed[0].reason, text);
        rendezvous.enlist(member("c", 4, 5)).unwrap();
        let failed = rendezvous.lose("node h1 left", |place| *place == 104);
        assert!(failed[0].places.is_empty() && failed[0].reason.ends_with("ranks had joined: node h1 left"));
        assert_eq!((rendezvous.waiting, rendezvous.deadline()), (0, None));
    }

    proptest! {
        #[test]
        fn waiting_ranks_are_counted_through_any_sequence(
            steps in prop::collection::vec((0u32..5, 0u32..5, 1u32..5, 0u8..3), 0..80)
        ) {
            let mut rendezvous = Rendezvous::default();
            for (key, rank, size, event) in steps {
                let key = key.to_string();
                match event {
                    0 => drop(rendezvous.withdraw(&key, rank, |_| true)),
                    _ => drop(rendezvous.enlist(member(&key, rank, size))),
                }
                prop_assert_eq!(rendezvous.waiting, rendezvous.by_key.values().map(|m| m.arrived.len()).sum::<usize>());
                // Every remaining group has at least one rank, and misses at least one.
                let deadlines = rendezvous.by_key.iter().map(|(key, m)| (m.deadline, key.clone()));
                prop_assert_eq!(&rendezvous.deadlines, &deadlines.collect());
                prop_assert!(rendezvous.by_key.values().all(|m| (1..m.size as usize).contains(&m.arrived.len())));
            }
        }
    }
}
