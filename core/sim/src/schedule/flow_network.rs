//! The simulator's network model. Each connection and each multicast is a flow over links of the
//! fabric; messages of a connection take turns.

use super::fabric::{FabricModel, FabricModelError};
use super::flows::{Finish, FlowId, Flows};
use cool_collective::timing::{self, AgentCosts, NetworkEvent, NetworkEvents, NetworkModel, nanos, time_of};
use cool_collective::{Layout, MulticastScope};
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of turns of a message.
const TURNS: f64 = 16.0;
/// Number in `Wake` that requests new rates; all others are flows.
const SHARE: u32 = u32::MAX;

/// Messages waiting for a connection; the first is sent for the bytes of one turn.
#[derive(Debug, Default)]
struct TurnQueue {
    /// Messages, each with the bytes left to send and its total bytes.
    queue: VecDeque<(u32, f64, u64)>,
    /// Number of bytes in the current turn.
    turn: f64,
    flow: Option<FlowId>,
}

/// The traffic that a flow carries.
#[derive(Clone, Copy, Debug)]
enum FlowLoad {
    Connection(u32, u32),
    Multicast(u32),
}

/// A multicast in progress.
#[derive(Debug)]
struct MulticastFlow {
    flow: Option<FlowId>,
    from: usize,
    to: Vec<usize>,
    what: timing::MulticastMessage,
    /// Its maximum rates in bytes per nanosecond: over its tree, and over its sender's link if it
    /// had that link to itself.
    tree: f64,
    host: f64,
}

impl MulticastFlow {
    /// Returns the rate limit while the node sends `streams` streams: the paced rate, scaled up
    /// because the first bytes are not paced.
    fn most(&self, streams: f64, costs: &AgentCosts) -> f64 {
        let sharers = f64::from(self.what.concurrent_senders).max(streams).max(1.0);
        let pace = (self.host / f64::from(self.what.stripe.of) / sharers).min(self.tree);
        let all = costs.multicast(self.what.bytes) as f64;
        (pace * all / (costs.paced(self.what.bytes) as f64).max(1.0)).min(self.host)
    }
}

/// A fabric and the traffic on it.
#[derive(Debug)]
pub(super) struct FlowNetwork<'a> {
    fabric: &'a FabricModel,
    costs: &'a AgentCosts,
    hosts: Vec<usize>,
    /// Number of trees over all nodes.
    trees: u32,
    flows: Flows,
    /// The traffic of each flow.
    loads: Vec<FlowLoad>,
    connections: BTreeMap<(u32, u32), TurnQueue>,
    streams: BTreeMap<u32, MulticastFlow>,
    /// For each node, the multicasts that it is sending.
    streaming: Vec<Vec<u32>>,
    shares_at: Option<u64>,
}

impl<'a> FlowNetwork<'a> {
    pub(super) fn new(
        fabric: &'a FabricModel,
        layout: &Layout,
        costs: &'a AgentCosts,
    ) -> Result<Self, FabricModelError> {
        let host_links = 2 * fabric.hosts();
        let per_nano = |(link, rate): (usize, u64)| {
            let rate = if link < host_links { rate.min(costs.socket) } else { rate };
            rate.max(1) as f64 / 1e9
        };
        Ok(FlowNetwork {
            fabric,
            costs,
            hosts: fabric.hosts_of(layout)?,
            trees: layout.stripes(MulticastScope::All),
            flows: Flows::new(
                fabric.rates().into_iter().enumerate().map(per_nano),
                fabric.burst,
                fabric.spent,
            ),
            loads: Vec::new(),
            connections: BTreeMap::new(),
            streams: BTreeMap::new(),
            streaming: vec![Vec::new(); layout.nodes()],
            shares_at: None,
        })
    }

    /// Schedules the computation of rates when it is due.
    fn plan_share(&mut self, events: &mut NetworkEvents) {
        if let Some(due) = self.flows.due()
            && self.shares_at.is_none_or(|at| due < at)
        {
            self.shares_at = Some(due);
            events.at(due, NetworkEvent::Wake(SHARE, 0));
        }
    }

