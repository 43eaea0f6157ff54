//! A group on this node. Its parts own their state, each with inputs and outputs, and do not know each other; the group
//! routes between them:
//!
//! ```text
//! a rank calls -> plan_selection -> calls: actions that may start -> messages, streams -> actions that are done -> calls
//!                                                                                      -> a rank is through: its answer
//! ```
//!
//! `call_matching` compares what ranks called, `departures` knows who has gone, `failure_detector` and `wait_for_graph` find
//! out who is to blame when something waits for too long, `point_to_point` has the messages outside of calls, `watched_calls`
//! who waits in calls that ranks carry out themselves, and `quick_calls` whether they do so over several nodes.

mod call_matching;
mod call_queue;
mod departures;
mod failing;
mod failure_detector;
mod messages;
mod network;
mod overdue;
mod point_to_point;
mod quick;
mod rank_requests;
mod ranks;
mod running_calls;
mod start;
mod streams;
mod wait_for_graph;
mod watched_calls;

use crate::api::{CallRequest, TransferRequest};
use crate::call_signature::{CallSignature, invalid};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::WorkId;
use crate::members::Members;
use crate::memory::MemoryId;
use crate::preparation::PreparedCall;
use crate::program::CompiledSchedule;
use crate::shared::{GroupContext, SharedState, TimerKey};
use call_matching::CallMatching;
use call_queue::{CallQueue, PendingCall};
use cool_collective::{CostModel, Planner};
use cool_machine::Time;
use cool_types::limits::OPEN_CALLS;
use departures::Departures;
use failure_detector::FailureDetector;
use messages::CallMessages;
use point_to_point::PointToPointMessages;
use quick::agreement::QuickAgreement;
use ranks::LocalRanks;
use running_calls::{CallAction, Completion, RunningCalls};
use std::sync::Arc;
use streams::{StreamEvent, Streams};
use watched_calls::WatchedCalls;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Members,
    ranks: LocalRanks,
    plans: CallQueue,
    calls: RunningCalls,
    messages: CallMessages,
    streams: Streams,
    point_to_point: PointToPointMessages,
    watched_calls: WatchedCalls,
    quick_calls: QuickAgreement,
    matching: CallMatching,
    departures: Departures,
    failure_detector: FailureDetector,
    failed: Option<CallFailure>,
}

impl Group {
    pub(crate) fn new(members: Members, cost_model: CostModel) -> Group {
        let planner = Planner::new(cost_model, members.layout.clone());
        Group {
            ranks: LocalRanks::new(members.my_ranks()),
            members,
            plans: CallQueue::new(planner),
            calls: RunningCalls::default(),
            messages: CallMessages::default(),
            streams: Streams::default(),
            point_to_point: PointToPointMessages::default(),
            watched_calls: WatchedCalls::default(),
            quick_calls: QuickAgreement::default(),
            matching: CallMatching::default(),
            departures: Departures::default(),
            failure_detector: FailureDetector::default(),
            failed: None,
        }
    }

    /// The group as messages name it.
    pub(crate) fn key(&self) -> (u64, u32) {
        self.members.key()
    }

    /// Whether nothing here is of use to anyone any more.
    pub(crate) fn quiet(&self) -> bool {
        self.is_idle() && self.streams.is_empty()
    }

    /// Whether no call or message of a rank is open.
    fn is_idle(&self) -> bool {
        let no_call = self.calls.is_empty() && self.plans.is_empty() && self.watched_calls.is_empty();
        no_call && self.point_to_point.is_idle()
    }

