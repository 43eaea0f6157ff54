//! Handles data that arrives over the connections to other agents and passes it to its group; also
//! handles the end of a connection.

use super::Engine;
use crate::engine_resources::EngineResources;
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::AgentConnectionId;
use crate::ids::NodeId;
use crate::inputs_outputs::Output;
use crate::lost_peer::LostPeer;
use crate::memory::MemoryRange;
use crate::peers::STARTED_AGAIN;
use cool_machine::{Machine, Poll, Time};
use cool_transport::unicast::{self, AgentId, Notice, Payload};
use core::cmp::Ordering;
use std::collections::BTreeSet;

impl Engine {
    /// Executes the outputs of a peer's machine until it is idle. `before` must be the number of
    /// bytes that the machine received together with those of the current input, but before them.
    /// It is subtracted from the ranges in the outputs.
    pub(crate) fn drain_peer(&mut self, now: Time, node: NodeId, before: usize) {
        loop {
            let Some((link, connection)) = self.resources.peers.connected_link(node) else { return };
            match link.machine.poll(now) {
                Poll::Idle(_) => return,
                Poll::Output(unicast::Output::Write { mut head, payload: part }) => {
                    let payload = part.and_then(|part| self.payload(now, &part));
                    if let (Some(part), None) = (part, &payload) {
                        // The header has announced these bytes, so they must be sent even if the
                        // message is no longer known.
                        head.resize(head.len() + part.len as usize, 0);
                    }
                    self.resources.out.push(Output::Write { connection, head, payload });
                }
                Poll::Output(output) => self.on_peer_output(now, node, output, before),
            }
        }
    }

