//! The engine without I/O: it routes inputs to the group that they concern, and the outputs of
//! groups to the driver.

mod peering;
#[cfg(test)]
mod tests;

use crate::api::{GroupError, GroupSpec, RankRequest};
use crate::engine_outbox::{AllocatedMemory, ReceivedBytes};
use crate::engine_resources::{EngineResources, TimerKey};
use crate::failure::{CallFailure, CallFailureKind, TrafficTotals};
use crate::group::Group;
use crate::ids::WorkId;
use crate::inputs_outputs::{Input, MadeGroup, Output};
use crate::members::Members;
use crate::memory::MemoryId;
use crate::peers::STARTED_AGAIN;
use crate::preparation::PreparedCall;
use crate::trace::CallRecord;
use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::Packet;
use cool_transport::packet::PacketBody;
use cool_transport::unicast::{self, AgentId};
use cool_types::Operation;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// The engine of one node.
#[derive(Debug)]
pub struct Engine {
    me: AgentId,
    groups: BTreeMap<u64, Group>,
    /// Released groups with streams that other nodes still need.
    closing: BTreeSet<u64>,
    resources: EngineResources,
}

impl Engine {
    /// Returns the engine of an agent. Bounce buffers, which let ranks complete calls before all
    /// receivers have their messages, take up to `bounce_bytes`; beyond that, calls wait. A node
    /// that is silent for `peer_timeout` while others wait for it is lost.
    pub fn new(me: AgentId, bounce_bytes: u64, peer_timeout: Duration) -> Engine {
        let resources = EngineResources::new(me.clone(), bounce_bytes, peer_timeout);
        Engine { me, groups: BTreeMap::new(), closing: BTreeSet::new(), resources }
    }

    /// Returns the records of the last calls of a group, or of all groups, at most `last`.
    pub fn trace(&self, last: usize, group: Option<u64>) -> Vec<Arc<CallRecord>> {
        self.resources.ring.last(last, group)
    }

    /// Returns the data that this node has sent and repaired for calls, by operation in the order
    /// of [`Operation::ALL`].
    pub fn traffic(&self) -> &[TrafficTotals; Operation::ALL.len()] {
        &self.resources.traffic
    }

    /// Returns the number of packets and connections that were refused because they claimed to be
    /// of a group or an agent without having its key.
    pub fn refused(&self) -> u64 {
        self.resources.refused + self.resources.peers.refused
    }

    /// Returns the lost ranks that made a group fail.
    pub fn lost_ranks(&self, group: u64) -> Vec<u32> {
        self.groups.get(&group).map_or(Vec::new(), Group::lost_ranks)
    }

    /// Returns whether no call can be made on a group, because it has failed, was released, or
    /// never existed.
    pub fn has_failed(&self, group: u64) -> bool {
        self.closing.contains(&group) || self.groups.get(&group).is_none_or(Group::has_failed)
    }

    fn make_group(&mut self, now: Time, spec: &GroupSpec) -> Result<MadeGroup, GroupError> {
        if self.closing.remove(&spec.id) {
            self.forget_group(now, spec.id);
        }
        if self.groups.contains_key(&spec.id) {
            return Err(GroupError::Exists(spec.id));
        }
        let mut members = Members::new(spec, &self.me)?;
        let (place, nodes) = (members.me as u16, members.nodes.len() as u16);
        let made = MadeGroup { place, nodes, trees: members.my_trees() };
        let mut replaced = Vec::new();
        for place in members.others() {
            let EngineResources { peers, out, .. } = &mut self.resources;
            let known = peers.add_member(&members.nodes[place].name);
            members.set_number(place, known);
            if !members.on_demand || peers.link(known).is_some() {
                let (_, lost) = peers.join(now, (&members, place), &self.closing, out);
                replaced.extend(lost);
            }
        }
        self.groups.insert(spec.id, Group::new(members, spec.cost_model));
        self.lost(now, &replaced);
        Ok(made)
    }

