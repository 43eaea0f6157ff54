//! The events of a schedule that is being timed.

use super::costs::{Costs, nanos, time_of};
use super::fabric::Fabric;
use super::flows::{Finish, FlowId, Flows};
use super::index::{At, Index};
use super::{Timing, TimingError};
use cool_collective::{Kind, Layout, Rank, Schedule, Scope};
use cool_machine::Duration;
use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Bytes of a message that are sent before another message between the same nodes has its turn.
const TURN: f64 = 64.0 * 1024.0;
/// Turns of a message at most.
const TURNS: f64 = 16.0;

/// What is known of an action that receives.
const READY: u8 = 1;
const ARRIVED: u8 = 2;
const ANNOUNCED: u8 = 4;
/// Of one that sends within a node.
const OFFERED: u8 = 8;
const COPIED: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The agent has done an action's work.
    Done { rank: u32, action: u32 },
    /// The agent has handed a message to its transport.
    Sent { transfer: u32 },
    /// The receiver knows that a large message is to come.
    Announced { transfer: u32 },
    /// The sender knows that the receiver is ready for it.
    Granted { transfer: u32 },
    /// The last byte of a message has arrived at a receiver.
    Arrived { rank: u32, action: u32 },
    /// A multicast's first byte may go.
    Begun { transfer: u32 },
    /// A flow may be through.
    Finish { flow: u32, version: u32 },
    /// Rates are to be computed.
    Share,
}

/// The connection from one node to another: messages under way, the first of them having its turn.
#[derive(Debug, Default)]
struct Connection {
    queue: VecDeque<(u32, f64)>,
    /// Bytes of the present turn.
    turn: f64,
    flow: Option<FlowId>,
}

/// What a flow carries.
#[derive(Clone, Copy, Debug)]
enum Load {
    Connection(u32, u32),
    Multicast(u32),
}

/// A multicast under way.
#[derive(Debug)]
struct Stream {
    flow: Option<FlowId>,
    sharers: u32,
    /// Bytes per nanosecond, were it alone.
    rate: f64,
}

pub(super) struct World<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    fabric: &'a Fabric,
    costs: &'a Costs,
    index: Index,
    hosts: Vec<usize>,
    flows: Flows,
    /// By flow.
    loads: Vec<Load>,
    connections: BTreeMap<(u32, u32), Connection>,
    streams: BTreeMap<u32, Stream>,
    /// Of each action, how many it waits for, and what is known of it.
    waits: Vec<u32>,
    known: Vec<u8>,
    /// Of announced multicasts: receivers that are not ready, and when the announcement reaches all.
    gathering: BTreeMap<u32, (usize, u64)>,
    /// Of each rank: its multicasts to come, and whether one is under way.
    queued: Vec<VecDeque<u32>>,
    multicasting: Vec<bool>,
    /// Of each node: multicasts under way, and until when its agent is at work.
    streaming: Vec<Vec<u32>>,
    busy: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    shares_at: Option<u64>,
    serial: u64,
    now: u64,
    /// Of the ranks, the slowest.
    end: (u64, u32),
    done: usize,
}

