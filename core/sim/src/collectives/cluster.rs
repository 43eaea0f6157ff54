//! The nodes of a simulated cluster, and the events that happen to them in the order of time.

use super::ContractViolation;
use super::connections::{Connections, Departure};
use super::faults::StepFailure;
use super::memories::{MissingRange, OpenWork};
use super::node::{ANYWHERE, ClusterNode, Host};
use super::quick::{QuickRanks, RankEvent, RankId, WATCHES};
use super::tree_faults::{PROOF_TIME, SimulatedProofs, TreeEvent};
use super::tree_sources::SourceTrees;
use crate::network::{Event, LinkSpec, PacketNetwork, Shape};
use cool_collective::{CostModel, Plan};
use cool_engine::testing::Buffer;
use cool_engine::{
    CallFailure, CallRequest, CallStats, DEFAULT_PEER_TIMEOUT, Engine, GroupKey, GroupSpec, Input,
    MemberSpec, PreparedCall, RankCommand, TransferRequest, TreeScope, TreeSpec, WatchReport, WorkId,
};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::tagged::Protection;
use cool_types::limits::BOUNCE_BYTES;
use cool_types::{Call, is_source_specific};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// Port of all agents, for datagrams and for connections.
pub(super) const PORT: u16 = 7420;

/// An adversary replays one in this many datagrams, changes it, and sends it without its tag.
const ATTACKED: u64 = 64;

/// Number of events at one instant that counts as an endless loop.
const ENDLESS: u32 = 100_000;

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of nodes in each rack.
    pub shape: Shape,
    /// The number by which the controller knows each rack.
    pub racks: Vec<u32>,
    /// The links of the nodes.
    pub host: LinkSpec,
    /// The links of the racks.
    pub uplink: LinkSpec,
    /// Size of an agent's bounce buffers in bytes.
    pub bounce_bytes: u64,
    /// Time for which a node may be silent while others wait for it.
    pub peer_timeout: Duration,
    /// The share of copies and reductions that another thread executes later.
    pub pooled: f64,
    /// The longest time that such work takes.
    pub work: Duration,
    /// Whether agents connect only when they first have data for each other.
    pub on_demand: bool,
    /// Whether nodes receive from trees only the sources that they have joined. Groups then have at
    /// most one tree over all nodes, and no quick calls.
    pub source_specific: bool,
}

impl ClusterSettings {
    /// Returns the settings of a cluster with lossless links of this rate, in bytes per second.
    pub fn clean(seed: u64, shape: Shape, rate: u64) -> ClusterSettings {
        ClusterSettings {
            seed,
            racks: (0..).take(shape.len()).collect(),
            shape,
            host: LinkSpec::clean(rate),
            uplink: LinkSpec::clean(rate),
            bounce_bytes: BOUNCE_BYTES,
            peer_timeout: DEFAULT_PEER_TIMEOUT,
            pooled: 0.25,
            work: Duration::from_micros(300),
            on_demand: false,
            source_specific: false,
        }
    }
}

/// The result of a call or message, and when it was reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// When the result was reported.
    pub at: Time,
    /// The result.
    pub result: Result<CallStats, CallFailure>,
}

/// The effect of a simulation step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An event happened in the cluster.
    Event,
    /// The alarm with this number was due.
    Alarm(u32),
    /// No event will ever happen again.
    Idle,
}

/// An event that is scheduled at a node. It is dropped if the node's agent restarts before it is
/// due.
#[derive(Debug)]
pub(super) enum DelayedInput {
    Call(u64, CallRequest<Buffer>),
    Transfer(u64, TransferRequest<Buffer>),
    Prepared(WorkId, PreparedCall),
    Work(WorkId, OpenWork),
    /// The node retries a connection.
    Connect(usize),
    /// An event of a rank with quick calls.
    Rank(RankId, RankEvent),
    /// The rank's report on a watched call, with the number of the call.
    Watched(RankId, u64, WatchReport),
    /// A rank with quick calls revokes its group.
    Revoke(RankId),
    /// The controller requests a proof of a group's trees.
    ProveTrees {
        group: u64,
        number: u64,
    },
    /// The controller ends a proof.
    ConcludeTreeProof {
        group: u64,
        withdrawn: BTreeSet<IpAddr>,
    },
}