    fn release_group(&mut self, now: Time, id: u64) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        self.closing.insert(id);
        group.close(now, &mut self.resources);
    }

    /// Passes a rank's request to its group. A request on an unknown group fails.
    fn request(&mut self, now: Time, token: u64, request: RankRequest) {
        let (id, rank) = request.source();
        self.resources.open_requests.insert(token, id);
        let Some(group) = self.groups.get_mut(&id).filter(|_| !self.closing.contains(&id)) else {
            let message =
                format!("there is no group {id} on node {}: it was released or never made", self.me.node);
            return self
                .resources
                .done(token, Err(CallFailure::new(CallFailureKind::Invalid, message, vec![rank])));
        };
        let result = group.request(now, &mut self.resources, token, request);
        self.conclude(now, id, result);
    }

    /// Calls a function with a group. If it returns an error, the group fails.
    fn with_group(
        &mut self,
        now: Time,
        id: u64,
        act: impl FnOnce(&mut Group, &mut EngineResources) -> Result<(), CallFailure>,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let result = act(group, &mut self.resources);
        self.conclude(now, id, result);
    }

    /// Sends the replies that were held back for this work, and lets its group continue.
    fn on_work_done(&mut self, now: Time, id: WorkId, prepared: Option<PreparedCall>) {
        let Some((group, answers)) = self.resources.work_tracker.finish(id) else { return };
        for (token, result) in answers {
            self.resources.out.push(Output::Done { token, result });
        }
        self.with_group(now, group, |group, resources| match prepared {
            Some(prepared) => group.on_prepared(now, resources, id, prepared),
            None => group.on_work_done(now, resources, id),
        });
    }

    /// Lets the rank continue that needed the memory which the driver has just allocated.
    fn on_allocated(&mut self, now: Time) {
        if let Some((memory, group)) = self.resources.out.take_allocated() {
            self.with_group(now, group, |group, resources| group.on_allocated(now, resources, memory));
            self.settle(now);
        }
    }

    /// Makes the group of missing memory fail. Nothing that depends on the memory leaves the node,
    /// and no request succeeds that may depend on it.
    fn on_allocation_failed(&mut self, now: Time, memory: MemoryId) {
        let EngineResources { out, open_requests, .. } = &mut self.resources;
        let Some((AllocatedMemory { group: id, bytes }, dropped)) = out.discard(memory) else { return };
        if let Some(group) = self.groups.get_mut(&id) {
            let failure = group.allocation_failure(memory, bytes);
            out.fail_replies(&failure, |token| open_requests.get(&token) == Some(&id));
            group.fail(now, &mut self.resources, &failure, true);
        }
        dropped.into_iter().for_each(|work| self.on_work_done(now, work, None));
    }

    /// Makes a group fail if an operation on it returned an error.
    fn conclude(&mut self, now: Time, id: u64, result: Result<(), CallFailure>) {
        if let (Err(failed), Some(group)) = (result, self.groups.get_mut(&id)) {
            group.fail(now, &mut self.resources, &failed, true);
        }
    }

    /// Processes everything that follows from an input: messages between groups and peers, shares
    /// of the link, and groups that have ended.
    fn settle(&mut self, now: Time) {
        loop {
            if let Some(connection) = self.resources.peers.take_needed() {
                self.on_bytes(now, connection, 0, &[]);
            } else if let Some(node) = self.resources.peers.take_fresh() {
                self.introduce(now, node);
            } else if let Some(node) = self.resources.peers.take_dirty() {
                self.drain_peer(now, node, 0);
                self.report_awaited(node);
            } else if std::mem::take(&mut self.resources.sending_changed) {
                // Groups without open calls and streams share nothing, and there may be many.
                let busy = self.groups.iter().filter(|(_, group)| !group.is_quiescent());
                let ids: Vec<u64> = busy.map(|(id, _)| *id).collect();
                for id in ids {
                    self.with_group(now, id, |group, resources| group.share_link(now, resources));
                }
            } else {
                let over = |id: &&u64| self.groups.get(*id).is_none_or(Group::is_quiescent);
                let over: Vec<u64> = self.closing.iter().filter(over).copied().collect();
                if over.is_empty() {
                    return;
                }
                for id in over {
                    self.closing.remove(&id);
                    self.forget_group(now, id);
                }
            }
        }
    }

    /// Begins a turn unless one is in progress. Groups that had to wait for it continue.
    fn begin_turn(&mut self, now: Time) {
        for id in self.resources.turn.begin() {
            self.with_group(now, id, |group, resources| group.advance(now, resources));
            self.settle(now);
        }
    }

    fn forget_group(&mut self, now: Time, id: u64) {
        if let Some(mut group) = self.groups.remove(&id) {
            group.close(now, &mut self.resources);
            group.forget(now, &mut self.resources);
            self.resources.out.push(Output::GroupForgotten { group: id });
        }
    }

    fn on_datagram(&mut self, now: Time, (from, proven): (SocketAddr, Option<u64>), bytes: &[u8]) {
        for decoded in Packet::decode_all(bytes) {
            match decoded {
                // A datagram has at most one payload, which follows its last packet.
                Ok((packet, _)) if !self.is_authentic(proven, packet.id.group) => {
                    self.resources.refused += 1;
                    tracing::debug!(%from, group = packet.id.group, "refused a packet without proof of its group");
                }
                Ok((packet, payload)) => {
                    let payload = ReceivedBytes::Input(bytes.len() - payload.len()..bytes.len());
                    self.on_packet(now, from, packet, &payload);
                }
                Err(error) => tracing::debug!(%from, %error, "dropped a malformed packet"),
            }
        }
    }

    /// Returns whether a packet may belong to a group: either the key of its tag was that group's,
    /// or the group has no key.
    fn is_authentic(&self, proven: Option<u64>, group: u64) -> bool {
        match proven {
            Some(proven) => proven == group,
            None => self.groups.get(&group).is_none_or(|group| group.members.protection.is_none()),
        }
    }

    fn on_packet(&mut self, now: Time, from: SocketAddr, packet: Packet, payload: &ReceivedBytes) {
        let (id, epoch) = (packet.id.group, packet.id.epoch);
        match packet.body {
            // Another agent checks whether this one is alive. The reply does not depend on whether
            // the group still exists here.
            PacketBody::Ping => {
                let body = PacketBody::PingAnswer { incarnation: self.me.incarnation };
                let group = self.groups.get(&id).filter(|group| group.id_and_epoch() == (id, epoch));
                let me = group.map_or(packet.from, |group| group.members.me as u16);
                self.resources.out.control(from, &Packet { from: me, body, ..packet });
                let resources = &mut self.resources;
                return group.into_iter().for_each(|group| group.on_ping(now, resources, packet.from.into()));
            }
            PacketBody::PingAnswer { incarnation } => {
                return self.on_ping_answer(now, from, (id, epoch), incarnation);
            }
            _ => {}
        }
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.id_and_epoch() == (id, epoch)) else {
            tracing::debug!(%from, group = id, epoch, "dropped a packet of an unknown group");
            return;
        };
        let result = match packet.body {
            PacketBody::TreeProbe => {
                group.on_tree_probe(now, &mut self.resources, from, &packet);
                Ok(())
            }
            PacketBody::SourceActive { .. } | PacketBody::SourceReply(_) => {
                group.on_source_packet(now, &mut self.resources, from, &packet);
                Ok(())
            }
            _ => group.on_packet(now, &mut self.resources, from, packet, payload),
        };
        self.conclude(now, id, result);
    }

    /// Handles the reply to a ping. The agent at that address may be the one in the group, or one
    /// that was started since.
    fn on_ping_answer(&mut self, now: Time, from: SocketAddr, of: (u64, u32), incarnation: u64) {
        let group = self.groups.get_mut(&of.0).filter(|group| group.id_and_epoch() == of);
        if let Some(lost) = group.and_then(|group| group.on_ping_answer(from, incarnation)) {
            self.lose_peer(now, lost, STARTED_AGAIN);
        }
    }

    fn on_timer(&mut self, now: Time, key: TimerKey) {
        match key {
            TimerKey::Stream(stream) => {
                self.with_group(now, stream.group, |group, resources| {
                    group.on_stream_timer(now, resources, stream)
                });
            }
            TimerKey::Call(id, call) => {
                self.with_group(now, id, |group, resources| group.on_call_timer(now, resources, call));
            }
            TimerKey::PointToPoint(id, transfer) => {
                self.with_group(now, id, |group, resources| {
                    group.on_transfer_timer(now, resources, transfer)
                });
            }
            TimerKey::FailureDetector(id) => {
                let Some(group) = self.groups.get_mut(&id) else { return };
                let lost = group.on_failure_detector_timer(now, &mut self.resources);
                let why = format!("no answer for {:?}", self.resources.peer_timeout);
                self.lose_peers(now, lost, &why);
            }
            TimerKey::TreeProof(id) => {
                self.with_group(now, id, |group, resources| {
                    group.on_tree_proof_timer(now, resources);
                    Ok(())
                });
            }
            TimerKey::TreeSources(id) => {
                self.with_group(now, id, |group, resources| {
                    group.on_tree_sources_timer(now, resources);
                    Ok(())
                });
            }
        }
    }

    /// Handles a request of the controller or of a local rank.
    fn handle_request(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::MakeGroup(spec) => {
                let result = self.make_group(now, spec);
                self.resources.out.push(Output::GroupMade { group: spec.id, result });
            }
            Input::ReleaseGroup { group } => self.release_group(now, group),
            Input::ProveTrees { group, number, time_max } => {
                self.with_group(now, group, |group, resources| {
                    group.prove_trees(now, resources, number, time_max);
                    Ok(())
                });
            }
            Input::ConcludeTreeProof { group, withdrawn } => {
                self.with_group(now, group, |group, resources| {
                    group.conclude_tree_proof(now, resources, &withdrawn);
                    Ok(())
                });
            }
            Input::Request { token, request } => self.request(now, token, request),
            Input::Command { group, rank, command } => {
                self.with_group(now, group, |group, resources| group.command(now, resources, rank, command));
            }
            Input::Quick { group, able } => {
                self.with_group(now, group, |group, resources| {
                    group.quick(now, resources, able);
                    Ok(())
                });
            }
            Input::QuickProbed { group, passed } => {
                self.with_group(now, group, |group, resources| {
                    group.quick_probed(now, resources, passed);
                    Ok(())
                });
            }
            other => self.handle_event(now, other),
        }
    }

    /// Handles an event from the network, or the completion of an output.
    fn handle_event(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Datagram { from, bytes, proven } => self.on_datagram(now, (from, proven), bytes),
            Input::Accepted { connection, from, proven } => {
                self.resources.peers.on_accepted(connection, (from, proven), &mut self.resources.out);
            }
            Input::Connected { node, connection } => {
                self.resources.peers.on_connected(node, connection, &mut self.resources.out);
            }
            Input::Unreachable { node, why } => self.on_unreachable(now, node, &why),
            Input::Bytes { connection, placed, bytes } => self.on_bytes(now, connection, placed, bytes),
            Input::Written { connection, bytes } => {
                if let Some(node) = self.resources.peers.node_of(connection) {
                    self.resources.peers.handle(now, node, unicast::Input::Written(bytes));
                }
            }
            Input::Closed { connection, why } => {
                let lost = self.resources.peers.on_closed(connection, &why, &mut self.resources.out);
                self.lost(now, lost.as_slice());
            }
            Input::WorkDone(id) => self.on_work_done(now, id, None),
            Input::Prepared(id, prepared) => self.on_work_done(now, id, Some(prepared)),
            Input::AllocationFailed(memory) => self.on_allocation_failed(now, memory),
            _ => {}
        }
    }
}

impl Machine for Engine {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        self.begin_turn(now);
        self.handle_request(now, input);
        self.settle(now);
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        self.begin_turn(now);
        self.on_allocated(now);
        // Handle all expired timers first, so that packets to the same address share a datagram.
        while let Some(key) = self.resources.timers.due(now) {
            self.on_timer(now, key);
            self.settle(now);
        }
        match self.resources.out.pop() {
            Some(output) => {
                if let Output::Done { token, .. } = &output {
                    self.resources.open_requests.remove(token);
                }
                Poll::Output(output)
            }
            // Continue as soon as the driver has handled everything else.
            None if self.resources.turn.end() => Poll::Idle(Some(now + Duration::from_nanos(1))),
            None => Poll::Idle(self.resources.timers.next()),
        }
    }
}
