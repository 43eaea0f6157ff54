//! All such ranks of a cluster: who comes and goes, and what passes between them, their agents and the network.

use super::rank::{Effect, QuickRank, RankCall};
use crate::collectives::ContractViolation;
use crate::collectives::cluster::{Alarm, Later, SimulatedCluster, node_at};
use crate::collectives::node::Host;
use crate::network::Destination;
use cool_collective::Rank;
use cool_engine::{CallFailure, CallStats, GroupSpec, Input, RankCommand};
use cool_machine::Duration;
use cool_quick::SendTo;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Tokens of watched calls have this bit.
pub(in super::super) const WATCHES: u64 = 1 << 63;

/// What a datagram begins with that is for the socket of a rank, or its agent's for quick calls; those for engines begin otherwise.
const TO_RANK: u8 = b'R';
const TO_AGENT: u8 = b'A';

/// One datagram in this number is repeated and changed by an adversary.
const ATTACKED: u64 = 64;

/// The longest that what a rank tells its agent takes to get there.
const TELLING: Duration = Duration::from_micros(200);

/// A rank, by its group.
pub(in super::super) type RankId = (u64, u32);

/// What is to happen to a rank.
#[derive(Debug)]
pub(in super::super) enum RankEvent {
    /// It comes, and whether it can carry out quick calls; its socket has room for as many bytes.
    Come(bool, usize),
    /// It makes a call.
    Call(Box<RankCall>),
    /// It stands still for long.
    StandStill(Duration),
}

#[derive(Debug, Default)]
pub(in super::super) struct QuickRanks {
    ranks: BTreeMap<RankId, QuickRank>,
    /// The tree of each group over all its nodes.
    trees: BTreeMap<u64, SocketAddr>,
    /// Datagrams that ranks have got.
    came: u64,
    /// Those with which agents have answered.
    answered: u64,
    /// Calls that agents were told to watch.
    watched: u64,
}

impl QuickRanks {
    /// Of a node the ranks of a group that are attached to this start of its agent.
    fn of_node(&mut self, group: u64, node: u16, life: u32) -> Option<(RankId, &mut QuickRank)> {
        let of_group = self.ranks.range_mut((group, 0)..=(group, u32::MAX));
        of_group.map(|(id, rank)| (*id, rank)).find(|(_, rank)| (rank.node, rank.life) == (node, life))
    }
}

impl SimulatedCluster {
    /// The ranks of a group, each on a node of its own, will carry out quick calls when they have come.
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

    /// A rank of a group with quick calls comes after some time, and whether it can carry them out; its socket has room for as many bytes.
    pub fn rank_comes(&mut self, id: (u64, u32), able: bool, room: usize, after: Duration) {
        self.rank_later(id, after, RankEvent::Come(able, room));
    }

    /// A rank of a group with quick calls makes a call after some time, for which it may wait.
    pub(in super::super) fn rank_calls(&mut self, id: RankId, call: RankCall, after: Duration) {
        self.rank_later(id, after, RankEvent::Call(Box::new(call)));
    }

    /// A rank of a group with quick calls stands still after some time, for long.
    pub fn rank_stands_still(&mut self, id: (u64, u32), after: Duration, long: Duration) {
        self.rank_later(id, after, RankEvent::StandStill(long));
    }

    fn rank_later(&mut self, id: RankId, after: Duration, event: RankEvent) {
        if let Some(rank) = self.quick.ranks.get(&id) {
            self.later(rank.node, after, Later::Rank(id, event));
        }
    }

    /// The process of a rank of a group with quick calls ends.
    ///
    /// # Errors
    /// If an engine breaks its contract.
    pub fn rank_ends(&mut self, id: (u64, u32), why: String) -> Result<(), ContractViolation> {
        let Some(rank) = self.quick.ranks.get_mut(&id) else { return Ok(()) };
        let (node, through) = (rank.node, rank.ends());
        let command = RankCommand::Lost { why, completed_calls: through };
        self.input(node, Input::Command { group: id.0, rank: id.1, command })
    }

    /// Something happens to a rank of a group with quick calls.
    pub(in super::super) fn rank_happens(
        &mut self,
        id: RankId,
        event: RankEvent,
    ) -> Result<(), ContractViolation> {
        let now = self.now();
        let Some(rank) = self.quick.ranks.get_mut(&id).filter(|rank| !rank.over) else { return Ok(()) };
        match event {
            RankEvent::Come(able, room) => {
                rank.comes(able, room);
                let node = rank.node;
                self.input(node, Input::Quick { group: id.0, able })
            }
            RankEvent::Call(call) => {
                rank.ask(*call);
                self.run_rank(id)
            }
            RankEvent::StandStill(long) => {
                rank.still_until = rank.still_until.max(now + long);
                Ok(())
            }
        }
    }