/// A plan that a node has picked. Other nodes pick the same one under the same conditions.
#[derive(Debug)]
pub(super) struct PlanPick {
    /// The group and its epoch.
    pub(super) group: (u64, u32),
    /// Whether the plan may count on a tree.
    pub(super) has_tree: bool,
    pub(super) call: Call,
    pub(super) plan: Plan,
}

/// The action for which a timer was set.
#[derive(Debug)]
pub(super) enum Alarm {
    Node {
        node: u16,
        life: u32,
        what: Box<DelayedInput>,
    },
    /// A dropped segment is retransmitted.
    Resend(u64),
    /// One side of a connection learns that the other side does not know the connection.
    Reset((usize, usize)),
    /// A rank with quick calls runs again.
    Rank(RankId),
    /// An event of a group's trees.
    Trees(u64, TreeEvent),
    Outside(u32),
}

/// Nodes with engines over a simulated network.
#[derive(Debug)]
pub struct SimulatedCluster {
    pub(super) settings: ClusterSettings,
    pub(super) net: PacketNetwork,
    pub(super) nodes: Vec<ClusterNode>,
    pub(super) rng: ChaCha8Rng,
    pub(super) connections: Connections,
    pub(super) quick: QuickRanks,
    /// The network's number of each tree.
    pub(super) trees: BTreeMap<SocketAddr, usize>,
    pub(super) source_trees: SourceTrees,
    /// Trees, each with a node that does not receive them although it should.
    pub(super) deaf: BTreeSet<(SocketAddr, u16)>,
    pub(super) tree_proofs: SimulatedProofs,
    /// Nodes with a firewall that drops all datagrams to and from other nodes, except on trees.
    pub(super) without_udp: BTreeSet<u16>,
    alarms: BTreeMap<u32, Alarm>,
    next_alarm: u32,
    answers: BTreeMap<u64, Answer>,
    answered: Vec<u64>,
    /// The plans that nodes have picked, which are computed only once.
    pub(super) picks: Vec<PlanPick>,
    datagrams: u64,
    /// The step that is to fail, if it has not failed yet.
    pub(super) step_failure: Option<StepFailure>,
    pub(super) has_step_failed: bool,
    /// Number of datagrams that nodes have received.
    received: u64,
    /// Number of events since the time last advanced.
    still: u32,
}

pub(super) fn ip(node: u16) -> IpAddr {
    [10, 0, (node / 200) as u8, (node % 200) as u8 + 1].into()
}

/// Returns the node at an address.
pub(super) fn node_at(ip: IpAddr) -> u16 {
    let IpAddr::V4(ip) = ip else { panic!("{ip} is of no simulated node") };
    let [_, _, high, low] = ip.octets();
    u16::from(high) * 200 + u16::from(low) - 1
}

impl SimulatedCluster {
    /// Returns a cluster in which all agents have just started.
    pub fn new(settings: ClusterSettings) -> SimulatedCluster {
        let net = PacketNetwork::new(settings.seed, &settings.shape, settings.host, settings.uplink);
        let node = |node| ClusterNode::new(node, settings.bounce_bytes, settings.peer_timeout, 0);
        SimulatedCluster {
            nodes: (0..net.nodes()).map(node).collect(),
            rng: ChaCha8Rng::seed_from_u64(settings.seed ^ 0xc1),
            connections: Connections::default(),
            quick: QuickRanks::default(),
            trees: BTreeMap::new(),
            source_trees: SourceTrees::default(),
            deaf: BTreeSet::new(),
            tree_proofs: SimulatedProofs::default(),
            without_udp: BTreeSet::new(),
            alarms: BTreeMap::new(),
            next_alarm: u32::from(net.nodes()),
            answers: BTreeMap::new(),
            answered: Vec::new(),
            picks: Vec::new(),
            datagrams: 0,
            step_failure: None,
            has_step_failed: false,
            received: 0,
            still: 0,
            net,
            settings,
        }
    }

    /// Returns the simulated time.
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// Returns the network, so that the behavior of its links can be changed.
    pub fn network(&mut self) -> &mut PacketNetwork {
        &mut self.net
    }

    /// Returns the engine of a node.
    pub fn engine(&self, node: u16) -> &Engine {
        &self.nodes[usize::from(node)].engine
    }

    /// Returns the results of calls and messages, by token.
    pub fn answers(&self) -> &BTreeMap<u64, Answer> {
        &self.answers
    }

