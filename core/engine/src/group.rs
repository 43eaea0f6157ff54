//! A group on this node. Its parts are types that own their state, and the group routes between
//! their inputs and outputs:
//!
//! ```text
//! request -> call_queue -> running_calls -> actions -> messages, streams
//!                                ^                           |
//!                                +---- completed actions ----+
//!                                |
//!                                +-> completion of a rank: its reply
//! ```
//!
//! The steps of a call have one name each: a rank's call is *queued* (`queue_call`) until its plan
//! is prepared; the rank *joins* the call (`join_call`); the group *advances* all calls (`advance`)
//! by *starting* and *completing* their actions (`start_action`, `complete_action`), until the rank
//! *completes* the call (`complete_rank`); the call is *retired* (`retire`) once all ranks of this
//! node have completed it.
//!
//! `actions`, `arrivals`, `call_timeouts`, `group_failure` and `rank_requests` have no state. They
//! contain methods of [`Group`] that connect the parts.
//!
//! `call_matching` compares the calls of all ranks, `lost_ranks` records the ranks that have left,
//! `failure_detector` and `wait_for_graph` find out which ranks are to blame if something takes too
//! long, `point_to_point` handles the messages outside of calls, `watched_calls` handles ranks that
//! wait in calls that they execute themselves, `quick` agrees on whether the ranks of several nodes
//! execute calls themselves, and `tree_proof` and `tree_sources` find out whether multicasts
//! arrive.

mod actions;
mod arrivals;
mod call_matching;
mod call_queue;
mod call_timeouts;
mod chain_cache;
mod failure_detector;
mod group_failure;
mod long_packets;
mod lost_ranks;
mod messages;
mod point_to_point;
mod quick;
mod rank_requests;
mod ranks;
mod running_calls;
mod schedule_cache;
mod silent_trees;
mod stream_failures;
mod streams;
mod tree_proof;
mod tree_sources;
mod wait_for_graph;
mod watched_calls;

use crate::api::{CallRequest, TransferRequest};
use crate::call_signature::{CallSignature, invalid};
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::WorkId;
use crate::members::Members;
use crate::memory::MemoryId;
use crate::preparation::PreparedCall;
use crate::program::CompiledSchedule;
use call_matching::CallMatching;
use call_queue::{CallQueue, PendingCall};
use cool_collective::{CostModel, Planner};
use cool_machine::Time;
use cool_types::limits::{OPEN_CALLS, WAITING_CALLS};
use failure_detector::FailureDetector;
use lost_ranks::LostRankTable;
use messages::CallMessages;
use point_to_point::PointToPointMessages;
use quick::agreement::QuickAgreement;
use ranks::LocalRanks;
use running_calls::{CallAction, Completion, RunningCalls};
use std::sync::Arc;
use streams::{StreamEvent, Streams};
use tree_proof::TreeProof;
use tree_sources::TreeSources;
use watched_calls::WatchedCalls;

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Members,
    ranks: LocalRanks,
    call_queue: CallQueue,
    calls: RunningCalls,
    messages: CallMessages,
    streams: Streams,
    point_to_point: PointToPointMessages,
    watched_calls: WatchedCalls,
    quick_calls: QuickAgreement,
    tree_proof: TreeProof,
    tree_sources: TreeSources,
    matching: CallMatching,
    lost_rank_table: LostRankTable,
    failure_detector: FailureDetector,
    failed: Option<CallFailure>,
}

impl Group {
    pub(crate) fn new(members: Members, cost_model: CostModel) -> Group {
        let planner = Planner::new(cost_model, members.layout.clone());
        Group {
            ranks: LocalRanks::new(members.my_ranks()),
            members,
            call_queue: CallQueue::new(planner),
            calls: RunningCalls::default(),
            messages: CallMessages::default(),
            streams: Streams::default(),
            point_to_point: PointToPointMessages::default(),
            watched_calls: WatchedCalls::default(),
            quick_calls: QuickAgreement::default(),
            tree_proof: TreeProof::default(),
            tree_sources: TreeSources::default(),
            matching: CallMatching::default(),
            lost_rank_table: LostRankTable::default(),
            failure_detector: FailureDetector::default(),
            failed: None,
        }
    }

