//! Timeouts of calls and transfers, and silent nodes: finds out which ranks are to blame.

use super::Group;
use super::failure_detector::LocalWaits;
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::NodeId;
use cool_machine::{Duration, Time};
use std::collections::BTreeSet;

/// Another possible cause, for ranks that send datagrams themselves.
const LOST_DATAGRAMS: &str = ", or a firewall drops their datagrams (UDP 20000 to 31999)";

impl Group {
    /// Sets the timer of a call.
    pub(super) fn arm(&self, now: Time, resources: &mut EngineResources, call_number: u64) {
        let Some(call) = self.calls.get(call_number) else { return };
        let at = if call.announced { call.deadline() } else { call.announce_at().min(call.deadline()) };
        resources.timers.set(TimerKey::Call(self.members.id, call_number), Some(at.max(now)));
    }

    /// Handles the timer of a call: announces the call to other agents, or lets it fail.
    ///
    /// # Errors
    /// Returns an error if the call has made no progress for too long.
    pub(crate) fn on_call_timer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call_number: u64,
    ) -> Result<(), CallFailure> {
        if self.messages.calls_with_work().contains(&call_number) {
            // Work in progress counts as progress.
            self.calls.moved(now, call_number);
        }
        self.calls.follow_earlier(call_number);
        let Some(call) = self.calls.get_mut(call_number).filter(|call| !call.is_empty()) else {
            // The ranks of this node that have joined the call have completed it, and those that
            // join later set the timer again. Or the ranks wait in a watched call.
            return self.on_watched_timer(now, resources, call_number);
        };
        if call.deadline() <= now {
            let (key, moved) = (TimerKey::Call(self.members.id, call_number), call.progress);
            let mut context = GroupContext { now, members: &self.members, resources };
            let known = self.failure_detector.has_inquired(&mut context, key, moved);
            return if known { Err(self.timed_out(now, call_number)) } else { Ok(()) };
        }
        if !call.announced && call.announce_at() <= now {
            call.announced = true;
            self.announce(now, resources, call_number);
        }
        self.arm(now, resources, call_number);
        Ok(())
    }

    /// Returns the failure of a call that has made no progress for too long.
    fn timed_out(&self, now: Time, call_number: u64) -> CallFailure {
        let here = self.ranks.joined(call_number);
        let joined = |rank: &u32| here.contains(rank) || self.matching.has_joined(call_number, *rank);
        let missing = self.nameable().filter(|rank| !joined(rank)).collect();
        let (ranks, reason) = self.blame(now, call_number, missing);
        let call = self.calls.get(call_number).map(|call| {
            let ranks: Vec<u32> = call.runs.keys().copied().collect();
            (call.signature.to_string(), call.timeout, self.members.describe_ranks(&ranks))
        });
        let (text, timeout, waiting) = call.unwrap_or_default();
        self.no_progress((call_number, &text), timeout, &waiting, (ranks, &reason))
    }

    /// Returns the failure of a watched call whose rank has waited too long for the ranks in
    /// `missing`.
    pub(super) fn watched_too_long(
        &self,
        now: Time,
        (call_number, rank): (u64, u32),
        missing: Vec<u32>,
        timeout: Duration,
    ) -> CallFailure {
        let here = self.ranks.joined(call_number);
        let missing: Vec<u32> = missing.into_iter().filter(|rank| !here.contains(rank)).collect();
        let waiting: Vec<u32> = self.watched_calls.in_call(call_number).map(|(rank, _)| rank).collect();
        let (ranks, reason) = if missing.is_empty() {
            let others: Vec<u32> = self.nameable().filter(|other| *other != rank).collect();
            self.data_missing(self.suspects_or_all(now, others))
        } else {
            self.blame(now, call_number, missing)
        };
        let text = self.watched_calls.text(call_number, rank).unwrap_or_default();
        let waiting = self.members.describe_ranks(&waiting);
        let is_remote = ranks.iter().any(|rank| self.members.other_node_of(*rank).is_some());
        // Datagrams arrived when the group was made, but a firewall may have changed since.
        let also = if self.quick_calls.all_can() && is_remote { LOST_DATAGRAMS } else { "" };
        self.no_progress((call_number, &text), timeout, &waiting, (ranks, &format!("{reason}{also}")))
    }

    fn no_progress(
        &self,
        (call_number, call): (u64, &str),
        timeout: Duration,
        waiting: &str,
        (ranks, reason): (Vec<u32>, &str),
    ) -> CallFailure {
        let text = format!(
            "{call} (call {call_number} of group {}) made no progress for {timeout:?} at {waiting}: {reason}; \
             check them, or give the call more time",
            self.members.id,
        );
        CallFailure::new(CallFailureKind::Timeout, text, ranks)
    }

    /// Returns the ranks that a message about a timeout may name.
    fn nameable(&self) -> impl Iterator<Item = u32> {
        let all = self.members.layout.ranks().map(|rank| rank.0);
        all.filter(|rank| self.failure_detector.may_name(&self.members, *rank))
    }

    /// Returns the ranks that are to blame for a call that waits, and the reason. If ranks are
    /// `missing`, those that do not wait elsewhere are to blame.
    fn blame(&self, now: Time, call_number: u64, missing: Vec<u32>) -> (Vec<u32>, String) {
        if missing.is_empty() {
            return self.data_missing(self.awaited(call_number));
        }
        let suspects = self.suspects(now, &missing);
        if suspects.is_empty() {
            let names = self.members.describe_ranks(&missing);
            return (missing, format!("{names} did not make this call, and wait in others"));
        }
        let names = self.members.describe_ranks(&suspects);
        (suspects, format!("{names} did not make this call, or cannot be reached"))
    }

    /// Returns the ranks that are to blame for a call that all ranks have joined, and the reason.
    fn data_missing(&self, awaited: Vec<u32>) -> (Vec<u32>, String) {
        let names = self.members.describe_ranks(&awaited);
        (awaited, format!("all ranks joined; data is missing from {names}"))
    }

    /// Returns the ranks from which a call waits for data.
    fn awaited(&self, call_number: u64) -> Vec<u32> {
        let layout = &self.members.layout;
        let sources = self.streams.sources(call_number).flat_map(|node| layout.ranks_of_node(node));
        let all: BTreeSet<u32> = self.messages.sources(call_number).chain(sources.map(|r| r.0)).collect();
        all.into_iter().collect()
    }

    /// Returns the other nodes from which data is missing.
    fn awaited_nodes(&self) -> BTreeSet<usize> {
        let calls = self.calls.iter().filter(|(_, call)| !call.is_empty());
        let of_calls = calls.flat_map(|(call_number, _)| self.awaited(call_number));
        let messages = self.ranks.iter().flat_map(|(rank, _)| self.point_to_point.awaited_by(rank));
        let ranks = of_calls.chain(messages.into_iter().flatten());
        ranks.filter_map(|rank| self.members.other_node_of(rank)).collect()
    }

    /// Handles the timer of a transfer.
    ///
    /// # Errors
    /// Returns an error if the transfer has made no progress for too long.
    pub(crate) fn on_transfer_timer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        number: u64,
    ) -> Result<(), CallFailure> {
        let mut context = GroupContext { now, members: &self.members, resources };
        let Some(moved) = self.point_to_point.check_overdue(&mut context, number) else { return Ok(()) };
        let key = TimerKey::PointToPoint(self.members.id, number);
        if !self.failure_detector.has_inquired(&mut context, key, moved) {
            return Ok(());
        }
        let Some(overdue) = self.point_to_point.overdue_transfer(number) else { return Ok(()) };
        let others: Vec<u32> = self.nameable().filter(|rank| *rank != overdue.rank).collect();
        let awaited = overdue.peer.map_or_else(|| others.clone(), |peer| vec![peer]);
        Err(overdue.failure(&self.members, self.suspects_or_all(now, awaited), &others))
    }

    /// Handles the timer of the failure detector. Returns the nodes that are lost.
    pub(crate) fn on_failure_detector_timer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
    ) -> Vec<NodeId> {
        let moved = self.last_progress(now);
        let awaited = if self.members.on_demand { self.awaited_nodes() } else { BTreeSet::new() };
        let mut context = GroupContext { now, members: &self.members, resources };
        let lost = self.failure_detector.on_timer(&mut context, moved, &awaited);
        lost.into_iter().map(|node| self.members.nodes[node].id).collect()
    }

    /// Returns the earliest time of last progress among all open calls and transfers, or `None` if
    /// none is open. Work in progress counts as progress.
    fn last_progress(&self, now: Time) -> Option<Time> {
        let with_work = self.messages.calls_with_work();
        let open = self.calls.iter().filter(|(_, call)| !call.is_empty());
        let calls = open
            .map(|(call_number, call)| if with_work.contains(&call_number) { now } else { call.progress });
        calls.chain(self.point_to_point.progress(now)).chain(self.watched_calls.since()).min()
    }

    /// Returns the ranks that are to blame: of `ranks`, and of those for which they wait, the ranks
    /// that do not wait themselves.
    fn suspects(&self, now: Time, ranks: &[u32]) -> Vec<u32> {
        self.failure_detector.suspects(&self.members, ranks, &self.local_waits(now))
    }

    /// Returns the ranks that are to blame, or `ranks` if all of them wait.
    fn suspects_or_all(&self, now: Time, ranks: Vec<u32>) -> Vec<u32> {
        let suspects = self.suspects(now, &ranks);
        if suspects.is_empty() { ranks } else { suspects }
    }

    /// Returns which local ranks wait for which ranks.
    pub(super) fn local_waits(&self, now: Time) -> LocalWaits {
        let (mut ranks, mut messages) = (Vec::new(), Vec::new());
        let stopped: BTreeSet<u32> = self.watched_calls.silent(now).collect();
        for (rank, local) in self.ranks.iter().filter(|(rank, _)| !stopped.contains(rank)) {
            let peers = self.point_to_point.awaited_by(rank);
            if local.open_calls == 0 && peers.is_empty() {
                continue;
            }
            match peers.into_iter().collect::<Option<BTreeSet<u32>>>() {
                Some(peers) if local.open_calls == 0 => {
                    messages.extend(peers.into_iter().map(|peer| (rank, peer)));
                }
                _ => ranks.push(rank),
            }
        }
        (ranks, messages)
    }
}
