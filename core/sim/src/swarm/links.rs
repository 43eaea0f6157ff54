//! Gossip over links: machines of the swarm, each with its memory, on hosts in racks. Their links
//! share rates fairly. Nodes join, crash and restart; signals and blocks are lost.

mod wires;

use crate::schedule::flows::Finish;
use crate::swarm::distribution::{DistributionError, DistributionOutcome, Liar, SwarmScenario};
use crate::swarm::members;
use crate::swarm::memory::{SwarmMemory, content};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_swarm::{
    Generation, Input, Member, Output, Signal, SourceIndex, Swarm, SwarmSpec, SwarmStats, Waits,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use wires::SwarmWires;

enum SwarmEvent {
    Signal { from: usize, to: usize, signal: Signal },
    Wake(usize),
    Shared,
    Nearly(Finish),
    Finished(Finish),
    Arrived(wires::SimulatedBlock, bool),
    Confirmed { from: usize, to: usize, transfer: u32, arrived: bool },
    Decoded { node: usize, generation: u32, life: u32 },
    Join(usize),
    Crash(usize),
    NodesNotified { node: usize, joined: bool },
}

struct SwarmNode {
    machine: Option<Swarm>,
    memory: SwarmMemory,
    wakes: Option<Time>,
    starved: bool,
    done: Option<f64>,
    /// The incarnation of the node. Work that an earlier one started is ignored.
    life: u32,
    /// Generations on the node's disk.
    kept: Vec<u32>,
}

struct DistributionRun<'a> {
    what: &'a SwarmScenario,
    members: Vec<Member>,
    nodes: Vec<SwarmNode>,
    wires: SwarmWires,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    /// The events, by number.
    details: BTreeMap<u64, SwarmEvent>,
    number: u64,
    now: u64,
    shares_at: Option<u64>,
    /// Number of nodes that do not have everything yet, or have not joined.
    waiting: usize,
    /// Number of reports that a node is starved.
    silent: usize,
    /// Expelled nodes, each with the node that expelled it.
    expelled: Vec<(usize, usize)>,
    rng: ChaCha8Rng,
    content: Vec<Vec<u8>>,
    ended: SwarmStats,
}

impl SwarmScenario {
    /// Runs the distribution.
    ///
    /// # Errors
    /// Fails if a byte is wrong, if a surviving node is missing blocks that others have, or if it
    /// did not report that it is missing blocks that no survivor has.
    pub fn run(&self) -> Result<DistributionOutcome, DistributionError> {
        let mut run = DistributionRun::new(self);
        run.begin();
        run.go();
        run.judge()
    }
}

