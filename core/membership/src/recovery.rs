//! Who is left of groups that lost ranks. Those who are still there meet: when all have come who are not known to be
//! gone, or when the time is over, it is decided once, for all of them alike, who is gone. So is somebody whom the
//! others cannot reach: each says whom it misses. What is made of it is left to the caller.

use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet};

/// Groups of which somebody is gone or waits; `P` is where a survivor is.
#[derive(Debug)]
pub(crate) struct Recovery<P> {
    groups: BTreeMap<u64, Group<P>>,
}

#[derive(Debug)]
struct Group<P> {
    size: u32,
    /// Those who are gone stay gone, also if they come back.
    gone: BTreeSet<u32>,
    meeting: Option<Meeting<P>>,
}

/// A group has one meeting at a time: who comes waits until it is over.
#[derive(Debug)]
struct Meeting<P> {
    came: BTreeMap<u32, Came<P>>,
    deadline: Time,
}

#[derive(Debug)]
struct Came<P> {
    purpose: Purpose,
    place: P,
    misses: BTreeSet<u32>,
}

/// What survivors meet for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To have the bitwise and of what each gives.
    Agree(u64),
    /// To be a new group.
    Shrink,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Purpose::Agree(_) => "agree",
            Purpose::Shrink => "shrink",
        }
    }

    /// What two of the same purpose have in common.
    fn and(self, other: Purpose) -> Purpose {
        match (self, other) {
            (Purpose::Agree(a), Purpose::Agree(b)) => Purpose::Agree(a & b),
            _ => self,
        }
    }
}

/// A survivor as it comes.
#[derive(Clone, Debug)]
pub(crate) struct Survivor<P> {
    /// Its group, and how many ranks that had at first.
    pub(crate) group: (u64, u32),
    /// Its rank there.
    pub(crate) rank: u32,
    /// What it came for.
    pub(crate) purpose: Purpose,
    /// Where it is.
    pub(crate) place: P,
    /// When it will have waited for long enough.
    pub(crate) deadline: Time,
    /// Ranks whose nodes it cannot reach.
    pub(crate) misses: Vec<u32>,
}

/// What survivors have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met<P> {
    /// Their group.
    pub(crate) group: u64,
    /// What for; the and of all numbers.
    pub(crate) purpose: Purpose,
    /// Who came, in the order of ranks.
    pub(crate) came: BTreeMap<u32, P>,
    /// Everybody else.
    pub(crate) gone: Vec<u32>,
    /// Those of the gone who came, too, but cannot reach the others.
    pub(crate) cut_off: BTreeMap<u32, P>,
}

/// Why a survivor is not let in. The others wait on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is no such rank.
    #[error("group {group} has no rank {rank}")]
    Rank {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// The others go on without it.
    #[error(
        "rank {rank} counts as gone from group {group}: it did not come in time, was lost, or could not be reached; the others go on without it"
    )]
    Gone {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// It is there already.
    #[error("rank {rank} of group {group} waits for the other survivors already")]
    Twice {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// The others came for something else.
    #[error(
        "rank {rank} called {what}, but rank {other} called {others}; survivors of group {group} must make the same calls"
    )]
    Purpose {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
        /// What it called.
        what: &'static str,
        /// Who came before.
        other: u32,
        /// What that one called.
        others: &'static str,
    },
}

impl<P> Default for Recovery<P> {
    fn default() -> Recovery<P> {
        Recovery { groups: BTreeMap::new() }
    }
}

impl<P> Recovery<P> {
    /// A survivor has come. What they have agreed on, if it was the last.
    ///
    /// # Errors
    /// If it cannot take part.
    pub(crate) fn come(&mut self, survivor: Survivor<P>) -> Result<Option<Met<P>>, Refusal> {
        let (id, size) = survivor.group;
        let group = self.groups.entry(id).or_insert_with(|| Group::new(size));
        let came = group.take(survivor);
        came.map(|()| self.settle(id)).inspect_err(|_| self.forget_if_idle(id))
    }

