//! The network model of the planner: a tree of links that are FIFO queues and serve messages frame
//! by frame. It is coarser than a model in which flows share links, but fast. Times are in
//! nanoseconds.
//!
//! Where the costs of the CPU have been measured, the engine of each agent is a queue, too: one
//! thread sends and receives all bytes of its node. On fast links it is the bottleneck.

use super::CostModel;
use crate::layout::{Layout, MulticastScope};
use crate::timing::{MulticastMessage, NetworkEvent, NetworkEvents, NetworkModel, nanos, time_of};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Number of frames of a message in one turn of a link.
const FRAMES_A_TURN: u64 = 4;
/// Bytes of the shortest frame, unless the message is shorter.
const FRAME_BYTES_MIN: u64 = 4096;
/// Maximum number of turns of a message. Longer messages have longer turns, which bounds the number
/// of events.
const TURNS_MAX: u64 = 2;

/// A link: the time when it has served everything that arrived so far, at its own rate.
#[derive(Clone, Copy, Debug, Default)]
struct LinkQueue {
    busy: u64,
}

/// The times of the first and last byte of a message in transit.
#[derive(Clone, Copy, Debug)]
struct TransitTimes {
    first: u64,
    last: u64,
}

/// A message with its number of bytes, those left to send, and those left in its turn.
#[derive(Clone, Copy, Debug)]
struct QueuedMessage {
    number: u32,
    bytes: u64,
    left: u64,
    turn: u64,
}

/// The messages from one node to another.
#[derive(Debug, Default)]
struct ConnectionQueue {
    queue: VecDeque<QueuedMessage>,
    /// The frame that is being sent.
    sending: Option<SentFrame>,
}

/// A frame of a message, with the number and length of the message if it is the last one.
#[derive(Clone, Copy, Debug)]
struct SentFrame {
    bytes: u64,
    completes: Option<(u32, u64)>,
}

/// A multicast of which the first byte is about to arrive at a node.
#[derive(Clone, Copy, Debug)]
struct ArrivingMulticast {
    from: usize,
    node: usize,
    bytes: u64,
    /// When the last byte arrives.
    last: u64,
}

/// Marks wake-ups for arriving multicasts. The others are for connections between nodes, which are
/// fewer.
const MULTICAST_BIT: u32 = 1 << 31;

/// The network as queues: the links of nodes and racks, and the connections of nodes.
#[derive(Debug)]
pub(super) struct QueueNetwork<'a> {
    model: &'a CostModel,
    layout: &'a Layout,
    up: Vec<LinkQueue>,
    down: Vec<LinkQueue>,
    rack_up: Vec<LinkQueue>,
    rack_down: Vec<LinkQueue>,
    connections: BTreeMap<(u32, u32), ConnectionQueue>,
    /// The engines of the agents.
    engines: Vec<LinkQueue>,
    /// Multicasts that are about to arrive, by message and receiver.
    arriving: BTreeMap<(u32, u32), ArrivingMulticast>,
}

