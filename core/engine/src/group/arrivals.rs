//! Handles data that arrives for a group over the network: packets of streams, unicast messages,
//! and notices of other agents.

use super::Group;
use super::call_matching::RemoteCall;
use super::messages::direct_place;
use super::point_to_point::is_point_to_point;
use super::quick::agreement::NodeReport;
use crate::engine_outbox::ReceivedBytes;
use crate::engine_resources::{EngineResources, GroupContext};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::NodeId;
use crate::memory::MemoryRange;
use cool_machine::Time;
use cool_transport::unicast::{MessageName, Notice, Payload};
use cool_transport::{Packet, Sender, StreamId};
use core::ops::Range;
use std::net::SocketAddr;

impl Group {
    /// Handles a packet from a member of the group.
    ///
    /// # Errors
    /// Returns an error if the packet makes the group fail.
    pub(crate) fn on_packet(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        from: SocketAddr,
        packet: Packet,
        payload: &ReceivedBytes,
    ) -> Result<(), CallFailure> {
        let node = usize::from(packet.from);
        if self.members.nodes.get(node).is_none_or(|n| n.udp != from) || node == self.members.me {
            tracing::debug!(%from, node, "dropped a packet with the name of a node at another address");
            return Ok(());
        }
        if self.failed.is_some() {
            return Ok(());
        }
        self.failure_detector.on_sign_of_life(node);
        if self.matching.differs(packet.id.call, packet.digest) {
            self.notify_mismatch(now, resources, packet.id.call, node);
            return Ok(());
        }
        let mut context = GroupContext { now, members: &self.members, resources };
        if self.streams.on_packet(&mut context, &packet, payload)? {
            return self.advance(now, resources);
        }
        // If a call has ended here, then its streams have too. For other calls, the stream is not
        // open yet.
        if packet.id.call >= self.oldest_open() && !self.streams.is_over(&packet.id) {
            self.streams.buffer(resources, packet, payload);
        } else if usize::from(packet.id.source) == self.members.me
            && let Some(answer) = Sender::settled_reply(&packet)
        {
            resources.out.control(from, &answer);
        }
        Ok(())
    }

