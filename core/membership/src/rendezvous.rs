//! Who has come of groups whose members come by themselves, each from wherever it runs, knowing only a common key,
//! its rank and how many they are. What is done with those who have all come is left to the caller.

use cool_machine::Time;
use std::collections::BTreeMap;

/// The most members of one group.
const SIZE_MAX: u32 = u16::MAX as u32;

/// The most that may be waiting, over all groups.
const WAITING_MAX: usize = 1 << 20;

/// The longest key, in bytes.
const KEY_MAX: usize = 1 << 8;

/// How many ranks are named when some are missing.
const NAMED: usize = 8;

/// Groups that wait for members; `P` is where a member is.
#[derive(Debug)]
pub(crate) struct Rendezvous<P> {
    by_key: BTreeMap<String, Gathering<P>>,
    waiting: usize,
}

#[derive(Debug)]
struct Gathering<P> {
    size: u32,
    came: BTreeMap<u32, P>,
    deadline: Time,
}

/// A member as it comes.
#[derive(Clone, Debug)]
pub(crate) struct Member<P> {
    /// By what it finds the others.
    pub(crate) key: String,
    /// Its place among them.
    pub(crate) rank: u32,
    /// How many they are.
    pub(crate) size: u32,
    /// Where it is.
    pub(crate) place: P,
    /// When it will have waited for long enough.
    pub(crate) deadline: Time,
}

/// A group that will not be: why, and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed<P> {
    /// Its key.
    pub(crate) key: String,
    /// Where those wait who have come.
    pub(crate) places: Vec<P>,
    /// In words.
    pub(crate) reason: String,
}

/// Why a member is not taken. The others wait on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Its numbers make no sense.
    #[error("rank {rank} of {size}: a group has 1 to {SIZE_MAX} ranks, numbered from 0")]
    Rank {
        /// Its rank.
        rank: u32,
        /// The size it gave.
        size: u32,
    },
    /// It takes another size for granted than the others.
    #[error("rank {rank} says that {key} has {size} ranks, but rank {other} says {others}")]
    Size {
        /// The key.
        key: String,
        /// Its rank.
        rank: u32,
        /// The size it gave.
        size: u32,
        /// Who came before.
        other: u32,
        /// The size that one gave.
        others: u32,
    },
    /// The rank is taken.
    #[error("two processes say that they are rank {rank} of {key}")]
    Twice {
        /// The key.
        key: String,
        /// The rank.
        rank: u32,
    },
    /// The key is too long, or empty.
    #[error("a key of {0} bytes; it has 1 to {KEY_MAX}")]
    Key(usize),
    /// Too many wait already.
    #[error("{WAITING_MAX} processes wait for others already; try again later")]
    Full,
}

impl<P> Default for Rendezvous<P> {
    fn default() -> Rendezvous<P> {
        Rendezvous { by_key: BTreeMap::new(), waiting: 0 }
    }
}

impl<P> Rendezvous<P> {
    /// A member has come. If it was the last, the places of all in rank order; the group is then no longer
    /// waited for.
    ///
    /// # Errors
    /// If it does not fit.
    pub(crate) fn enlist(&mut self, member: Member<P>) -> Result<Option<Vec<P>>, Refusal> {
        let Member { key, rank, size, place, deadline } = member;
        if rank >= size || size > SIZE_MAX {
            return Err(Refusal::Rank { rank, size });
        }
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(Refusal::Key(key.len()));
        }
        if self.waiting >= WAITING_MAX {
            return Err(Refusal::Full);
        }
        let gathering =
            self.by_key.entry(key.clone()).or_insert(Gathering { size, came: BTreeMap::new(), deadline });
        if gathering.size != size {
            let other = gathering.came.keys().next().copied().unwrap_or_default();
            return Err(Refusal::Size { key, rank, size, other, others: gathering.size });
        }
        if gathering.came.contains_key(&rank) {
            return Err(Refusal::Twice { key, rank });
        }
        gathering.came.insert(rank, place);
        gathering.deadline = gathering.deadline.min(deadline);
        self.waiting += 1;
        if gathering.came.len() < size as usize {
            return Ok(None);
        }
        Ok(self.remove(&key).map(|gathering| gathering.came.into_values().collect()))
    }

    /// A member that waited is gone: the others wait in vain. Nothing happens if the one who waits is not `here`.
    pub(crate) fn withdraw(&mut self, key: &str, rank: u32, here: impl Fn(&P) -> bool) -> Option<Failed<P>> {
        self.by_key.get(key)?.came.get(&rank).filter(|place| here(place))?;
        let mut gathering = self.remove(key)?;
        gathering.came.remove(&rank);
        Some(gathering.failed(key, format!("rank {rank} of {key} has gone before all had come")))
    }

    /// All members at some places are gone, for this reason.
    pub(crate) fn lose(&mut self, why: &str, gone: impl Fn(&P) -> bool) -> Vec<Failed<P>> {
        let lost = |gathering: &Gathering<P>| {
            gathering.came.iter().find(|(_, place)| gone(place)).map(|(rank, _)| *rank)
        };
        let keys: Vec<(String, u32)> =
            self.by_key.iter().filter_map(|(key, gathering)| Some((key.clone(), lost(gathering)?))).collect();
        let fail = |(key, rank): (String, u32)| {
            let mut gathering = self.remove(&key)?;
            gathering.came.retain(|_, place| !gone(place));
            Some(gathering.failed(&key, format!("rank {rank} of {key} has gone before all had come: {why}")))
        };
        keys.into_iter().filter_map(fail).collect()
    }

    /// When to ask for those that are [`Rendezvous::overdue`] next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.by_key.values().map(|gathering| gathering.deadline).min()
    }

    /// Groups that have waited for long enough.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Failed<P>> {
        let late = self.by_key.iter().filter(|(_, gathering)| gathering.deadline <= now);
        let keys: Vec<String> = late.map(|(key, _)| key.clone()).collect();
        let fail = |key: String| {
            let gathering = self.remove(&key)?;
            let reason = format!("{} of {key} did not come in time; were they started?", gathering.missing());
            Some(gathering.failed(&key, reason))
        };
        keys.into_iter().filter_map(fail).collect()
    }

    fn remove(&mut self, key: &str) -> Option<Gathering<P>> {
        let gathering = self.by_key.remove(key)?;
        self.waiting -= gathering.came.len();
        Some(gathering)
    }
}

