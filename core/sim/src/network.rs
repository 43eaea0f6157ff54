//! The model network: racks under one core switch, with links that lose, duplicate and delay
//! packets and have finite queues.

use cool_machine::{Duration, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The properties of one direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Rate in bytes per second.
    pub rate: u64,
    /// Size of the queue in bytes. Packets that do not fit are dropped.
    pub queue: u64,
    /// Time from one end of the link to the other.
    pub delay: Duration,
    /// Size of the token bucket in bytes: this much passes at once after a pause. With 0, every
    /// packet needs its transmission time.
    pub bucket: u64,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Average number of packets that are lost in a row. Up to 1, each loss is independent.
    pub burst: f64,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is delayed by up to `hold`.
    pub reorder: f64,
    /// The longest additional delay of a packet.
    pub hold: Duration,
}

impl LinkSpec {
    /// Returns a link without faults: a shallow switch buffer and a delay of 50 microseconds.
    pub fn clean(rate: u64) -> LinkSpec {
        LinkSpec {
            rate,
            queue: 256 * 1024,
            delay: Duration::from_micros(50),
            bucket: 0,
            loss: 0.0,
            burst: 1.0,
            duplicate: 0.0,
            reorder: 0.0,
            hold: Duration::ZERO,
        }
    }
}

/// Number of nodes in each rack. Nodes are numbered rack by rack.
pub type Shape = Vec<u16>;

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One node.
    Node(u16),
    /// All other nodes of a tree; the switches copy the packet. Trees are numbered in the order in
    /// which they were added.
    Tree(usize),
}

/// An event in the network.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet has arrived at a node.
    Packet {
        /// The sender.
        from: u16,
        /// The receiver.
        node: u16,
        /// The bytes of the packet.
        bytes: Arc<[u8]>,
    },
    /// A segment of a connection has arrived at its destination.
    Segment {
        /// The number of the segment.
        number: u64,
    },
    /// A link has dropped a segment.
    SegmentLost {
        /// The number of the segment.
        number: u64,
    },
    /// A requested time has been reached.
    Wake {
        /// The number that was given with the request.
        whom: u32,
    },
}

/// The content of a packet.
#[derive(Clone, Debug)]
enum PacketLoad {
    Datagram(Arc<[u8]>),
    /// Bytes of a connection. The sender stores them until they have arrived.
    Segment {
        number: u64,
        len: u64,
    },
}

impl PacketLoad {
    fn len(&self) -> u64 {
        match self {
            PacketLoad::Datagram(bytes) => bytes.len() as u64,
            PacketLoad::Segment { len, .. } => *len,
        }
    }
}

/// A packet in flight.
#[derive(Clone, Debug)]
struct PacketInFlight {
    from: u16,
    to: Destination,
    load: PacketLoad,
}

#[derive(Debug)]
enum NetworkAction {
    /// The packet reaches the far end of a link.
    Arrive(usize, PacketInFlight),
    /// A segment was dropped.
    Lost(u64),
    Wake(u32),
}

/// An event in the queue, ordered by time and then by the order of scheduling.
#[derive(Debug)]
struct ScheduledAction {
    at: Time,
    serial: u64,
    what: NetworkAction,
}

impl PartialEq for ScheduledAction {
    fn eq(&self, other: &ScheduledAction) -> bool {
        self.serial == other.serial
    }
}

impl Eq for ScheduledAction {}