    /// Handles the deadline of a stream.
    ///
    /// # Errors
    /// Returns an error if the stream makes the group fail.
    pub(crate) fn on_stream_timer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        id: StreamId,
    ) -> Result<(), CallFailure> {
        self.streams.on_timer(&mut GroupContext { now, members: &self.members, resources }, id)?;
        self.advance(now, resources)
    }

    /// Adjusts the rates of streams, because the number of streams that share this node's link has
    /// changed.
    ///
    /// # Errors
    /// Returns an error if a stream makes the group fail.
    pub(crate) fn share_link(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
    ) -> Result<(), CallFailure> {
        self.streams.share_link(&mut GroupContext { now, members: &self.members, resources })?;
        self.advance(now, resources)
    }

    /// Handles the answer to a ping, from an agent that may not have the group. Returns the node if
    /// another agent runs there now.
    pub(crate) fn on_ping_answer(&mut self, from: SocketAddr, incarnation: u64) -> Option<NodeId> {
        let lost = self.failure_detector.on_ping_answer(&self.members, from, incarnation)?;
        Some(self.members.nodes[lost].id)
    }

    /// Handles the beginning or the announcement of a message from another node.
    ///
    /// # Errors
    /// Returns an error if the message makes the group fail.
    pub(crate) fn on_message_begin(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        peer: NodeId,
        message: MessageName,
        (digest, bytes): (u64, u64),
    ) -> Result<(), CallFailure> {
        let Some(node) = self.members.node_index(peer) else { return Ok(()) };
        self.check_endpoints(node, message)?;
        if is_point_to_point(message) {
            let mut context = GroupContext { now, members: &self.members, resources };
            return self.point_to_point.on_begin(&mut context, message, (digest, bytes));
        }
        if message.call >= self.oldest_open() {
            self.matching.record_arrival(message.call, message.from, digest);
        }
        if self.matching.differs(message.call, digest) {
            self.notify_mismatch(now, resources, message.call, node);
            return Ok(());
        }
        self.messages.on_begin(message, (digest, bytes))
    }

    /// Checks that a message goes from a rank of the sending node to a rank of this node.
    fn check_endpoints(&self, node: usize, message: MessageName) -> Result<(), CallFailure> {
        let from_peer = self.members.node_of(message.from) == Some(node);
        let to_us = self.members.node_of(message.to) == Some(self.members.me);
        if from_peer && to_us {
            return Ok(());
        }
        let name = &self.members.nodes[node].name;
        let text = format!(
            "node {name} sent a message from rank {} to rank {}, which it may not",
            message.from, message.to
        );
        Err(CallFailure::new(CallFailureKind::Lost, text, self.members.ranks_of(node).collect()))
    }

    /// Handles bytes of a message from another node: a range of the input, or an empty range if
    /// they are in place already.
    pub(crate) fn on_message_data(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        message: MessageName,
        offset: u64,
        within: Range<usize>,
    ) {
        if is_point_to_point(message) {
            let mut context = GroupContext { now, members: &self.members, resources };
            self.point_to_point.on_data(&mut context, message, offset, within);
        } else if self.messages.on_data(resources, message, offset, within) {
            self.calls.moved(now, message.call);
        }
    }

    /// Handles the end of an expected message.
    ///
    /// # Errors
    /// Returns an error if the group fails afterwards.
    pub(crate) fn on_message_received(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        message: MessageName,
    ) -> Result<(), CallFailure> {
        if is_point_to_point(message) {
            self.point_to_point
                .on_received(&mut GroupContext { now, members: &self.members, resources }, message);
        } else {
            self.messages.on_received(message);
        }
        self.advance(now, resources)
    }

    /// Handles the completion of a send.
    ///
    /// # Errors
    /// Returns an error if the group fails afterwards.
    pub(crate) fn on_message_sent(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        message: MessageName,
    ) -> Result<(), CallFailure> {
        if is_point_to_point(message) {
            self.point_to_point
                .on_sent(&mut GroupContext { now, members: &self.members, resources }, message);
        } else {
            self.messages.on_sent(message);
        }
        self.advance(now, resources)
    }

    /// Returns the memory of a part of a message that is being sent, if the message is still known.
    pub(crate) fn message_payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        if is_point_to_point(part.message) {
            return self.point_to_point.payload(now, part);
        }
        let payload = self.messages.payload(part)?;
        self.calls.moved(now, part.message.call);
        Some(payload)
    }

    /// Returns the destination of the next part of a long message, if it is known.
    pub(crate) fn message_place(&self, part: &Payload) -> Option<MemoryRange> {
        let whole = if is_point_to_point(part.message) {
            self.point_to_point.place(part.message)?
        } else {
            self.messages.place(part.message)?
        };
        direct_place(whole, part)
    }

    /// Handles another agent's notice about the group.
    ///
    /// # Errors
    /// Returns an error if the notice makes the group fail.
    pub(crate) fn on_notice(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        peer: NodeId,
        notice: Notice,
    ) -> Result<(), CallFailure> {
        let Some(node) = self.members.node_index(peer) else { return Ok(()) };
        let is_theirs = |rank: &u32| self.members.node_of(*rank) == Some(node);
        match notice {
            // The engine handles this notice, because it knows whether the other agents must be
            // notified too.
            Notice::Abort { .. } => Ok(()),
            Notice::RanksArrived { call, digest, ranks, text, .. } => {
                let ranks: Vec<u32> = ranks.into_iter().filter(is_theirs).collect();
                let is_over = call < self.oldest_open();
                if let Some(first) = ranks.first() {
                    self.match_reported(call, (*first, digest, &text))?;
                }
                self.matching.on_remote_call(
                    &self.members,
                    call,
                    RemoteCall { digest, ranks, text },
                    is_over,
                )?;
                self.match_remote(call)
            }
            Notice::RankLost { call, rank, text, .. } if is_theirs(&rank) => {
                self.on_rank_lost(rank, call, text)
            }
            Notice::RankLost { .. } => Ok(()),
            Notice::WaitingQuery { .. } => {
                let ((group, epoch), (ranks, messages)) = (self.id_and_epoch(), self.local_waits(now));
                let notice = Notice::WaitingRanks { group, epoch, ranks, messages };
                resources.peers.notify(now, peer, notice);
                Ok(())
            }
            Notice::WaitingRanks { ranks, messages, .. } => {
                let mut context = GroupContext { now, members: &self.members, resources };
                self.failure_detector.on_waits(&mut context, node, &(ranks, messages));
                Ok(())
            }
            Notice::QuickCapability { able, .. } => {
                self.learn_quick(resources, node, NodeReport::Capability(able));
                Ok(())
            }
            Notice::QuickProbed { passed, .. } => {
                self.learn_quick(resources, node, NodeReport::Probed(passed));
                Ok(())
            }
        }
    }
}
