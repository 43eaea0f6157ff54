//! Gossip over links: machines of the swarm, each with its memory, on hosts in racks whose links share their rates fairly. Nodes come
//! and go, signals and blocks are lost.

mod wires;

use crate::schedule::flows::Finish;
use crate::swarm::members;
use crate::swarm::memory::{Memory, content};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_swarm::{
    Code, Division, Generation, Input, Member, Order, Output, Share, Signal, Stats, Swarm, SwarmSpec, Waits,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use wires::Wires;

/// A distribution to simulate. Nodes are numbered rack by rack.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Nodes of each rack.
    pub racks: Vec<u32>,
    /// Whether rings keep racks together, or run through all nodes by chance.
    pub together: bool,
    /// Of a host's link, each way, in bytes per second.
    pub host: u64,
    /// Nodes whose links are slower, and their rate.
    pub slow: Vec<(usize, u64)>,
    /// A block takes up to as many times as long as its host's links allow, each by chance, as where nodes share processors.
    pub slowed: f64,
    /// Of a rack's uplink, each way; none if nothing limits it.
    pub uplink: Option<u64>,
    /// Bytes of a block as the links see it.
    pub block: u64,
    /// Bytes of a block as memories hold it: few, so that much is tried in little time.
    pub payload: usize,
    /// How the content is divided.
    pub division: Division,
    /// What is sent.
    pub code: Code,
    /// Which generation first.
    pub order: Order,
    /// Nodes that have all from the beginning.
    pub sources: Vec<usize>,
    /// Before a block is through both ends hear that it nearly is.
    pub nearly: Duration,
    /// Of a signal, and of the end of a block.
    pub latency: Duration,
    /// Chance that a signal is lost; that it comes twice; that a block does not arrive.
    pub loss: f64,
    /// See there.
    pub duplicate: f64,
    /// See there.
    pub block_loss: f64,
    /// Who comes late, and when.
    pub joins: Vec<(usize, Duration)>,
    /// Who dies, and when.
    pub deaths: Vec<(usize, Duration)>,
    /// Who begins anew after it has died, and when: with the generations that it had on its disk.
    pub restarts: Vec<(usize, Duration)>,
    /// Who lies.
    pub liars: Vec<Liar>,
    /// The first source dies when this many copies of the content have left it; unless it is to stay.
    pub leaves_after: Option<f64>,
    /// After so long the others hear of deaths.
    pub notice: Duration,
    /// What chance there is.
    pub seed: u64,
}

/// A node that sends wrong bytes; what it holds itself is right.
#[derive(Clone, Copy, Debug)]
pub struct Liar {
    /// The node.
    pub node: usize,
    /// The chance that a block that it sends is wrong.
    pub wrong: f64,
    /// Whether it says of each block that it has checked the generation; else only where that is so.
    pub boasts: bool,
}

/// How a distribution went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistributionOutcome {
    /// When each node had everything, in seconds; none for sources, and for those that died or starved.
    pub done: Vec<Option<f64>>,
    /// Survivors that lack what no survivor has.
    pub bereft: Vec<usize>,
    /// How often a node has expelled a liar.
    pub expelled: usize,
    /// Bytes that left each rack.
    pub uplinks: Vec<f64>,
    /// Bytes that each node's link carried from it.
    pub sent: Vec<f64>,
    /// What the machines did, added up.
    pub stats: Stats,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// A node holds other bytes than the source.
    #[error("node {node}: block {block} of generation {generation} is wrong")]
    Wrong {
        /// The node.
        node: usize,
        /// The generation.
        generation: u32,
        /// The block in it.
        block: u16,
    },
    /// A node lacks what others have, and nothing comes any more.
    #[error("node {node} lacks rows that others have after {seconds} s")]
    Stalled {
        /// The node.
        node: usize,
        /// After how long.
        seconds: u64,
    },
    /// A node that never lied was expelled.
    #[error("node {node} was expelled by node {by}, and has not lied")]
    Slandered {
        /// The node.
        node: usize,
        /// Who expelled it.
        by: usize,
    },
    /// A node lacks what nobody has, and has not said so.
    #[error("node {node} lacks rows that nobody has, and did not report it")]
    Silent {
        /// The node.
        node: usize,
    },
}

enum Event {
    Signal { from: usize, to: usize, signal: Signal },
    Wake(usize),
    Shared,
    Nearly(Finish),
    Finished(Finish),
    Arrived(wires::Block, bool),
    Confirmed { from: usize, to: usize, transfer: u32, arrived: bool },
    Decoded { node: usize, generation: u32, life: u32 },
    Joins(usize),
    Dies(usize),
    HeardOf { node: usize, joined: bool },
}

