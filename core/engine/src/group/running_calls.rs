//! The calls that ranks of this node are in: the programs of these ranks, what may start next, and who is through.
//!
//! A call of a rank waits for its plan (`call_queue`), then runs here; a [`ProgramRun`] whose actions are done is pinned as long as
//! streams need its rank's buffers; then the rank is answered. The call is over when all ranks of this node are through it.

use super::call_queue::PendingCall;
use crate::api::DEFAULT_TIMEOUT;
use crate::call_signature::CallSignature;
use crate::failure::{CallFailure, CallFailureKind, CallStats, TrafficTotals};
use crate::memory::{MemoryId, MemoryRange};
use crate::output_queue::OutputQueue;
use crate::program::{CompiledSchedule, ProgramRun};
use crate::trace::{CallNotes, CallRecord, RankTimes};
use cool_collective::{ActionKind, MulticastScope, Stripe};
use cool_machine::{Duration, Time};
use cool_types::Operation;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// After this time without progress, or half its timeout, a call tells the other agents that it has begun here.
pub(super) const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// An action of a rank's program in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallAction {
    pub(super) call: u64,
    pub(super) rank: u32,
    pub(super) action: u32,
}

/// One collective while ranks of this node are in it.
#[derive(Debug)]
pub(super) struct RunningCall {
    pub(super) signature: CallSignature,
    pub(super) compiled: Arc<CompiledSchedule>,
    pub(super) runs: BTreeMap<u32, ProgramRun>,
    /// When anything last moved.
    pub(super) progress: Time,
    /// How long nothing may move.
    pub(super) timeout: Duration,
    /// Whether all ranks here let it give way to others.
    pub(super) background: bool,
    /// Whether the other agents have been told that it has begun here.
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

    /// Whether no rank is in it, of those that have come.
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(super) fn announce_at(&self) -> Time {
        self.progress + ANNOUNCE_AFTER.min(self.timeout / 2)
    }

    pub(super) fn deadline(&self) -> Time {
        self.progress + self.timeout
    }

    /// What is to be remembered of it.
    fn record(self, group: (u64, u32), call: u64, failure: Option<Arc<str>>) -> CallRecord {
        let (words, plan) = self.compiled.text.clone();
        let CallNotes { ranks, arrivals, traffic } = self.notes;
        CallRecord { group, call, words, plan, ranks, arrivals, traffic, failure }
    }
}

/// A rank that is through a call.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) rank: u32,
    pub(super) token: u64,
    pub(super) stats: CallStats,
}

/// A multicast whose turn has come.
#[derive(Debug)]
pub(super) struct NextMulticast {
    pub(super) action: u32,
    pub(super) scope: MulticastScope,
    pub(super) stripe: Stripe,
    pub(super) transfer: u32,
    pub(super) data: MemoryRange,
    pub(super) concurrent_senders: u32,
}

/// The calls of a group's ranks on this node.
#[derive(Debug, Default)]
pub(super) struct RunningCalls {
    calls: BTreeMap<u64, RunningCall>,
    /// Actions that may start.
    ready: VecDeque<CallAction>,
    /// Ranks, by call, whose next multicast may start.
    multicasters: VecDeque<(u64, u32)>,
    /// The last call that moved when all ranks here were through it, since its bytes are copied, and when it did.
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

