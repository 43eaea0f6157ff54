//! Recovery of groups that lost ranks: the survivors agree on which ranks are lost.
//!
//! A round completes when every rank of the group has either arrived or is known to be lost, or
//! when its deadline has passed. The result is computed once, so that it is the same for all
//! survivors. A rank that the others cannot reach also counts as lost; each survivor reports the
//! ranks that it cannot reach. The caller decides how to use the result.

use cool_machine::Time;
use std::collections::{BTreeMap, BTreeSet};

/// All groups that have lost ranks or have waiting survivors. `P` is a survivor's location.
#[derive(Debug)]
pub(crate) struct RecoveryRounds<P> {
    groups: BTreeMap<u64, DamagedGroup<P>>,
}

#[derive(Debug)]
struct DamagedGroup<P> {
    size: u32,
    /// Lost ranks. A rank stays lost even if it returns.
    lost: BTreeSet<u32>,
    round: Option<Round<P>>,
}

/// The current round of a group, which has at most one. Each rank that arrives waits until it ends.
#[derive(Debug)]
struct Round<P> {
    arrivals: BTreeMap<u32, SurvivorArrival<P>>,
    deadline: Time,
}

#[derive(Debug)]
struct SurvivorArrival<P> {
    purpose: RecoveryPurpose,
    place: P,
    unreachable: BTreeSet<u32>,
}

/// The operation for which survivors wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryPurpose {
    /// Compute the bitwise AND of the flags that the survivors pass.
    Agree(u64),
    /// Form a new group of the survivors.
    Shrink,
}

impl RecoveryPurpose {
    fn name(self) -> &'static str {
        match self {
            RecoveryPurpose::Agree(_) => "agree",
            RecoveryPurpose::Shrink => "shrink",
        }
    }

    /// Combines the flags of two ranks with the same purpose.
    fn and(self, other: RecoveryPurpose) -> RecoveryPurpose {
        match (self, other) {
            (RecoveryPurpose::Agree(a), RecoveryPurpose::Agree(b)) => RecoveryPurpose::Agree(a & b),
            _ => self,
        }
    }
}

/// A survivor that joins a round.
#[derive(Clone, Debug)]
pub(crate) struct Survivor<P> {
    /// Its group, and that group's number of ranks when it was formed.
    pub(crate) group: (u64, u32),
    /// Its rank in that group.
    pub(crate) rank: u32,
    /// The operation that it called.
    pub(crate) purpose: RecoveryPurpose,
    /// Its location.
    pub(crate) place: P,
    /// When its timeout expires.
    pub(crate) deadline: Time,
    /// Ranks on nodes that its node cannot reach.
    pub(crate) unreachable: Vec<u32>,
}

/// Result of a completed round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoundResult<P> {
    /// The survivors' group.
    pub(crate) group: u64,
    /// The operation, with the combined flags of all survivors.
    pub(crate) purpose: RecoveryPurpose,
    /// The survivors, by rank.
    pub(crate) survivors: BTreeMap<u32, P>,
    /// All other ranks of the group.
    pub(crate) lost: Vec<u32>,
    /// Lost ranks that arrived but cannot reach the survivors.
    pub(crate) cut_off: BTreeMap<u32, P>,
}

/// Why a rank cannot join a round. The other ranks continue to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecoveryRefusal {
    /// The group has no such rank.
    #[error("group {group} has no rank {rank}")]
    NoSuchRank {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// The survivors continue without this rank.
    #[error(
        "rank {rank} counts as lost from group {group}: it arrived too late, failed or could not be reached; the other ranks continue without it"
    )]
    Lost {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// The rank is already waiting.
    #[error("rank {rank} of group {group} is already waiting for the other survivors")]
    Twice {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
    },
    /// The waiting ranks called another operation.
    #[error(
        "rank {rank} called {called}, but rank {other} called {other_called}; survivors of group {group} must make the same calls"
    )]
    OtherPurpose {
        /// The group.
        group: u64,
        /// The rank.
        rank: u32,
        /// The operation that the rank called.
        called: &'static str,
        /// A rank that arrived earlier.
        other: u32,
        /// The operation that the earlier rank called.
        other_called: &'static str,
    },
}

impl<P> Default for RecoveryRounds<P> {
    fn default() -> RecoveryRounds<P> {
        RecoveryRounds { groups: BTreeMap::new() }
    }
}

impl<P> RecoveryRounds<P> {
    /// Adds a survivor to the current round of its group. Returns the result if it was the last
    /// rank that the round waited for.
    ///
    /// # Errors
    /// Returns why the survivor cannot take part.
    pub(crate) fn arrive(
        &mut self,
        survivor: Survivor<P>,
    ) -> Result<Option<RoundResult<P>>, RecoveryRefusal> {
        let (id, size) = survivor.group;
        let group = self.groups.entry(id).or_insert_with(|| DamagedGroup::new(size));
        let joined = group.add(survivor);
        joined.map(|()| self.settle(id)).inspect_err(|_| self.forget_if_idle(id))
    }