impl<'a> QueueNetwork<'a> {
    pub(super) fn new(model: &'a CostModel, layout: &'a Layout) -> QueueNetwork<'a> {
        let nodes = vec![LinkQueue::default(); layout.nodes()];
        let racks = vec![LinkQueue::default(); layout.racks() * model.ecmp_paths.max(1) as usize];
        QueueNetwork {
            model,
            layout,
            up: nodes.clone(),
            engines: nodes.clone(),
            down: nodes,
            rack_up: racks.clone(),
            rack_down: racks,
            connections: BTreeMap::new(),
            arriving: BTreeMap::new(),
        }
    }

    /// Returns whether engines are queues. Otherwise the sockets limit the rate of each direction.
    fn has_engines(&self) -> bool {
        self.model.costs.packet > Duration::ZERO
    }

    fn host_rate(&self) -> u64 {
        let rate = self.model.rack.bytes_per_second;
        if self.has_engines() { rate } else { rate.min(self.model.costs.socket) }
    }

    /// Passes bytes that arrive at one time through the engine of a node, at a rate.
    fn pass_engine(&mut self, now: u64, node: usize, bytes: u64, rate: u64) -> TransitTimes {
        let at = TransitTimes { first: now, last: now };
        if self.has_engines() { self.engines[node].pass(at, bytes, rate, 0) } else { at }
    }

    /// Returns whether multicasts are sent along a chain.
    fn chains_multicasts(&self) -> bool {
        self.model.unicast_plans && !self.layout.has_tree()
    }

    fn core_link(&self, rack: usize, choice: usize) -> usize {
        let ecmp_paths = self.model.ecmp_paths.max(1) as usize;
        rack * ecmp_paths + choice % ecmp_paths
    }

    /// Passes bytes over the links on the path of a unicast message, at a rate of the nodes' links.
    /// Returns the times at the end.
    fn pass(
        &mut self,
        start: TransitTimes,
        (from, to): (usize, usize),
        bytes: u64,
        host: u64,
    ) -> TransitTimes {
        let (uplink, burst) = (self.model.core.bytes_per_second, self.model.burst);
        let mut at = self.up[from].pass(start, bytes, host, burst);
        let (home, away) = (self.layout.rack_of_node(from), self.layout.rack_of_node(to));
        if home != away {
            let (up, down) = (self.core_link(home, away), self.core_link(away, away));
            at = self.rack_up[up].pass(at, bytes, uplink, burst);
            at = self.rack_down[down].pass(at, bytes, uplink, burst);
        }
        self.down[to].pass(at, bytes, host, burst)
    }

    /// Passes a multicast from node to node in the order of the layout, beginning at its source.
    /// Each node requests the chunks from the node before it, and forwards each as soon as it has
    /// arrived.
    fn chain(
        &mut self,
        now: u64,
        message: u32,
        (from, to): (usize, &[usize]),
        bytes: u64,
        events: &mut NetworkEvents,
    ) {
        let wire = self.model.costs.multicast(bytes);
        let work = nanos(self.model.costs.send) + nanos(self.model.costs.receive);
        // A node receives each packet and sends it.
        let host = self.host_rate().min(self.model.costs.packet_rate() / 2);
        let mut receivers: Vec<(u32, usize)> = (0..).zip(to.iter().copied()).collect();
        let nodes = self.layout.nodes();
        receivers.sort_unstable_by_key(|(_, node)| (node + nodes - from) % nodes);
        let (mut at, mut previous) = (TransitTimes { first: now, last: now }, from);
        for (receiver, node) in receivers {
            let transit = self.pass(at, (previous, node), wire, host);
            if previous == from {
                events.at(transit.last, NetworkEvent::Departed { message });
            }
            let hop = self.latency(node, previous, 0) + self.latency(previous, node, bytes) + work;
            at = TransitTimes { first: transit.first + hop, last: transit.last + hop };
            events.at(at.last, NetworkEvent::Arrived { message, receiver });
            previous = node;
        }
    }

    /// Sends the next frame of a connection.
    fn next_frame(&mut self, now: u64, (from, to): (u32, u32), events: &mut NetworkEvents) {
        let Some(connection) = self.connections.get_mut(&(from, to)) else { return };
        connection.sending = None;
        let Some(mut message) = connection.queue.pop_front() else { return };
        let turn = self.model.costs.turn().max(message.bytes.div_ceil(TURNS_MAX));
        if message.turn == 0 {
            message.turn = turn.min(message.left);
        }
        let frame = FRAME_BYTES_MIN.max(turn.min(message.bytes).div_ceil(FRAMES_A_TURN)).min(message.turn);
        message.left -= frame;
        message.turn -= frame;
        let completes = (message.left == 0).then_some((message.number, message.bytes));
        connection.sending = Some(SentFrame { bytes: frame, completes });
        match (message.left, message.turn) {
            (0, _) => {}
            (_, 0) => connection.queue.push_back(message),
            _ => connection.queue.push_front(message),
        }
        let ends = (from as usize, to as usize);
        let sent = self.pass_engine(now, ends.0, frame, self.model.costs.socket);
        let transit = self.pass(sent, ends, frame, self.host_rate());
        // The receiver's window permits no more bytes before this frame has arrived.
        events.at(transit.last, NetworkEvent::Wake(from, to));
        if let Some((message, _)) = completes {
            events.at(transit.last, NetworkEvent::Departed { message });
        }
    }

    /// Receives the frame of a connection that has arrived.
    fn receive_frame(&mut self, now: u64, (from, to): (u32, u32), events: &mut NetworkEvents) {
        let connection = self.connections.get(&(from, to));
        let Some(frame) = connection.and_then(|connection| connection.sending) else { return };
        let ends = (from as usize, to as usize);
        let received = self.pass_engine(now, ends.1, frame.bytes, self.model.costs.socket);
        if let Some((message, bytes)) = frame.completes {
            let at = received.last + self.latency(ends.0, ends.1, bytes);
            events.at(at, NetworkEvent::Arrived { message, receiver: 0 });
        }
    }

    /// Receives a multicast of which the first byte has arrived.
    fn receive_multicast(&mut self, now: u64, (message, receiver): (u32, u32), events: &mut NetworkEvents) {
        let Some(arriving) = self.arriving.remove(&(message, receiver)) else { return };
        let ArrivingMulticast { from, node, bytes, last } = arriving;
        let wire = self.model.costs.multicast(bytes);
        let received = self.pass_engine(now, node, wire, self.model.costs.packet_rate());
        let at = received.last.max(last) + self.latency(from, node, bytes);
        events.at(at, NetworkEvent::Arrived { message, receiver });
    }
}