    fn carry(&mut self, flow: FlowId, load: FlowLoad) {
        let at = flow.0 as usize;
        if self.loads.len() <= at {
            self.loads.resize(at + 1, load);
        }
        self.loads[at] = load;
    }

    fn begin_connection(&mut self, now: u64, (from, to): (u32, u32), events: &mut NetworkEvents) {
        let Some(connection) = self.connections.get_mut(&(from, to)) else { return };
        while let Some((message, wire, bytes)) = connection.queue.front().copied() {
            connection.turn = wire;
            let links = self.fabric.path(self.hosts[from as usize], self.hosts[to as usize]);
            if let Some(flow) = self.flows.begin(now, links, wire as u64, f64::MAX) {
                connection.flow = Some(flow);
                return self.carry(flow, FlowLoad::Connection(from, to));
            }
            connection.queue.pop_front();
            let latency = latency(self.fabric, self.costs, &self.hosts, (from as usize, to as usize), bytes);
            events.at(now, NetworkEvent::Departed { message });
            events.at(now + latency, NetworkEvent::Arrived { message, receiver: 0 });
        }
    }

    /// Ends the turn of the first message of a connection.
    fn turn_over(&mut self, now: u64, (from, to): (u32, u32), events: &mut NetworkEvents) {
        let Some(connection) = self.connections.get_mut(&(from, to)) else { return };
        let (Some((message, left, bytes)), Some(flow)) = (connection.queue.pop_front(), connection.flow)
        else {
            return;
        };
        let left = left - connection.turn;
        if left >= 1.0 {
            connection.queue.push_back((message, left, bytes));
        } else {
            let latency = latency(self.fabric, self.costs, &self.hosts, (from as usize, to as usize), bytes);
            events.at(now, NetworkEvent::Departed { message });
            events.at(now + latency, NetworkEvent::Arrived { message, receiver: 0 });
        }
        match connection.queue.front() {
            Some((_, left, bytes)) => {
                let alone = connection.queue.len() == 1;
                connection.turn = if alone { *left } else { left.min(turn(self.costs, *bytes)) };
                let finish = self.flows.set_left(now, flow, connection.turn);
                finish.into_iter().for_each(|finish| plan(finish, events));
            }
            None => {
                connection.flow = None;
                self.flows.end(now, flow);
            }
        }
    }

    fn stream_over(&mut self, now: u64, message: u32, events: &mut NetworkEvents) {
        let Some(stream) = self.streams.remove(&message) else { return };
        if let Some(flow) = stream.flow {
            self.flows.end(now, flow);
        }
        self.streaming[stream.from].retain(|other| *other != message);
        self.pace(now, stream.from);
        events.at(now, NetworkEvent::Departed { message });
        for (receiver, to) in (0..).zip(&stream.to) {
            let at = now + self.latency(stream.from, *to, stream.what.bytes);
            events.at(at, NetworkEvent::Arrived { message, receiver });
        }
    }

    /// Sets the rates of a node's streams, which share its link.
    fn pace(&mut self, now: u64, node: usize) {
        let whole = self.streams_of(node);
        for stream in self.streaming[node].iter().filter_map(|message| self.streams.get(message)) {
            if let Some(flow) = stream.flow {
                self.flows.set_most(now, flow, stream.most(whole, self.costs));
            }
        }
    }

    /// Returns the number of streams that a node sends. A stripe counts as its fraction of a
    /// stream.
    fn streams_of(&self, node: usize) -> f64 {
        let streams = self.streaming[node].iter().filter_map(|message| self.streams.get(message));
        streams.map(|stream| 1.0 / f64::from(stream.what.stripe.of)).sum()
    }
}