    /// Returns the tokens of the results reported since the last call.
    pub fn take_answered(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.answered)
    }

    /// Returns the number of datagrams that nodes have sent.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// Returns the specification of a group with rank `i` on node `places[i]` and with this many
    /// trees over all its nodes. If there is at least one, each rack and the set of rack leaders
    /// also have a tree.
    pub fn group(&mut self, id: u64, places: &[u16], stripes: usize) -> GroupSpec {
        let rack = |node| self.settings.racks[usize::from(self.net.rack_of(node))];
        let member = |(rank, node): (u32, &u16)| MemberSpec {
            rank,
            node: format!("h{node}"),
            incarnation: self.nodes[usize::from(*node)].life.into(),
            rack: rack(*node),
            ip: ip(*node),
            udp_port: PORT,
            tcp_port: PORT,
            key: Some([*node as u8; 32].into()),
        };
        let members = (0..).zip(places).map(member).collect();
        let racks: BTreeSet<u32> = places.iter().map(|node| rack(*node)).collect();
        let partial = std::iter::once(TreeScope::Leaders).chain(racks.into_iter().map(TreeScope::Rack));
        let (first, stripes) = match self.settings.source_specific {
            true => (232, stripes.min(1)),
            false => (239, stripes),
        };
        let scopes = std::iter::repeat_n(TreeScope::All, stripes).chain(partial.filter(|_| stripes > 0));
        let rate = self.settings.host.rate;
        let tree = |(index, scope)| {
            let address = SocketAddr::new([first, 192, id as u8, index].into(), PORT);
            let net = &mut self.net;
            self.trees.entry(address).or_insert_with(|| net.add_tree([]));
            TreeSpec { scope, address: address.ip(), port: PORT, bytes_per_second: rate }
        };
        GroupSpec {
            id,
            epoch: 1,
            members,
            trees: (0..).zip(scopes).map(tree).collect(),
            chunk_bytes: 1424,
            host_bytes_per_second: rate,
            cost_model: CostModel::default(),
            keyed: Some(GroupKey { key: [id as u8; 32].into(), protection: Protection::Tagged }),
            on_demand: self.settings.on_demand,
            quick: false,
            probe_quick: false,
            quick_datagram_bytes: 0,
            connections_per_hop: 0,
        }
    }

    /// Makes a node miss all datagrams on the trees of a group.
    pub fn deafen(&mut self, spec: &GroupSpec, node: u16) {
        let addresses = spec.trees.iter().map(|tree| SocketAddr::new(tree.address, tree.port));
        self.deaf.extend(addresses.map(|address| (address, node)));
    }

    /// Drops all datagrams from a node, and all to it except on trees. Connections continue.
    pub fn block_datagrams(&mut self, node: u16) {
        self.without_udp.insert(node);
    }

    pub(super) fn listen(&mut self, node: u16, trees: &[SocketAddr]) {
        let any_source = trees.iter().filter(|tree| !is_source_specific(tree.ip()));
        for tree in any_source.filter(|tree| !self.deaf.contains(&(**tree, node))) {
            self.net.join_tree(self.trees[tree], node);
        }
    }

    /// Creates a group on all its nodes that run.
    pub fn make_group(&mut self, spec: &GroupSpec) -> Result<(), ContractViolation> {
        let nodes: BTreeSet<u16> = spec.members.iter().map(|member| node_at(member.ip)).collect();
        self.make_quick_ranks(spec);
        for node in nodes {
            self.input(node, Input::MakeGroup(spec))?;
            if let Some(keyed) = &spec.keyed {
                let ClusterNode { tagger, groups, .. } = &mut self.nodes[usize::from(node)];
                tagger.insert((spec.id, spec.epoch), keyed.clone(), groups[&spec.id]);
            }
        }
        Ok(())
    }

    /// Releases a group on all nodes that have it.
    pub fn release_group(&mut self, group: u64) -> Result<(), ContractViolation> {
        let nodes = 0..self.net.nodes();
        let having: Vec<u16> =
            nodes.filter(|node| self.nodes[usize::from(*node)].groups.contains_key(&group)).collect();
        having.into_iter().try_for_each(|node| self.input(node, Input::ReleaseGroup { group }))
    }

    /// Makes a rank on a node start a call after some time.
    pub fn call(&mut self, node: u16, token: u64, request: CallRequest<Buffer>, after: Duration) {
        self.later(node, after, DelayedInput::Call(token, request));
    }

    /// Makes a rank on a node send or receive after some time.
    pub fn transfer(&mut self, node: u16, token: u64, request: TransferRequest<Buffer>, after: Duration) {
        self.later(node, after, DelayedInput::Transfer(token, request));
    }

    /// Requests a [`Step::Alarm`] with this number after some time.
    pub fn alarm(&mut self, number: u32, after: Duration) {
        self.schedule(after, Alarm::Outside(number));
    }

    pub(super) fn later(&mut self, node: u16, after: Duration, what: DelayedInput) {
        let life = self.nodes[usize::from(node)].life;
        self.schedule(after, Alarm::Node { node, life, what: Box::new(what) });
    }

    pub(super) fn schedule(&mut self, after: Duration, alarm: Alarm) {
        self.net.wake(self.next_alarm, self.now() + after);
        self.alarms.insert(self.next_alarm, alarm);
        self.next_alarm += 1;
    }

    /// Returns a random time up to `longest`.
    pub(super) fn moment(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.random_range(0.0..1.0))
    }

    /// Handles the arrival of a datagram. Now and then an adversary replays it, changes it, and
    /// sends its content without the tag.
    fn receive_datagram(
        &mut self,
        node: u16,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), ContractViolation> {
        let opened = self.open_datagram(node, from, bytes.to_vec())?;
        self.received += 1;
        if let Some(packets) = opened
            && self.received.is_multiple_of(ATTACKED)
        {
            let mut changed = bytes.to_vec();
            changed[self.received as usize / 3 % bytes.len()] ^= 0x10;
            for forged in [bytes.to_vec(), changed, packets] {
                if self.open_datagram(node, from, forged)?.is_some() {
                    return Err(ContractViolation::Forged { node });
                }
            }
        }
        Ok(())
    }

    /// Passes a datagram to the engine if its tag is right or if it has none. Returns its content
    /// if the tag proves its group.
    fn open_datagram(
        &mut self,
        node: u16,
        from: SocketAddr,
        mut bytes: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, ContractViolation> {
        let of = &mut self.nodes[usize::from(node)];
        let Ok((len, proven)) = of.tagger.open(&mut bytes, ANYWHERE) else { return Ok(None) };
        bytes.truncate(len);
        of.input.clone_from(&bytes);
        self.input(node, Input::Datagram { from, bytes: &bytes, proven })?;
        Ok(proven.map(|_| bytes))
    }

    /// Executes the next event.
    pub fn step(&mut self) -> Result<Step, ContractViolation> {
        let before = self.now();
        let Some(event) = self.net.next_event() else { return Ok(Step::Idle) };
        self.still = if self.now() > before { 0 } else { self.still + 1 };
        if self.still > ENDLESS {
            return Err(ContractViolation::Spin { at: before });
        }
        match event {
            Event::Wake { whom } if (whom as usize) < self.nodes.len() => self.on_wake(whom as u16)?,
            Event::Wake { whom } => {
                if let Some(alarm) = self.alarms.remove(&whom) {
                    return self.due(alarm);
                }
            }
            Event::Packet { from, node, bytes } => {
                if !self.receive_quick_datagram(from, node, &bytes)? && self.nodes[usize::from(node)].runs() {
                    self.receive_datagram(node, SocketAddr::new(ip(from), PORT), &bytes)?;
                }
            }
            Event::Segment { number } => self.receive_segment(number)?,
            Event::SegmentLost { number } => self.segment_lost(number)?,
        }
        Ok(Step::Event)
    }

    /// Polls a node's engine if that is due now. The timer may be outdated.
    fn on_wake(&mut self, node: u16) -> Result<(), ContractViolation> {
        let now = self.now();
        let this = &mut self.nodes[usize::from(node)];
        if this.wake == Some(now) {
            this.wake = None;
            self.pump(node)?;
        }
        Ok(())
    }

    fn due(&mut self, alarm: Alarm) -> Result<Step, ContractViolation> {
        match alarm {
            Alarm::Outside(number) => return Ok(Step::Alarm(number)),
            Alarm::Resend(number) => self.resend(number),
            Alarm::Rank(id) => self.on_rank_alarm(id)?,
            Alarm::Trees(group, event) => self.on_tree_event(group, event),
            Alarm::Reset(side) => self.closed(side, "its agent does not know the connection")?,
            Alarm::Node { node, life, what } => {
                let this = &self.nodes[usize::from(node)];
                match this.host {
                    Host::Running if this.life == life => self.on_scheduled(node, *what)?,
                    // A stopped node continues with it later.
                    Host::Stopped => self.later(node, Duration::from_millis(10), *what),
                    _ => {}
                }
            }
        }
        Ok(Step::Event)
    }

    fn on_scheduled(&mut self, node: u16, what: DelayedInput) -> Result<(), ContractViolation> {
        let memories = &mut self.nodes[usize::from(node)].memories;
        match what {
            DelayedInput::Call(token, request) => {
                let request = request.map(|buffer| memories.register(token, buffer));
                self.input(node, Input::Request { token, request: request.into() })
            }
            DelayedInput::Transfer(token, request) => {
                let request = request.map(|buffer| memories.register(token, buffer));
                self.input(node, Input::Request { token, request: request.into() })
            }
            DelayedInput::Prepared(id, prepared) => self.input(node, Input::Prepared(id, prepared)),
            DelayedInput::Work(id, open) => {
                memories.finish(open).map_err(|missing| ContractViolation::memory(node, missing))?;
                self.input(node, Input::WorkDone(id))
            }
            DelayedInput::Connect(connection) => self.connect_again(node, connection),
            DelayedInput::Watched((group, rank), number, report) => {
                let command = RankCommand::Watched { call_number: number, report };
                self.input(node, Input::Command { group, rank, command })
            }
            DelayedInput::Revoke((group, rank)) => self.input(
                node,
                Input::Command {
                    group,
                    rank,
                    command: RankCommand::Revoke { cause: "a step has failed".to_owned() },
                },
            ),
            DelayedInput::Rank(id, event) => self.on_rank_event(id, event),
            DelayedInput::ProveTrees { group, number } => {
                self.input(node, Input::ProveTrees { group, number, time_max: PROOF_TIME })
            }
            DelayedInput::ConcludeTreeProof { group, withdrawn } => {
                self.input(node, Input::ConcludeTreeProof { group, withdrawn })
            }
        }
    }

    /// Reports an input to a node's engine and executes the outputs that follow. Does nothing if
    /// the node is not running.
    pub fn input(&mut self, node: u16, input: Input<'_>) -> Result<(), ContractViolation> {
        let now = self.now();
        let this = &mut self.nodes[usize::from(node)];
        if !this.runs() {
            return Ok(());
        }
        this.engine.handle(now, input);
        self.pump(node)
    }

    /// Executes the outputs of a node's engine until it is idle.
    pub(super) fn pump(&mut self, node: u16) -> Result<(), ContractViolation> {
        let now = self.now();
        for _ in 0..ENDLESS {
            let this = &mut self.nodes[usize::from(node)];
            if !this.runs() {
                return Ok(());
            }
            match this.engine.poll(now) {
                Poll::Output(output) => self.perform(node, output)?,
                Poll::Idle(deadline) => {
                    this.deadline = deadline;
                    if let Some(at) = deadline.filter(|at| this.wake.is_none_or(|wake| *at < wake)) {
                        this.wake = Some(at);
                        self.net.wake(node.into(), at);
                    }
                    return Ok(());
                }
            }
        }
        Err(ContractViolation::Spin { at: now })
    }

    pub(super) fn answer(
        &mut self,
        node: u16,
        token: u64,
        result: Result<CallStats, CallFailure>,
    ) -> Result<(), ContractViolation> {
        self.nodes[usize::from(node)].memories.answered(token);
        if token & WATCHES != 0 {
            self.watch_answered(node, token, result);
            return Ok(());
        }
        self.answered.push(token);
        let again = self.answers.insert(token, Answer { at: self.now(), result });
        again.map_or(Ok(()), |_| Err(ContractViolation::AnsweredTwice { node, token }))
    }

    pub(super) fn count_datagram(&mut self) {
        self.datagrams += 1;
    }

    pub(super) fn put(&mut self, Departure { way, number, len }: Departure) {
        self.net.send_segment(way, number, len);
    }

    /// Returns descriptions of the state that running nodes still hold although all groups have
    /// been released.
    pub fn leftovers(&self) -> Vec<String> {
        let nodes = (0..).zip(&self.nodes);
        nodes
            .filter_map(|(n, node): (u16, &ClusterNode)| Some(format!("h{n}: {}", node.leftovers()?)))
            .collect()
    }
}

impl ContractViolation {
    pub(super) fn memory(node: u16, MissingRange(range): MissingRange) -> ContractViolation {
        ContractViolation::Memory { node, range }
    }
}