impl LinkQueue {
    /// Serves a message after everything that arrived before it. A burst may pass earlier than the
    /// link's rate permits. Returns the message's times at the end of the link.
    fn pass(&mut self, at: TransitTimes, bytes: u64, rate: u64, burst: u64) -> TransitTimes {
        let ahead = time_of(burst, rate);
        let first = at.first.max(self.busy.saturating_sub(ahead));
        self.busy = self.busy.max(at.first) + time_of(bytes, rate);
        TransitTimes { first, last: at.last.max(self.busy.saturating_sub(ahead)) }
    }
}

impl NetworkModel for QueueNetwork<'_> {
    fn latency(&self, from: usize, to: usize, bytes: u64) -> u64 {
        let near = self.layout.rack_of_node(from) == self.layout.rack_of_node(to);
        let level = if near { self.model.rack } else { self.model.core };
        let packet = if self.model.burst > 0 { 0 } else { bytes.min(self.model.costs.mtu) };
        let beyond = if near { 0 } else { 2 * time_of(packet, self.model.core.bytes_per_second) };
        nanos(level.latency) + time_of(packet, self.model.rack.bytes_per_second) + beyond
    }

    fn unicast(
        &mut self,
        now: u64,
        message: u32,
        (from, to): (usize, usize),
        bytes: u64,
        events: &mut NetworkEvents,
    ) {
        let wire = self.model.costs.unicast(bytes);
        let key = (from as u32, to as u32);
        let connection = self.connections.entry(key).or_default();
        connection.queue.push_back(QueuedMessage { number: message, bytes: wire, left: wire, turn: 0 });
        if connection.sending.is_none() {
            self.next_frame(now, key, events);
        }
    }

    fn multicast(
        &mut self,
        now: u64,
        message: u32,
        (from, to): (usize, &[usize]),
        MulticastMessage { bytes, concurrent_senders, stripe }: MulticastMessage,
        events: &mut NetworkEvents,
    ) {
        if self.chains_multicasts() {
            return self.chain(now, message, (from, to), bytes, events);
        }
        let wire = self.model.costs.multicast(bytes);
        let (host, uplink, burst) = (self.host_rate(), self.model.core.bytes_per_second, self.model.burst);
        let start = self.pass_engine(now, from, wire, self.model.costs.packet_rate());
        let mut sent = self.up[from].pass(start, wire, host, burst);
        if stripe.of > 1 {
            // All stripes begin at once, each at its share of the link's rate.
            sent.first = now;
        }
        let home = self.layout.rack_of_node(from);
        let leaves = to.iter().any(|node| self.layout.rack_of_node(*node) != home);
        let paced = self.model.costs.paced(bytes);
        let by_host = time_of(paced, host) * u64::from(concurrent_senders.max(1)) * u64::from(stripe.of);
        let on_tree = stripe.on_tree(concurrent_senders, self.layout.stripes(MulticastScope::All));
        let by_tree = if leaves { time_of(paced, uplink) * on_tree } else { 0 };
        let mut paced = TransitTimes { first: sent.first, last: sent.last.max(now + by_host.max(by_tree)) };
        let mut racks: BTreeMap<usize, TransitTimes> = BTreeMap::from([(home, paced)]);
        if leaves {
            let link = self.core_link(home, stripe.index as usize);
            paced = self.rack_up[link].pass(paced, wire, uplink, burst);
        }
        for (receiver, node) in (0..).zip(to.iter().copied()) {
            let rack = self.layout.rack_of_node(node);
            let link = self.core_link(rack, stripe.index as usize);
            let at =
                *racks.entry(rack).or_insert_with(|| self.rack_down[link].pass(paced, wire, uplink, burst));
            let arrived = self.down[node].pass(at, wire, host, burst);
            // Engines serve what arrives in the order of time.
            self.arriving
                .insert((message, receiver), ArrivingMulticast { from, node, bytes, last: arrived.last });
            events.at(arrived.first, NetworkEvent::Wake(message | MULTICAST_BIT, receiver));
        }
        events.at(paced.last, NetworkEvent::Departed { message });
    }

    fn wake(&mut self, now: u64, what: (u32, u32), events: &mut NetworkEvents) {
        if what.0 & MULTICAST_BIT != 0 {
            return self.receive_multicast(now, (what.0 & !MULTICAST_BIT, what.1), events);
        }
        self.receive_frame(now, what, events);
        self.next_frame(now, what, events);
    }
}