impl<'a> World<'a> {
    pub(super) fn new(
        schedule: &'a Schedule,
        layout: &'a Layout,
        fabric: &'a Fabric,
        costs: &'a Costs,
    ) -> Result<World<'a>, TimingError> {
        if schedule.programs.len() != layout.size() {
            return Err(TimingError::Incomplete);
        }
        let index = Index::new(schedule).ok_or(TimingError::Incomplete)?;
        let per_nano = |rate: u64| rate as f64 / 1e9;
        let socket = costs.socket;
        let hosts = fabric.hosts_of(layout)?;
        let host_links = 2 * fabric.hosts();
        let rates = fabric.rates().into_iter().enumerate().map(move |(link, rate)| {
            per_nano(if link < host_links { rate.min(socket) } else { rate }).max(1e-9)
        });
        let waits = schedule.programs.iter().flatten().flat_map(|program| &program.actions);
        Ok(World {
            schedule,
            layout,
            fabric,
            costs,
            hosts,
            flows: Flows::new(rates, fabric.burst),
            loads: Vec::new(),
            connections: BTreeMap::new(),
            streams: BTreeMap::new(),
            waits: waits.map(|action| action.after.len() as u32).collect(),
            known: vec![0; index.actions()],
            gathering: BTreeMap::new(),
            queued: vec![VecDeque::new(); layout.size()],
            multicasting: vec![false; layout.size()],
            streaming: vec![Vec::new(); layout.nodes()],
            busy: vec![0; layout.nodes()],
            queue: BinaryHeap::new(),
            shares_at: None,
            serial: 0,
            now: 0,
            end: (0, 0),
            done: 0,
            index,
        })
    }

    pub(super) fn run(mut self) -> Result<Timing, TimingError> {
        for rank in 0..self.layout.size() as u32 {
            let actions = self.schedule.programs[rank as usize].as_ref().map_or(0, |p| p.actions.len());
            for action in 0..actions as u32 {
                let at = At { rank, action };
                if self.waits[self.index.number(at)] == 0 && self.schedule_action(at).after.is_empty() {
                    self.start(at);
                }
            }
        }
        self.plan_shares();
        while let Some(Reverse((at, _, event))) = self.queue.pop() {
            self.now = at;
            self.happen(event);
            self.plan_shares();
        }
        if self.done < self.index.actions() {
            return Err(self.stuck());
        }
        let time = Duration::from_nanos(self.end.0) + self.costs.call;
        Ok(Timing { time, slowest: Rank(self.end.1), events: self.serial })
    }

    fn stuck(&self) -> TimingError {
        let waiting = |at: &At| self.waits[self.index.number(*at)] > 0;
        let all = (0..self.layout.size() as u32).flat_map(|rank| {
            let actions = self.schedule.programs[rank as usize].as_ref().map_or(0, |p| p.actions.len());
            (0..actions as u32).map(move |action| At { rank, action })
        });
        let at = all.clone().find(waiting).or(all.last()).unwrap_or(At { rank: 0, action: 0 });
        TimingError::Stuck { rank: Rank(at.rank), action: at.action }
    }

    fn schedule_action(&self, at: At) -> &'a cool_collective::Action {
        let program = self.schedule.programs[at.rank as usize].as_ref();
        &program.expect("the index is made of programs of all ranks").actions[at.action as usize]
    }

    fn kind(&self, at: At) -> Kind {
        self.schedule_action(at).kind
    }

    fn node(&self, rank: u32) -> usize {
        self.layout.node_of(Rank(rank))
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.queue.push(Reverse((at.max(self.now), self.serial, event)));
    }

    fn plan_shares(&mut self) {
        if let Some(due) = self.flows.due()
            && self.shares_at.is_none_or(|at| due < at)
        {
            self.shares_at = Some(due);
            self.plan(due, Event::Share);
        }
    }

    /// The agent of a node works so long, after what it has to do before; answers with when it is through.
    fn work(&mut self, node: usize, nanos: u64) -> u64 {
        let busy = &mut self.busy[node];
        *busy = (*busy).max(self.now).saturating_add(nanos);
        *busy
    }

    /// Lets an action be done when its node's agent has worked so long.
    fn finish_after(&mut self, at: At, nanos: u64) {
        let end = self.work(self.node(at.rank), nanos);
        self.plan(end, Event::Done { rank: at.rank, action: at.action });
    }

    /// How long the first byte of a message is under way, or the last after it was sent.
    fn latency(&self, from: usize, to: usize, bytes: u64) -> u64 {
        let hops = self.fabric.hops(self.hosts[from], self.hosts[to]);
        let packet = if self.fabric.burst > 0 { 0 } else { bytes.min(self.costs.mtu) };
        // Each switch has the whole packet before it sends it on.
        let on = match hops {
            0..=1 => 0,
            hops => time_of(packet, self.fabric.host) + u64::from(hops - 2) * time_of(packet, self.fabric.uplink),
        };
        u64::from(hops) * nanos(self.fabric.delay) + on
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Done { rank, action } => self.complete(At { rank, action }),
            Event::Sent { transfer } => self.sent(transfer),
            Event::Announced { transfer } => self.announced(transfer),
            Event::Granted { transfer } => self.enqueue(transfer),
            Event::Arrived { rank, action } => self.arrived(At { rank, action }),
            Event::Begun { transfer } => self.begin_stream(transfer),
            Event::Finish { flow, version } => {
                let finish = Finish { flow: FlowId(flow), version, at: self.now };
                if self.flows.is_current(&finish) {
                    match self.loads[flow as usize] {
                        Load::Connection(from, to) => self.turn_over(from, to),
                        Load::Multicast(transfer) => self.stream_over(transfer, Some(finish.flow)),
                    }
                }
            }
            Event::Share => self.share(),
        }
    }

    fn share(&mut self) {
        if self.flows.due().is_none_or(|due| due > self.now) {
            return;
        }
        self.shares_at = None;
        let mut finishes = Vec::new();
        self.flows.share(self.now, |finish| finishes.push(finish));
        for finish in finishes {
            self.plan_finish(finish);
        }
    }

    fn plan_finish(&mut self, finish: Finish) {
        self.plan(finish.at, Event::Finish { flow: finish.flow.0, version: finish.version });
    }

    fn complete(&mut self, at: At) {
        self.done += 1;
        self.ends(at.rank, self.now);
        for i in 0..self.index.dependents(at) {
            let next = self.index.dependent(at, i);
            let waits = &mut self.waits[self.index.number(next)];
            *waits -= 1;
            if *waits == 0 {
                self.start(next);
            }
        }
    }

    /// A rank is not through before this time.
    fn ends(&mut self, rank: u32, at: u64) {
        if at > self.end.0 {
            self.end = (at, rank);
        }
    }

    fn start(&mut self, at: At) {
        match self.kind(at) {
            Kind::Reduce { src, .. } => self.finish_after(at, self.costs.reducing(src.len)),
            Kind::Copy { src, .. } => self.finish_after(at, self.costs.copying(src.len)),
            Kind::Send { to, transfer, .. } => {
                let node = self.node(at.rank);
                if self.layout.node_of(to) == node {
                    self.offer(at, transfer.0);
                } else {
                    let sent = self.work(node, nanos(self.costs.send));
                    self.plan(sent, Event::Sent { transfer: transfer.0 });
                }
            }
            Kind::Receive { from, transfer, dst } => {
                if self.layout.node_of(from) == self.node(at.rank) {
                    self.take(at, transfer.0, dst.len);
                } else {
                    self.expect(at, transfer.0, dst.len);
                }
            }
            Kind::Multicast { .. } => {
                self.queued[at.rank as usize].push_back(at.action);
                self.next_multicast(at.rank);
            }
            Kind::Hear { transfer, dst, .. } => self.expect(at, transfer.0, dst.len),
        }
    }

    /// One rank of a node sends to another: if that is not ready, a small message is copied.
    fn offer(&mut self, at: At, transfer: u32) {
        let Some(to) = self.index.receivers(transfer).first().copied() else { return };
        let bytes = self.bytes(at);
        if self.known[self.index.number(to)] & READY != 0 {
            self.finish_after(at, self.costs.copying(bytes));
            self.finish_after(to, 0);
        } else if bytes <= self.costs.eager {
            let number = self.index.number(at);
            self.known[number] |= COPIED;
            self.finish_after(at, self.costs.copying(bytes));
        } else {
            let number = self.index.number(at);
            self.known[number] |= OFFERED;
        }
    }

    /// One rank of a node receives from another.
    fn take(&mut self, at: At, transfer: u32, bytes: u64) {
        let from = self.index.sender(transfer);
        let number = self.index.number(at);
        match self.known[self.index.number(from)] {
            known if known & COPIED != 0 => self.finish_after(at, self.costs.copying(bytes)),
            known if known & OFFERED != 0 => {
                self.finish_after(from, self.costs.copying(bytes));
                self.finish_after(at, 0);
            }
            _ => self.known[number] |= READY,
        }
    }

    /// A rank is ready for a message from another node.
    fn expect(&mut self, at: At, transfer: u32, bytes: u64) {
        let number = self.index.number(at);
        let known = self.known[number];
        self.known[number] |= READY;
        if known & ARRIVED != 0 {
            self.finish_after(at, self.costs.copying(bytes));
        } else if known & ANNOUNCED != 0 {
            self.grant(transfer);
        } else if let Some((lacking, known_at)) = self.gathering.get_mut(&transfer) {
            *lacking -= 1;
            if *lacking == 0 {
                let all_know = (*known_at).max(self.now);
                self.gathering.remove(&transfer);
                self.begin_after(transfer, all_know);
            }
        }
    }

    fn bytes(&self, sender: At) -> u64 {
        match self.kind(sender) {
            Kind::Send { src, .. } | Kind::Multicast { src, .. } => src.len,
            _ => 0,
        }
    }

    fn ends_of(&self, transfer: u32) -> (usize, usize) {
        let from = self.node(self.index.sender(transfer).rank);
        let to = self.index.receivers(transfer).first().map_or(from, |at| self.node(at.rank));
        (from, to)
    }

    fn sent(&mut self, transfer: u32) {
        let at = self.index.sender(transfer);
        if let Kind::Multicast { .. } = self.kind(at) {
            return self.announce_stream(transfer);
        }
        if self.bytes(at) <= self.costs.eager {
            self.complete(at);
            self.enqueue(transfer);
        } else {
            let (from, to) = self.ends_of(transfer);
            self.plan(self.now + self.latency(from, to, 0), Event::Announced { transfer });
        }
    }

    fn announced(&mut self, transfer: u32) {
        let Some(to) = self.index.receivers(transfer).first().copied() else { return };
        let number = self.index.number(to);
        if self.known[number] & READY != 0 {
            self.grant(transfer);
        } else {
            self.known[number] |= ANNOUNCED;
        }
    }

    fn grant(&mut self, transfer: u32) {
        let (from, to) = self.ends_of(transfer);
        self.plan(self.now + self.latency(to, from, 0), Event::Granted { transfer });
    }

    /// A message goes to the end of its connection's queue.
    fn enqueue(&mut self, transfer: u32) {
        let wire = self.costs.unicast(self.bytes(self.index.sender(transfer))) as f64;
        let (from, to) = self.ends_of(transfer);
        let key = (from as u32, to as u32);
        let connection = self.connections.entry(key).or_default();
        connection.queue.push_back((transfer, wire));
        let Some(flow) = connection.flow else { return self.begin_connection(key) };
        // The one that had the connection for itself now takes turns.
        if let [(_, whole), _] = connection.queue.make_contiguous() {
            let most = TURN.max(*whole / TURNS);
            let left = self.flows.left(self.now, flow);
            if left > most {
                let rest = left % most + most;
                connection.turn -= left - rest;
                if let Some(finish) = self.flows.set_left(self.now, flow, rest) {
                    self.plan_finish(finish);
                }
            }
        }
    }

    fn begin_connection(&mut self, (from, to): (u32, u32)) {
        loop {
            let Some(connection) = self.connections.get_mut(&(from, to)) else { return };
            let Some((_, wire)) = connection.queue.front().copied() else { return };
            connection.turn = wire;
            let links = self.fabric.path(self.hosts[from as usize], self.hosts[to as usize]);
            if let Some(flow) = self.flows.begin(self.now, links, wire as u64, f64::MAX) {
                connection.flow = Some(flow);
                self.carry(flow, Load::Connection(from, to));
                return;
            }
            let first = connection.queue.pop_front();
            if let Some((transfer, _)) = first {
                self.delivered(transfer);
            }
        }
    }

    fn carry(&mut self, flow: FlowId, load: Load) {
        let at = flow.0 as usize;
        if self.loads.len() <= at {
            self.loads.resize(at + 1, load);
        }
        self.loads[at] = load;
    }

    /// A message has had its turn.
    fn turn_over(&mut self, from: u32, to: u32) {
        let Some(connection) = self.connections.get_mut(&(from, to)) else { return };
        let (Some((transfer, left)), Some(flow)) = (connection.queue.pop_front(), connection.flow) else {
            return;
        };
        let left = left - connection.turn;
        let over = left < 1.0;
        if !over {
            connection.queue.push_back((transfer, left));
        }
        match connection.queue.front() {
            Some((_, left)) => {
                let alone = connection.queue.len() == 1;
                connection.turn = if alone { *left } else { left.min(TURN.max(left / TURNS)) };
                let turn = connection.turn;
                if let Some(finish) = self.flows.set_left(self.now, flow, turn) {
                    self.plan_finish(finish);
                }
            }
            None => {
                connection.flow = None;
                self.flows.end(self.now, flow);
            }
        }
        if over {
            self.delivered(transfer);
        }
    }

    /// The last byte of a unicast message has left.
    fn delivered(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        let bytes = self.bytes(sender);
        let (from, to) = self.ends_of(transfer);
        let at = self.now + self.latency(from, to, bytes);
        if let Some(receiver) = self.index.receivers(transfer).first().copied() {
            self.plan(at, Event::Arrived { rank: receiver.rank, action: receiver.action });
        }
        if bytes > self.costs.eager {
            self.complete(sender);
        }
    }

    fn arrived(&mut self, at: At) {
        let number = self.index.number(at);
        if self.known[number] & READY != 0 {
            self.finish_after(at, nanos(self.costs.receive));
        } else {
            self.known[number] |= ARRIVED;
            self.work(self.node(at.rank), nanos(self.costs.receive));
        }
    }

    /// Opens the next multicast of a rank if none is under way.
    fn next_multicast(&mut self, rank: u32) {
        if self.multicasting[rank as usize] {
            return;
        }
        let Some(action) = self.queued[rank as usize].pop_front() else { return };
        let at = At { rank, action };
        let Kind::Multicast { transfer, src, sharers, .. } = self.kind(at) else { return };
        self.multicasting[rank as usize] = true;
        let node = self.node(rank);
        self.streams.insert(transfer.0, Stream { flow: None, sharers, rate: 0.0 });
        self.streaming[node].push(transfer.0);
        self.pace(node);
        let sent = self.work(node, nanos(self.costs.send));
        self.plan(sent, Event::Sent { transfer: transfer.0 });
        if src.len <= self.costs.copied {
            self.finish_after(at, self.costs.copying(src.len));
        }
    }

    /// Streams of one node share its link.
    fn pace(&mut self, node: usize) {
        for transfer in &self.streaming[node] {
            let Some(stream) = self.streams.get(transfer) else { continue };
            if let Some(flow) = stream.flow {
                let most = stream.most(self.streaming[node].len());
                self.flows.set_most(self.now, flow, most);
            }
        }
    }

    /// A long multicast waits until all its receivers are ready: they are told, and answer by way of the first
    /// of their rack.
    fn announce_stream(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        if self.bytes(sender) <= self.costs.eager {
            return self.begin_stream(transfer);
        }
        let lacking = self.index.receivers(transfer).iter();
        let lacking = lacking.filter(|at| self.known[self.index.number(**at)] & READY == 0).count();
        let known = self.now + self.farthest(transfer, 0);
        if lacking == 0 {
            self.begin_after(transfer, known);
        } else {
            self.gathering.insert(transfer, (lacking, known));
        }
    }

    fn begin_after(&mut self, transfer: u32, ready: u64) {
        let way = self.farthest(transfer, 0);
        self.plan(ready + way + way / 2, Event::Begun { transfer });
    }

    /// The time to the farthest receiver.
    fn farthest(&self, transfer: u32, bytes: u64) -> u64 {
        let from = self.node(self.index.sender(transfer).rank);
        let receivers = self.index.receivers(transfer).iter();
        receivers.map(|at| self.latency(from, self.node(at.rank), bytes)).max().unwrap_or(0)
    }

    fn begin_stream(&mut self, transfer: u32) {
        let sender = self.index.sender(transfer);
        let Kind::Multicast { scope, src, .. } = self.kind(sender) else { return };
        let node = self.node(sender.rank);
        let links = self.tree(scope, node);
        let Some(stream) = self.streams.get_mut(&transfer) else { return };
        stream.rate = self.flows.narrowest(&links);
        let most = stream.most(self.streaming[node].len());
        match self.flows.begin(self.now, links, self.costs.multicast(src.len), most) {
            Some(flow) => {
                stream.flow = Some(flow);
                self.carry(flow, Load::Multicast(transfer));
            }
            None => self.stream_over(transfer, None),
        }
    }

    fn tree(&self, scope: Scope, node: usize) -> Vec<u32> {
        let others = self.layout.nodes_of(scope).into_iter().filter(|other| *other != node);
        self.fabric.tree(self.hosts[node], others.map(|node| self.hosts[node]))
    }

    /// The last byte of a multicast has left.
    fn stream_over(&mut self, transfer: u32, flow: Option<FlowId>) {
        let sender = self.index.sender(transfer);
        let bytes = self.bytes(sender);
        let node = self.node(sender.rank);
        if let Some(flow) = flow {
            self.flows.end(self.now, flow);
        }
        self.streams.remove(&transfer);
        self.streaming[node].retain(|other| *other != transfer);
        self.pace(node);
        for i in 0..self.index.receivers(transfer).len() {
            let to = self.index.receivers(transfer)[i];
            let at = self.now + self.latency(node, self.node(to.rank), bytes);
            self.plan(at, Event::Arrived { rank: to.rank, action: to.action });
        }
        if bytes > self.costs.copied {
            // Until all have told, by way of the first of their rack, that they have it, and are told so.
            let way = self.farthest(transfer, bytes);
            let released = self.now + way + way + way / 2;
            self.plan(released, Event::Done { rank: sender.rank, action: sender.action });
            for i in 0..self.index.receivers(transfer).len() {
                let rank = self.index.receivers(transfer)[i].rank;
                self.ends(rank, released);
            }
        }
        self.multicasting[sender.rank as usize] = false;
        self.next_multicast(sender.rank);
    }
}

impl Stream {
    /// What it may send when so many streams of its node are under way.
    fn most(&self, streams: usize) -> f64 {
        self.rate / f64::from(self.sharers).max(streams as f64).max(1.0)
    }
}
