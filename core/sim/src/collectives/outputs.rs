//! Executes the outputs of an engine on a simulated node.

use super::ContractViolation;
use super::cluster::{Alarm, DelayedInput, PlanPick, SimulatedCluster, ip, node_at};
use super::connections::{CONNECT_TIMEOUT, RECONNECT, Retry, SegmentContent, Side};
use super::memories::{Memories, MissingRange};
use super::node::{ANYWHERE, ClusterNode, Host};
use super::scenario::FailedStep;
use crate::network::Destination;
use cool_engine::{
    AgentConnectionId, AgentId, Input, MemoryRange, NodeId, Output, Preparation, Work, WorkId,
};
use cool_machine::{Duration, Machine};
use cool_types::is_source_specific;
use rand::RngExt;
use std::net::SocketAddr;

/// Time that a reset takes to reach the other side.
const RESET: Duration = Duration::from_micros(500);

impl SimulatedCluster {
    pub(super) fn perform(&mut self, node: u16, output: Output) -> Result<(), ContractViolation> {
        match output {
            Output::GroupMade { group, result } => {
                let made = result.map_err(ContractViolation::Refused)?;
                self.nodes[usize::from(node)].groups.insert(group, (made.place, made.nodes));
                self.listen(node, &made.trees);
            }
            Output::TreesProbed { group, number, missing, .. } => {
                self.on_trees_probed(node, (group, number), &missing)?;
            }
            Output::TreesSilent { group, .. } => self.prove_again(group),
            Output::SourceProbed { missing, .. } => self.on_source_probed(node, missing),
            Output::JoinSource { tree, source, .. } => self.join_source(node, tree, source),
            Output::LeaveSource { tree, source, .. } => self.leave_source(tree, source, node),
            // Memberships are never forgotten.
            Output::LongPacketsLost { .. } | Output::RenewTrees { .. } => {}
            Output::GroupForgotten { group } => {
                self.on_group_removed(node, group);
                self.nodes[usize::from(node)].groups.remove(&group);
                self.nodes[usize::from(node)].tagger.remove(group);
            }
            Output::GroupFailed { group } => self.on_group_failed(node, group)?,
            // Every datagram of the simulated network arrives sooner or later.
            Output::ProbeQuick { group } => {
                let passed = !self.fails(node, FailedStep::Probe);
                self.input(node, Input::QuickProbed { group, passed })?;
            }
            Output::Quick { group, all } => self.on_quick_known(node, group, all)?,
            Output::Done { token, result } => self.answer(node, token, result)?,
            Output::Control { to, group, bytes } => self.datagram(node, (group, to), bytes),
            Output::Data { to, packet, payload } => {
                let mut bytes = Vec::with_capacity(64 + payload.len as usize);
                packet.encode(&mut bytes);
                self.on_memory(node, |memories| memories.read(payload, &mut bytes))?;
                self.datagram(node, (packet.id.group, to), bytes);
            }
            Output::Connect { node: peer, .. } if self.fails(node, FailedStep::Connect) => {
                self.input(node, Input::Unreachable { node: peer, why: "it has no route".to_owned() })?;
            }
            Output::Connect { node: peer, to, .. } => self.connect(node, peer, to),
            Output::Write { connection, head, payload } => self.write(node, connection, head, payload)?,
            Output::Await { connection, place, .. } => {
                let awaited = &mut self.nodes[usize::from(node)].awaited;
                match place {
                    Some(place) => drop(awaited.insert(connection, place)),
                    None => drop(awaited.remove(&connection)),
                }
            }
            Output::Hangup { connection } => self.hang_up(node, connection)?,
            Output::Store { within, to } => {
                let ClusterNode { memories, input, .. } = &self.nodes[usize::from(node)];
                memories
                    .write(to, &input[within])
                    .map_err(|missing| ContractViolation::memory(node, missing))?;
            }
            Output::Allocate { memory, .. } if self.fails(node, FailedStep::Allocation) => {
                self.nodes[usize::from(node)].memories.refuse(memory);
                let now = self.now();
                self.nodes[usize::from(node)].engine.handle(now, Input::AllocationFailed(memory));
            }
            Output::Allocate { memory, bytes } => {
                self.nodes[usize::from(node)].memories.allocate(memory, bytes);
            }
            Output::Free { memory } => self.on_memory(node, |memories| memories.free(memory))?,
            Output::Copy { from, to } => self.on_memory(node, |memories| memories.copy(from, to))?,
            Output::Work { id, work: Work::Prepare(preparation) } => self.prepare(node, id, *preparation),
            Output::Work { id, work } => self.work(node, id, work)?,
        }
        Ok(())
    }

