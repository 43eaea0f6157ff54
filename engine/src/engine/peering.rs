//! What comes over the connections to other agents, handed to the group that it is for; and what follows when one ends.

use super::{ConnectionId, Engine, Output, Shared};
use crate::api::failure;
use crate::memory::SharedSlice;
use crate::peers::Lost;
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::failure::Kind;
use cool_transport::unicast::{self, Notice, Payload};
use std::collections::BTreeSet;

impl Engine {
    /// Does what a peer's machine asks, until it is idle. `input` are the bytes that it was given last.
    pub(super) fn drain_peer(&mut self, now: Time, node: &str, input: &[u8]) {
        loop {
            let Some((link, connection)) = self.shared.peers.connected_link(node) else { return };
            match link.machine.poll(now) {
                Poll::Idle(_) => return,
                Poll::Output(unicast::Output::Write { mut head, payload: part }) => {
                    let payload = part.and_then(|part| self.payload(now, &part));
                    if let (Some(part), None) = (part, &payload) {
                        // The frame has promised so many bytes, even of a message that is not known any more.
                        head.resize(head.len() + part.len as usize, 0);
                    }
                    self.shared.out.push_back(Output::Write { connection, head, payload });
                }
                Poll::Output(output) => self.peer_output(now, node, output, input),
            }
        }
    }

    /// A part of a message that goes to a peer.
    fn payload(&mut self, now: Time, part: &Payload) -> Option<SharedSlice> {
        self.groups.get_mut(&part.message.group)?.message_payload(now, part)
    }

    /// What is to come over a connection of the frame that has begun: bytes, and where they belong, if they belong
    /// together and that is known. Who puts them there says so with [`Input::Bytes`](super::Input::Bytes).
    pub fn awaited(&self, connection: ConnectionId) -> (u64, Option<SharedSlice>) {
        let Some(part) = self.shared.peers.payload(connection) else { return (0, None) };
        let id = (part.message.group, part.message.epoch);
        let group = self.groups.get(&id.0).filter(|group| group.key() == id);
        (part.len.into(), group.and_then(|group| group.message_place(&part)))
    }

    fn peer_output(&mut self, now: Time, node: &str, output: unicast::Output, input: &[u8]) {
        use unicast::Output as O;
        let id = match &output {
            O::Write { .. } => return,
            O::Hello { node: name } => {
                if name != node {
                    self.lose_peer(now, node, &format!("the agent at its address calls itself {name}"));
                }
                return;
            }
            O::Failed(error) => return self.lose_peer(now, node, &error.to_string()),
            O::Notice(notice) => notice.group(),
            O::GroupOpen { group, epoch, .. } => (*group, *epoch),
            O::Sent(m) | O::Received(m) | O::UnknownGroup(m) => (m.group, m.epoch),
            O::Begin { message: m, .. } | O::Data { message: m, .. } => (m.group, m.epoch),
        };
        let Some(group) = self.groups.get_mut(&id.0).filter(|group| group.key() == id) else {
            if let O::UnknownGroup(_) | O::GroupOpen { waits: true, .. } = output {
                self.no_such_group(now, node, id);
            }
            return;
        };
        let shared = &mut self.shared;
        let result = match output {
            O::Sent(message) => {
                group.message_sent(now, shared, message);
                group.run(now, shared)
            }
            O::Begin { message, digest, bytes } => {
                group.message_begins(now, shared, node, message, (digest, bytes))
            }
            O::Data { message, offset, within } => {
                group.message_data(now, message, offset, &input[within]);
                Ok(())
            }
            O::Received(message) => {
                group.message_received(now, shared, message);
                group.run(now, shared)
            }
            O::Notice(Notice::Abort { kind, ranks, text, .. }) => {
                let kind = Kind::try_from(i32::from(kind)).unwrap_or(Kind::Lost);
                group.fail(now, shared, &failure(kind, text, ranks), false);
                Ok(())
            }
            O::Notice(notice) => group.notice(now, shared, node, notice),
            // Of a group that has failed here; it may have been told over a connection that it had given up.
            O::GroupOpen { .. } => {
                group.tell_failed(now, shared, node);
                Ok(())
            }
            // As above: its sender is being told, or has been.
            O::UnknownGroup(_) | O::Write { .. } | O::Hello { .. } | O::Failed(_) => Ok(()),
        };
        self.conclude(now, id.0, result);
    }

    /// A peer sends to a group that is not here: it would wait in vain.
    fn no_such_group(&mut self, now: Time, node: &str, (group, epoch): (u64, u32)) {
        let text = format!("node {} has released group {group}, or never made it", self.node);
        let notice = Notice::Abort { group, epoch, kind: Kind::Lost as u8, ranks: Vec::new(), text };
        self.shared.peers.notify(now, node, notice);
    }

    pub(super) fn lose_peer(&mut self, now: Time, node: &str, why: &str) {
        self.lose_peers(now, [node.to_owned()], why);
    }

    pub(super) fn lose_peers(&mut self, now: Time, nodes: impl IntoIterator<Item = String>, why: &str) {
        let Shared { peers, out, .. } = &mut self.shared;
        let lost = nodes.into_iter().filter_map(|node| peers.drop_peer(&node, out));
        let lost: Vec<Lost> = lost.map(|lost| Lost { why: why.to_owned(), ..lost }).collect();
        self.lost(now, &lost);
    }

    /// Fails the groups that had members on nodes that are gone, for one reason.
    pub(super) fn lost(&mut self, now: Time, lost: &[Lost]) {
        for Lost { node, why, .. } in lost {
            tracing::info!(node, why, "lost the connection to an agent");
        }
        let groups: BTreeSet<u64> = lost.iter().flat_map(|lost| lost.groups.iter().copied()).collect();
        for id in groups {
            if let Some(group) = self.groups.get_mut(&id) {
                let of_group: Vec<&Lost> = lost.iter().filter(|lost| lost.groups.contains(&id)).collect();
                let nodes: Vec<&str> = of_group.iter().map(|lost| lost.node.as_str()).collect();
                let failed = group.nodes_lost(&nodes, &of_group[0].why);
                group.fail(now, &mut self.shared, &failed, true);
            }
        }
    }

    pub(super) fn bytes(&mut self, now: Time, connection: ConnectionId, placed: u32, bytes: &[u8]) {
        if let Some(node) = self.shared.peers.node_of(connection) {
            self.peer_bytes(now, &node, placed, bytes);
        } else if let Some((node, bytes, replaced)) =
            self.shared.peers.greeting(connection, bytes, &mut self.shared.out)
        {
            if let Some(lost) = replaced {
                self.lost(now, &[lost]);
            }
            self.peer_bytes(now, &node, 0, &bytes);
        }
    }

    fn peer_bytes(&mut self, now: Time, node: &str, placed: u32, bytes: &[u8]) {
        self.groups.values_mut().for_each(|group| group.heard_from(node));
        // Outputs from before would be taken for ranges of these bytes.
        self.drain_peer(now, node, &[]);
        self.shared.peers.handle(now, node, unicast::Input::Placed(placed));
        self.shared.peers.handle(now, node, unicast::Input::Bytes(bytes));
        self.drain_peer(now, node, bytes);
    }
}