impl PartialOrd for ScheduledAction {
    fn partial_cmp(&self, other: &ScheduledAction) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledAction {
    fn cmp(&self, other: &ScheduledAction) -> core::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

#[derive(Debug)]
struct NetworkLink {
    spec: LinkSpec,
    up: bool,
    /// When all packets in the queue have left, or would have left if the token bucket were empty.
    free: Time,
    /// Whether a run of losses is in progress.
    losing: bool,
    bytes: u64,
}

impl NetworkLink {
    fn new(spec: LinkSpec) -> NetworkLink {
        NetworkLink { spec, up: true, free: Time::ZERO, losing: false, bytes: 0 }
    }

    /// Returns when a packet that enters now leaves the link, or none if it is dropped.
    fn enter(&mut self, now: Time, size: u64, rng: &mut ChaCha8Rng) -> Option<Time> {
        let waiting = (self.free - now).as_nanos() * u128::from(self.spec.rate) / 1_000_000_000;
        // The queue's limit is drawn at random. With a fixed limit, the regular arrivals of two
        // simulated streams could interleave so that always the same stream finds the queue full.
        let room = u128::from(self.spec.queue - rng.random_range(0..=size.min(self.spec.queue)));
        if !self.up || waiting + u128::from(size) > room.max(u128::from(size)) {
            return None;
        }
        let take = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / self.spec.rate);
        let full = (now - Time::ZERO).saturating_sub(take(self.spec.bucket));
        self.free = self.free.max(Time::ZERO + full) + take(size);
        self.bytes += size;
        Some(self.free.max(now))
    }

    /// Returns whether the next packet is lost (runs follow the model of Gilbert, BSTJ 1960).
    fn loses(&mut self, rng: &mut ChaCha8Rng) -> bool {
        let LinkSpec { loss, burst, .. } = self.spec;
        if burst <= 1.0 || loss <= 0.0 || loss >= 1.0 {
            return rng.random_bool(loss);
        }
        let turns = if self.losing { 1.0 / burst } else { (loss / (burst * (1.0 - loss))).min(1.0) };
        self.losing ^= rng.random_bool(turns);
        self.losing
    }
}

/// The network and its clock.
#[derive(Debug)]
pub struct PacketNetwork {
    rack_of: Vec<u16>,
    racks: usize,
    /// Node to rack and rack to node, for each node; then rack to core and core to rack, for each
    /// rack.
    links: Vec<NetworkLink>,
    /// The nodes of each tree, by rack.
    trees: Vec<Vec<Vec<u16>>>,
    heap: BinaryHeap<Reverse<ScheduledAction>>,
    serial: u64,
    now: Time,
    rng: ChaCha8Rng,
}

/// Bytes of Ethernet, IPv4 and UDP headers, which count on the links.
const FRAMING: u64 = cool_types::wire::DATAGRAM_FRAMING;

impl PacketNetwork {
    /// Returns a network of this shape with `host` links to the nodes and `uplink` links to the
    /// racks.
    pub fn new(seed: u64, shape: &Shape, host: LinkSpec, uplink: LinkSpec) -> PacketNetwork {
        let in_rack = |(rack, nodes): (u16, &u16)| std::iter::repeat_n(rack, usize::from(*nodes));
        let rack_of: Vec<u16> = (0u16..).zip(shape).flat_map(in_rack).collect();
        let mut links: Vec<NetworkLink> = (0..2 * rack_of.len()).map(|_| NetworkLink::new(host)).collect();
        links.extend((0..2 * shape.len()).map(|_| NetworkLink::new(uplink)));
        PacketNetwork {
            rack_of,
            racks: shape.len(),
            links,
            trees: Vec::new(),
            heap: BinaryHeap::new(),
            serial: 0,
            now: Time::ZERO,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Returns the simulated time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u16 {
        self.rack_of.len() as u16
    }

    /// Returns the rack of a node.
    pub fn rack_of(&self, node: u16) -> u16 {
        self.rack_of[usize::from(node)]
    }

    /// Returns the number of the link from a node to its switch.
    pub fn from_node(&self, node: u16) -> usize {
        2 * usize::from(node)
    }

    /// Returns the number of the link from its switch to a node.
    pub fn to_node(&self, node: u16) -> usize {
        2 * usize::from(node) + 1
    }

    /// Returns the number of the link from a rack to the core.
    pub fn from_rack(&self, rack: u16) -> usize {
        2 * (self.rack_of.len() + usize::from(rack))
    }

    /// Returns the number of the link from the core to a rack.
    pub fn to_rack(&self, rack: u16) -> usize {
        2 * (self.rack_of.len() + usize::from(rack)) + 1
    }

    /// Returns the properties of a link, which may be changed.
    pub fn link_mut(&mut self, link: usize) -> &mut LinkSpec {
        &mut self.links[link].spec
    }

    /// Adds a tree that reaches these nodes. Returns its number.
    pub fn add_tree(&mut self, nodes: impl IntoIterator<Item = u16>) -> usize {
        let mut by_rack = vec![Vec::new(); self.racks];
        for node in nodes {
            by_rack[usize::from(self.rack_of(node))].push(node);
        }
        self.trees.push(by_rack);
        self.trees.len() - 1
    }

    /// Adds a node to a tree.
    pub fn join_tree(&mut self, tree: usize, node: u16) {
        let nodes = &mut self.trees[tree][usize::from(self.rack_of[usize::from(node)])];
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }

    /// Removes a node from the tree with this number. Returns whether it was a member.
    pub fn leave_tree(&mut self, tree: usize, node: u16) -> bool {
        let nodes = &mut self.trees[tree][usize::from(self.rack_of[usize::from(node)])];
        let before = nodes.len();
        nodes.retain(|other| *other != node);
        nodes.len() < before
    }

    /// Takes a link down or up.
    pub fn set_up(&mut self, link: usize, up: bool) {
        self.links[link].up = up;
    }

    /// Returns the bytes of Ethernet frames that have entered each link.
    pub fn link_bytes(&self) -> Vec<u64> {
        self.links.iter().map(|link| link.bytes).collect()
    }

    /// Sends a packet from a node now.
    pub fn send(&mut self, from: u16, to: Destination, bytes: Arc<[u8]>) {
        let first = self.from_node(from);
        self.enter(first, PacketInFlight { from, to, load: PacketLoad::Datagram(bytes) });
    }

    /// Sends a segment of a connection from a node now. The network knows only its length.
    /// [`Event::Segment`] or [`Event::SegmentLost`] follows, or both if the packet is duplicated.
    /// The sender must store the bytes until then.
    pub fn send_segment(&mut self, (from, to): (u16, u16), number: u64, len: u64) {
        let first = self.from_node(from);
        self.enter(
            first,
            PacketInFlight { from, to: Destination::Node(to), load: PacketLoad::Segment { number, len } },
        );
    }

    /// Requests an [`Event::Wake`] with this number at the given time.
    pub fn wake(&mut self, whom: u32, at: Time) {
        self.schedule(at, NetworkAction::Wake(whom));
    }

    /// Returns the next event and advances the clock to it.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(Reverse(next)) = self.heap.pop() {
            self.now = next.at;
            match next.what {
                NetworkAction::Wake(whom) => return Some(Event::Wake { whom }),
                NetworkAction::Lost(number) => return Some(Event::SegmentLost { number }),
                NetworkAction::Arrive(link, packet) => {
                    if let Some(event) = self.arrive(link, packet) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    fn schedule(&mut self, at: Time, what: NetworkAction) {
        self.serial += 1;
        self.heap.push(Reverse(ScheduledAction { at: at.max(self.now), serial: self.serial, what }));
    }

    /// Handles a packet at the far end of a link: at a node, or at a switch that forwards it.
    fn arrive(&mut self, link: usize, packet: PacketInFlight) -> Option<Event> {
        let hosts = 2 * self.rack_of.len();
        let (index, outward) = ((link % hosts.max(1)) / 2, link % 2 == 1);
        if link < hosts && outward {
            return Some(match packet.load {
                PacketLoad::Datagram(bytes) => Event::Packet { from: packet.from, node: index as u16, bytes },
                PacketLoad::Segment { number, .. } => Event::Segment { number },
            });
        }
        if link < hosts {
            self.at_rack(self.rack_of[index], false, packet);
        } else if outward {
            self.at_rack(((link - hosts) / 2) as u16, true, packet);
        } else {
            self.at_core(((link - hosts) / 2) as u16, packet);
        }
        None
    }

    fn at_rack(&mut self, rack: u16, from_core: bool, packet: PacketInFlight) {
        match packet.to {
            Destination::Node(node) if self.rack_of(node) == rack => {
                self.enter(self.to_node(node), packet);
            }
            Destination::Node(_) => self.enter(self.from_rack(rack), packet),
            Destination::Tree(tree) => {
                for at in 0..self.trees[tree][usize::from(rack)].len() {
                    let node = self.trees[tree][usize::from(rack)][at];
                    if node != packet.from {
                        self.enter(self.to_node(node), packet.clone());
                    }
                }
                if !from_core && self.other_racks(tree, rack).next().is_some() {
                    self.enter(self.from_rack(rack), packet);
                }
            }
        }
    }

    fn at_core(&mut self, from: u16, packet: PacketInFlight) {
        match packet.to {
            Destination::Node(node) => self.enter(self.to_rack(self.rack_of(node)), packet),
            Destination::Tree(tree) => {
                let racks: Vec<u16> = self.other_racks(tree, from).collect();
                for rack in racks {
                    self.enter(self.to_rack(rack), packet.clone());
                }
            }
        }
    }

    /// Returns the racks with nodes of a tree, except the given one.
    fn other_racks(&self, tree: usize, rack: u16) -> impl Iterator<Item = u16> + '_ {
        let racks = (0u16..).zip(&self.trees[tree]);
        racks.filter(move |(other, nodes)| *other != rack && !nodes.is_empty()).map(|(other, _)| other)
    }

    /// Sends a packet over a link.
    fn enter(&mut self, link: usize, packet: PacketInFlight) {
        let this = &mut self.links[link];
        let left = this.enter(self.now, packet.load.len() + FRAMING, &mut self.rng);
        let Some(left) = left.filter(|_| !this.loses(&mut self.rng)) else {
            if let PacketLoad::Segment { number, .. } = packet.load {
                self.schedule(self.now, NetworkAction::Lost(number));
            }
            return;
        };
        let (arrives, spec) = (left + this.spec.delay, this.spec);
        let copies = 1 + u32::from(self.rng.random_bool(spec.duplicate));
        for _ in 0..copies {
            let held = match self.rng.random_bool(spec.reorder) {
                true => spec.hold.mul_f64(self.rng.random_range(0.0..1.0)),
                false => Duration::ZERO,
            };
            self.schedule(arrives + held, NetworkAction::Arrive(link, packet.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(net: &mut PacketNetwork) -> Vec<(u16, u64)> {
        let mut seen = Vec::new();
        while let Some(event) = net.next_event() {
            if let Event::Packet { node, .. } = event {
                seen.push((node, net.now().as_nanos()));
            }
        }
        seen
    }

    #[test]
    fn a_tree_reaches_all_others_once_and_crosses_each_link_once() {
        let clean = LinkSpec::clean(1_000_000);
        let mut net = PacketNetwork::new(1, &vec![2, 3, 1], clean, clean);
        let tree = net.add_tree(0..6);
        net.send(3, Destination::Tree(tree), vec![0; 58].into());
        let mut nodes: Vec<u16> = arrivals(&mut net).into_iter().map(|(node, _)| node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2, 4, 5]);
        assert!(net.link_bytes().iter().all(|bytes| *bytes == 100 || *bytes == 0));
        assert_eq!(net.link_bytes().iter().filter(|bytes| **bytes > 0).count(), 5 + 1 + 1 + 2);
    }

    #[test]
    fn packets_queue_at_the_rate_of_a_link_and_overflow() {
        let slow = LinkSpec { queue: 300, ..LinkSpec::clean(1_000_000) };
        let mut net = PacketNetwork::new(1, &vec![2], slow, slow);
        for _ in 0..3 {
            net.send(0, Destination::Node(1), vec![0; 58].into());
        }
        // 100 us on each of two links with a delay of 50 us. The second packet waits for the first;
        // the third is dropped.
        assert_eq!(arrivals(&mut net), [(1, 300_000), (1, 400_000)]);
    }

    #[test]
    fn a_tree_does_not_cross_to_racks_without_its_nodes() {
        let clean = LinkSpec::clean(1_000_000);
        let mut net = PacketNetwork::new(1, &vec![2, 2, 2], clean, clean);
        let (rack, two) = (net.add_tree([0, 1]), net.add_tree([0, 5]));
        net.send(0, Destination::Tree(rack), vec![0; 58].into());
        assert_eq!(arrivals(&mut net).len(), 1);
        net.send(0, Destination::Tree(two), vec![0; 58].into());
        assert_eq!(arrivals(&mut net).len(), 1);
        assert_eq!(net.link_bytes().iter().filter(|bytes| **bytes > 0).count(), 2 + 3);
    }

    #[test]
    fn a_bucket_lets_a_burst_pass_and_then_the_rate() {
        let shaped = LinkSpec { bucket: 250, delay: Duration::ZERO, ..LinkSpec::clean(1_000_000) };
        let mut net = PacketNetwork::new(1, &vec![2], LinkSpec { bucket: 1000, ..shaped }, shaped);
        *net.link_mut(3) = shaped;
        net.wake(0, Time::from_nanos(1_000_000));
        assert!(matches!(net.next_event(), Some(Event::Wake { whom: 0 })));
        for _ in 0..4 {
            net.send(0, Destination::Node(1), vec![0; 58].into());
        }
        let times: Vec<u64> = arrivals(&mut net).into_iter().map(|(_, at)| at - 1_000_000).collect();
        assert_eq!(times, [0, 0, 50_000, 150_000]);
    }

    #[test]
    fn losses_in_runs_are_as_many_as_losses_on_their_own() {
        let mut link = NetworkLink::new(LinkSpec { loss: 0.1, burst: 5.0, ..LinkSpec::clean(1_000_000) });
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let lost: Vec<bool> = (0..100_000).map(|_| link.loses(&mut rng)).collect();
        let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let losses = lost.iter().filter(|lost| **lost).count();
        assert!((9_000..11_000).contains(&losses), "{losses}");
        assert!((1_800..2_200).contains(&runs), "{runs}");
    }

    #[test]
    fn the_same_seed_gives_the_same_network() {
        let run = |seed| {
            let faulty = LinkSpec {
                loss: 0.2,
                duplicate: 0.2,
                reorder: 0.5,
                hold: Duration::from_millis(1),
                ..LinkSpec::clean(1_000_000)
            };
            let mut net = PacketNetwork::new(seed, &vec![2, 2], faulty, faulty);
            let tree = net.add_tree(0..4);
            (0..50).for_each(|_| net.send(0, Destination::Tree(tree), vec![0; 58].into()));
            arrivals(&mut net)
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
