//! What comes over the connections to other agents, handed to the group that it is for; and what follows when one ends.

use super::Engine;
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::AgentConnectionId;
use crate::ids::NodeId;
use crate::machine::Output;
use crate::memory::MemoryRange;
use crate::peers::{LostPeer, STARTED_AGAIN};
use crate::shared::SharedState;
use cool_machine::{Machine, Poll, Time};
use cool_transport::unicast::{self, AgentId, Notice, Payload};
use core::cmp::Ordering;
use std::collections::BTreeSet;

impl Engine {
    /// Does what a peer's machine asks, until it is idle. It was given `before` bytes before those of the input.
    pub(crate) fn drain_peer(&mut self, now: Time, node: NodeId, before: usize) {
        loop {
            let Some((link, connection)) = self.shared.peers.connected_link(node) else { return };
            match link.machine.poll(now) {
                Poll::Idle(_) => return,
                Poll::Output(unicast::Output::Write { mut head, payload: part }) => {
                    let payload = part.and_then(|part| self.payload(now, &part));
                    if let (Some(part), None) = (part, &payload) {
                        // The frame has promised these bytes, even of a message that is not known any more.
                        head.resize(head.len() + part.len as usize, 0);
                    }
                    self.shared.out.push(Output::Write { connection, head, payload });
                }
                Poll::Output(output) => self.on_peer_output(now, node, output, before),
            }
        }
    }

    /// A part of a message that goes to a peer.
    fn payload(&mut self, now: Time, part: &Payload) -> Option<MemoryRange> {
        self.groups.get_mut(&part.message.group)?.message_payload(now, part)
    }

