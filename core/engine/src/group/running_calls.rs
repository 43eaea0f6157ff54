//! The calls that ranks of this node have joined: the programs of these ranks, the actions that may
//! start, and the ranks that have completed.
//!
//! A rank's call is pending (`call_queue`) until its plan is prepared, and then runs here. When all
//! actions of its [`ProgramRun`] have completed, the run stays pinned as long as streams need the
//! rank's buffers; then the rank has its reply. The call ends when all ranks of this node have
//! completed it.

use super::call_queue::PendingCall;
use crate::api::DEFAULT_TIMEOUT;
use crate::call_signature::CallSignature;
use crate::engine_outbox::EngineOutbox;
use crate::failure::{CallFailure, CallFailureKind, CallStats, TrafficTotals};
use crate::memory::{MemoryId, MemoryRange};
use crate::program::{CompiledSchedule, ProgramRun};
use crate::trace::{CallNotes, CallRecord, RankTimes};
use cool_collective::{ActionKind, MulticastScope, Stripe};
use cool_machine::{Duration, Time};
use cool_types::Operation;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Time without progress after which a call is announced to the other agents; half the timeout of
/// the call, if that is shorter.
pub(super) const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// An action of a rank's program in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallAction {
    pub(super) call: u64,
    pub(super) rank: u32,
    pub(super) action: u32,
}

/// A collective that ranks of this node have joined.
#[derive(Debug)]
pub(super) struct RunningCall {
    pub(super) signature: CallSignature,
    pub(super) compiled: Arc<CompiledSchedule>,
    pub(super) runs: BTreeMap<u32, ProgramRun>,
    /// The time of the last progress.
    pub(super) progress: Time,
    /// The maximum time without progress.
    pub(super) timeout: Duration,
    /// Whether all local ranks want the call to yield to other traffic.
    pub(super) background: bool,
    /// Whether the call has been announced to the other agents.
    pub(super) announced: bool,
    notes: CallNotes,
}

impl RunningCall {
    fn new(
        now: Time,
        signature: CallSignature,
        compiled: Arc<CompiledSchedule>,
        timeout: Duration,
    ) -> RunningCall {
        let (runs, background, announced, notes) = (BTreeMap::new(), true, false, CallNotes::default());
        RunningCall { signature, compiled, runs, progress: now, timeout, background, announced, notes }
    }

    pub(super) fn operation(&self) -> Operation {
        self.signature.call.operation
    }

    /// Returns whether all ranks that have joined the call have completed it.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn announce_at(&self) -> Time {
        self.progress + ANNOUNCE_AFTER.min(self.timeout / 2)
    }

    pub(super) fn deadline(&self) -> Time {
        self.progress + self.timeout
    }

    /// Returns the record of the call.
    fn record(self, group: (u64, u32), call: u64, failure: Option<Arc<str>>) -> CallRecord {
        let (words, plan) = self.compiled.text.clone();
        let CallNotes { ranks, arrivals, traffic } = self.notes;
        CallRecord { group, call, words, plan, ranks, arrivals, traffic, failure }
    }
}

/// A rank that has completed a call.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) rank: u32,
    pub(super) token: u64,
    pub(super) stats: CallStats,
}

/// A multicast over a free tree.
#[derive(Debug)]
pub(super) struct NextMulticast {
    pub(super) action: u32,
    pub(super) scope: MulticastScope,
    pub(super) stripe: Stripe,
    pub(super) transfer: u32,
    pub(super) data: MemoryRange,
    pub(super) concurrent_senders: u32,
}

/// The running calls of a group's ranks on this node.
#[derive(Debug, Default)]
pub(super) struct RunningCalls {
    calls: BTreeMap<u64, RunningCall>,
    /// Actions that may start.
    ready: VecDeque<CallAction>,
    /// The first actions of ranks, by working memory that the driver has not allocated yet. They
    /// must not name it before, because it may turn out to be missing.
    unallocated: BTreeMap<MemoryId, Vec<CallAction>>,
    /// Ranks, with their calls, that may start their next multicast.
    multicasters: VecDeque<(u64, u32)>,
    /// The last call that made progress after all local ranks had completed it, and the time of
    /// that progress. A stream of a copied message outlives its call.
    moved_after: Option<(u64, Time)>,
}