impl NetworkModel for FlowNetwork<'_> {
    fn latency(&self, from: usize, to: usize, bytes: u64) -> u64 {
        latency(self.fabric, self.costs, &self.hosts, (from, to), bytes)
    }

    fn unicast(
        &mut self,
        now: u64,
        message: u32,
        (from, to): (usize, usize),
        bytes: u64,
        events: &mut NetworkEvents,
    ) {
        let key = (from as u32, to as u32);
        let connection = self.connections.entry(key).or_default();
        connection.queue.push_back((message, self.costs.unicast(bytes) as f64, bytes));
        let Some(flow) = connection.flow else {
            self.begin_connection(now, key, events);
            return self.plan_share(events);
        };
        // The message that had the connection to itself now takes turns.
        if let [(_, _, bytes), _] = connection.queue.make_contiguous() {
            let most = turn(self.costs, *bytes);
            let left = self.flows.left(now, flow);
            if left > most {
                let rest = left % most + most;
                connection.turn -= left - rest;
                let finish = self.flows.set_left(now, flow, rest);
                finish.into_iter().for_each(|finish| plan(finish, events));
            }
        }
    }

    fn multicast(
        &mut self,
        now: u64,
        message: u32,
        (from, to): (usize, &[usize]),
        what: timing::MulticastMessage,
        events: &mut NetworkEvents,
    ) {
        let timing::MulticastMessage { bytes, stripe, concurrent_senders } = what;
        let receivers = to.iter().map(|node| self.hosts[*node]);
        let links = self.fabric.tree(self.hosts[from], receivers, stripe.index as usize);
        let host = self.flows.narrowest(&links[..1]);
        let tree = self.flows.narrowest(&links) / stripe.on_tree(concurrent_senders, self.trees) as f64;
        let mut stream = MulticastFlow { flow: None, from, to: to.to_vec(), what, tree, host };
        let most = stream.most(self.streams_of(from) + 1.0 / f64::from(stripe.of), self.costs);
        stream.flow = self.flows.begin(now, links, self.costs.multicast(bytes), most);
        let flow = stream.flow;
        self.streaming[from].push(message);
        self.streams.insert(message, stream);
        match flow {
            Some(flow) => {
                self.carry(flow, FlowLoad::Multicast(message));
                self.pace(now, from);
            }
            None => self.stream_over(now, message, events),
        }
        self.plan_share(events);
    }

    fn wake(&mut self, now: u64, (flow, version): (u32, u32), events: &mut NetworkEvents) {
        if flow == SHARE {
            if self.flows.due().is_none_or(|due| due > now) {
                return;
            }
            self.shares_at = None;
            return self.flows.share(now, |finish| plan(finish, events));
        }
        let finish = Finish { flow: FlowId(flow), version, at: now };
        if self.flows.is_current(&finish) {
            match self.loads[flow as usize] {
                FlowLoad::Connection(from, to) => self.turn_over(now, (from, to), events),
                FlowLoad::Multicast(message) => self.stream_over(now, message, events),
            }
            self.plan_share(events);
        }
    }
}

fn plan(finish: Finish, events: &mut NetworkEvents) {
    events.at(finish.at, NetworkEvent::Wake(finish.flow.0, finish.version));
}

/// Returns the number of bytes in a message's turn.
fn turn(costs: &AgentCosts, bytes: u64) -> f64 {
    (costs.turn() as f64).max(bytes as f64 / TURNS)
}

fn latency(
    fabric: &FabricModel,
    costs: &AgentCosts,
    hosts: &[usize],
    (from, to): (usize, usize),
    bytes: u64,
) -> u64 {
    let hops = fabric.hops(hosts[from], hosts[to]);
    let packet = if fabric.burst > 0 { 0 } else { bytes.min(costs.mtu) };
    // Each switch receives the whole packet before it forwards it.
    let on = match hops {
        0..=1 => 0,
        hops => time_of(packet, fabric.host) + u64::from(hops - 2) * time_of(packet, fabric.uplink),
    };
    nanos(fabric.delay_over(hops)) + on
}