    /// Tells the driver what comes next over the connection to a peer, if that is something else than it was told.
    pub(crate) fn report_awaited(&mut self, node: NodeId) {
        let Some((link, connection)) = self.shared.peers.connected_link(node) else { return };
        let payload = link.machine.payload();
        let bytes = payload.map_or(0, |payload| payload.len.into());
        let place = payload.and_then(|part| {
            let id = (part.message.group, part.message.epoch);
            self.groups.get(&id.0).filter(|group| group.key() == id)?.message_place(&part)
        });
        if std::mem::replace(&mut link.awaited, (bytes, place)) != (bytes, place) {
            self.shared.out.push(Output::Await { connection, bytes, place });
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
        let Some(group) = self.groups.get_mut(&id.0).filter(|group| group.key() == id) else {
            if let O::UnknownGroup(_) | O::GroupOpen { waits: true, .. } = output {
                self.refuse_unknown_group(now, node, id);
            }
            return;
        };
        let shared = &mut self.shared;
        let result = match output {
            O::Sent(message) => group.on_message_sent(now, shared, message),
            O::Begin { message, digest, bytes } => {
                group.on_message_begin(now, shared, node, message, (digest, bytes))
            }
            O::Data { message, offset, within } => {
                let within = within.start.saturating_sub(before)..within.end.saturating_sub(before);
                group.on_message_data(now, shared, message, offset, within);
                Ok(())
            }
            O::Received(message) => group.on_message_received(now, shared, message),
            O::Notice(Notice::Abort { kind, ranks, text, .. }) => {
                // An agent that does not have the group knows neither its ranks nor whom else to tell.
                let unknown = ranks.is_empty() && kind == CallFailureKind::Lost.code();
                let ranks = if unknown { group.ranks_of(node) } else { ranks };
                // Where agents connect on demand, who tells has not told all.
                let notify = unknown || group.members.on_demand;
                group.fail(
                    now,
                    shared,
                    &CallFailure::new(CallFailureKind::of_code(kind), text, ranks),
                    notify,
                );
                Ok(())
            }
            O::Notice(notice) => group.on_notice(now, shared, node, notice),
            // Of a group that has failed here; it may have been told over a connection that it had given up.
            O::GroupOpen { .. } => {
                group.notify_failure(now, shared, node);
                Ok(())
            }
            // As above: its sender is being told, or has been.
            O::UnknownGroup(_) | O::Write { .. } | O::Hello(_) | O::Failed(_) => Ok(()),
        };
        self.conclude(now, id.0, result);
    }

    /// The agent at the other end of a connection has said who it is.
    fn on_hello(&mut self, now: Time, node: NodeId, who: &AgentId) {
        let SharedState { peers, out, .. } = &mut self.shared;
        if who.node != peers.name(node) {
            let why = format!("the agent at its address calls itself {}", who.node);
            return self.lose_peer(now, node, &why);
        }
        match peers.link(node).map(|link| who.incarnation.cmp(&link.incarnation)) {
            Some(Ordering::Greater) => self.lose_peer(now, node, STARTED_AGAIN),
            // It was asked for when an earlier agent was there, and has ended with that.
            Some(Ordering::Less) => {
                let lost = peers.reconnect(node, "its agent has ended", out);
                self.lost(now, lost.as_slice());
            }
            Some(Ordering::Equal) | None => {}
        }
    }

    /// A peer sends to a group that is not here: it would wait in vain.
    fn refuse_unknown_group(&mut self, now: Time, node: NodeId, (group, epoch): (u64, u32)) {
        let text = format!("node {} has released group {group}, or never made it", self.me.node);
        let notice =
            Notice::Abort { group, epoch, kind: CallFailureKind::Lost.code(), ranks: Vec::new(), text };
        self.shared.peers.notify(now, node, notice);
    }

    /// A node is spoken to for the first time: opens to it all groups that connect on demand and have it, and tells what it has
    /// not heard of them.
    pub(crate) fn introduce(&mut self, now: Time, node: NodeId) {
        let mut lost = Vec::new();
        for (id, group) in self.groups.iter().filter(|(id, _)| !self.closing.contains(id)) {
            let Some(place) = group.on_demand_place(node) else { continue };
            let SharedState { peers, out, .. } = &mut self.shared;
            if !peers.has_group(node, *id) {
                lost.extend(peers.join(now, (&group.members, place), &self.closing, out).1);
            }
            group.introduce(now, &mut self.shared, node);
        }
        self.lost(now, &lost);
    }

    /// The groups that connect on demand and have a node which is gone before it was spoken to.
    fn lose_unconnected(&self, node: NodeId, why: &str) -> Option<LostPeer> {
        let of_node = self.groups.iter().filter(|(_, group)| group.on_demand_place(node).is_some());
        let groups: BTreeSet<u64> = of_node.map(|(id, _)| *id).collect();
        (!groups.is_empty()).then(|| LostPeer { node, groups, why: why.to_owned() })
    }

    /// A node cannot be connected to: it is gone, unless it has connected to this one meanwhile.
    pub(crate) fn on_unreachable(&mut self, now: Time, node: NodeId, why: &str) {
        if self.shared.peers.on_unreachable(node) {
            self.lose_peer(now, node, why);
        }
    }

    pub(crate) fn lose_peer(&mut self, now: Time, node: NodeId, why: &str) {
        self.lose_peers(now, [node], why);
    }

    pub(crate) fn lose_peers(&mut self, now: Time, nodes: impl IntoIterator<Item = NodeId>, why: &str) {
        let SharedState { peers, out, .. } = &mut self.shared;
        let nodes = nodes.into_iter().map(|node| (node, peers.drop_peer(node, why, out)));
        let nodes: Vec<(NodeId, Option<LostPeer>)> = nodes.collect();
        let lost =
            nodes.into_iter().filter_map(|(node, lost)| lost.or_else(|| self.lose_unconnected(node, why)));
        let lost: Vec<LostPeer> = lost.collect();
        self.lost(now, &lost);
    }

    /// Fails the groups that had members on nodes that are gone, for one reason.
    pub(crate) fn lost(&mut self, now: Time, lost: &[LostPeer]) {
        for LostPeer { node, why, .. } in lost {
            let node = self.shared.peers.name(*node);
            tracing::info!(node, why, "lost the connection to an agent");
        }
        let groups: BTreeSet<u64> = lost.iter().flat_map(|lost| lost.groups.iter().copied()).collect();
        for id in groups {
            if let Some(group) = self.groups.get_mut(&id) {
                let of_group: Vec<&LostPeer> = lost.iter().filter(|lost| lost.groups.contains(&id)).collect();
                let nodes: Vec<NodeId> = of_group.iter().map(|lost| lost.node).collect();
                let failed = group.nodes_lost(&nodes, &of_group[0].why);
                group.fail(now, &mut self.shared, &failed, true);
            }
        }
    }

    pub(crate) fn on_bytes(&mut self, now: Time, connection: AgentConnectionId, placed: u32, bytes: &[u8]) {
        if let Some(node) = self.shared.peers.node_of(connection) {
            self.on_peer_bytes(now, node, placed, (bytes, 0));
        } else if let Some((node, all, replaced)) =
            self.shared.peers.on_greeting(connection, bytes, &mut self.shared.out)
        {
            self.lost(now, replaced.as_slice());
            self.introduce(now, node);
            self.on_peer_bytes(now, node, 0, (&all, all.len() - bytes.len()));
        }
    }

    /// Bytes came from a peer, some of them before this input.
    fn on_peer_bytes(&mut self, now: Time, node: NodeId, placed: u32, (bytes, before): (&[u8], usize)) {
        if let Some(link) = self.shared.peers.link(node) {
            for id in &link.groups {
                self.groups.get_mut(id).into_iter().for_each(|group| group.on_bytes_from(node));
            }
        }
        // Outputs from before would be taken for ranges of these bytes.
        self.drain_peer(now, node, 0);
        self.shared.peers.handle(now, node, unicast::Input::Placed(placed));
        self.shared.peers.handle(now, node, unicast::Input::Bytes(bytes));
        self.drain_peer(now, node, before);
    }
}