struct Node {
    machine: Option<Swarm>,
    memory: Memory,
    wakes: Option<Time>,
    starved: bool,
    done: Option<f64>,
    /// Which of the node's lives this is: what was begun in another counts no more.
    life: u32,
    /// Generations that are on its disk.
    kept: Vec<u32>,
}

struct Run<'a> {
    what: &'a Distribution,
    members: Vec<Member>,
    nodes: Vec<Node>,
    wires: Wires,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// By their numbers.
    details: BTreeMap<u64, Event>,
    number: u64,
    now: u64,
    shares_at: Option<u64>,
    /// How many nodes are yet to have everything, or to come.
    waiting: usize,
    /// How often a node has said that nothing comes.
    silent: usize,
    /// Who was expelled, and by whom.
    expelled: Vec<(usize, usize)>,
    chance: ChaCha8Rng,
    content: Vec<Vec<u8>>,
    ended: Stats,
}

impl Distribution {
    /// Equal hosts at 20 Mbit/s, nothing lost, the first node the source.
    pub fn clean(racks: Vec<u32>, division: Division) -> Distribution {
        Distribution {
            racks,
            together: true,
            host: 2_500_000,
            slow: Vec::new(),
            slowed: 1.0,
            uplink: None,
            block: 65_536,
            payload: 0,
            division,
            code: Code::Linear,
            order: Order::LowestRank { window: 4 },
            sources: vec![0],
            nearly: Duration::from_millis(2),
            latency: Duration::from_micros(200),
            loss: 0.0,
            duplicate: 0.0,
            block_loss: 0.0,
            joins: Vec::new(),
            deaths: Vec::new(),
            restarts: Vec::new(),
            liars: Vec::new(),
            leaves_after: None,
            notice: Duration::from_millis(500),
            seed: 0,
        }
    }

    /// Seconds that the content takes over a host's link.
    pub fn limit(&self) -> f64 {
        f64::from(self.division.blocks) * self.block as f64 / self.host as f64
    }

    /// Runs it.
    ///
    /// # Errors
    /// If a byte is wrong, or a node that lives lacks what others have, or does not say that it lacks what nobody has.
    pub fn run(&self) -> Result<DistributionOutcome, DistributionError> {
        let mut run = Run::new(self);
        run.begin();
        run.go();
        run.judge()
    }

    pub(super) fn nodes(&self) -> usize {
        self.racks.iter().sum::<u32>() as usize
    }

    fn block_time(&self) -> Duration {
        Duration::from_secs_f64(self.block as f64 / self.host as f64)
    }

    /// The least rate of a host's link.
    fn slowest(&self) -> u64 {
        self.slow.iter().map(|(_, rate)| *rate).fold(self.host, u64::min)
    }

    /// How many times as long blocks take over the slowest link.
    fn slowness(&self) -> u32 {
        (self.host / self.slowest().max(1)).max(1) as u32
    }

    /// After so long without anything new nodes say so.
    fn starved(&self) -> Duration {
        self.block_time() * 180 * self.slowness() + self.notice
    }

    /// When nodes come and go.
    fn changes(&self) -> impl Iterator<Item = Duration> {
        self.joins.iter().chain(&self.deaths).chain(&self.restarts).map(|(_, at)| *at)
    }

    fn lies(&self, node: usize) -> Option<&Liar> {
        self.liars.iter().find(|liar| liar.node == node)
    }

    /// After which nothing is expected any more.
    fn bound(&self) -> u64 {
        let alone = f64::from(self.division.blocks) * self.block as f64 / self.slowest() as f64;
        let last = self.changes().max().unwrap_or_default();
        ((20.0 * alone + 60.0 + last.as_secs_f64()) * 1e9) as u64
    }
}

