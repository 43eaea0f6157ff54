//! What happens to the ranks with quick calls of a cluster: their processes start and end, and
//! exchange messages with each other, their agents and the network.

use super::rank::{Effect, QuickRank, RankCall};
use super::rank_table::{RankEvent, RankId};
use crate::collectives::ContractViolation;
use crate::collectives::cluster::{Alarm, DelayedInput, SimulatedCluster, node_at};
use crate::collectives::node::Host;
use crate::network::Destination;
use cool_collective::Rank;
use cool_engine::{CallFailure, CallStats, GroupSpec, Input, RankCommand};
use cool_machine::Duration;
use cool_quick::{SendTo, in_parts};
use std::net::SocketAddr;
use std::sync::Arc;

/// The first byte of a datagram for the socket of a rank, or for its agent's socket for quick
/// calls. Datagrams for engines begin differently.
const TO_RANK: u8 = b'R';
const TO_AGENT: u8 = b'A';

/// An adversary replays and changes one in this many datagrams.
const ATTACKED: u64 = 64;

/// The longest time that a message of a rank takes to its agent.
const AGENT_DELAY: Duration = Duration::from_micros(200);

impl SimulatedCluster {
    /// Creates the ranks of a group, each on its own node. They execute quick calls once their
    /// processes have started.
    pub(in super::super) fn make_quick_ranks(&mut self, spec: &GroupSpec) {
        let nodes: Vec<u16> = spec.members.iter().map(|member| node_at(member.ip)).collect();
        let Some(tree) = spec.trees.first().filter(|_| spec.quick) else { return };
        self.quick.trees.insert(spec.id, SocketAddr::new(tree.address, tree.port));
        for (rank, node) in (0..).zip(&nodes) {
            let life = self.nodes[usize::from(*node)].life;
            if let Some(quick) = QuickRank::of(spec, rank, nodes.clone(), life) {
                self.quick.ranks.insert((spec.id, rank), quick);
            }
        }
    }

    /// Starts the process of a rank after some time. `able` states whether it can execute quick
    /// calls, and `room` is the size of its socket's buffer in bytes.
    pub fn start_rank_process(&mut self, id: (u64, u32), able: bool, room: usize, after: Duration) {
        self.rank_later(id, after, RankEvent::Start(able, room));
    }

    /// Makes a rank with quick calls start a call after some time.
    pub(in super::super) fn rank_calls(&mut self, id: RankId, call: RankCall, after: Duration) {
        self.rank_later(id, after, RankEvent::Call(Box::new(call)));
    }

    /// Pauses a rank with quick calls after some time, for the given time.
    pub fn pause_rank(&mut self, id: (u64, u32), after: Duration, long: Duration) {
        self.rank_later(id, after, RankEvent::Pause(long));
    }

    fn rank_later(&mut self, id: RankId, after: Duration, event: RankEvent) {
        if let Some(rank) = self.quick.ranks.get(&id) {
            self.later(rank.node, after, DelayedInput::Rank(id, event));
        }
    }

    /// Ends the process of a rank with quick calls.
    ///
    /// # Errors
    /// Fails if an engine breaks its contract.
    pub fn end_rank_process(&mut self, id: (u64, u32), why: String) -> Result<(), ContractViolation> {
        let Some(rank) = self.quick.ranks.get_mut(&id) else { return Ok(()) };
        let (node, through) = (rank.node, rank.end_process());
        let command = RankCommand::Lost { why, completed_calls: through };
        self.input(node, Input::Command { group: id.0, rank: id.1, command })
    }

    /// Handles an event of a rank with quick calls.
    pub(in super::super) fn on_rank_event(
        &mut self,
        id: RankId,
        event: RankEvent,
    ) -> Result<(), ContractViolation> {
        let now = self.now();
        let Some(rank) = self.quick.ranks.get_mut(&id).filter(|rank| !rank.over) else { return Ok(()) };
        match event {
            RankEvent::Start(able, room) => {
                rank.start_process(able, room);
                let node = rank.node;
                self.input(node, Input::Quick { group: id.0, able })
            }
            RankEvent::Call(call) => {
                rank.add_call(*call);
                self.run_rank(id)
            }
            RankEvent::Pause(long) => {
                rank.still_until = rank.still_until.max(now + long);
                Ok(())
            }
        }
    }

