//! The network model of the planner: a tree of links that are FIFO queues and serve messages frame
//! by frame. It is coarser than a model in which flows share links, but fast. Times are in
//! nanoseconds.

use super::CostModel;
use crate::layout::{Layout, MulticastScope};
use crate::timing::{MulticastMessage, NetworkEvent, NetworkEvents, NetworkModel, nanos, time_of};
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
    sending: bool,
}

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
}

impl<'a> QueueNetwork<'a> {
    pub(super) fn new(model: &'a CostModel, layout: &'a Layout) -> QueueNetwork<'a> {
        let nodes = vec![LinkQueue::default(); layout.nodes()];
        let racks = vec![LinkQueue::default(); layout.racks() * model.ecmp_paths.max(1) as usize];
        QueueNetwork {
            model,
            layout,
            up: nodes.clone(),
            down: nodes,
            rack_up: racks.clone(),
            rack_down: racks,
            connections: BTreeMap::new(),
        }
    }

    fn host_rate(&self) -> u64 {
        self.model.rack.bytes_per_second.min(self.model.costs.socket)
    }

    /// Returns whether multicasts are sent along a chain.
    fn chains_multicasts(&self) -> bool {
        self.model.unicast_plans && !self.layout.has_tree()
    }

    fn core_link(&self, rack: usize, choice: usize) -> usize {
        let ecmp_paths = self.model.ecmp_paths.max(1) as usize;
        rack * ecmp_paths + choice % ecmp_paths
    }

    /// Passes bytes over the links on the path of a unicast message. Returns the times at the end.
    fn pass(&mut self, start: TransitTimes, (from, to): (usize, usize), bytes: u64) -> TransitTimes {
        let (host, uplink, burst) = (self.host_rate(), self.model.core.bytes_per_second, self.model.burst);
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
        let mut receivers: Vec<(u32, usize)> = (0..).zip(to.iter().copied()).collect();
        let nodes = self.layout.nodes();
        receivers.sort_unstable_by_key(|(_, node)| (node + nodes - from) % nodes);
        let (mut at, mut previous) = (TransitTimes { first: now, last: now }, from);
        for (receiver, node) in receivers {
            let transit = self.pass(at, (previous, node), wire);
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
        connection.sending = false;
        let Some(mut message) = connection.queue.pop_front() else { return };
        let turn = self.model.costs.turn().max(message.bytes.div_ceil(TURNS_MAX));
        if message.turn == 0 {
            message.turn = turn.min(message.left);
        }
        let frame = FRAME_BYTES_MIN.max(turn.min(message.bytes).div_ceil(FRAMES_A_TURN)).min(message.turn);
        message.left -= frame;
        message.turn -= frame;
        connection.sending = true;
        match (message.left, message.turn) {
            (0, _) => {}
            (_, 0) => connection.queue.push_back(message),
            _ => connection.queue.push_front(message),
        }
        let ends = (from as usize, to as usize);
        let transit = self.pass(TransitTimes { first: now, last: now }, ends, frame);
        // The receiver's window permits no more bytes before this frame has arrived.
        events.at(transit.last, NetworkEvent::Wake(from, to));
        if message.left == 0 {
            events.at(transit.last, NetworkEvent::Departed { message: message.number });
            let at = transit.last + self.latency(ends.0, ends.1, message.bytes);
            events.at(at, NetworkEvent::Arrived { message: message.number, receiver: 0 });
        }
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
        if !connection.sending {
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
        let start = TransitTimes { first: now, last: now };
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
            let at = arrived.last + self.latency(from, node, bytes);
            events.at(at, NetworkEvent::Arrived { message, receiver });
        }
        events.at(paced.last, NetworkEvent::Departed { message });
    }

    fn wake(&mut self, now: u64, connection: (u32, u32), events: &mut NetworkEvents) {
        self.next_frame(now, connection, events);
    }
}