impl<'a> Run<'a> {
    fn new(what: &'a Distribution) -> Run<'a> {
        let members = if what.together { members(&what.racks) } else { members(&[what.nodes() as u32]) };
        let node = |_| Node {
            machine: None,
            memory: Memory::default(),
            wakes: None,
            starved: false,
            done: None,
            life: 0,
            kept: Vec::new(),
        };
        Run {
            what,
            nodes: (0..members.len()).map(node).collect(),
            members,
            wires: Wires::new(what),
            events: BinaryHeap::new(),
            details: BTreeMap::new(),
            number: 0,
            now: 0,
            shares_at: None,
            waiting: 0,
            silent: 0,
            expelled: Vec::new(),
            chance: ChaCha8Rng::seed_from_u64(what.seed),
            content: content(what.division.blocks, what.payload, what.seed),
            ended: Stats::default(),
        }
    }

    fn begin(&mut self) {
        let late = |node: &usize| self.what.joins.iter().any(|(late, _)| late == node);
        let early: Vec<usize> = (0..self.nodes.len()).filter(|node| !late(node)).collect();
        let members: Vec<Member> = early.iter().map(|node| self.members[*node]).collect();
        for node in early {
            self.start(node, members.clone());
        }
        for (node, at) in self.what.joins.iter().chain(&self.what.restarts) {
            self.waiting += 1;
            self.at(at.as_nanos() as u64, Event::Joins(*node));
        }
        for (node, at) in &self.what.deaths {
            self.at(at.as_nanos() as u64, Event::Dies(*node));
        }
        (0..self.nodes.len()).for_each(|node| self.poll(node));
    }

    fn start(&mut self, node: usize, members: Vec<Member>) {
        let what = self.what;
        let source = what.sources.iter().position(|source| *source == node);
        let source = source.map(|index| Share { index: index as u16, of: what.sources.len() as u16 });
        let block = what.block_time();
        let slowness = what.slowness();
        let spec = SwarmSpec {
            seed: what.seed,
            epoch: 1,
            members,
            me: self.members[node],
            chance: self.chance.random(),
            division: what.division,
            code: what.code,
            order: what.order,
            source,
            waits: Waits {
                answer: what.latency * 20,
                block,
                transfer: block * 48 * slowness + what.latency * 20,
                starved: what.starved(),
            },
        };
        let starting = &mut self.nodes[node];
        if source.is_some() {
            starting.memory.fill(&what.division, &self.content);
        }
        let mut machine = Swarm::new(Time::from_nanos(self.now), spec);
        for generation in &starting.kept {
            let first = what.division.first(*generation);
            for block in first..first + u32::from(what.division.size(*generation)) {
                machine.handle(Time::from_nanos(self.now), Input::Placed { block });
            }
        }
        starting.machine = Some(machine);
        self.waiting += usize::from(self.is_awaited(node));
    }

    /// Whether a node is to get everything: liars may be expelled before they have it.
    fn is_awaited(&self, node: usize) -> bool {
        !self.what.sources.contains(&node) && self.what.lies(node).is_none()
    }

    fn at(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.details.insert(self.number, event);
        self.events.push(Reverse((at.max(self.now), self.number)));
    }

    fn later(&mut self, event: Event) {
        self.at(self.now + self.what.latency.as_nanos() as u64, event);
    }

    fn go(&mut self) {
        let bound = self.what.bound();
        while self.waiting > 0
            && !self.given_up()
            && let Some(Reverse((at, number))) = self.events.pop()
        {
            if at > bound {
                return;
            }
            self.now = at;
            if let Some(event) = self.details.remove(&number) {
                self.happen(event);
            }
            if let Some(due) = self.wires.due()
                && self.shares_at.is_none_or(|at| due < at)
            {
                self.shares_at = Some(due);
                self.at(due, Event::Shared);
            }
        }
    }

    /// Whether nobody expects anything any more: all who lack something have said so, and nobody is to come or to go.
    fn given_up(&self) -> bool {
        let lacks = |node: &Node| node.machine.is_some() && node.done.is_none();
        self.silent > 0
            && self.what.changes().all(|at| ((at + self.what.starved()).as_nanos() as u64) < self.now)
            && (0..)
                .zip(&self.nodes)
                .all(|(number, node)| !lacks(node) || node.starved || !self.is_awaited(number))
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Signal { from, to, signal } => {
                let from = self.members[from];
                self.handle(to, Input::Signal { from, signal: &signal });
            }
            Event::Wake(node) => {
                if self.nodes[node].wakes == Some(Time::from_nanos(self.now)) {
                    self.nodes[node].wakes = None;
                    self.poll(node);
                }
            }
            Event::Shared => {
                self.shares_at = None;
                for finish in self.wires.share(self.now) {
                    let nearly = finish.at.saturating_sub(self.what.nearly.as_nanos() as u64);
                    if !self.what.nearly.is_zero() {
                        self.at(nearly, Event::Nearly(finish));
                    }
                    self.at(finish.at, Event::Finished(finish));
                }
            }
            Event::Nearly(finish) => self.nearly(&finish),
            Event::Finished(finish) => self.finished(&finish),
            Event::Arrived(block, whole) => self.arrived(block, whole),
            Event::Confirmed { from, to, transfer, arrived } => {
                let to = self.members[to];
                self.handle(from, Input::Sent { to, transfer, arrived });
            }
            Event::Decoded { node, generation, life } => {
                if self.nodes[node].life == life {
                    self.decoded(node, generation);
                }
            }
            Event::Joins(node) => self.joins(node),
            Event::Dies(node) => self.dies(node),
            Event::HeardOf { node, joined } => {
                let member = self.members[node];
                for other in (0..self.nodes.len()).filter(|other| *other != node) {
                    self.handle(other, if joined { Input::Joined(member) } else { Input::Gone(member) });
                }
            }
        }
    }