    /// Calls with their numbers, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &RunningCall)> {
        self.calls.iter().map(|(call_number, call)| (*call_number, call))
    }

    /// A rank takes part in a call from now on. It may be through at once.
    pub(super) fn add_rank(
        &mut self,
        now: Time,
        call_number: u64,
        PendingCall { token, at, request, .. }: &PendingCall,
        (signature, compiled): (CallSignature, Arc<CompiledSchedule>),
        out: &mut OutputQueue,
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
        let scratch = out.allocate(call.compiled.program(rank).scratch);
        let or_none = |buffer: Option<MemoryRange>| buffer.unwrap_or(MemoryRange::EMPTY);
        let buffers = (or_none(request.input), or_none(request.output), scratch);
        let run = ProgramRun::new(Arc::clone(&call.compiled), rank, buffers, *token, *at);
        let ready = run.first().into_iter().map(|action| CallAction { call: call_number, rank, action });
        self.ready.extend(ready);
        call.runs.insert(rank, run);
        self.finish_rank_if_done(now, call_number, rank, out)
    }

    /// Takes an action that may start.
    pub(super) fn next_ready(&mut self) -> Option<CallAction> {
        self.ready.pop_front()
    }

    /// Takes a rank whose next multicast may start, with its call.
    pub(super) fn next_multicaster(&mut self) -> Option<(u64, u32)> {
        self.multicasters.pop_front()
    }

    /// Whether anything may start.
    pub(super) fn has_ready(&self) -> bool {
        !(self.ready.is_empty() && self.multicasters.is_empty())
    }

    /// The run of a rank in a call.
    pub(super) fn run(&self, call: u64, rank: u32) -> Option<&ProgramRun> {
        self.calls.get(&call)?.runs.get(&rank)
    }

    fn run_mut(&mut self, call: u64, rank: u32) -> Option<&mut ProgramRun> {
        self.calls.get_mut(&call)?.runs.get_mut(&rank)
    }

    /// An action is done: what waited for it may start, or the rank is through.
    pub(super) fn complete(
        &mut self,
        now: Time,
        done: CallAction,
        out: &mut OutputQueue,
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

    /// Something outside of its program needs a rank's buffers: it may not leave.
    pub(super) fn pin(&mut self, call: u64, rank: u32) {
        if let Some(run) = self.run_mut(call, rank) {
            run.pins += 1;
        }
    }

    /// Its buffers are needed no more.
    pub(super) fn unpin(
        &mut self,
        now: Time,
        call: u64,
        rank: u32,
        out: &mut OutputQueue,
    ) -> Option<Completion> {
        self.run_mut(call, rank)?.pins -= 1;
        self.finish_rank_if_done(now, call, rank, out)
    }

    fn finish_rank_if_done(
        &mut self,
        now: Time,
        call_number: u64,
        rank: u32,
        out: &mut OutputQueue,
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

    /// A multicast of a rank may start; it has its turn later.
    pub(super) fn queue_multicast(&mut self, of: CallAction) {
        if let Some(run) = self.run_mut(of.call, of.rank) {
            run.progress.queue_multicast(of.action);
            self.multicasters.push_back((of.call, of.rank));
        }
    }

    /// The next multicast of a rank over whose tree none is on its way. In order, the first bytes arrive early; at
    /// once, each stream would slow the others and all would be late.
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

    /// Whether a later action of a rank's program changes the bytes that an action has received; `None` if the rank is not in
    /// the call.
    pub(super) fn changed_later(&self, of: CallAction) -> Option<bool> {
        let run = self.run(of.call, of.rank)?;
        let kind = run.program().actions[of.action as usize].kind;
        Some(matches!(kind, ActionKind::ReceiveMulticast { dst, .. } if run.changed_later(of.action, dst)))
    }

    /// A rank has put the last byte of a multicast on the link, or never will: its tree is free.
    pub(super) fn multicast_sent(&mut self, call: u64, rank: u32, stripe: Stripe) {
        if let Some(run) = self.run_mut(call, rank) {
            run.progress.multicast_sent(stripe);
            self.multicasters.push_back((call, rank));
        }
    }

    /// A call moves while earlier ones do: streams are sent in their order.
    pub(super) fn follow_earlier(&mut self, call_number: u64) {
        let after = self.moved_after.filter(|(of, _)| *of < call_number).map(|(_, at)| at);
        let earlier = self.calls.range(..call_number).map(|(_, call)| call.progress).chain(after).max();
        if let Some((call, earlier)) = self.calls.get_mut(&call_number).zip(earlier) {
            call.progress = call.progress.max(earlier);
        }
    }

    /// Something of a call has moved.
    pub(super) fn moved(&mut self, now: Time, call: u64) {
        match self.calls.get_mut(&call) {
            Some(call) => call.progress = now,
            None => self.moved_after = Some((call, now)),
        }
    }

    /// Counts what was sent for a rank in a call; whether the rank is in it still.
    pub(super) fn count(&mut self, call: u64, rank: u32, traffic: TrafficTotals) -> bool {
        let run = self.run_mut(call, rank);
        run.map(|run| run.stats.traffic += traffic).is_some()
    }

    /// There is no memory of this name.
    ///
    /// # Errors
    /// If it is the working memory of a call.
    pub(super) fn allocation_failed(&self, memory: MemoryId) -> Result<(), CallFailure> {
        for call in self.calls.values() {
            let run = call.runs.iter().find(|(_, run)| run.scratch.len > 0 && run.scratch.memory == memory);
            if let Some((rank, run)) = run {
                let (bytes, call) = (run.scratch.len, &call.signature);
                let message = format!(
                    "rank {rank} cannot call {call}: this node has no {bytes} bytes of working memory; use a smaller message"
                );
                return Err(CallFailure::new(CallFailureKind::Invalid, message, vec![*rank]));
            }
        }
        Ok(())
    }

    /// Forgets a call that no rank is in; what is to be remembered of it.
    pub(super) fn retire(&mut self, call_number: u64, group: (u64, u32)) -> Option<CallRecord> {
        Some(self.calls.remove(&call_number)?.record(group, call_number, None))
    }

    /// Forgets all calls, which have failed: those who wait, as token and rank, and what is to be remembered.
    pub(super) fn fail(
        &mut self,
        now: Time,
        group: (u64, u32),
        why: &Arc<str>,
        out: &mut OutputQueue,
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
