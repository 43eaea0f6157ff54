//! The ranks of a group that are on this node: which calls each has made, and what it is told.

use crate::failure::{CallFailure, CallFailureKind, TrafficTotals};
use cool_collective::Rank;
use std::collections::BTreeMap;

/// A rank of this node.
#[derive(Debug, Default)]
pub(super) struct LocalRank {
    /// The number behind the last call that it has come to: of those that the agent carries out, that have had their turn.
    calls: u64,
    /// The number behind the last of its calls that the agent carries out.
    calls_by_agent: u64,
    /// Those that are not done, with those that wait for their turn.
    pub(super) open_calls: usize,
    /// It went away.
    pub(super) is_lost: bool,
    /// It has been told why the group failed.
    informed: bool,
    /// What its streams cost after their calls were done: the next call's account has it.
    pub(super) afterwards: TrafficTotals,
}

impl LocalRank {
    /// The answer to what it asks of a group that has failed: the first time, why.
    pub(super) fn failure_reply(&mut self, group: u64, failed: &CallFailure) -> CallFailure {
        if std::mem::replace(&mut self.informed, true) { aborted(group, failed) } else { failed.clone() }
    }

    /// How many calls it has made, of which it was `through` as many if that is known. In those that it carries out itself it may
    /// have been in the midst of one.
    pub(super) fn calls_made(&self, completed_calls: Option<u64>) -> u64 {
        completed_calls.map_or(self.calls, |completed| completed.max(self.calls_by_agent))
    }

    /// Whether it has yet to come to a call that the agent carries out; it may have come to it as one that the ranks carry out.
    fn is_before(&self, call: u64) -> bool {
        self.calls_by_agent <= call && self.calls <= call.saturating_add(1)
    }
}

fn aborted(group: u64, failed: &CallFailure) -> CallFailure {
    if failed.kind == CallFailureKind::Revoked {
        return failed.clone();
    }
    let message = format!(
        "group {group} failed before and cannot be used any more, except to shrink it: {}",
        failed.message
    );
    CallFailure::new(CallFailureKind::Aborted, message, failed.ranks.clone())
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

    /// A rank's call has its turn: its number, which is the next one unless the rank has said it.
    ///
    /// # Errors
    /// If that is beyond counting, or the agent carries out that call of the rank, or a later one, already: the least that it may
    /// be.
    pub(super) fn assign_number(
        &mut self,
        rank: u32,
        requested: Option<u64>,
        watched: bool,
    ) -> Result<u64, u64> {
        let Some(local) = self.0.get_mut(&rank) else { return Err(0) };
        let (number, least) = (requested.unwrap_or(local.calls), local.calls_by_agent);
        let behind = number.checked_add(1).filter(|_| number >= least).ok_or(least)?;
        local.calls = local.calls.max(behind);
        if !watched {
            local.calls_by_agent = behind;
        }
        Ok(number)
    }

    /// A call of a rank is answered.
    pub(super) fn on_answered(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.open_calls -= 1);
    }

    /// A rank has been told why the group failed.
    pub(super) fn mark_informed(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.informed = true);
    }

    /// Those that have come to a call.
    pub(super) fn joined(&self, call: u64) -> Vec<u32> {
        self.iter().filter(|(_, local)| local.calls > call).map(|(rank, _)| rank).collect()
    }

    /// Whether a rank that is here has yet to come to a call that the agent carries out.
    pub(super) fn is_awaiting(&self, call: u64) -> bool {
        self.0.values().any(|rank| rank.is_before(call) && !rank.is_lost)
    }

    /// The smallest call to which not all have come.
    pub(super) fn next_call(&self) -> u64 {
        self.0.values().map(|rank| rank.calls).min().unwrap_or(0)
    }
}
