//! The ranks of a group on this node: the number of calls that each has made, and whether it has
//! been informed of a failure.

use crate::failure::{CallFailure, CallFailureKind, TrafficTotals};
use cool_collective::Rank;
use std::collections::BTreeMap;

/// A rank of this node.
#[derive(Debug, Default)]
pub(super) struct LocalRank {
    /// The number of the last call that the rank has joined, plus 1; 0 if there is none. Calls that
    /// the agent executes count once they have begun.
    calls: u64,
    /// The number of the last call that the agent executes for the rank, plus 1; 0 if there is
    /// none.
    calls_by_agent: u64,
    /// The number of calls without a reply, including those that are still queued.
    pub(super) open_calls: usize,
    /// Whether the rank is lost.
    pub(super) is_lost: bool,
    /// Whether the rank has received the reason why the group failed.
    informed: bool,
    /// The traffic of its streams after their calls completed. It is added to the statistics of the
    /// next call.
    pub(super) late_traffic: TrafficTotals,
}

impl LocalRank {
    /// Returns the reply to a request on a group that has failed: the reason the first time or if
    /// the group was revoked, otherwise that the group failed before.
    pub(super) fn failure_reply(&mut self, group: u64, failed: &CallFailure) -> CallFailure {
        if std::mem::replace(&mut self.informed, true) { aborted(group, failed) } else { failed.clone() }
    }

    /// Returns the number of calls that the rank has made. For a rank that executes calls itself,
    /// this is the number of completed calls, because the rank may have been lost in the middle of
    /// one.
    pub(super) fn calls_made(&self, completed_calls: Option<u64>) -> u64 {
        completed_calls.map_or(self.calls, |completed| completed.max(self.calls_by_agent))
    }

    /// Returns whether the rank has yet to join a call that the agent executes. It may have joined
    /// that call as one that the ranks execute.
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

/// The local ranks, by number.
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

    /// Returns the number of a rank's call: the one that the rank requested, or the next one.
    ///
    /// # Errors
    /// Returns the smallest number that the rank may use if the requested one is too large, or if
    /// the agent already executes that call of the rank or a later one.
    pub(super) fn assign_number(
        &mut self,
        rank: u32,
        requested: Option<u64>,
        watched: bool,
    ) -> Result<u64, u64> {
        let Some(local) = self.0.get_mut(&rank) else { return Err(0) };
        let (number, least) = (requested.unwrap_or(local.calls), local.calls_by_agent);
        let next_number = number.checked_add(1).filter(|_| number >= least).ok_or(least)?;
        local.calls = local.calls.max(next_number);
        if !watched {
            local.calls_by_agent = next_number;
        }
        Ok(number)
    }

    /// Records that a call of a rank has its reply.
    pub(super) fn on_answered(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.open_calls -= 1);
    }

    /// Records that a rank has received the reason why the group failed.
    pub(super) fn mark_informed(&mut self, rank: u32) {
        self.0.get_mut(&rank).into_iter().for_each(|local| local.informed = true);
    }

    /// Returns the ranks that have joined a call.
    pub(super) fn joined(&self, call: u64) -> Vec<u32> {
        self.iter().filter(|(_, local)| local.calls > call).map(|(rank, _)| rank).collect()
    }

    /// Returns the ranks that have made a later call. They have executed this one themselves if
    /// they have not requested it from the agent.
    pub(super) fn passed(&self, call: u64) -> impl Iterator<Item = u32> {
        let passed = self.iter().filter(move |(_, rank)| rank.calls > call.saturating_add(1));
        passed.filter(|(_, rank)| !rank.is_lost).map(|(rank, _)| rank)
    }

    /// Returns whether a rank that is present has yet to join a call that the agent executes.
    pub(super) fn is_awaiting(&self, call: u64) -> bool {
        self.0.values().any(|rank| rank.is_before(call) && !rank.is_lost)
    }

    /// Returns the smallest number of a call that some rank has not joined.
    pub(super) fn next_call(&self) -> u64 {
        self.0.values().map(|rank| rank.calls).min().unwrap_or(0)
    }
}