    /// Makes a rank do everything that is possible now.
    pub(in super::super) fn run_rank(&mut self, id: RankId) -> Result<(), ContractViolation> {
        let now = self.now();
        let Some(rank) = self.quick.ranks.get_mut(&id) else { return Ok(()) };
        let node = &self.nodes[usize::from(rank.node)];
        if matches!(node.host, Host::Stopped | Host::Off) {
            return Ok(());
        }
        let agent = node.runs() && node.life == rank.life;
        let mut effects = Vec::new();
        rank.run(now, agent, &mut effects);
        let wake = rank.wake.filter(|wake| rank.alarm.is_none_or(|alarm| *wake < alarm));
        if let Some(at) = wake {
            rank.alarm = Some(at);
            self.schedule(at - now, Alarm::Rank(id));
        }
        self.execute_effects(id, effects)
    }

    /// Handles a rank's alarm.
    pub(in super::super) fn on_rank_alarm(&mut self, id: RankId) -> Result<(), ContractViolation> {
        let now = self.now();
        if let Some(rank) = self.quick.ranks.get_mut(&id) {
            rank.alarm = rank.alarm.filter(|alarm| *alarm > now);
        }
        self.run_rank(id)
    }

    fn execute_effects(&mut self, id: RankId, effects: Vec<Effect>) -> Result<(), ContractViolation> {
        for effect in effects {
            match effect {
                Effect::Send(to, bytes) => self.send_from_rank(id, to, &bytes),
                Effect::Call(token, request) => {
                    self.quick.watched += u64::from(request.watch);
                    self.send_to_agent(id, DelayedInput::Call(token, request));
                }
                Effect::Watched(number, report) => {
                    self.send_to_agent(id, DelayedInput::Watched(id, number, report))
                }
                Effect::Revoke => {
                    self.quick.incomplete += 1;
                    self.send_to_agent(id, DelayedInput::Revoke(id));
                }
                Effect::Answer(token, result) => {
                    let node = self.quick.ranks[&id].node;
                    self.answer(node, token, result)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a message of a rank to its agent. Messages arrive in the order in which they are sent.
    fn send_to_agent(&mut self, id: RankId, what: DelayedInput) {
        let (now, moment) = (self.now(), self.moment(AGENT_DELAY));
        let Some(rank) = self.quick.ranks.get_mut(&id) else { return };
        let node = &self.nodes[usize::from(rank.node)];
        if node.host == Host::Crashed || node.life != rank.life {
            // The connection to the agent has ended.
            rank.over = true;
            return;
        }
        rank.last_delivery = rank.last_delivery.max(now + moment) + Duration::from_nanos(1);
        let (node, after) = (rank.node, rank.last_delivery - now);
        self.later(node, after, what);
    }

    fn send_from_rank(&mut self, id: RankId, to: SendTo, bytes: &[u8]) {
        let Some(rank) = self.quick.ranks.get(&id) else { return };
        let node = |rank: &QuickRank, of: Rank| Destination::Node(rank.nodes[of.0 as usize]);
        let (port, to) = match to {
            SendTo::All => (TO_RANK, Destination::Tree(self.trees[&self.quick.trees[&id.0]])),
            SendTo::Rank(of) => (TO_RANK, node(rank, of)),
            SendTo::AgentOf(of) => (TO_AGENT, node(rank, of)),
        };
        let (from, datagram_bytes) = (rank.node, rank.datagram_bytes);
        self.put_quick_datagrams(from, (port, to), &in_parts(bytes, datagram_bytes), datagram_bytes);
    }

    /// Sends one datagram, or several of this length.
    fn put_quick_datagrams(
        &mut self,
        from: u16,
        (port, to): (u8, Destination),
        datagrams: &[u8],
        datagram_bytes: usize,
    ) {
        let each = if datagram_bytes > 0 { datagram_bytes } else { datagrams.len() };
        datagrams.chunks(each).for_each(|bytes| self.put_quick(from, port, to, bytes));
    }

    fn put_quick(&mut self, from: u16, port: u8, to: Destination, bytes: &[u8]) {
        self.count_datagram();
        self.net.send(from, to, [&[port], bytes].concat().into());
    }

    /// Handles a datagram if it belongs to quick calls. Returns whether it does.
    pub(in super::super) fn receive_quick_datagram(
        &mut self,
        from: u16,
        node: u16,
        bytes: &[u8],
    ) -> Result<bool, ContractViolation> {
        let Some((port, bytes)) = bytes.split_first().filter(|(port, _)| [TO_RANK, TO_AGENT].contains(port))
        else {
            return Ok(false);
        };
        match *port {
            TO_AGENT => self.reply_for_rank(from, node, bytes),
            _ => self.datagram_for_ranks(node, bytes)?,
        }
        Ok(true)
    }

    /// Handles a NAK for messages of a rank, which the agent of the node receives.
    fn reply_for_rank(&mut self, from: u16, node: u16, bytes: &[u8]) {
        let this = &self.nodes[usize::from(node)];
        let (runs, life) = (this.runs(), this.life);
        let all = self.quick.ranks.values_mut();
        let here = all.filter(|rank| runs && (rank.node, rank.life) == (node, life));
        let answer = here.filter_map(|rank| {
            let answer = rank.answering.respond(&rank.retained, bytes)?;
            let is_there = rank.nodes.get(answer.requester.0 as usize) == Some(&from);
            rank.retained.repaired += u64::from(is_there);
            is_there.then_some((answer, rank.datagram_bytes))
        });
        if let Some((answer, datagram_bytes)) = answer.collect::<Vec<_>>().pop() {
            self.quick.answered += 1;
            let to = (TO_RANK, Destination::Node(from));
            self.put_quick_datagrams(node, to, &answer.datagrams(datagram_bytes), datagram_bytes);
        }
    }

    /// Passes a datagram to the ranks of a node. Now and then an adversary replays and changes it.
    fn datagram_for_ranks(&mut self, node: u16, bytes: &[u8]) -> Result<(), ContractViolation> {
        let host = self.nodes[usize::from(node)].host;
        if matches!(host, Host::Stopped | Host::Off) {
            return Ok(());
        }
        self.quick.received += 1;
        let mut all: Vec<Arc<[u8]>> = vec![bytes.into()];
        if self.quick.received.is_multiple_of(ATTACKED) {
            let mut changed = bytes.to_vec();
            changed[self.quick.received as usize / 3 % bytes.len()] ^= 0x10;
            all.extend([changed.into(), bytes.into()]);
        }
        let here = self.quick.ranks.iter_mut().filter(|(_, rank)| rank.node == node);
        let mut ids = Vec::new();
        for (id, rank) in here {
            all.iter().for_each(|bytes| rank.datagram(bytes));
            ids.push(*id);
        }
        ids.into_iter().try_for_each(|id| self.run_rank(id))
    }

    /// Makes the ranks of a node do everything that is possible now.
    pub(in super::super) fn run_ranks_of(&mut self, node: u16) -> Result<(), ContractViolation> {
        let here = self.quick.ranks.iter().filter(|(_, rank)| rank.node == node);
        let here: Vec<RankId> = here.map(|(id, _)| *id).collect();
        here.into_iter().try_for_each(|id| self.run_rank(id))
    }

    /// Handles that an engine knows whether all ranks of a group can execute quick calls.
    pub(in super::super) fn on_quick_known(
        &mut self,
        node: u16,
        group: u64,
        all: bool,
    ) -> Result<(), ContractViolation> {
        self.change_rank(node, group, |rank| rank.record_all_able(all))
    }

    /// Handles that a group of an engine has failed, which its rank detects.
    pub(in super::super) fn on_group_failed(
        &mut self,
        node: u16,
        group: u64,
    ) -> Result<(), ContractViolation> {
        self.change_rank(node, group, |rank| rank.failed = true)
    }

    fn change_rank(
        &mut self,
        node: u16,
        group: u64,
        change: impl FnOnce(&mut QuickRank),
    ) -> Result<(), ContractViolation> {
        let life = self.nodes[usize::from(node)].life;
        let Some((id, rank)) = self.quick.of_node(group, node, life) else { return Ok(()) };
        change(rank);
        self.schedule(Duration::from_nanos(1), Alarm::Rank(id));
        Ok(())
    }

    /// Handles that an engine has removed a group, so that the agent no longer replies for its
    /// rank.
    pub(in super::super) fn on_group_removed(&mut self, node: u16, group: u64) {
        let life = self.nodes[usize::from(node)].life;
        if let Some((id, _)) = self.quick.of_node(group, node, life) {
            self.quick.ranks.remove(&id);
        }
    }

    /// Handles the result of a watched call.
    pub(in super::super) fn watch_answered(
        &mut self,
        node: u16,
        token: u64,
        result: Result<CallStats, CallFailure>,
    ) {
        let life = self.nodes[usize::from(node)].life;
        let here = self.quick.ranks.iter_mut().filter(|(_, rank)| (rank.node, rank.life) == (node, life));
        let mut ids = Vec::new();
        for (id, rank) in here {
            rank.answered(token, result.clone());
            ids.push(*id);
        }
        ids.into_iter().for_each(|id| self.schedule(Duration::from_nanos(1), Alarm::Rank(id)));
    }

    /// Returns whether a rank has left a call incomplete because of an error.
    pub fn has_incomplete_call(&self) -> bool {
        self.quick.incomplete > 0
    }

    /// Returns the number of datagrams that agents have retransmitted for their ranks, and the
    /// number of calls that agents were requested to watch.
    pub fn quick_repairs(&self) -> (u64, u64) {
        (self.quick.answered, self.quick.watched)
    }
}