    /// Records the loss of a rank of a group that was formed with `size` ranks. Returns the result
    /// of the current round if it waited only for that rank.
    pub(crate) fn lose(&mut self, (id, size): (u64, u32), rank: u32) -> Option<RoundResult<P>> {
        let group = self.groups.entry(id).or_insert_with(|| DamagedGroup::new(size));
        if rank < group.size {
            group.lost.insert(rank);
        }
        if let Some(round) = &mut group.round {
            round.arrivals.remove(&rank);
            if round.arrivals.is_empty() {
                group.round = None;
            }
        }
        let met = self.settle(id);
        self.forget_if_idle(id);
        met
    }

    /// Returns when [`RecoveryRounds::expire`] must be called next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.groups.values().filter_map(|group| Some(group.round.as_ref()?.deadline)).min()
    }

    /// Ends all rounds past their deadline. Ranks that have not arrived count as lost.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<RoundResult<P>> {
        let late = |group: &DamagedGroup<P>| group.round.as_ref().is_some_and(|round| round.deadline <= now);
        let ids: Vec<u64> = self.groups.iter().filter(|(_, group)| late(group)).map(|(id, _)| *id).collect();
        let end = |id: u64| {
            let group = self.groups.get_mut(&id)?;
            let arrivals = &group.round.as_ref()?.arrivals;
            group.lost = (0..group.size).filter(|rank| !arrivals.contains_key(rank)).collect();
            self.settle(id)
        };
        ids.into_iter().filter_map(end).collect()
    }

    /// Drops the groups for which `there` returns false. Returns the survivors that were waiting in
    /// each of them, because their rounds can no longer complete.
    pub(crate) fn retain(&mut self, there: impl Fn(u64) -> bool) -> Vec<(u64, BTreeMap<u32, P>)> {
        let over: Vec<u64> = self.groups.keys().copied().filter(|id| !there(*id)).collect();
        let waits = |id: u64| Some((id, places(self.groups.remove(&id)?.round?.arrivals)));
        over.into_iter().filter_map(waits).collect()
    }

    fn settle(&mut self, id: u64) -> Option<RoundResult<P>> {
        let group = self.groups.get_mut(&id)?;
        if !group.is_complete() {
            return None;
        }
        let Round { mut arrivals, .. } = group.round.take()?;
        group.lost.extend((0..group.size).filter(|rank| !arrivals.contains_key(rank)));
        let mut cut_off = BTreeMap::new();
        while let Some(rank) = least_reachable(&arrivals) {
            group.lost.insert(rank);
            cut_off.extend(arrivals.remove(&rank).map(|arrival| (rank, arrival.place)));
        }
        let purpose = arrivals.values().map(|arrival| arrival.purpose).reduce(RecoveryPurpose::and)?;
        Some(RoundResult {
            group: id,
            purpose,
            survivors: places(arrivals),
            lost: group.lost.iter().copied().collect(),
            cut_off,
        })
    }

    /// Drops the entry of a group without losses and without a round, because it holds no
    /// information.
    fn forget_if_idle(&mut self, id: u64) {
        if self.groups.get(&id).is_some_and(|group| group.round.is_none() && group.lost.is_empty()) {
            self.groups.remove(&id);
        }
    }
}

impl<P> DamagedGroup<P> {
    fn new(size: u32) -> DamagedGroup<P> {
        DamagedGroup { size, lost: BTreeSet::new(), round: None }
    }

    fn add(&mut self, survivor: Survivor<P>) -> Result<(), RecoveryRefusal> {
        let Survivor { group: (group, _), rank, purpose, place, deadline, unreachable } = survivor;
        if rank >= self.size {
            return Err(RecoveryRefusal::NoSuchRank { group, rank });
        }
        if self.lost.contains(&rank) {
            return Err(RecoveryRefusal::Lost { group, rank });
        }
        let round = self.round.get_or_insert_with(|| Round { arrivals: BTreeMap::new(), deadline });
        if round.arrivals.contains_key(&rank) {
            return Err(RecoveryRefusal::Twice { group, rank });
        }
        if let Some((other, theirs)) = round.arrivals.first_key_value()
            && purpose.name() != theirs.purpose.name()
        {
            let (called, other, other_called) = (purpose.name(), *other, theirs.purpose.name());
            return Err(RecoveryRefusal::OtherPurpose { group, rank, called, other, other_called });
        }
        let unreachable = unreachable.into_iter().filter(|other| *other != rank).collect();
        round.arrivals.insert(rank, SurvivorArrival { purpose, place, unreachable });
        round.deadline = round.deadline.min(deadline);
        Ok(())
    }