    /// A rank does what it can do now.
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
        self.rank_does(id, effects)
    }

    /// An alarm of a rank's has come.
    pub(in super::super) fn rank_woken(&mut self, id: RankId) -> Result<(), ContractViolation> {
        let now = self.now();
        if let Some(rank) = self.quick.ranks.get_mut(&id) {
            rank.alarm = rank.alarm.filter(|alarm| *alarm > now);
        }
        self.run_rank(id)
    }

    fn rank_does(&mut self, id: RankId, effects: Vec<Effect>) -> Result<(), ContractViolation> {
        for effect in effects {
            match effect {
                Effect::Send(to, bytes) => self.rank_sends(id, to, &bytes),
                Effect::Call(token, request) => {
                    self.quick.watched += u64::from(request.watch);
                    self.rank_tells(id, Later::Call(token, request));
                }
                Effect::Watched(number, report) => self.rank_tells(id, Later::Watched(id, number, report)),
                Effect::Answer(token, result) => {
                    let node = self.quick.ranks[&id].node;
                    self.answer(node, token, result)?;
                }
            }
        }
        Ok(())
    }

    /// A rank tells its agent something, in the order in which it does.
    fn rank_tells(&mut self, id: RankId, what: Later) {
        let (now, moment) = (self.now(), self.moment(TELLING));
        let Some(rank) = self.quick.ranks.get_mut(&id) else { return };
        let node = &self.nodes[usize::from(rank.node)];
        if node.host == Host::Crashed || node.life != rank.life {
            // Its connection has ended.
            rank.over = true;
            return;
        }
        rank.told = rank.told.max(now + moment) + Duration::from_nanos(1);
        let (node, after) = (rank.node, rank.told - now);
        self.later(node, after, what);
    }

    fn rank_sends(&mut self, id: RankId, to: SendTo, bytes: &[u8]) {
        let Some(rank) = self.quick.ranks.get(&id) else { return };
        let node = |rank: &QuickRank, of: Rank| Destination::Node(rank.nodes[of.0 as usize]);
        let (port, to) = match to {
            SendTo::All => (TO_RANK, Destination::Tree(self.trees[&self.quick.trees[&id.0]])),
            SendTo::Rank(of) => (TO_RANK, node(rank, of)),
            SendTo::AgentOf(of) => (TO_AGENT, node(rank, of)),
        };
        let from = rank.node;
        self.put_quick(from, port, to, bytes);
    }

    fn put_quick(&mut self, from: u16, port: u8, to: Destination, bytes: &[u8]) {
        self.count_datagram();
        self.net.send(from, to, [&[port], bytes].concat().into());
    }

    /// A datagram has come to a node: whether it is one of quick calls, which is seen to.
    pub(in super::super) fn quick_datagram_came(
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
            TO_AGENT => self.answer_for_rank(from, node, bytes),
            _ => self.datagram_for_ranks(node, bytes)?,
        }
        Ok(true)
    }

    /// The agent of a node is asked for what a rank has sent.
    fn answer_for_rank(&mut self, from: u16, node: u16, bytes: &[u8]) {
        let this = &self.nodes[usize::from(node)];
        let (runs, life) = (this.runs(), this.life);
        let all = self.quick.ranks.values_mut();
        let here = all.filter(|rank| runs && (rank.node, rank.life) == (node, life));
        let answer = here.filter_map(|rank| {
            let (asker, answer) = rank.answering.respond(&rank.kept, bytes)?;
            let is_there = rank.nodes.get(asker.0 as usize) == Some(&from);
            rank.kept.repaired += u64::from(is_there);
            is_there.then_some(answer)
        });
        if let Some(answer) = answer.collect::<Vec<_>>().pop() {
            self.quick.answered += 1;
            self.put_quick(node, TO_RANK, Destination::Node(from), &answer);
        }
    }

    /// A datagram has come that one of the ranks of a node may be for. Now and then an adversary repeats and changes it.
    fn datagram_for_ranks(&mut self, node: u16, bytes: &[u8]) -> Result<(), ContractViolation> {
        let host = self.nodes[usize::from(node)].host;
        if matches!(host, Host::Stopped | Host::Off) {
            return Ok(());
        }
        self.quick.came += 1;
        let mut all: Vec<Arc<[u8]>> = vec![bytes.into()];
        if self.quick.came.is_multiple_of(ATTACKED) {
            let mut changed = bytes.to_vec();
            changed[self.quick.came as usize / 3 % bytes.len()] ^= 0x10;
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

    /// Ranks of a node do what they can.
    pub(in super::super) fn run_ranks_of(&mut self, node: u16) -> Result<(), ContractViolation> {
        let here = self.quick.ranks.iter().filter(|(_, rank)| rank.node == node);
        let here: Vec<RankId> = here.map(|(id, _)| *id).collect();
        here.into_iter().try_for_each(|id| self.run_rank(id))
    }

    /// An engine knows whether all ranks of a group can carry out quick calls.
    pub(in super::super) fn quick_known(
        &mut self,
        node: u16,
        group: u64,
        all: bool,
    ) -> Result<(), ContractViolation> {
        self.quick_changes(node, group, |rank| rank.learn(all))
    }

    /// An engine's group has failed, which its rank sees.
    pub(in super::super) fn quick_failed(&mut self, node: u16, group: u64) -> Result<(), ContractViolation> {
        self.quick_changes(node, group, |rank| rank.failed = true)
    }

    fn quick_changes(
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

    /// An engine has forgotten a group: its agent answers for its rank no more.
    pub(in super::super) fn quick_forgotten(&mut self, node: u16, group: u64) {
        let life = self.nodes[usize::from(node)].life;
        if let Some((id, _)) = self.quick.of_node(group, node, life) {
            self.quick.ranks.remove(&id);
        }
    }

    /// A watched call is answered.
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

    /// Datagrams with which agents have answered for their ranks, and calls that agents were told to watch.
    pub fn quick_repairs(&self) -> (u64, u64) {
        (self.quick.answered, self.quick.watched)
    }
}