    /// Returns the group's number and epoch, by which messages name it.
    pub(crate) fn id_and_epoch(&self) -> (u64, u32) {
        self.members.id_and_epoch()
    }

    /// Returns whether no rank and no other node needs the group any more.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.is_idle() && self.streams.is_empty()
    }

    /// Returns whether no call or transfer of a rank is open.
    fn is_idle(&self) -> bool {
        let no_call = self.calls.is_empty() && self.call_queue.is_empty() && self.watched_calls.is_empty();
        no_call && self.point_to_point.is_idle()
    }

    /// Queues a local rank's call. The reply is sent through `resources`.
    ///
    /// # Errors
    /// Returns an error if the call makes the group fail.
    pub(crate) fn queue_call(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        token: u64,
        request: CallRequest,
    ) -> Result<(), CallFailure> {
        let id = self.members.id;
        let Some(rank) = self.ranks.get_mut(request.rank) else {
            let message = format!("rank {} of group {id} is not on this node", request.rank);
            let failed = CallFailure::new(CallFailureKind::Invalid, message, vec![request.rank]);
            resources.done(token, Err(failed));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            resources.done(token, Err(rank.failure_reply(id, failed)));
            return Ok(());
        }
        let size = self.members.layout.size();
        const MOST: usize = OPEN_CALLS + WAITING_CALLS;
        let signature = if rank.open_calls + self.point_to_point.open_count(request.rank) >= MOST {
            Err(invalid(&request, &format_args!("it has {MOST} calls open; wait for some")))
        } else {
            CallSignature::from_request(&request).and_then(|call| call.check(&request, size).map(|()| call))
        };
        rank.open_calls += 1;
        let pending = PendingCall { token, at: now, request, signature };
        if pending.request.watch {
            return self.watch(now, resources, pending);
        }
        self.call_queue.push(pending);
        self.begin_pending_calls(now, resources)
    }

    /// Handles the completion of a preparation.
    ///
    /// # Errors
    /// Returns an error if a call that begins now makes the group fail.
    pub(crate) fn on_prepared(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        id: WorkId,
        prepared: PreparedCall,
    ) -> Result<(), CallFailure> {
        self.call_queue.on_prepared(id, prepared);
        self.begin_pending_calls(now, resources)
    }

    /// Begins all pending calls that can begin.
    fn begin_pending_calls(&mut self, now: Time, resources: &mut EngineResources) -> Result<(), CallFailure> {
        while let Some((pending, prepared)) =
            self.call_queue.poll(&mut GroupContext { now, members: &self.members, resources })
        {
            let rank = pending.request.rank;
            let Some(call_number) = self.assign_number(resources, &pending) else { continue };
            match prepared {
                Err(refused) => self.refuse(now, resources, (call_number, rank, pending.token), refused)?,
                Ok(prepared) => self.run_prepared(now, resources, call_number, &pending, prepared)?,
            }
        }
        Ok(())
    }

    /// Returns the number of a rank's call. If the rank has made a call with this number before,
    /// the call is refused and the result is `None`.
    fn assign_number(&mut self, resources: &mut EngineResources, pending: &PendingCall) -> Option<u64> {
        let PendingCall { token, request, signature, .. } = pending;
        // A call that is refused counts as made.
        let watched = request.watch && signature.is_ok();
        let least = match self.ranks.assign_number(request.rank, request.call_number, watched) {
            Ok(call_number) => return Some(call_number),
            Err(least) => least,
        };
        let requested = request.call_number.unwrap_or(u64::MAX);
        let reason =
            format!("number {requested} cannot be used; its next call must have number {least} or higher");
        self.ranks.on_answered(request.rank);
        resources.done(*token, Err(invalid(request, &reason)));
        None
    }

    /// Refuses an invalid call. If all ranks make the same call, all are refused and the group
    /// continues. If others make a different call, they notice by its digest.
    fn refuse(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        (call_number, rank, token): (u64, u32, u64),
        refused: CallFailure,
    ) -> Result<(), CallFailure> {
        let matched = self.match_refused_call(now, resources, (call_number, rank), &refused);
        self.ranks.on_answered(rank);
        resources.done(token, Err(refused));
        self.retire(resources, call_number);
        matched
    }

    fn match_refused_call(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        (call, rank): (u64, u32),
        refused: &CallFailure,
    ) -> Result<(), CallFailure> {
        self.match_executed_elsewhere(call)?;
        self.lost_rank_table.check_call(&self.members, call)?;
        self.matching.refuse(&self.members, (call, rank), refused)?;
        self.match_with_others(now, resources, call, rank)?;
        self.announce(now, resources, call);
        self.take_over(resources, call);
        Ok(())
    }

    /// Lets a rank join a prepared call, and advances the group.
    fn run_prepared(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call_number: u64,
        pending: &PendingCall,
        prepared: (CallSignature, Arc<CompiledSchedule>),
    ) -> Result<(), CallFailure> {
        let rank = pending.request.rank;
        if let Err(failed) = self.join_call(now, resources, call_number, pending, prepared) {
            // The rank may not have joined yet, so the failure of the group would not reach it.
            if self.calls.run(call_number, rank).is_none() {
                self.fail_open(resources, pending.token, rank, &failed);
            }
            return Err(failed);
        }
        self.advance(now, resources)
    }

    /// Lets a rank join a call, after checking that the other local ranks make the same call and
    /// that no rank that must take part is lost.
    fn join_call(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call_number: u64,
        pending: &PendingCall,
        prepared: (CallSignature, Arc<CompiledSchedule>),
    ) -> Result<(), CallFailure> {
        let rank = pending.request.rank;
        self.match_executed_elsewhere(call_number)?;
        self.lost_rank_table.check_call(&self.members, call_number)?;
        let (signature, compiled) = &prepared;
        let text = compiled.called(signature.plan.is_some());
        self.matching.compare_local(&self.members, (call_number, rank), &text, compiled.digest)?;
        self.take_over(resources, call_number);
        let completion = self.calls.add_rank(now, call_number, pending, prepared, &mut resources.out);
        self.match_with_others(now, resources, call_number, rank)?;
        self.arm(now, resources, call_number);
        self.failure_detector.watch(&mut GroupContext { now, members: &self.members, resources });
        self.complete_rank(resources, call_number, completion);
        Ok(())
    }

    /// Compares the digest of a rank's call with the digests in the data that other nodes have sent
    /// so far.
    fn match_with_others(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call: u64,
        rank: u32,
    ) -> Result<(), CallFailure> {
        let node_of = |(rank, digest)| Some((self.members.node_of(rank)?, digest));
        let arrived = self.streams.digests(call).chain(self.messages.early_digests(call).filter_map(node_of));
        for node in self.matching.compare(&self.members, (call, rank), arrived)? {
            self.notify_mismatch(now, resources, call, node);
        }
        if self.calls.get(call).is_some_and(|call| call.announced) {
            self.announce(now, resources, call);
        }
        Ok(())
    }

    /// Sends a node the description of the call that was made here, because a different digest
    /// arrived from it.
    fn notify_mismatch(&mut self, now: Time, resources: &mut EngineResources, call: u64, node: usize) {
        if node < self.members.nodes.len() {
            let mut context = GroupContext { now, members: &self.members, resources };
            self.matching.notify_node(&mut context, call, self.ranks.joined(call), node);
        }
    }

    fn announce(&mut self, now: Time, resources: &mut EngineResources, call: u64) {
        let mut context = GroupContext { now, members: &self.members, resources };
        self.matching.announce(&mut context, call, self.ranks.joined(call));
    }

    /// Advances all calls: handles completed actions, and starts every action that may start,
    /// within the budget of the turn.
    ///
    /// # Errors
    /// Returns an error if the group fails.
    pub(crate) fn advance(&mut self, now: Time, resources: &mut EngineResources) -> Result<(), CallFailure> {
        loop {
            if let Some(done) = self.messages.poll() {
                self.complete_action(now, resources, done);
            } else if let Some(event) = self.streams.poll() {
                self.on_stream_event(now, resources, event)?;
            } else if !self.calls.has_ready() || !resources.turn.take_slot(self.members.id) {
                return Ok(());
            } else if let Some(action) = self.calls.next_ready() {
                self.start_action(now, resources, action)?;
            } else if let Some((call, rank)) = self.calls.next_multicaster() {
                self.next_multicast(now, resources, call, rank)?;
            }
        }
    }

    /// Handles an event of a stream for its call.
    fn on_stream_event(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        event: StreamEvent,
    ) -> Result<(), CallFailure> {
        match event {
            StreamEvent::Moved { call, rank, traffic, progress } => {
                if progress {
                    self.calls.moved(now, call);
                }
                // The stream of a copied message may outlive its call.
                if !self.calls.count(call, rank, traffic) {
                    self.ranks.get_mut(rank).into_iter().for_each(|rank| rank.late_traffic += traffic);
                }
            }
            StreamEvent::Done(action) => self.complete_action(now, resources, action),
            // If a later action overwrites the received bytes, this action completes only when no
            // receiver needs them any more.
            StreamEvent::Delivered(id, action) => {
                if self.calls.changed_later(action) == Some(false) && self.streams.pin_rank(&id) {
                    self.calls.pin(action.call, action.rank);
                    self.complete_action(now, resources, action);
                }
            }
            StreamEvent::Unpinned { call, rank } => {
                let completion = self.calls.unpin(now, call, rank, &mut resources.out);
                self.complete_rank(resources, call, completion);
            }
            StreamEvent::AllSent { call, rank, queue } => {
                self.calls.multicast_sent(call, rank, queue.stripe);
                self.streams
                    .send_next(&mut GroupContext { now, members: &self.members, resources }, queue)?;
            }
            StreamEvent::Mismatch { call, node } => self.notify_mismatch(now, resources, call, node),
            StreamEvent::Heard(scope, source) => self.members.record_source(scope, source),
            StreamEvent::Closed(id) => {
                if self.calls.get(id.call).is_some() {
                    self.streams.ignore(id);
                }
            }
        }
        Ok(())
    }

    /// Handles the completion of an action.
    fn complete_action(&mut self, now: Time, resources: &mut EngineResources, done: CallAction) {
        let completion = self.calls.complete(now, done, &mut resources.out);
        self.complete_rank(resources, done.call, completion);
    }

    /// Replies to a rank if it has completed a call.
    fn complete_rank(
        &mut self,
        resources: &mut EngineResources,
        call_number: u64,
        completion: Option<Completion>,
    ) {
        let Some(Completion { rank, token, mut stats }) = completion else { return };
        if let Some(local) = self.ranks.get_mut(rank) {
            stats.traffic += std::mem::take(&mut local.late_traffic);
        }
        self.ranks.on_answered(rank);
        resources.done(token, Ok(stats));
        self.retire(resources, call_number);
    }

    /// Forgets a call once all ranks of this node have completed it.
    fn retire(&mut self, resources: &mut EngineResources, call_number: u64) {
        let running = self.calls.get(call_number).is_some_and(|call| !call.is_empty());
        if running || self.ranks.is_awaiting(call_number) {
            return;
        }
        let record = self.calls.retire(call_number, self.id_and_epoch());
        record.into_iter().for_each(|record| resources.ring.push(record));
        resources.timers.set(TimerKey::Call(self.members.id, call_number), None);
        self.streams.forget_call(call_number, resources);
        self.matching.forget(call_number);
    }

    /// Returns the smallest number of a call that some rank of this node has not completed.
    fn oldest_open(&self) -> u64 {
        let next = self.ranks.next_call();
        self.calls.iter().next().map_or(next, |(call_number, _)| next.min(call_number))
    }

    /// Handles the completion of work.
    ///
    /// # Errors
    /// Returns an error if the group fails afterwards.
    pub(crate) fn on_work_done(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        id: WorkId,
    ) -> Result<(), CallFailure> {
        if !self.messages.on_work_done(resources, id) {
            self.point_to_point
                .on_work_done(&mut GroupContext { now, members: &self.members, resources }, id);
        }
        self.advance(now, resources)
    }

    /// Lets a rank begin its call, because the driver has allocated memory that may be its own.
    ///
    /// # Errors
    /// Returns an error if the group fails.
    pub(crate) fn on_allocated(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        memory: MemoryId,
    ) -> Result<(), CallFailure> {
        if self.calls.on_allocated(memory) { self.advance(now, resources) } else { Ok(()) }
    }

    /// Returns the failure of the group if memory for its messages or calls could not be allocated.
    pub(crate) fn allocation_failure(&self, memory: MemoryId, bytes: u64) -> CallFailure {
        self.calls.allocation_failure(memory).unwrap_or_else(|| {
            let Members { id, nodes, me, .. } = &self.members;
            let node = &nodes[*me].name;
            let message = format!("node {node} has no {bytes} bytes of memory for messages of group {id}");
            let ranks = self.members.my_ranks().iter().map(|rank| rank.0).collect();
            CallFailure::new(CallFailureKind::Invalid, message, ranks)
        })
    }

    /// Starts a transfer of a local rank. The reply is sent through `resources`.
    ///
    /// # Errors
    /// Returns an error if the transfer makes the group fail.
    pub(crate) fn transfer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        token: u64,
        request: TransferRequest,
    ) -> Result<(), CallFailure> {
        let (id, rank) = (self.members.id, request.rank);
        let beyond = request.peer.filter(|peer| self.members.node_of(*peer).is_none());
        let Some(local) = self.ranks.get_mut(rank).filter(|_| beyond.is_none()) else {
            let peer = request.peer.unwrap_or_default();
            let message = format!("rank {rank} of group {id} cannot send to or receive from rank {peer}");
            resources.done(token, Err(CallFailure::new(CallFailureKind::Invalid, message, vec![rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            resources.done(token, Err(local.failure_reply(id, failed)));
            return Ok(());
        }
        let mut context = GroupContext { now, members: &self.members, resources };
        self.failure_detector.watch(&mut context);
        self.point_to_point.start(&mut context, token, request, &self.lost_rank_table)
    }

    /// Cancels a local rank's receive or probe.
    pub(crate) fn cancel(&mut self, now: Time, resources: &mut EngineResources, rank: u32, id: u64) {
        self.point_to_point.cancel(&mut GroupContext { now, members: &self.members, resources }, rank, id);
    }

    /// Closes the group: open calls fail, and streams continue for the nodes that need them.
    pub(crate) fn close(&mut self, now: Time, resources: &mut EngineResources) {
        if !self.is_idle() {
            let message = format!("group {} was released while calls were open", self.members.id);
            self.fail(now, resources, &CallFailure::new(CallFailureKind::Aborted, message, Vec::new()), true);
        }
    }

    /// Frees all resources of the group.
    pub(crate) fn forget(mut self, now: Time, resources: &mut EngineResources) {
        self.clear(now, resources);
        resources.timers.set(TimerKey::TreeProof(self.members.id), None);
        resources.timers.set(TimerKey::TreeSources(self.members.id), None);
        self.point_to_point.clear(self.members.id, resources);
        for node in self.members.others() {
            resources.peers.leave(now, self.members.nodes[node].id, self.id_and_epoch());
        }
    }
}