    fn on_memory(
        &mut self,
        node: u16,
        act: impl FnOnce(&mut Memories) -> Result<(), MissingRange>,
    ) -> Result<(), ContractViolation> {
        act(&mut self.nodes[usize::from(node)].memories)
            .map_err(|missing| ContractViolation::memory(node, missing))
    }

    fn datagram(&mut self, node: u16, (group, to): (u64, SocketAddr), mut bytes: Vec<u8>) {
        self.nodes[usize::from(node)].tagger.seal((group, ANYWHERE), &mut bytes, 0);
        let to = match self.trees.get(&to) {
            _ if is_source_specific(to.ip()) => self.source_destination(to, node),
            Some(tree) => Some(Destination::Tree(*tree)),
            None => Some(Destination::Node(node_at(to.ip()))),
        };
        let Some(to) = to else { return };
        let is_blocked = |node| self.without_udp.contains(&node);
        if is_blocked(node) || matches!(to, Destination::Node(to) if is_blocked(to)) {
            return;
        }
        self.count_datagram();
        self.net.send(node, to, bytes.into());
    }

    fn prepare(&mut self, node: u16, id: WorkId, preparation: Preparation) {
        let known = |pick: &&PlanPick| {
            (pick.group, pick.has_tree) == (preparation.group(), preparation.has_tree())
                && pick.call == *preparation.call()
        };
        let plan = match self.picks.iter().find(known) {
            Some(pick) => pick.plan,
            None => {
                let (plan, call) = (preparation.plan(), preparation.call().clone());
                let (group, has_tree) = (preparation.group(), preparation.has_tree());
                self.picks.push(PlanPick { group, has_tree, call, plan });
                plan
            }
        };
        let after = self.moment(self.settings.work);
        self.later(node, after, DelayedInput::Prepared(id, preparation.compile(plan)));
    }

    /// Executes work at once, or some time later as another thread would.
    fn work(&mut self, node: u16, id: WorkId, work: Work) -> Result<(), ContractViolation> {
        let memories = &self.nodes[usize::from(node)].memories;
        let open = memories.open(work).map_err(|missing| ContractViolation::memory(node, missing))?;
        if self.rng.random_bool(self.settings.pooled) {
            let after = self.moment(self.settings.work);
            self.later(node, after, DelayedInput::Work(id, open));
            return Ok(());
        }
        self.on_memory(node, |memories| memories.finish(open))?;
        let now = self.now();
        self.nodes[usize::from(node)].engine.handle(now, Input::WorkDone(id));
        Ok(())
    }

    fn connect(&mut self, node: u16, peer: NodeId, to: SocketAddr) {
        let until = self.now() + CONNECT_TIMEOUT;
        let life = |node: u16| self.nodes[usize::from(node)].life;
        let to = node_at(to.ip());
        let number = self.connections.open((node, life(node)), (to, life(to)), peer, until);
        self.syn(number);
    }

    fn syn(&mut self, number: usize) {
        let departure = self.connections.send(self.now(), (number, 0), SegmentContent::Syn);
        self.put(departure);
    }