impl<P> Gathering<P> {
    fn failed(self, key: &str, reason: String) -> Failed<P> {
        Failed { key: key.to_owned(), places: self.came.into_values().collect(), reason }
    }

    fn missing(&self) -> String {
        let mut missing = (0..self.size).filter(|rank| !self.came.contains_key(rank));
        let named: Vec<String> = missing.by_ref().take(NAMED).map(|rank| rank.to_string()).collect();
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

    fn member(key: &str, rank: u32, size: u32) -> Member<u32> {
        let deadline = Time::from_nanos(u64::from(10 + rank));
        Member { key: key.to_owned(), rank, size, place: 100 + rank, deadline }
    }

    #[test]
    fn the_last_to_come_completes_its_group_and_no_other() {
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
    fn who_does_not_fit_is_refused_in_words() {
        let mut rendezvous = Rendezvous::default();
        let mut refusal = |member: Member<u32>| rendezvous.enlist(member).unwrap_err().to_string();
        assert!(refusal(member("a", 3, 3)).contains("rank 3 of 3"));
        assert!(refusal(member("", 0, 1)).contains("a key of 0 bytes"));
        assert!(refusal(member(&"x".repeat(300), 0, 1)).contains("300 bytes"));
        rendezvous.enlist(member("a", 1, 3)).unwrap();
        let mut refusal = |member: Member<u32>| rendezvous.enlist(member).unwrap_err().to_string();
        assert_eq!(refusal(member("a", 0, 4)), "rank 0 says that a has 4 ranks, but rank 1 says 3");
        assert_eq!(refusal(member("a", 1, 3)), "two processes say that they are rank 1 of a");
    }

    #[test]
    fn those_who_wait_in_vain_are_told_for_whom() {
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
            (vec![100], "rank 1 of b has gone before all had come")
        );
        assert_eq!(rendezvous.overdue(Time::from_nanos(9)), []);
        let failed = rendezvous.overdue(Time::from_nanos(10));
        assert_eq!(failed[0].places, [100, 101]);
        let text = "ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more of a did not come in time; were they started?";
        assert_eq!(failed[0].reason, text);
        rendezvous.enlist(member("c", 4, 5)).unwrap();
        let failed = rendezvous.lose("node h1 left", |place| *place == 104);
        assert!(failed[0].places.is_empty() && failed[0].reason.ends_with("all had come: node h1 left"));
        assert_eq!((rendezvous.waiting, rendezvous.deadline()), (0, None));
    }

    proptest! {
        #[test]
        fn whatever_comes_and_goes_those_who_wait_are_counted(
            steps in prop::collection::vec((0u32..5, 0u32..5, 1u32..5, 0u8..3), 0..80)
        ) {
            let mut rendezvous = Rendezvous::default();
            for (key, rank, size, what) in steps {
                let key = key.to_string();
                match what {
                    0 => drop(rendezvous.withdraw(&key, rank, |_| true)),
                    _ => drop(rendezvous.enlist(member(&key, rank, size))),
                }
                prop_assert_eq!(rendezvous.waiting, rendezvous.by_key.values().map(|m| m.came.len()).sum::<usize>());
                // No group is left that has all its members, or none.
                prop_assert!(rendezvous.by_key.values().all(|m| (1..m.size as usize).contains(&m.came.len())));
            }
        }
    }
}