    /// A local rank calls. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn call(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        token: u64,
        request: CallRequest,
    ) -> Result<(), CallFailure> {
        let id = self.members.id;
        let Some(rank) = self.ranks.get_mut(request.rank) else {
            let message = format!("rank {} of group {id} is not on this node", request.rank);
            let failed = CallFailure::new(CallFailureKind::Invalid, message, vec![request.rank]);
            shared.done(token, Err(failed));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(rank.tell(id, failed)));
            return Ok(());
        }
        let size = self.members.layout.size();
        let signature = if rank.open_calls + self.point_to_point.open_of(request.rank) >= OPEN_CALLS {
            Err(invalid(&request, &format_args!("it has {OPEN_CALLS} calls open; wait for some")))
        } else {
            CallSignature::of(&request).and_then(|call| call.check(&request, size).map(|()| call))
        };
        rank.open_calls += 1;
        let waiting = PendingCall { token, at: now, request, signature };
        if waiting.request.watch {
            return self.watch(now, shared, waiting);
        }
        self.plans.push(waiting);
        self.begin_waiting(now, shared)
    }

    /// A call has been prepared.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn prepared(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        id: WorkId,
        prepared: PreparedCall,
    ) -> Result<(), CallFailure> {
        self.plans.prepared(id, prepared);
        self.begin_waiting(now, shared)
    }

    /// Begins what can begin.
    fn begin_waiting(&mut self, now: Time, shared: &mut SharedState) -> Result<(), CallFailure> {
        while let Some((waiting, prepared)) =
            self.plans.poll(&mut GroupContext { now, members: &self.members, shared })
        {
            let rank = waiting.request.rank;
            let Some(number) = self.number(shared, &waiting) else { continue };
            match prepared {
                Err(refused) => self.refuse(now, shared, (number, rank, waiting.token), refused)?,
                Ok(prepared) => self.take_turn(now, shared, number, &waiting, prepared)?,
            }
        }
        Ok(())
    }

    /// The number of a rank's call; `None` if it has made that before, which it is told.
    fn number(&mut self, shared: &mut SharedState, waiting: &PendingCall) -> Option<u64> {
        let PendingCall { token, request, signature, .. } = waiting;
        // A call that is refused is made.
        let watched = request.watch && signature.is_ok();
        let least = match self.ranks.number(request.rank, request.number, watched) {
            Ok(number) => return Some(number),
            Err(least) => least,
        };
        let said = request.number.unwrap_or(u64::MAX);
        let reason = format!("it cannot be its call {said}: that is call {least}, or a later one");
        self.ranks.answered(request.rank);
        shared.done(*token, Err(invalid(request, &reason)));
        None
    }

    /// A call makes no sense. Where all ranks call alike all are refused alike, and the group goes on; where others call
    /// something else, they find by its digest that this rank's call is another.
    fn refuse(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        (number, rank, token): (u64, u32, u64),
        refused: CallFailure,
    ) -> Result<(), CallFailure> {
        let matched = self.match_refused(now, shared, (number, rank), &refused);
        self.ranks.answered(rank);
        shared.done(token, Err(refused));
        self.retire(shared, number);
        matched
    }

    fn match_refused(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        (call, rank): (u64, u32),
        refused: &CallFailure,
    ) -> Result<(), CallFailure> {
        self.departures.check_call(&self.members, call)?;
        self.matching.refuse(&self.members, (call, rank), refused)?;
        self.match_with_others(now, shared, call, rank)?;
        self.announce(now, shared, call);
        self.take_over(shared, call);
        Ok(())
    }

    /// A call that is prepared has its turn.
    fn take_turn(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        number: u64,
        waiting: &PendingCall,
        prepared: (CallSignature, Arc<CompiledSchedule>),
    ) -> Result<(), CallFailure> {
        let rank = waiting.request.rank;
        if let Err(failed) = self.begin(now, shared, number, waiting, prepared) {
            // Its run may not have been made, so that it would not be told with the others.
            if self.calls.run(number, rank).is_none() {
                self.refuse_open(shared, waiting.token, rank, &failed);
            }
            return Err(failed);
        }
        self.run(now, shared)
    }

    /// A rank takes part in a call: as the other local ranks do, and with ranks that are still there?
    fn begin(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        number: u64,
        waiting: &PendingCall,
        prepared: (CallSignature, Arc<CompiledSchedule>),
    ) -> Result<(), CallFailure> {
        let rank = waiting.request.rank;
        self.departures.check_call(&self.members, number)?;
        let (signature, compiled) = &prepared;
        let text = compiled.called(signature.plan.is_some());
        self.matching.call(&self.members, (number, rank), &text, compiled.digest)?;
        self.take_over(shared, number);
        let through = self.calls.begin(now, number, waiting, prepared, &mut shared.out);
        self.match_with_others(now, shared, number, rank)?;
        self.arm(now, shared, number);
        self.failure_detector.watch(&mut GroupContext { now, members: &self.members, shared });
        self.leave(shared, number, through);
        Ok(())
    }

    /// Compares a rank's call with what other nodes have sent so far.
    fn match_with_others(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        call: u64,
        rank: u32,
    ) -> Result<(), CallFailure> {
        let node_of = |(rank, digest)| Some((self.members.node_of(rank)?, digest));
        let arrived = self.streams.digests(call).chain(self.messages.came(call).filter_map(node_of));
        for node in self.matching.compare(&self.members, (call, rank), arrived)? {
            self.tell_call(now, shared, call, node);
        }
        if self.calls.get(call).is_some_and(|call| call.announced) {
            self.announce(now, shared, call);
        }
        Ok(())
    }

    /// A node's digest of a call differs: it is told what was called here.
    fn tell_call(&mut self, now: Time, shared: &mut SharedState, call: u64, node: usize) {
        if node < self.members.nodes.len() {
            let mut context = GroupContext { now, members: &self.members, shared };
            self.matching.tell(&mut context, call, self.ranks.came(call), node);
        }
    }

    fn announce(&mut self, now: Time, shared: &mut SharedState, call: u64) {
        let mut context = GroupContext { now, members: &self.members, shared };
        self.matching.announce(&mut context, call, self.ranks.came(call));
    }

    /// Lets calls go on by what is done, and starts every action that may start, as long as the turn goes on.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn run(&mut self, now: Time, shared: &mut SharedState) -> Result<(), CallFailure> {
        loop {
            if let Some(done) = self.messages.poll() {
                self.complete(now, shared, done);
            } else if let Some(event) = self.streams.poll() {
                self.stream_event(now, shared, event)?;
            } else if !self.calls.has_ready() || !shared.turn.start(self.members.id) {
                return Ok(());
            } else if let Some(action) = self.calls.next_ready() {
                self.start(now, shared, action)?;
            } else if let Some((call, rank)) = self.calls.next_multicaster() {
                self.next_multicast(now, shared, call, rank)?;
            }
        }
    }

    /// What a stream has done, for its call.
    fn stream_event(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        event: StreamEvent,
    ) -> Result<(), CallFailure> {
        match event {
            StreamEvent::Moved { call, rank, traffic, progress } => {
                if progress {
                    self.calls.moved(now, call);
                }
                // A stream of a copied message outlives its call.
                if !self.calls.count(call, rank, traffic) {
                    self.ranks.get_mut(rank).into_iter().for_each(|rank| rank.afterwards += traffic);
                }
            }
            StreamEvent::Done(action) => self.complete(now, shared, action),
            // An action whose bytes are changed later goes on until nobody needs them from here.
            StreamEvent::Delivered(id, action) => {
                if self.calls.changed_later(action) == Some(false) && self.streams.pin_rank(&id) {
                    self.calls.pin(action.call, action.rank);
                    self.complete(now, shared, action);
                }
            }
            StreamEvent::Unpinned { call, rank } => {
                let through = self.calls.unpin(now, call, rank, &mut shared.out);
                self.leave(shared, call, through);
            }
            StreamEvent::AllSent { call, rank, queue } => {
                self.calls.multicast_sent(call, rank, queue.stripe);
                self.streams.send_next(&mut GroupContext { now, members: &self.members, shared }, queue)?;
            }
            StreamEvent::Mismatch { call, node } => self.tell_call(now, shared, call, node),
            StreamEvent::Closed(id) => {
                if self.calls.get(id.call).is_some() {
                    self.streams.ignore(id);
                }
            }
        }
        Ok(())
    }

    /// An action is done.
    fn complete(&mut self, now: Time, shared: &mut SharedState, done: CallAction) {
        let through = self.calls.complete(now, done, &mut shared.out);
        self.leave(shared, done.call, through);
    }

    /// A rank may be through a call: it is answered.
    fn leave(&mut self, shared: &mut SharedState, number: u64, through: Option<Completion>) {
        let Some(Completion { rank, token, mut stats }) = through else { return };
        if let Some(local) = self.ranks.get_mut(rank) {
            stats.traffic += std::mem::take(&mut local.afterwards);
        }
        self.ranks.answered(rank);
        shared.done(token, Ok(stats));
        self.retire(shared, number);
    }

    /// Forgets a call once all ranks of this node are through it.
    fn retire(&mut self, shared: &mut SharedState, number: u64) {
        let running = self.calls.get(number).is_some_and(|call| !call.is_empty());
        if running || self.ranks.awaits(number) {
            return;
        }
        self.calls.retire(number, self.key()).into_iter().for_each(|record| shared.ring.push(record));
        shared.timers.set(TimerKey::Call(self.members.id, number), None);
        self.streams.forget_call(number, shared);
        self.matching.forget(number);
    }

    /// The smallest call that not all ranks of this node are through.
    fn oldest_open(&self) -> u64 {
        let next = self.ranks.next_call();
        self.calls.iter().next().map_or(next, |(number, _)| next.min(number))
    }

    /// Work that was given out is done.
    ///
    /// # Errors
    /// If the group fails by what follows.
    pub(crate) fn work_done(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        id: WorkId,
    ) -> Result<(), CallFailure> {
        if !self.messages.work_done(shared, id) {
            self.point_to_point.work_done(&mut GroupContext { now, members: &self.members, shared }, id);
        }
        self.run(now, shared)
    }

    /// There is no memory of this name.
    ///
    /// # Errors
    /// If it is the working memory of a call here.
    pub(crate) fn allocation_failed(&self, memory: MemoryId) -> Result<(), CallFailure> {
        self.calls.allocation_failed(memory)
    }

    /// A local rank sends or receives. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn transfer(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        token: u64,
        request: TransferRequest,
    ) -> Result<(), CallFailure> {
        let (id, rank) = (self.members.id, request.rank);
        let beyond = request.peer.filter(|peer| self.members.node_of(*peer).is_none());
        let Some(local) = self.ranks.get_mut(rank).filter(|_| beyond.is_none()) else {
            let peer = request.peer.unwrap_or_default();
            let message = format!("rank {rank} of group {id} cannot send to or receive from rank {peer}");
            shared.done(token, Err(CallFailure::new(CallFailureKind::Invalid, message, vec![rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(local.tell(id, failed)));
            return Ok(());
        }
        let mut context = GroupContext { now, members: &self.members, shared };
        self.failure_detector.watch(&mut context);
        self.point_to_point.begin(&mut context, token, request, &self.departures)
    }

    /// A local rank cancels a receive or probe.
    pub(crate) fn cancel(&mut self, now: Time, shared: &mut SharedState, rank: u32, id: u64) {
        self.point_to_point.cancel(&mut GroupContext { now, members: &self.members, shared }, rank, id);
    }

    /// The group is released: calls that are open fail. Streams go on for those who need them.
    pub(crate) fn close(&mut self, now: Time, shared: &mut SharedState) {
        if !self.is_idle() {
            let message = format!("group {} was released while calls were open", self.members.id);
            self.fail(now, shared, &CallFailure::new(CallFailureKind::Aborted, message, Vec::new()), true);
        }
    }

    /// Gives back everything, before it is forgotten.
    pub(crate) fn forget(mut self, now: Time, shared: &mut SharedState) {
        self.clear(now, shared);
        self.point_to_point.clear(self.members.id, shared);
        for node in self.members.others() {
            shared.peers.leave(now, self.members.nodes[node].id, self.key());
        }
    }
}
