//! The ranks of a group that are on this node: which calls each has made, and what it is told.

use crate::failure::{Failure, FailureKind, Traffic};
use cool_collective::Rank;
use std::collections::BTreeMap;

/// A rank of this node.
#[derive(Debug, Default)]
pub(super) struct LocalRank {
    /// Calls it has made that have had their turn, in which they are numbered.
    pub(super) calls: u64,
    /// Those that are not done, with those that wait for their turn.
    pub(super) open_calls: usize,
    /// It went away.
    pub(super) gone: bool,
    /// It has been told why the group failed.
    told: bool,
    /// What its streams cost after their calls were done: the next call's account has it.
    pub(super) afterwards: Traffic,
}

impl LocalRank {
    /// The answer to what it asks of a group that has failed: the first time, why.
    pub(super) fn tell(&mut self, group: u64, failed: &Failure) -> Failure {
        if std::mem::replace(&mut self.told, true) { aborted(group, failed) } else { failed.clone() }
    }
}

fn aborted(group: u64, failed: &Failure) -> Failure {
    if failed.kind == FailureKind::Revoked {
        return failed.clone();
    }
    let message = format!(
        "group {group} failed before and cannot be used any more, except to shrink it: {}",
        failed.message
    );
    Failure::new(FailureKind::Aborted, message, failed.ranks.clone())
}

/// The ranks of this node, by number.
#[derive(Debug)]
pub(super) struct LocalRanks(BTreeMap<u32, LocalRank>);

impl LocalRanks {
    pub(super) fn new(ranks: &[Rank]) -> LocalRanks {
        LocalRanks(ranks.iter().map(|rank| (rank.0, LocalRank::default())).collect())
    }

    pub(super) fn get_mut(&mut self, rank: u32) -> Option<&mut LocalRank> {
        self.0.get_mut(&rank)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &LocalRank)> {
        self.0.iter().map(|(rank, local)| (*rank, local))
    }

    /// A rank's call has its turn: its number.
    pub(super) fn number(&mut self, rank: u32) -> u64 {
        self.0.get_mut(&rank).map_or(0, |local| {
            local.calls += 1;
            local.calls - 1
        })
    }

    /// A call of a rank is answered.
    pub(super) fn answered(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.open_calls -= 1);
    }

    /// A rank has been told why the group failed.
    pub(super) fn told(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.told = true);
    }

    /// Those that have come to a call.
    pub(super) fn came(&self, call: u64) -> Vec<u32> {
        self.iter().filter(|(_, local)| local.calls > call).map(|(rank, _)| rank).collect()
    }

    /// Whether a rank that is here has yet to come to a call.
    pub(super) fn awaits(&self, call: u64) -> bool {
        self.0.values().any(|rank| rank.calls <= call && !rank.gone)
    }

    /// The smallest call to which not all have come.
    pub(super) fn next_call(&self) -> u64 {
        self.0.values().map(|rank| rank.calls).min().unwrap_or(0)
    }
}