    /// A rank of a group, which had `size` ranks at first, is gone. What the others have agreed on, if they waited only
    /// for that one.
    pub(crate) fn lose(&mut self, (id, size): (u64, u32), rank: u32) -> Option<Met<P>> {
        let group = self.groups.entry(id).or_insert_with(|| Group::new(size));
        if rank < group.size {
            group.gone.insert(rank);
        }
        if let Some(meeting) = &mut group.meeting {
            meeting.came.remove(&rank);
            if meeting.came.is_empty() {
                group.meeting = None;
            }
        }
        let met = self.settle(id);
        self.forget_if_idle(id);
        met
    }

    /// When to ask for those who are [`Recovery::overdue`] next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.groups.values().filter_map(|group| Some(group.meeting.as_ref()?.deadline)).min()
    }

    /// Ends the meetings that have lasted for long enough: who has not come counts as gone.
    pub(crate) fn overdue(&mut self, now: Time) -> Vec<Met<P>> {
        let late = |group: &Group<P>| group.meeting.as_ref().is_some_and(|meeting| meeting.deadline <= now);
        let ids: Vec<u64> = self.groups.iter().filter(|(_, group)| late(group)).map(|(id, _)| *id).collect();
        let end = |id: u64| {
            let group = self.groups.get_mut(&id)?;
            let came = &group.meeting.as_ref()?.came;
            group.gone = (0..group.size).filter(|rank| !came.contains_key(rank)).collect();
            self.settle(id)
        };
        ids.into_iter().filter_map(end).collect()
    }

    /// Forgets the groups that are not there any more; whoever still waits in them waits in vain.
    pub(crate) fn retain(&mut self, there: impl Fn(u64) -> bool) -> Vec<(u64, BTreeMap<u32, P>)> {
        let over: Vec<u64> = self.groups.keys().copied().filter(|id| !there(*id)).collect();
        let waits = |id: u64| Some((id, places(self.groups.remove(&id)?.meeting?.came)));
        over.into_iter().filter_map(waits).collect()
    }

    fn settle(&mut self, id: u64) -> Option<Met<P>> {
        let group = self.groups.get_mut(&id)?;
        if !group.is_complete() {
            return None;
        }
        let Meeting { mut came, .. } = group.meeting.take()?;
        group.gone.extend((0..group.size).filter(|rank| !came.contains_key(rank)));
        let mut cut_off = BTreeMap::new();
        while let Some(rank) = most_missed(&came) {
            group.gone.insert(rank);
            cut_off.extend(came.remove(&rank).map(|came| (rank, came.place)));
        }
        let purpose = came.values().map(|came| came.purpose).reduce(Purpose::and)?;
        Some(Met {
            group: id,
            purpose,
            came: places(came),
            gone: group.gone.iter().copied().collect(),
            cut_off,
        })
    }

    /// Nothing need be known of a group that is whole.
    fn forget_if_idle(&mut self, id: u64) {
        if self.groups.get(&id).is_some_and(|group| group.meeting.is_none() && group.gone.is_empty()) {
            self.groups.remove(&id);
        }
    }
}

impl<P> Group<P> {
    fn new(size: u32) -> Group<P> {
        Group { size, gone: BTreeSet::new(), meeting: None }
    }

    fn take(&mut self, survivor: Survivor<P>) -> Result<(), Refusal> {
        let Survivor { group: (group, _), rank, purpose, place, deadline, misses } = survivor;
        if rank >= self.size {
            return Err(Refusal::Rank { group, rank });
        }
        if self.gone.contains(&rank) {
            return Err(Refusal::Gone { group, rank });
        }
        let meeting = self.meeting.get_or_insert_with(|| Meeting { came: BTreeMap::new(), deadline });
        if meeting.came.contains_key(&rank) {
            return Err(Refusal::Twice { group, rank });
        }
        if let Some((other, theirs)) = meeting.came.first_key_value()
            && purpose.name() != theirs.purpose.name()
        {
            let (what, other, others) = (purpose.name(), *other, theirs.purpose.name());
            return Err(Refusal::Purpose { group, rank, what, other, others });
        }
        let misses = misses.into_iter().filter(|missed| *missed != rank).collect();
        meeting.came.insert(rank, Came { purpose, place, misses });
        meeting.deadline = meeting.deadline.min(deadline);
        Ok(())
    }