impl<'a> DistributionRun<'a> {
    fn new(what: &'a SwarmScenario) -> DistributionRun<'a> {
        let members =
            if what.keeps_racks_together { members(&what.racks) } else { members(&[what.nodes() as u32]) };
        let node = |_| SwarmNode {
            machine: None,
            memory: SwarmMemory::default(),
            wakes: None,
            starved: false,
            done: None,
            life: 0,
            kept: Vec::new(),
        };
        DistributionRun {
            what,
            nodes: (0..members.len()).map(node).collect(),
            members,
            wires: SwarmWires::new(what),
            events: BinaryHeap::new(),
            details: BTreeMap::new(),
            number: 0,
            now: 0,
            shares_at: None,
            waiting: 0,
            silent: 0,
            expelled: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(what.seed),
            content: content(what.division.blocks, what.payload, what.seed),
            ended: SwarmStats::default(),
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
            self.at(at.as_nanos() as u64, SwarmEvent::Join(*node));
        }
        for (node, at) in &self.what.crashes {
            self.at(at.as_nanos() as u64, SwarmEvent::Crash(*node));
        }
        (0..self.nodes.len()).for_each(|node| self.poll(node));
    }

    fn start(&mut self, node: usize, members: Vec<Member>) {
        let what = self.what;
        let source = what.sources.iter().position(|source| *source == node);
        let source = source.map(|index| SourceIndex { index: index as u16, of: what.sources.len() as u16 });
        let block = what.block_time();
        let slowness = what.slowness();
        let spec = SwarmSpec {
            seed: what.seed,
            epoch: 1,
            members,
            me: self.members[node],
            chance: self.rng.random(),
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

    /// Returns whether a node should receive everything. Liars may be expelled before they have
    /// received it.
    fn is_awaited(&self, node: usize) -> bool {
        !self.what.sources.contains(&node) && self.what.lies(node).is_none()
    }

    fn at(&mut self, at: u64, event: SwarmEvent) {
        self.number += 1;
        self.details.insert(self.number, event);
        self.events.push(Reverse((at.max(self.now), self.number)));
    }

    fn later(&mut self, event: SwarmEvent) {
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
                self.on_event(event);
            }
            if let Some(due) = self.wires.due()
                && self.shares_at.is_none_or(|at| due < at)
            {
                self.shares_at = Some(due);
                self.at(due, SwarmEvent::Shared);
            }
        }
    }

    /// Returns whether no more progress is possible: all incomplete nodes have reported that they
    /// are starved, and no node will join or crash.
    fn given_up(&self) -> bool {
        let is_incomplete = |node: &SwarmNode| node.machine.is_some() && node.done.is_none();
        self.silent > 0
            && self.what.changes().all(|at| ((at + self.what.starved()).as_nanos() as u64) < self.now)
            && (0..)
                .zip(&self.nodes)
                .all(|(number, node)| !is_incomplete(node) || node.starved || !self.is_awaited(number))
    }

    fn on_event(&mut self, event: SwarmEvent) {
        match event {
            SwarmEvent::Signal { from, to, signal } => {
                let from = self.members[from];
                self.handle(to, Input::Signal { from, signal: &signal });
            }
            SwarmEvent::Wake(node) => {
                if self.nodes[node].wakes == Some(Time::from_nanos(self.now)) {
                    self.nodes[node].wakes = None;
                    self.poll(node);
                }
            }
            SwarmEvent::Shared => {
                self.shares_at = None;
                for finish in self.wires.share(self.now) {
                    let nearly = finish.at.saturating_sub(self.what.end_notice.as_nanos() as u64);
                    if !self.what.end_notice.is_zero() {
                        self.at(nearly, SwarmEvent::Nearly(finish));
                    }
                    self.at(finish.at, SwarmEvent::Finished(finish));
                }
            }
            SwarmEvent::Nearly(finish) => self.nearly(&finish),
            SwarmEvent::Finished(finish) => self.finished(&finish),
            SwarmEvent::Arrived(block, whole) => self.arrived(block, whole),
            SwarmEvent::Confirmed { from, to, transfer, arrived } => {
                let to = self.members[to];
                self.handle(from, Input::Sent { to, transfer, arrived });
            }
            SwarmEvent::Decoded { node, generation, life } => {
                if self.nodes[node].life == life {
                    self.decoded(node, generation);
                }
            }
            SwarmEvent::Join(node) => self.join(node),
            SwarmEvent::Crash(node) => self.crash(node),
            SwarmEvent::NodesNotified { node, joined } => {
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
        let whole = !self.rng.random_bool(self.what.block_loss);
        let content = f64::from(self.what.division.blocks) * self.what.block as f64;
        let source = self.what.sources.first().copied().filter(|source| *source == block.from);
        if let (Some(copies), Some(source)) = (self.what.leaves_after, source)
            && self.wires.sent(source) >= copies * content - 1.0
        {
            self.crash(source);
        }
        self.later(SwarmEvent::Arrived(block, whole));
    }

    fn arrived(&mut self, block: wires::SimulatedBlock, whole: bool) {
        let wires::SimulatedBlock { from, to, transfer, took, bytes } = block;
        let arrived = whole && self.nodes[to].machine.is_some();
        if arrived {
            let member = self.members[from];
            self.nodes[to].memory.receive(from, transfer, bytes);
            self.handle(
                to,
                Input::Received { from: member, transfer, took: Some(Duration::from_nanos(took)) },
            );
        }
        self.later(SwarmEvent::Confirmed { from, to, transfer, arrived });
    }

    /// Compares a generation with its hash.
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

    fn join(&mut self, node: usize) {
        self.waiting -= 1;
        if self.nodes[node].machine.is_some() {
            return;
        }
        let here = |at: &usize| self.nodes[*at].machine.is_some() || *at == node;
        let members: Vec<Member> =
            (0..self.nodes.len()).filter(here).map(|node| self.members[node]).collect();
        self.start(node, members);
        self.later(SwarmEvent::NodesNotified { node, joined: true });
        self.poll(node);
    }

    fn crash(&mut self, node: usize) {
        let dying = &mut self.nodes[node];
        let Some(machine) = dying.machine.take() else { return };
        dying.life += 1;
        dying.starved = false;
        dying.memory.keep_only(&dying.kept);
        let whole = dying.done.take().is_some();
        self.waiting -= usize::from(!whole && self.is_awaited(node));
        self.ended.add(&machine.stats());
        self.wires.clear(self.now, node);
        self.at(
            self.now + self.what.notice.as_nanos() as u64,
            SwarmEvent::NodesNotified { node, joined: false },
        );
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
                Poll::Output(output) => self.execute(node, output),
                Poll::Idle(wakes) => {
                    let planned = self.nodes[node].wakes;
                    if let Some(at) = wakes
                        && planned.is_none_or(|planned| at < planned)
                    {
                        self.nodes[node].wakes = Some(at);
                        self.at(at.as_nanos(), SwarmEvent::Wake(node));
                    }
                    return;
                }
            }
        }
    }

    fn number_of(&self, member: Member) -> usize {
        let before =
            if self.what.keeps_racks_together { &self.what.racks[..member.rack as usize] } else { &[] };
        (before.iter().sum::<u32>() + member.slot) as usize
    }

    fn execute(&mut self, node: usize, output: Output) {
        match output {
            Output::Signal { to, mut signal } => {
                let to = self.number_of(to);
                if let (Signal::Head(head), Some(Liar { boasts: true, .. })) =
                    (&mut signal, self.what.lies(node))
                {
                    head.checked = true;
                }
                if self.rng.random_bool(self.what.duplicate) {
                    self.later(SwarmEvent::Signal { from: node, to, signal: signal.clone() });
                }
                if !self.rng.random_bool(self.what.loss) {
                    self.later(SwarmEvent::Signal { from: node, to, signal });
                }
            }
            Output::Transmit { to, transfer, generation, terms } => {
                let mut bytes = self.nodes[node].memory.sum(generation, &terms, self.what.payload);
                if let Some(liar) = self.what.lies(node)
                    && self.rng.random_bool(liar.wrong)
                    && let Some(byte) = bytes.first_mut()
                {
                    *byte ^= self.rng.random_range(1..=255u8);
                }
                let to = self.number_of(to);
                self.wires.send(self.now, wires::SimulatedBlock { from: node, to, transfer, took: 0, bytes });
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
                self.later(SwarmEvent::Decoded { node, generation, life });
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
            return Err(DistributionError::WronglyExpelled { node: *node, by: *by });
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

    /// Returns whether the survivors together have everything. If some node lies, only generations
    /// that a survivor has checked count, because it is unknown which other blocks are right.
    fn possible(&mut self) -> bool {
        let what = self.what;
        let honest = self.nodes.iter().enumerate().filter(|(node, _)| what.lies(*node).is_none());
        let survivors = || honest.clone().filter_map(|(_, node)| node.machine.as_ref());
        let rng = &mut self.rng;
        (0..what.division.generations()).all(|number| {
            let size = what.division.size(number);
            if !what.liars.is_empty() {
                let held =
                    |machine: &Swarm| machine.holdings().generation(number).is_some_and(Generation::is_whole);
                return survivors().any(held);
            }
            let mut union = Generation::new(size);
            for held in survivors().filter_map(|machine| machine.holdings().generation(number)) {
                // This many random combinations of the node's blocks almost always span all that
                // the node has.
                for _ in 0..held.rank() + 8 {
                    if let Some((row, _)) = held.combined(rng) {
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
