//! Gossip over links: machines of the swarm, each with its memory, on hosts in racks whose links share their rates fairly. Nodes come
//! and go, signals and blocks are lost.

mod wires;

use crate::schedule::flows::Finish;
use crate::swarm::distribution::{Distribution, DistributionError, DistributionOutcome, Liar};
use crate::swarm::members;
use crate::swarm::memory::{Memory, content};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_swarm::{Generation, Input, Member, Output, Share, Signal, Stats, Swarm, SwarmSpec, Waits};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use wires::Wires;

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