    fn nearly(&mut self, finish: &Finish) {
        let Some((from, to, transfer)) = self.wires.block_of(finish) else { return };
        let [sender, receiver] = [from, to].map(|node| self.members[node]);
        self.handle(from, Input::Nearly { peer: receiver, transfer, sent: true });
        self.handle(to, Input::Nearly { peer: sender, transfer, sent: false });
    }

    fn finished(&mut self, finish: &Finish) {
        let Some(block) = self.wires.finish(self.now, finish) else { return };
        let whole = !self.chance.random_bool(self.what.block_loss);
        let content = f64::from(self.what.division.blocks) * self.what.block as f64;
        let source = self.what.sources.first().copied().filter(|source| *source == block.from);
        if let (Some(copies), Some(source)) = (self.what.leaves_after, source)
            && self.wires.sent(source) >= copies * content - 1.0
        {
            self.dies(source);
        }
        self.later(Event::Arrived(block, whole));
    }

    fn arrived(&mut self, block: wires::Block, whole: bool) {
        let wires::Block { from, to, transfer, took, bytes } = block;
        let arrived = whole && self.nodes[to].machine.is_some();
        if arrived {
            let member = self.members[from];
            self.nodes[to].memory.came(from, transfer, bytes);
            self.handle(
                to,
                Input::Received { from: member, transfer, took: Some(Duration::from_nanos(took)) },
            );
        }
        self.later(Event::Confirmed { from, to, transfer, arrived });
    }

    /// A generation is compared with its hash.
    fn decoded(&mut self, node: usize, generation: u32) {
        let memory = &mut self.nodes[node].memory;
        if memory.is_right(generation, &self.what.division, &self.content) {
            self.nodes[node].kept.push(generation);
            self.handle(node, Input::Decoded { generation });
        } else {
            memory.set_aside(generation);
            self.handle(node, Input::Polluted { generation });
        }
    }

    fn joins(&mut self, node: usize) {
        self.waiting -= 1;
        if self.nodes[node].machine.is_some() {
            return;
        }
        let here = |at: &usize| self.nodes[*at].machine.is_some() || *at == node;
        let members: Vec<Member> =
            (0..self.nodes.len()).filter(here).map(|node| self.members[node]).collect();
        self.start(node, members);
        self.later(Event::HeardOf { node, joined: true });
        self.poll(node);
    }

    fn dies(&mut self, node: usize) {
        let dying = &mut self.nodes[node];
        let Some(machine) = dying.machine.take() else { return };
        dying.life += 1;
        dying.starved = false;
        dying.memory.keep_only(&dying.kept);
        let whole = dying.done.take().is_some();
        self.waiting -= usize::from(!whole && self.is_awaited(node));
        self.ended.add(&machine.stats());
        self.wires.clear(self.now, node);
        self.at(self.now + self.what.notice.as_nanos() as u64, Event::HeardOf { node, joined: false });
    }

    fn handle(&mut self, node: usize, input: Input<'_>) {
        if let Some(machine) = &mut self.nodes[node].machine {
            machine.handle(Time::from_nanos(self.now), input);
            self.poll(node);
        }
    }

    fn poll(&mut self, node: usize) {
        let now = Time::from_nanos(self.now);
        loop {
            let Some(machine) = &mut self.nodes[node].machine else { return };
            match machine.poll(now) {
                Poll::Output(output) => self.act(node, output),
                Poll::Idle(wakes) => {
                    let planned = self.nodes[node].wakes;
                    if let Some(at) = wakes
                        && planned.is_none_or(|planned| at < planned)
                    {
                        self.nodes[node].wakes = Some(at);
                        self.at(at.as_nanos(), Event::Wake(node));
                    }
                    return;
                }
            }
        }
    }

    fn number_of(&self, member: Member) -> usize {
        let before = if self.what.together { &self.what.racks[..member.rack as usize] } else { &[] };
        (before.iter().sum::<u32>() + member.slot) as usize
    }