    /// Returns whether the round has nothing to wait for: every rank that has not arrived is known
    /// to be lost, or more than half of the remaining ranks cannot reach it.
    fn is_complete(&self) -> bool {
        let Some(Round { arrivals, .. }) = &self.round else { return false };
        let remaining = self.size as usize - self.lost.len();
        let is_unreachable = |rank: &u32| {
            2 * arrivals.values().filter(|arrival| arrival.unreachable.contains(rank)).count() > remaining
        };
        (0..self.size)
            .all(|rank| self.lost.contains(&rank) || arrivals.contains_key(&rank) || is_unreachable(&rank))
    }
}

/// Returns the rank that the largest number of arrived ranks cannot reach, or `None` if all can
/// reach each other. Of several such ranks, it returns the highest.
fn least_reachable<P>(arrivals: &BTreeMap<u32, SurvivorArrival<P>>) -> Option<u32> {
    let unreachable_from =
        |rank: &u32| arrivals.values().filter(|arrival| arrival.unreachable.contains(rank)).count();
    let ranks = arrivals.keys().map(|rank| (unreachable_from(rank), *rank)).filter(|(by, _)| *by > 0);
    ranks.max().map(|(_, rank)| rank)
}

fn places<P>(arrivals: BTreeMap<u32, SurvivorArrival<P>>) -> BTreeMap<u32, P> {
    arrivals.into_iter().map(|(rank, arrival)| (rank, arrival.place)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arriving(rank: u32, purpose: RecoveryPurpose) -> Survivor<u32> {
        let deadline = Time::from_nanos(u64::from(10 + rank));
        Survivor { group: (7, 4), rank, purpose, place: 100 + rank, deadline, unreachable: Vec::new() }
    }

    /// Returns a survivor that cannot reach these ranks.
    fn cut_off(rank: u32, unreachable: &[u32]) -> Survivor<u32> {
        Survivor { unreachable: unreachable.to_vec(), ..arriving(rank, RecoveryPurpose::Shrink) }
    }

    fn ranks(met: &RoundResult<u32>) -> Vec<u32> {
        met.survivors.keys().copied().collect()
    }

    #[test]
    fn a_round_ends_when_all_ranks_that_are_not_lost_have_arrived() {
        let mut recovery = RecoveryRounds::default();
        assert_eq!(recovery.lose((7, 4), 2), None);
        assert_eq!(recovery.arrive(arriving(3, RecoveryPurpose::Agree(0b110))), Ok(None));
        assert_eq!(recovery.arrive(arriving(0, RecoveryPurpose::Agree(0b011))), Ok(None));
        let met = recovery.arrive(arriving(1, RecoveryPurpose::Agree(0b111))).unwrap().unwrap();
        assert_eq!((met.purpose, met.lost.as_slice()), (RecoveryPurpose::Agree(0b010), &[2][..]));
        assert_eq!(met.survivors, BTreeMap::from([(0, 100), (1, 101), (3, 103)]));
        // The next round continues with the same lost rank.
        assert_eq!(recovery.arrive(arriving(0, RecoveryPurpose::Shrink)), Ok(None));
        assert_eq!(recovery.arrive(arriving(1, RecoveryPurpose::Shrink)), Ok(None));
        let met = recovery.lose((7, 4), 3).unwrap();
        assert_eq!((met.purpose, ranks(&met), met.lost), (RecoveryPurpose::Shrink, vec![0, 1], vec![2, 3]));
    }

    #[test]
    fn a_rank_that_misses_the_deadline_is_lost_and_refused_later() {
        let mut recovery = RecoveryRounds::default();
        for rank in [1, 2] {
            assert_eq!(recovery.arrive(arriving(rank, RecoveryPurpose::Shrink)), Ok(None));
        }
        assert_eq!(recovery.deadline(), Some(Time::from_nanos(11)));
        assert_eq!(recovery.expire(Time::from_nanos(10)), []);
        let met = recovery.expire(Time::from_nanos(11));
        assert_eq!((ranks(&met[0]), met[0].lost.as_slice()), (vec![1, 2], &[0, 3][..]));
        assert_eq!(recovery.deadline(), None);
        let late = recovery.arrive(arriving(0, RecoveryPurpose::Shrink));
        assert_eq!(late, Err(RecoveryRefusal::Lost { group: 7, rank: 0 }));
    }

    #[test]
    fn a_round_does_not_wait_for_a_rank_most_cannot_reach() {
        let mut recovery = RecoveryRounds::default();
        assert_eq!(recovery.arrive(cut_off(0, &[3])), Ok(None));
        assert_eq!(recovery.arrive(cut_off(1, &[3])), Ok(None));
        let met = recovery.arrive(cut_off(2, &[3])).unwrap().unwrap();
        assert_eq!((ranks(&met), met.lost, met.cut_off), (vec![0, 1, 2], vec![3], BTreeMap::new()));
        // The rank returns, and can itself reach all others.
        assert_eq!(recovery.arrive(cut_off(3, &[])), Err(RecoveryRefusal::Lost { group: 7, rank: 3 }));
    }

    #[test]
    fn a_rank_that_is_cut_off_cannot_exclude_the_others() {
        // Rank 3 cannot reach any other rank. Try each rank as the first to arrive.
        for first in 0..4 {
            let mut recovery = RecoveryRounds::default();
            let mut met = None;
            for rank in (0..4).map(|i| (first + i) % 4) {
                let cannot: &[u32] = if rank == 3 { &[0, 1, 2] } else { &[3] };
                match recovery.arrive(cut_off(rank, cannot)) {
                    Ok(now) => met = met.or(now),
                    Err(refusal) => {
                        assert_eq!((rank, refusal), (3, RecoveryRefusal::Lost { group: 7, rank: 3 }))
                    }
                }
            }
            let met = met.unwrap();
            assert_eq!((ranks(&met), met.lost), (vec![0, 1, 2], vec![3]));
        }
    }

    #[test]
    fn of_two_mutually_unreachable_ranks_the_lower_stays() {
        let mut recovery = RecoveryRounds::default();
        for (rank, other) in [(3, &[][..]), (2, &[1]), (1, &[2])] {
            assert_eq!(recovery.arrive(cut_off(rank, other)), Ok(None));
        }
        let met = recovery.arrive(cut_off(0, &[])).unwrap().unwrap();
        assert_eq!((ranks(&met), met.lost), (vec![0, 1, 3], vec![2]));
        assert_eq!(met.cut_off, BTreeMap::from([(2, 102)]));
    }

    #[test]
    fn a_rank_that_cannot_take_part_is_refused_with_a_reason() {
        let mut recovery = RecoveryRounds::default();
        recovery.arrive(arriving(1, RecoveryPurpose::Agree(1))).unwrap();
        let mut refusal = |rank, purpose| recovery.arrive(arriving(rank, purpose)).unwrap_err().to_string();
        assert_eq!(refusal(9, RecoveryPurpose::Shrink), "group 7 has no rank 9");
        assert!(refusal(1, RecoveryPurpose::Agree(1)).contains("rank 1 of group 7 is already waiting"));
        assert!(
            refusal(0, RecoveryPurpose::Shrink).starts_with("rank 0 called shrink, but rank 1 called agree")
        );
    }

    #[test]
    fn complete_and_released_groups_are_forgotten() {
        let mut recovery = RecoveryRounds::<u32>::default();
        assert!(recovery.arrive(Survivor { group: (1, 0), ..arriving(0, RecoveryPurpose::Shrink) }).is_err());
        recovery.lose((2, 2), 2);
        assert!(recovery.groups.is_empty());
        recovery.arrive(arriving(3, RecoveryPurpose::Shrink)).unwrap();
        recovery.lose((3, 2), 1);
        assert_eq!(recovery.retain(|_| false), [(7, BTreeMap::from([(3, 103)]))]);
        assert!(recovery.groups.is_empty());
    }

    proptest! {
        #[test]
        fn every_waiting_rank_gets_one_result_and_losses_only_grow(
            steps in prop::collection::vec((0u32..4, 0u8..4), 0..60)
        ) {
            let mut recovery = RecoveryRounds::default();
            let mut waiting = BTreeSet::new();
            let mut lost = BTreeSet::new();
            for (rank, event) in steps {
                let met = match event {
                    0 => {
                        waiting.remove(&rank);
                        recovery.lose((7, 4), rank).into_iter().collect()
                    }
                    1 => recovery.expire(Time::from_nanos(u64::MAX)),
                    _ => match recovery.arrive(arriving(rank, RecoveryPurpose::Shrink)) {
                        Ok(met) => {
                            waiting.insert(rank);
                            met.into_iter().collect()
                        }
                        Err(_) => continue,
                    },
                };
                for met in met {
                    let survivors: BTreeSet<u32> = met.survivors.keys().copied().collect();
                    prop_assert_eq!(&survivors, &std::mem::take(&mut waiting));
                    let now: BTreeSet<u32> = met.lost.iter().copied().collect();
                    prop_assert!(now.is_superset(&lost) && now.is_disjoint(&survivors));
                    prop_assert_eq!(now.len() + survivors.len(), 4);
                    lost = now;
                }
            }
        }
    }
}