    /// Whether nobody need be waited for: all others are known to be gone, or missed by most.
    fn is_complete(&self) -> bool {
        let Some(Meeting { came, .. }) = &self.meeting else { return false };
        let left = self.size as usize - self.gone.len();
        let missed = |rank: &u32| 2 * came.values().filter(|came| came.misses.contains(rank)).count() > left;
        (0..self.size).all(|rank| self.gone.contains(&rank) || came.contains_key(&rank) || missed(&rank))
    }
}

/// Of those who came, who is missed by most others of them; of several, the last. Nobody if all can reach each other.
fn most_missed<P>(came: &BTreeMap<u32, Came<P>>) -> Option<u32> {
    let missed_by = |rank: &u32| came.values().filter(|came| came.misses.contains(rank)).count();
    let missed = came.keys().map(|rank| (missed_by(rank), *rank)).filter(|(by, _)| *by > 0);
    missed.max().map(|(_, rank)| rank)
}

fn places<P>(came: BTreeMap<u32, Came<P>>) -> BTreeMap<u32, P> {
    came.into_iter().map(|(rank, came)| (rank, came.place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn comes(rank: u32, purpose: Purpose) -> Survivor<u32> {
        let deadline = Time::from_nanos(u64::from(10 + rank));
        Survivor { group: (7, 4), rank, purpose, place: 100 + rank, deadline, misses: Vec::new() }
    }

    /// One that cannot reach these.
    fn misses(rank: u32, misses: &[u32]) -> Survivor<u32> {
        Survivor { misses: misses.to_vec(), ..comes(rank, Purpose::Shrink) }
    }

    fn ranks(met: &Met<u32>) -> Vec<u32> {
        met.came.keys().copied().collect()
    }

    #[test]
    fn a_meeting_is_over_when_all_have_come_who_are_not_gone() {
        let mut recovery = Recovery::default();
        assert_eq!(recovery.lose((7, 4), 2), None);
        assert_eq!(recovery.come(comes(3, Purpose::Agree(0b110))), Ok(None));
        assert_eq!(recovery.come(comes(0, Purpose::Agree(0b011))), Ok(None));
        let met = recovery.come(comes(1, Purpose::Agree(0b111))).unwrap().unwrap();
        assert_eq!((met.purpose, met.gone.as_slice()), (Purpose::Agree(0b010), &[2][..]));
        assert_eq!(met.came, BTreeMap::from([(0, 100), (1, 101), (3, 103)]));
        // The next one goes on without the same ones.
        assert_eq!(recovery.come(comes(0, Purpose::Shrink)), Ok(None));
        assert_eq!(recovery.come(comes(1, Purpose::Shrink)), Ok(None));
        let met = recovery.lose((7, 4), 3).unwrap();
        assert_eq!((met.purpose, ranks(&met), met.gone), (Purpose::Shrink, vec![0, 1], vec![2, 3]));
    }

    #[test]
    fn who_does_not_come_in_time_is_gone_and_is_told_so_when_it_comes() {
        let mut recovery = Recovery::default();
        for rank in [1, 2] {
            assert_eq!(recovery.come(comes(rank, Purpose::Shrink)), Ok(None));
        }
        assert_eq!(recovery.deadline(), Some(Time::from_nanos(11)));
        assert_eq!(recovery.overdue(Time::from_nanos(10)), []);
        let met = recovery.overdue(Time::from_nanos(11));
        assert_eq!((ranks(&met[0]), met[0].gone.as_slice()), (vec![1, 2], &[0, 3][..]));
        assert_eq!(recovery.deadline(), None);
        let late = recovery.come(comes(0, Purpose::Shrink));
        assert_eq!(late, Err(Refusal::Gone { group: 7, rank: 0 }));
    }

    #[test]
    fn who_is_missed_by_most_is_not_waited_for() {
        let mut recovery = Recovery::default();
        assert_eq!(recovery.come(misses(0, &[3])), Ok(None));
        assert_eq!(recovery.come(misses(1, &[3])), Ok(None));
        let met = recovery.come(misses(2, &[3])).unwrap().unwrap();
        assert_eq!((ranks(&met), met.gone, met.cut_off), (vec![0, 1, 2], vec![3], BTreeMap::new()));
        // Comes back, and has missed nobody.
        assert_eq!(recovery.come(misses(3, &[])), Err(Refusal::Gone { group: 7, rank: 3 }));
    }

    #[test]
    fn whoever_is_cut_off_cannot_exclude_the_others() {
        // All orders in which they may come: 3 cannot reach anybody.
        for first in 0..4 {
            let mut recovery = Recovery::default();
            let mut met = None;
            for rank in (0..4).map(|i| (first + i) % 4) {
                let cannot: &[u32] = if rank == 3 { &[0, 1, 2] } else { &[3] };
                match recovery.come(misses(rank, cannot)) {
                    Ok(now) => met = met.or(now),
                    Err(refusal) => assert_eq!((rank, refusal), (3, Refusal::Gone { group: 7, rank: 3 })),
                }
            }
            let met = met.unwrap();
            assert_eq!((ranks(&met), met.gone), (vec![0, 1, 2], vec![3]));
        }
    }

    #[test]
    fn of_two_that_cannot_reach_each_other_the_first_goes_on() {
        let mut recovery = Recovery::default();
        for (rank, other) in [(3, &[][..]), (2, &[1]), (1, &[2])] {
            assert_eq!(recovery.come(misses(rank, other)), Ok(None));
        }
        let met = recovery.come(misses(0, &[])).unwrap().unwrap();
        assert_eq!((ranks(&met), met.gone), (vec![0, 1, 3], vec![2]));
        assert_eq!(met.cut_off, BTreeMap::from([(2, 102)]));
    }

    #[test]
    fn who_cannot_take_part_is_refused_in_words() {
        let mut recovery = Recovery::default();
        recovery.come(comes(1, Purpose::Agree(1))).unwrap();
        let mut refusal = |rank, purpose| recovery.come(comes(rank, purpose)).unwrap_err().to_string();
        assert_eq!(refusal(9, Purpose::Shrink), "group 7 has no rank 9");
        assert!(refusal(1, Purpose::Agree(1)).contains("rank 1 of group 7 waits"));
        assert!(refusal(0, Purpose::Shrink).starts_with("rank 0 called shrink, but rank 1 called agree"));
    }

    #[test]
    fn groups_that_are_whole_or_released_are_forgotten() {
        let mut recovery = Recovery::<u32>::default();
        assert!(recovery.come(Survivor { group: (1, 0), ..comes(0, Purpose::Shrink) }).is_err());
        recovery.lose((2, 2), 2);
        assert!(recovery.groups.is_empty());
        recovery.come(comes(3, Purpose::Shrink)).unwrap();
        recovery.lose((3, 2), 1);
        assert_eq!(recovery.retain(|_| false), [(7, BTreeMap::from([(3, 103)]))]);
        assert!(recovery.groups.is_empty());
    }

    proptest! {
        #[test]
        fn everybody_who_waits_is_told_once_and_the_gone_only_grow(
            steps in prop::collection::vec((0u32..4, 0u8..4), 0..60)
        ) {
            let mut recovery = Recovery::default();
            let mut waiting = BTreeSet::new();
            let mut gone = BTreeSet::new();
            for (rank, what) in steps {
                let met = match what {
                    0 => {
                        waiting.remove(&rank);
                        recovery.lose((7, 4), rank).into_iter().collect()
                    }
                    1 => recovery.overdue(Time::from_nanos(u64::MAX)),
                    _ => match recovery.come(comes(rank, Purpose::Shrink)) {
                        Ok(met) => {
                            waiting.insert(rank);
                            met.into_iter().collect()
                        }
                        Err(_) => continue,
                    },
                };
                for met in met {
                    let came: BTreeSet<u32> = met.came.keys().copied().collect();
                    prop_assert_eq!(&came, &std::mem::take(&mut waiting));
                    let now: BTreeSet<u32> = met.gone.iter().copied().collect();
                    prop_assert!(now.is_superset(&gone) && now.is_disjoint(&came));
                    prop_assert_eq!(now.len() + came.len(), 4);
                    gone = now;
                }
            }
        }
    }
}