    /// Retries a refused connection, or reports the peer as unreachable.
    pub(super) fn connect_again(&mut self, node: u16, refused: usize) -> Result<(), ContractViolation> {
        let old = self.connections.get(refused);
        let ([from, to], peer, until) = (old.ends, old.peer, old.until);
        if self.now() >= until {
            return self.input(node, Input::Unreachable { node: peer, why: "it refused".to_owned() });
        }
        let life = |node: u16| self.nodes[usize::from(node)].life;
        let (from, to) = ((node, life(from.node)), (to.node, life(to.node)));
        let number = self.connections.open(from, to, peer, until);
        self.syn(number);
        Ok(())
    }

    /// Queues a frame. Its payload is copied at once.
    fn write(
        &mut self,
        node: u16,
        connection: AgentConnectionId,
        mut bytes: Vec<u8>,
        payload: Option<MemoryRange>,
    ) -> Result<(), ContractViolation> {
        if let Some(payload) = payload {
            self.on_memory(node, |memories| memories.read(payload, &mut bytes))?;
        }
        let Some(side) = self.connections.side(node, connection) else { return Ok(()) };
        if self.fails(node, FailedStep::Write) {
            self.schedule(RESET, Alarm::Reset((side.0, 1 - side.1)));
            return self.closed(side, "connection reset by peer");
        }
        self.connections.write(side, &bytes);
        let written = self.send_on(side);
        if written > 0 {
            let (now, bytes) = (self.now(), written as u64);
            self.nodes[usize::from(node)].engine.handle(now, Input::Written { connection, bytes });
        }
        Ok(())
    }

    fn hang_up(&mut self, node: u16, connection: AgentConnectionId) -> Result<(), ContractViolation> {
        self.nodes[usize::from(node)].awaited.remove(&connection);
        if let Some(side) = self.connections.side(node, connection) {
            self.connections.drop_end(side);
            self.connections.finish(side);
            self.send_on(side);
        }
        Ok(())
    }

    /// Sends as much as a side may send now. Returns the number of bytes.
    pub(super) fn send_on(&mut self, side: Side) -> usize {
        let mut sent = 0;
        while let Some((departure, bytes)) = self.connections.next(self.now(), side) {
            self.put(departure);
            sent += bytes;
        }
        sent
    }

    pub(super) fn receive_segment(&mut self, number: u64) -> Result<(), ContractViolation> {
        let Some(sender) = self.connections.sender(number) else { return Ok(()) };
        let receiver = (sender.0, 1 - sender.1);
        let node = self.connections.end(receiver).node;
        if matches!(self.nodes[usize::from(node)].host, Host::Stopped | Host::Off) {
            return self.segment_lost(number);
        }
        for content in self.connections.arrived(number) {
            self.receive_content(receiver, content)?;
        }
        // The sender's window has room again.
        let (bytes, end) = (self.send_on(sender) as u64, self.connections.end(sender));
        match end.id.filter(|_| bytes > 0) {
            Some(connection) => self.input(end.node, Input::Written { connection, bytes }),
            None => Ok(()),
        }
    }

    fn receive_content(&mut self, side: Side, content: SegmentContent) -> Result<(), ContractViolation> {
        let end = self.connections.end(side);
        let other = (side.0, 1 - side.1);
        let this = &self.nodes[usize::from(end.node)];
        let (runs, life, same) = (this.runs(), this.life, this.life == end.life);
        match (content, end.id) {
            (SegmentContent::Syn, _) if runs => {
                let connection = self.connections.establish(side, life);
                let departure = self.connections.send(self.now(), side, SegmentContent::SynAck);
                self.put(departure);
                let (from, life) = (self.connections.end(other).node, self.connections.end(other).life);
                let proven = Some(AgentId { node: format!("h{from}"), incarnation: life.into() });
                self.input(end.node, Input::Accepted { connection, from: ip(from), proven })
            }
            (SegmentContent::Syn, _) => {
                self.later(self.connections.end(other).node, RECONNECT, DelayedInput::Connect(side.0));
                Ok(())
            }
            (SegmentContent::SynAck, _) if runs && same => {
                let connection = self.connections.establish(side, life);
                let node = self.connections.get(side.0).peer;
                self.input(end.node, Input::Connected { node, connection })
            }
            (SegmentContent::Bytes(bytes), Some(connection)) => self.deliver(end.node, connection, &bytes),
            (SegmentContent::Fin, Some(_)) => self.closed(side, "its agent closed the connection"),
            // The segment belongs to a connection of an earlier agent of this node.
            (SegmentContent::SynAck | SegmentContent::Bytes(_), None) if !same || !runs => {
                self.schedule(RESET, Alarm::Reset(other));
                Ok(())
            }
            // The segment belongs to a connection that was closed here shortly before.
            _ => Ok(()),
        }
    }