impl RunningCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn get(&self, call_number: u64) -> Option<&RunningCall> {
        self.calls.get(&call_number)
    }

    pub(super) fn get_mut(&mut self, call_number: u64) -> Option<&mut RunningCall> {
        self.calls.get_mut(&call_number)
    }

    /// Returns the calls with their numbers, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &RunningCall)> {
        self.calls.iter().map(|(call_number, call)| (*call_number, call))
    }

    /// Adds a rank to a call. Returns the completion if the rank has nothing to do.
    pub(super) fn add_rank(
        &mut self,
        now: Time,
        call_number: u64,
        PendingCall { token, at, request, .. }: &PendingCall,
        (signature, compiled): (CallSignature, Arc<CompiledSchedule>),
        out: &mut EngineOutbox,
    ) -> Option<Completion> {
        let timeout = request.timeout.unwrap_or(DEFAULT_TIMEOUT).max(Duration::from_millis(1));
        let call = self
            .calls
            .entry(call_number)
            .or_insert_with(|| RunningCall::new(now, signature, compiled, timeout));
        call.timeout = call.timeout.min(timeout);
        call.background &= request.background;
        call.progress = now;
        let rank = request.rank;
        let scratch = out.allocate(request.group, call.compiled.program(rank).scratch);
        let or_none = |buffer: Option<MemoryRange>| buffer.unwrap_or(MemoryRange::EMPTY);
        let buffers = (or_none(request.input), or_none(request.output), scratch);
        let run = ProgramRun::new(Arc::clone(&call.compiled), rank, buffers, *token, *at);
        let first = run.first().into_iter().map(|action| CallAction { call: call_number, rank, action });
        if scratch.len > 0 {
            self.unallocated.insert(scratch.memory, first.collect());
        } else {
            self.ready.extend(first);
        }
        call.runs.insert(rank, run);
        self.finish_rank_if_done(now, call_number, rank, out)
    }

    /// Lets a rank begin, because the driver has allocated its working memory. Returns whether the
    /// memory belongs to a rank.
    pub(super) fn on_allocated(&mut self, memory: MemoryId) -> bool {
        let first = self.unallocated.remove(&memory);
        let is_working_memory = first.is_some();
        self.ready.extend(first.into_iter().flatten());
        is_working_memory
    }

    /// Returns an action that may start.
    pub(super) fn next_ready(&mut self) -> Option<CallAction> {
        self.ready.pop_front()
    }

    /// Returns a rank, with its call, that may start its next multicast.
    pub(super) fn next_multicaster(&mut self) -> Option<(u64, u32)> {
        self.multicasters.pop_front()
    }

    /// Returns whether any action may start.
    pub(super) fn has_ready(&self) -> bool {
        !(self.ready.is_empty() && self.multicasters.is_empty())
    }

    /// Returns the run of a rank in a call.
    pub(super) fn run(&self, call: u64, rank: u32) -> Option<&ProgramRun> {
        self.calls.get(&call)?.runs.get(&rank)
    }

    fn run_mut(&mut self, call: u64, rank: u32) -> Option<&mut ProgramRun> {
        self.calls.get_mut(&call)?.runs.get_mut(&rank)
    }

    /// Handles the completion of an action: dependent actions may start, or the rank completes the
    /// call.
    pub(super) fn complete(
        &mut self,
        now: Time,
        done: CallAction,
        out: &mut EngineOutbox,
    ) -> Option<Completion> {
        let CallAction { call: call_number, rank, action } = done;
        let call = self.calls.get_mut(&call_number)?;
        call.progress = now;
        let run = call.runs.get_mut(&rank)?;
        if let Some(from) = run.compiled().source(rank, action) {
            call.notes.record_arrival(now, from.0);
        }
        let ready = run.complete(action).into_iter().map(|action| CallAction { action, ..done });
        self.ready.extend(ready);
        self.finish_rank_if_done(now, call_number, rank, out)
    }

    /// Keeps a rank from completing a call, because a stream needs its buffers.
    pub(super) fn pin(&mut self, call: u64, rank: u32) {
        if let Some(run) = self.run_mut(call, rank) {
            run.pins += 1;
        }
    }

    /// Removes a pin, and returns the completion if the rank has now completed the call.
    pub(super) fn unpin(
        &mut self,
        now: Time,
        call: u64,
        rank: u32,
        out: &mut EngineOutbox,
    ) -> Option<Completion> {
        self.run_mut(call, rank)?.pins -= 1;
        self.finish_rank_if_done(now, call, rank, out)
    }

    fn finish_rank_if_done(
        &mut self,
        now: Time,
        call_number: u64,
        rank: u32,
        out: &mut EngineOutbox,
    ) -> Option<Completion> {
        let call = self.calls.get_mut(&call_number)?;
        call.runs.get(&rank).filter(|run| run.finished())?;
        let run = call.runs.remove(&rank)?;
        out.free(run.scratch);
        call.notes.record_end(RankTimes { rank, came: run.begun, ended: now }, &run.stats.traffic);
        let plan = call.compiled.plan.to_string();
        let nanoseconds = u64::try_from((now - run.begun).as_nanos()).unwrap_or(u64::MAX);
        Some(Completion { rank, token: run.token, stats: CallStats { plan, nanoseconds, ..run.stats } })
    }

    /// Queues a multicast of a rank.
    pub(super) fn queue_multicast(&mut self, of: CallAction) {
        if let Some(run) = self.run_mut(of.call, of.rank) {
            run.progress.queue_multicast(of.action);
            self.multicasters.push_back((of.call, of.rank));
        }
    }

    /// Returns a rank's next multicast over a free tree. Multicasts over one tree are sent in
    /// order, because concurrent streams would slow each other down and all would be late.
    pub(super) fn next_multicast(&mut self, call: u64, rank: u32) -> Option<NextMulticast> {
        let run = self.run_mut(call, rank)?;
        let action = run.next_multicast()?;
        let kind = run.program().actions[action as usize].kind;
        let ActionKind::Multicast { scope, stripe, transfer, src, concurrent_senders } = kind else {
            return None;
        };
        let data = run.range(src);
        Some(NextMulticast { action, scope, stripe, transfer: transfer.0, data, concurrent_senders })
    }

    /// Returns whether a later action of the rank's program changes the bytes that an action has
    /// received; `None` if the rank is not in the call.
    pub(super) fn changed_later(&self, of: CallAction) -> Option<bool> {
        let run = self.run(of.call, of.rank)?;
        let kind = run.program().actions[of.action as usize].kind;
        Some(matches!(kind, ActionKind::ReceiveMulticast { dst, .. } if run.changed_later(of.action, dst)))
    }

    /// Records that a tree is free, because a rank has sent the last byte of a multicast or never
    /// will.
    pub(super) fn multicast_sent(&mut self, call: u64, rank: u32, stripe: Stripe) {
        if let Some(run) = self.run_mut(call, rank) {
            run.progress.multicast_sent(stripe);
            self.multicasters.push_back((call, rank));
        }
    }

    /// Counts the progress of earlier calls as progress of a call, because streams are sent in the
    /// order of calls.
    pub(super) fn follow_earlier(&mut self, call_number: u64) {
        let after = self.moved_after.filter(|(of, _)| *of < call_number).map(|(_, at)| at);
        let earlier = self.calls.range(..call_number).map(|(_, call)| call.progress).chain(after).max();
        if let Some((call, earlier)) = self.calls.get_mut(&call_number).zip(earlier) {
            call.progress = call.progress.max(earlier);
        }
    }

    /// Records progress of a call.
    pub(super) fn moved(&mut self, now: Time, call: u64) {
        match self.calls.get_mut(&call) {
            Some(call) => call.progress = now,
            None => self.moved_after = Some((call, now)),
        }
    }

    /// Counts traffic of a rank in a call. Returns whether the rank is still in the call.
    pub(super) fn count(&mut self, call: u64, rank: u32, traffic: TrafficTotals) -> bool {
        let run = self.run_mut(call, rank);
        run.map(|run| run.stats.traffic += traffic).is_some()
    }

    /// Returns the failure of a call if its working memory could not be allocated, or `None` if
    /// this memory belongs to no call.
    pub(super) fn allocation_failure(&self, memory: MemoryId) -> Option<CallFailure> {
        let first = self.unallocated.get(&memory)?.first()?;
        let call = self.calls.get(&first.call)?;
        let (rank, bytes) = (first.rank, call.runs.get(&first.rank)?.scratch.len);
        let message = format!(
            "rank {rank} cannot call {}: this node has no {bytes} bytes of working memory; use a smaller message",
            call.signature
        );
        Some(CallFailure::new(CallFailureKind::Invalid, message, vec![rank]))
    }

    /// Removes a call that no rank is in, and returns its record.
    pub(super) fn retire(&mut self, call_number: u64, group: (u64, u32)) -> Option<CallRecord> {
        Some(self.calls.remove(&call_number)?.record(group, call_number, None))
    }

    /// Removes all calls because the group has failed. Returns the tokens and ranks of the open
    /// requests, and the records.
    pub(super) fn fail(
        &mut self,
        now: Time,
        group: (u64, u32),
        why: &Arc<str>,
        out: &mut EngineOutbox,
    ) -> (Vec<(u64, u32)>, Vec<CallRecord>) {
        let (mut open, mut records) = (Vec::new(), Vec::new());
        for (call_number, mut call) in std::mem::take(self).calls {
            for (rank, run) in std::mem::take(&mut call.runs) {
                out.free(run.scratch);
                call.notes.record_end(RankTimes { rank, came: run.begun, ended: now }, &run.stats.traffic);
                open.push((run.token, rank));
            }
            records.push(call.record(group, call_number, Some(Arc::clone(why))));
        }
        (open, records)
    }
}