    /// Returns the memory of a part of a message to a peer.
    fn payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        self.groups.get_mut(&part.message.group)?.message_payload(now, part)
    }

    /// Reports to the driver which data arrives next over the connection to a peer, if that has
    /// changed.
    pub(crate) fn report_awaited(&mut self, node: NodeId) {
        let Some((link, connection)) = self.resources.peers.connected_link(node) else { return };
        let payload = link.machine.payload();
        let bytes = payload.map_or(0, |payload| payload.len.into());
        let place = payload.and_then(|part| {
            let id = (part.message.group, part.message.epoch);
            self.groups.get(&id.0).filter(|group| group.id_and_epoch() == id)?.message_place(&part)
        });
        if std::mem::replace(&mut link.awaited, (bytes, place)) != (bytes, place) {
            self.resources.out.push(Output::Await { connection, bytes, place });
        }
    }

    fn on_peer_output(&mut self, now: Time, node: NodeId, output: unicast::Output, before: usize) {
        use unicast::Output as O;
        let id = match &output {
            O::Write { .. } => return,
            O::Hello(who) => return self.on_hello(now, node, who),
            O::Failed(error) => return self.lose_peer(now, node, &error.to_string()),
            O::Notice(notice) => notice.group(),
            O::GroupOpen { group, epoch, .. } => (*group, *epoch),
            O::Sent(m) | O::Received(m) | O::UnknownGroup(m) => (m.group, m.epoch),
            O::Begin { message: m, .. } | O::Data { message: m, .. } => (m.group, m.epoch),
        };
        let Some(group) = self.groups.get_mut(&id.0).filter(|group| group.id_and_epoch() == id) else {
            if let O::UnknownGroup(_) | O::GroupOpen { waits: true, .. } = output {
                self.refuse_unknown_group(now, node, id);
            }
            return;
        };
        let resources = &mut self.resources;
        let result = match output {
            O::Sent(message) => group.on_message_sent(now, resources, message),
            O::Begin { message, digest, bytes } => {
                group.on_message_begin(now, resources, node, message, (digest, bytes))
            }
            O::Data { message, offset, within } => {
                let within = within.start.saturating_sub(before)..within.end.saturating_sub(before);
                group.on_message_data(now, resources, message, offset, within);
                Ok(())
            }
            O::Received(message) => group.on_message_received(now, resources, message),
            O::Notice(Notice::Abort { kind, ranks, text, .. }) => {
                // An agent without the group can name neither its ranks nor the other agents.
                let unknown = ranks.is_empty() && kind == CallFailureKind::Lost.code();
                let ranks = if unknown { group.ranks_of(node) } else { ranks };
                // If agents connect on demand, the sender may not have notified all of them.
                let notify = unknown || group.members.on_demand;
                group.fail(
                    now,
                    resources,
                    &CallFailure::new(CallFailureKind::of_code(kind), text, ranks),
                    notify,
                );
                Ok(())
            }
            O::Notice(notice) => group.on_notice(now, resources, node, notice),
            // The group has failed here. The peer may have been notified over a connection that it
            // had already given up.
            O::GroupOpen { .. } => {
                group.notify_failure(now, resources, node);
                Ok(())
            }
            // If a message was dropped because the group has failed here, its sender has been
            // notified or will be.
            O::UnknownGroup(_) | O::Write { .. } | O::Hello(_) | O::Failed(_) => Ok(()),
        };
        self.conclude(now, id.0, result);
    }

    /// Handles the introduction of the agent at the other end of a connection.
    fn on_hello(&mut self, now: Time, node: NodeId, who: &AgentId) {
        let EngineResources { peers, out, .. } = &mut self.resources;
        if who.node != peers.name(node) {
            let why = format!("the agent at its address calls itself {}", who.node);
            return self.lose_peer(now, node, &why);
        }
        match peers.link(node).map(|link| who.incarnation.cmp(&link.incarnation)) {
            Some(Ordering::Greater) => self.lose_peer(now, node, STARTED_AGAIN),
            // The connection was requested when an earlier agent was running, and ended with it.
            Some(Ordering::Less) => {
                let lost = peers.reconnect(node, "its agent has ended", out);
                self.lost(now, lost.as_slice());
            }
            Some(Ordering::Equal) | None => {}
        }
    }

    /// Notifies a peer that a group does not exist here. Otherwise the peer would wait until its
    /// timeout.
    fn refuse_unknown_group(&mut self, now: Time, node: NodeId, (group, epoch): (u64, u32)) {
        let text = format!("node {} has released group {group}, or never made it", self.me.node);
        let notice =
            Notice::Abort { group, epoch, kind: CallFailureKind::Lost.code(), ranks: Vec::new(), text };
        self.resources.peers.notify(now, node, notice);
    }

    /// Handles the first connection to a node: opens all groups that connect on demand and contain
    /// the node, and sends it the notices that it has missed.
    pub(crate) fn introduce(&mut self, now: Time, node: NodeId) {
        let mut lost = Vec::new();
        for (id, group) in self.groups.iter().filter(|(id, _)| !self.closing.contains(id)) {
            let Some(place) = group.on_demand_place(node) else { continue };
            let EngineResources { peers, out, .. } = &mut self.resources;
            if !peers.has_group(node, *id) {
                lost.extend(peers.join(now, (&group.members, place), &self.closing, out).1);
            }
            group.introduce(now, &mut self.resources, node);
        }
        self.lost(now, &lost);
    }

    /// Returns the groups that connect on demand and contain a node, if the node was lost before it
    /// was ever connected.
    fn lose_unconnected(&self, node: NodeId, why: &str) -> Option<LostPeer> {
        let of_node = self.groups.iter().filter(|(_, group)| group.on_demand_place(node).is_some());
        let groups: BTreeSet<u64> = of_node.map(|(id, _)| *id).collect();
        (!groups.is_empty()).then(|| LostPeer { node, groups, why: why.to_owned() })
    }

    /// Handles a failure to connect to a node. The node is lost, unless it has connected to this
    /// one meanwhile.
    pub(crate) fn on_unreachable(&mut self, now: Time, node: NodeId, why: &str) {
        if self.resources.peers.on_unreachable(node) {
            self.lose_peer(now, node, why);
        }
    }

    pub(crate) fn lose_peer(&mut self, now: Time, node: NodeId, why: &str) {
        self.lose_peers(now, [node], why);
    }

    pub(crate) fn lose_peers(&mut self, now: Time, nodes: impl IntoIterator<Item = NodeId>, why: &str) {
        let EngineResources { peers, out, .. } = &mut self.resources;
        let nodes = nodes.into_iter().map(|node| (node, peers.drop_peer(node, why, out)));
        let nodes: Vec<(NodeId, Option<LostPeer>)> = nodes.collect();
        let lost =
            nodes.into_iter().filter_map(|(node, lost)| lost.or_else(|| self.lose_unconnected(node, why)));
        let lost: Vec<LostPeer> = lost.collect();
        self.lost(now, &lost);
    }

    /// Makes the groups fail that had members on lost nodes.
    pub(crate) fn lost(&mut self, now: Time, lost: &[LostPeer]) {
        for LostPeer { node, why, .. } in lost {
            let node = self.resources.peers.name(*node);
            tracing::info!(node, why, "lost the connection to an agent");
        }
        let groups: BTreeSet<u64> = lost.iter().flat_map(|lost| lost.groups.iter().copied()).collect();
        for id in groups {
            if let Some(group) = self.groups.get_mut(&id) {
                let of_group: Vec<&LostPeer> = lost.iter().filter(|lost| lost.groups.contains(&id)).collect();
                let nodes: Vec<NodeId> = of_group.iter().map(|lost| lost.node).collect();
                let failed = group.nodes_lost(&nodes, &of_group[0].why);
                group.fail(now, &mut self.resources, &failed, true);
            }
        }
    }

    pub(crate) fn on_bytes(&mut self, now: Time, connection: AgentConnectionId, placed: u32, bytes: &[u8]) {
        if let Some(node) = self.resources.peers.node_of(connection) {
            self.on_peer_bytes(now, node, placed, (bytes, 0));
        } else if let Some((node, all, replaced)) =
            self.resources.peers.on_greeting(connection, bytes, &mut self.resources.out)
        {
            self.lost(now, replaced.as_slice());
            self.introduce(now, node);
            self.on_peer_bytes(now, node, 0, (&all, all.len() - bytes.len()));
        }
    }

    /// Handles bytes from a peer: `placed` bytes that the driver has already stored, then `bytes`,
    /// of which the first `before` arrived with earlier inputs.
    fn on_peer_bytes(&mut self, now: Time, node: NodeId, placed: u32, (bytes, before): (&[u8], usize)) {
        self.resources.peers.on_heard(node);
        // Drain earlier outputs first, because their ranges would be mistaken for ranges of these
        // bytes.
        self.drain_peer(now, node, 0);
        self.resources.peers.handle(now, node, unicast::Input::Placed(placed));
        self.resources.peers.handle(now, node, unicast::Input::Bytes(bytes));
        self.drain_peer(now, node, before);
    }
}