    fn act(&mut self, node: usize, output: Output) {
        match output {
            Output::Signal { to, mut signal } => {
                let to = self.number_of(to);
                if let (Signal::Head(head), Some(Liar { boasts: true, .. })) =
                    (&mut signal, self.what.lies(node))
                {
                    head.checked = true;
                }
                if self.chance.random_bool(self.what.duplicate) {
                    self.later(Event::Signal { from: node, to, signal: signal.clone() });
                }
                if !self.chance.random_bool(self.what.loss) {
                    self.later(Event::Signal { from: node, to, signal });
                }
            }
            Output::Transmit { to, transfer, generation, terms } => {
                let mut bytes = self.nodes[node].memory.sum(generation, &terms, self.what.payload);
                if let Some(liar) = self.what.lies(node)
                    && self.chance.random_bool(liar.wrong)
                    && let Some(byte) = bytes.first_mut()
                {
                    *byte ^= self.chance.random_range(1..=255u8);
                }
                let to = self.number_of(to);
                self.wires.send(self.now, wires::Block { from: node, to, transfer, took: 0, bytes });
            }
            Output::Cancel { to, transfer } => {
                let to = self.number_of(to);
                self.wires.cancel(self.now, node, to, transfer);
            }
            Output::Store { from, transfer, generation, slot } => {
                let from = self.number_of(from);
                self.nodes[node].starved = false;
                self.nodes[node].memory.store(from, transfer, generation, slot);
            }
            Output::Discard { from, transfer } => {
                let from = self.number_of(from);
                self.nodes[node].memory.forget(from, transfer);
            }
            Output::Decode { generation, recoveries } => {
                self.nodes[node].memory.decode(generation, &recoveries, self.what.payload);
                let life = self.nodes[node].life;
                self.later(Event::Decoded { node, generation, life });
            }
            Output::Audit { generation, suspects } => {
                for (from, checked) in self.nodes[node].memory.wrong_rows(generation, &suspects) {
                    self.handle(node, Input::Refuted { from, checked });
                }
            }
            Output::Expelled(member) => {
                let member = self.number_of(member);
                self.expelled.push((member, node));
            }
            Output::Done => {
                let seconds = self.now as f64 / 1e9;
                if self.is_awaited(node) && self.nodes[node].done.replace(seconds).is_none() {
                    self.waiting -= 1;
                }
            }
            Output::Starved { .. } => {
                self.silent += 1;
                self.nodes[node].starved = true;
            }
        }
    }

    fn judge(mut self) -> Result<DistributionOutcome, DistributionError> {
        let mut outcome = DistributionOutcome::default();
        let possible = self.possible();
        outcome.expelled = self.expelled.len();
        if let Some((node, by)) = self.expelled.iter().find(|(node, _)| self.what.lies(*node).is_none()) {
            return Err(DistributionError::Slandered { node: *node, by: *by });
        }
        for (number, node) in self.nodes.iter().enumerate() {
            outcome.done.push(node.done);
            let Some(machine) = &node.machine else { continue };
            self.ended.add(&machine.stats());
            if self.what.lies(number).is_some() {
                continue;
            }
            if machine.holdings().is_whole() {
                let wrong = node.memory.first_difference(&self.what.division, &self.content);
                if let Some((generation, block)) = wrong {
                    return Err(DistributionError::Wrong { node: number, generation, block });
                }
            } else if possible {
                return Err(DistributionError::Stalled { node: number, seconds: self.now / 1_000_000_000 });
            } else if !node.starved {
                return Err(DistributionError::Silent { node: number });
            } else {
                outcome.bereft.push(number);
            }
        }
        outcome.stats = self.ended;
        (outcome.sent, outcome.uplinks) = self.wires.carried();
        Ok(outcome)
    }

    /// Whether the survivors have everything between them. Where somebody lies, only what one of them has checked counts: of other
    /// rows it is not known which are right.
    fn possible(&mut self) -> bool {
        let what = self.what;
        let honest = self.nodes.iter().enumerate().filter(|(node, _)| what.lies(*node).is_none());
        let survivors = || honest.clone().filter_map(|(_, node)| node.machine.as_ref());
        let chance = &mut self.chance;
        (0..what.division.generations()).all(|number| {
            let size = what.division.size(number);
            if !what.liars.is_empty() {
                let held =
                    |machine: &Swarm| machine.holdings().generation(number).is_some_and(Generation::is_whole);
                return survivors().any(held);
            }
            let mut union = Generation::new(size);
            for held in survivors().filter_map(|machine| machine.holdings().generation(number)) {
                // Enough random combinations of a space span it.
                for _ in 0..held.rank() + 8 {
                    if let Some((row, _)) = held.combined(chance) {
                        union.insert(&row);
                    }
                }
                if union.rank() == size {
                    return true;
                }
            }
            false
        })
    }
}
