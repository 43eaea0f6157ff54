//! What waits for too long: calls, messages outside of calls, nodes that are silent; and who is to blame.

use super::Group;
use super::failure_detector::LocalWaits;
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::NodeId;
use crate::shared::{GroupContext, SharedState, TimerKey};
use cool_machine::{Duration, Time};
use std::collections::BTreeSet;

impl Group {
    /// Sets the next time to look after a call.
    pub(super) fn arm(&self, now: Time, shared: &mut SharedState, call_number: u64) {
        let Some(call) = self.calls.get(call_number) else { return };
        let at = if call.announced { call.deadline() } else { call.announce_at().min(call.deadline()) };
        shared.timers.set(TimerKey::Call(self.members.id, call_number), Some(at.max(now)));
    }

    /// It is time to look after a call: to tell others that it runs, or to give it up.
    ///
    /// # Errors
    /// If it has waited for too long.
    pub(crate) fn on_call_timer(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        call_number: u64,
    ) -> Result<(), CallFailure> {
        if self.messages.calls_with_work().contains(&call_number) {
            // What is being worked on moves.
            self.calls.moved(now, call_number);
        }
        self.calls.follow_earlier(call_number);
        let Some(call) = self.calls.get_mut(call_number).filter(|call| !call.is_empty()) else {
            // The ranks of this node that have come are through, and those to come set the timer again; or they wait without the engine.
            return self.on_watched_timer(now, shared, call_number);
        };
        if call.deadline() <= now {
            let (key, moved) = (TimerKey::Call(self.members.id, call_number), call.progress);
            let mut context = GroupContext { now, members: &self.members, shared };
            let known = self.failure_detector.has_inquired(&mut context, key, moved);
            return if known { Err(self.timed_out(now, call_number)) } else { Ok(()) };
        }
        if !call.announced && call.announce_at() <= now {
            call.announced = true;
            self.announce(now, shared, call_number);
        }
        self.arm(now, shared, call_number);
        Ok(())
    }

    /// The failure of a call that has waited for too long.
    fn timed_out(&self, now: Time, call_number: u64) -> CallFailure {
        let here = self.ranks.joined(call_number);
        let joined = |rank: &u32| here.contains(rank) || self.matching.has_joined(call_number, *rank);
        let missing = self.nameable().filter(|rank| !joined(rank)).collect();
        let (ranks, reason) = self.blame(now, call_number, missing);
        let call = self.calls.get(call_number).map(|call| {
            let ranks: Vec<u32> = call.runs.keys().copied().collect();
            (call.signature.to_string(), call.timeout, self.members.name(&ranks))
        });
        let (text, timeout, waiting) = call.unwrap_or_default();
        self.no_progress((call_number, &text), timeout, &waiting, (ranks, &reason))
    }

    /// The failure of a watched call in which its rank has waited for too long, for ranks that have not come.
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
        self.no_progress((call_number, &text), timeout, &self.members.name(&waiting), (ranks, &reason))
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
             look after them, or give the call more time",
            self.members.id,
        );
        CallFailure::new(CallFailureKind::Timeout, text, ranks)
    }

    /// The ranks that may be named when something has waited for too long.
    fn nameable(&self) -> impl Iterator<Item = u32> {
        let all = self.members.layout.ranks().map(|rank| rank.0);
        all.filter(|rank| self.failure_detector.may_name(&self.members, *rank))
    }

    /// Who is to blame for a call that waits, and why: of those who are `missing` in it those who do not wait elsewhere.
    fn blame(&self, now: Time, call_number: u64, missing: Vec<u32>) -> (Vec<u32>, String) {
        if missing.is_empty() {
            return self.data_missing(self.awaited(call_number));
        }
        let suspects = self.suspects(now, &missing);
        if suspects.is_empty() {
            let text = format!("{} did not make this call, and wait in others", self.members.name(&missing));
            return (missing, text);
        }
        let text = format!("{} did not make this call, or cannot be reached", self.members.name(&suspects));
        (suspects, text)
    }

    /// Who is to blame for a call to which all have come.
    fn data_missing(&self, awaited: Vec<u32>) -> (Vec<u32>, String) {
        let text = format!("all ranks came; data is missing from {}", self.members.name(&awaited));
        (awaited, text)
    }

    /// The ranks from which a call here waits for data.
    fn awaited(&self, call_number: u64) -> Vec<u32> {
        let layout = &self.members.layout;
        let sources = self.streams.sources(call_number).flat_map(|node| layout.ranks_of_node(node));
        let all: BTreeSet<u32> = self.messages.sources(call_number).chain(sources.map(|r| r.0)).collect();
        all.into_iter().collect()
    }

    /// The other nodes from which something is to come.
    fn awaited_nodes(&self) -> BTreeSet<usize> {
        let calls = self.calls.iter().filter(|(_, call)| !call.is_empty());
        let of_calls = calls.flat_map(|(call_number, _)| self.awaited(call_number));
        let messages = self.ranks.iter().flat_map(|(rank, _)| self.point_to_point.awaited_by(rank));
        let ranks = of_calls.chain(messages.into_iter().flatten());
        ranks.filter_map(|rank| self.members.other_node_of(rank)).collect()
    }

    /// It is time to look after a message outside of calls.
    ///
    /// # Errors
    /// If it has waited for too long.
    pub(crate) fn on_transfer_timer(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        number: u64,
    ) -> Result<(), CallFailure> {
        let mut context = GroupContext { now, members: &self.members, shared };
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

    /// It is time to look after the other nodes. Answers with those who are gone.
    pub(crate) fn on_failure_detector_timer(&mut self, now: Time, shared: &mut SharedState) -> Vec<NodeId> {
        let moved = self.last_progress(now);
        let awaited = if self.members.on_demand { self.awaited_nodes() } else { BTreeSet::new() };
        let mut context = GroupContext { now, members: &self.members, shared };
        let lost = self.failure_detector.on_timer(&mut context, moved, &awaited);
        lost.into_iter().map(|node| self.members.nodes[node].id).collect()
    }

    /// Since when nothing has moved in one of the calls and messages; `None` if there are none. What is worked on moves.
    fn last_progress(&self, now: Time) -> Option<Time> {
        let with_work = self.messages.calls_with_work();
        let open = self.calls.iter().filter(|(_, call)| !call.is_empty());
        let calls = open
            .map(|(call_number, call)| if with_work.contains(&call_number) { now } else { call.progress });
        calls.chain(self.point_to_point.progress(now)).chain(self.watched_calls.since()).min()
    }

    /// Of ranks that are waited for, and those for whom they wait, those that do not wait themselves; none if they all do.
    fn suspects(&self, now: Time, ranks: &[u32]) -> Vec<u32> {
        self.failure_detector.suspects(&self.members, ranks, &self.local_waits(now))
    }

    /// The suspects of ranks that are waited for; these themselves if all wait.
    fn suspects_or_all(&self, now: Time, ranks: Vec<u32>) -> Vec<u32> {
        let suspects = self.suspects(now, &ranks);
        if suspects.is_empty() { ranks } else { suspects }
    }

    /// Who waits here.
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