    /// Reports to one side of a connection that the connection has ended.
    pub(super) fn closed(&mut self, side: Side, why: &str) -> Result<(), ContractViolation> {
        self.connections.discard(side);
        let node = self.connections.end(side).node;
        let Some(connection) = self.connections.drop_end(side) else { return Ok(()) };
        self.nodes[usize::from(node)].awaited.remove(&connection);
        self.input(node, Input::Closed { connection, why: why.to_owned() })
    }

    /// Passes bytes of a connection to the engine, now and then in two parts.
    fn deliver(
        &mut self,
        node: u16,
        connection: AgentConnectionId,
        bytes: &[u8],
    ) -> Result<(), ContractViolation> {
        let cut =
            if self.rng.random_bool(0.1) { self.rng.random_range(0..=bytes.len()) } else { bytes.len() };
        let (first, second) = bytes.split_at(cut);
        for bytes in [first, second] {
            // The engine may have closed the connection after the first part.
            if !bytes.is_empty() && self.connections.side(node, connection).is_some() {
                self.deliver_part(node, connection, bytes)?;
            }
        }
        Ok(())
    }

    /// Passes a part to the engine. The bytes for a known memory range are usually written there
    /// first, as most drivers do.
    fn deliver_part(
        &mut self,
        node: u16,
        connection: AgentConnectionId,
        bytes: &[u8],
    ) -> Result<(), ContractViolation> {
        let straight = self.rng.random_bool(0.8);
        let awaited = &self.nodes[usize::from(node)].awaited;
        let place = awaited.get(&connection).copied().filter(|_| straight).unwrap_or(MemoryRange::EMPTY);
        let placed = bytes.len().min(place.len as usize);
        let (straight, rest) = bytes.split_at(placed);
        self.on_memory(node, |memories| memories.write(place.part(0, placed as u64), straight))?;
        self.nodes[usize::from(node)].input = rest.to_vec();
        self.input(node, Input::Bytes { connection, placed: placed as u32, bytes: rest })
    }

    pub(super) fn segment_lost(&mut self, number: u64) -> Result<(), ContractViolation> {
        let Some(side) = self.connections.sender(number) else { return Ok(()) };
        let node = self.connections.end(side).node;
        if self.nodes[usize::from(node)].host == Host::Off {
            self.connections.forget(number);
            return Ok(());
        }
        match self.connections.lost(self.now(), number) {
            Retry::After(time) => self.schedule(time, Alarm::Resend(number)),
            Retry::GiveUp(side) => return self.closed(side, "it timed out"),
            Retry::Unreachable(side) => {
                let node = self.connections.get(side.0).peer;
                let end = self.connections.end(side);
                if self.nodes[usize::from(end.node)].life == end.life {
                    return self.input(end.node, Input::Unreachable { node, why: "it is silent".to_owned() });
                }
            }
            Retry::No => {}
        }
        Ok(())
    }

    pub(super) fn resend(&mut self, number: u64) {
        if let Some(departure) = self.connections.again(number) {
            self.put(departure);
        }
    }
}
