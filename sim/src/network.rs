//! The model network: racks under one core switch, links that lose, double, delay and overflow.

use cool_machine::{Duration, Time};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bytes per second.
    pub rate: u64,
    /// Bytes that may wait to be sent; what does not fit is dropped.
    pub queue: u64,
    /// Time from leaving one end to reaching the other.
    pub delay: Duration,
    /// Chance that a packet is lost, 0 to 1.
    pub loss: f64,
    /// How many are lost in a row on average, by the model of Gilbert; 1: each is lost on its own.
    pub burst: f64,
    /// Chance that a packet arrives twice.
    pub duplicate: f64,
    /// Chance that a packet is held back by up to `hold`.
    pub reorder: f64,
    /// The longest that a packet is held back.
    pub hold: Duration,
}

impl LinkSpec {
    /// A link without faults: a shallow switch buffer and 50 microseconds.
    pub fn clean(rate: u64) -> LinkSpec {
        LinkSpec {
            rate,
            queue: 256 * 1024,
            delay: Duration::from_micros(50),
            loss: 0.0,
            burst: 1.0,
            duplicate: 0.0,
            reorder: 0.0,
            hold: Duration::ZERO,
        }
    }
}

/// How many nodes each rack has. Nodes are numbered rack by rack.
pub type Shape = Vec<u16>;

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// One node.
    Node(u16),
    /// All other nodes, copied by the switches.
    Tree,
    /// The other nodes of the sender's rack, copied by its switch.
    Rack,
}

/// What happens next in the network.
#[derive(Clone, Debug)]
pub enum Event {
    /// A packet reached a node.
    Packet {
        /// The node.
        node: u16,
        /// Its bytes.
        bytes: Arc<[u8]>,
    },
    /// The instant that a node asked for.
    Wake {
        /// The node.
        node: u16,
    },
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Flying {
    from: u16,
    to: Destination,
    bytes: Arc<[u8]>,
}

#[derive(Debug)]
enum Happening {
    /// The packet reaches the far end of a link.
    Arrive(usize, Flying),
    Wake(u16),
}

/// Ordered by time, then by when it was scheduled.
#[derive(Debug)]
struct Scheduled {
    at: Time,
    serial: u64,
    what: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.serial == other.serial
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> core::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

#[derive(Debug)]
struct Link {
    spec: LinkSpec,
    up: bool,
    /// The last packet was lost.
    losing: bool,
    free: Time,
    bytes: u64,
}

/// The network and its clock.
#[derive(Debug)]
pub struct Network {
    rack_of: Vec<u16>,
    nodes_of: Vec<core::ops::Range<u16>>,
    /// Node to rack, rack to node; then rack to core, core to rack.
    links: Vec<Link>,
    /// Nodes that the tree does not reach.
    deaf: Vec<u16>,
    /// Nodes that their racks' trees do not reach.
    deaf_in_rack: Vec<u16>,
    heap: BinaryHeap<Reverse<Scheduled>>,
    serial: u64,
    now: Time,
    rng: ChaCha8Rng,
}

/// Bytes of Ethernet, IPv4 and UDP headers, which count on the links.
const FRAMING: u64 = 42;

impl Network {
    /// A network of this shape whose nodes' links are `host` and whose racks' links are `uplink`.
    pub fn new(seed: u64, shape: &Shape, host: LinkSpec, uplink: LinkSpec) -> Network {
        let mut rack_of = Vec::new();
        let mut nodes_of = Vec::new();
        for (rack, nodes) in (0u16..).zip(shape) {
            let first = rack_of.len() as u16;
            rack_of.extend((0..*nodes).map(|_| rack));
            nodes_of.push(first..first + nodes);
        }
        let link = |spec: LinkSpec| Link { spec, up: true, losing: false, free: Time::ZERO, bytes: 0 };
        let mut links: Vec<Link> = (0..2 * rack_of.len()).map(|_| link(host)).collect();
        links.extend((0..2 * shape.len()).map(|_| link(uplink)));
        Network {
            rack_of,
            nodes_of,
            links,
            deaf: Vec::new(),
            deaf_in_rack: Vec::new(),
            heap: BinaryHeap::new(),
            serial: 0,
            now: Time::ZERO,
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> u16 {
        self.rack_of.len() as u16
    }

    /// The rack of a node.
    pub fn rack_of(&self, node: u16) -> u16 {
        self.rack_of[usize::from(node)]
    }

    /// The link from a node to its switch.
    pub fn from_node(&self, node: u16) -> usize {
        2 * usize::from(node)
    }

    /// The link from its switch to a node.
    pub fn to_node(&self, node: u16) -> usize {
        2 * usize::from(node) + 1
    }

    /// The link from a rack to the core.
    pub fn from_rack(&self, rack: u16) -> usize {
        2 * (self.rack_of.len() + usize::from(rack))
    }

    /// The link from the core to a rack.
    pub fn to_rack(&self, rack: u16) -> usize {
        2 * (self.rack_of.len() + usize::from(rack)) + 1
    }

    /// How a link behaves, to be changed.
    pub fn link_mut(&mut self, link: usize) -> &mut LinkSpec {
        &mut self.links[link].spec
    }

    /// Leaves nodes out of the tree, and nodes out of their racks' trees.
    pub fn set_deaf(&mut self, nodes: &[u16], in_rack: &[u16]) {
        (self.deaf, self.deaf_in_rack) = (nodes.to_vec(), in_rack.to_vec());
    }

    /// Cuts a link or mends it.
    pub fn set_up(&mut self, link: usize, up: bool) {
        self.links[link].up = up;
    }

    /// Bytes of Ethernet frames that have entered each link.
    pub fn link_bytes(&self) -> Vec<u64> {
        self.links.iter().map(|link| link.bytes).collect()
    }

    /// A node sends a packet now.
    pub fn send(&mut self, from: u16, to: Destination, bytes: Arc<[u8]>) {
        let first = self.from_node(from);
        self.enter(first, Flying { from, to, bytes });
    }

    /// Wakes a node at an instant.
    pub fn wake(&mut self, node: u16, at: Time) {
        self.schedule(at, Happening::Wake(node));
    }

    /// The next event at a node; the clock moves to it.
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(Reverse(next)) = self.heap.pop() {
            self.now = next.at;
            match next.what {
                Happening::Wake(node) => return Some(Event::Wake { node }),
                Happening::Arrive(link, packet) => {
                    if let Some(event) = self.arrive(link, packet) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    fn schedule(&mut self, at: Time, what: Happening) {
        self.serial += 1;
        self.heap.push(Reverse(Scheduled { at: at.max(self.now), serial: self.serial, what }));
    }

    /// A packet reaches the far end of a link: a node, or a switch that sends it on.
    fn arrive(&mut self, link: usize, packet: Flying) -> Option<Event> {
        let hosts = 2 * self.rack_of.len();
        let (index, outward) = ((link % hosts.max(1)) / 2, link % 2 == 1);
        if link < hosts && outward {
            return Some(Event::Packet { node: index as u16, bytes: packet.bytes });
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

    fn at_rack(&mut self, rack: u16, from_core: bool, packet: Flying) {
        match packet.to {
            Destination::Node(node) if self.rack_of(node) == rack => {
                self.enter(self.to_node(node), packet);
            }
            Destination::Node(_) => self.enter(self.from_rack(rack), packet),
            Destination::Tree | Destination::Rack => {
                for node in self.nodes_of[usize::from(rack)].clone().filter(|node| *node != packet.from) {
                    if !self.is_deaf(node, packet.to) {
                        self.enter(self.to_node(node), packet.clone());
                    }
                }
                if packet.to == Destination::Tree && !from_core && self.nodes_of.len() > 1 {
                    self.enter(self.from_rack(rack), packet);
                }
            }
        }
    }

    fn is_deaf(&self, node: u16, to: Destination) -> bool {
        let deaf = if to == Destination::Rack { &self.deaf_in_rack } else { &self.deaf };
        deaf.contains(&node)
    }

    fn at_core(&mut self, from: u16, packet: Flying) {
        match packet.to {
            Destination::Node(node) => self.enter(self.to_rack(self.rack_of(node)), packet),
            Destination::Rack => {}
            Destination::Tree => {
                for rack in (0..self.nodes_of.len() as u16).filter(|rack| *rack != from) {
                    self.enter(self.to_rack(rack), packet.clone());
                }
            }
        }
    }

    /// A packet is to cross a link.
    fn enter(&mut self, link: usize, packet: Flying) {
        let Link { spec, up, losing, free, bytes } = &mut self.links[link];
        let size = packet.bytes.len() as u64 + FRAMING;
        let waiting = (*free - self.now).as_nanos() * u128::from(spec.rate) / 1_000_000_000;
        if !*up || waiting + u128::from(size) > u128::from(spec.queue) {
            return;
        }
        let sending = Duration::from_nanos(size * 1_000_000_000 / spec.rate);
        *free = (*free).max(self.now) + sending;
        *bytes += size;
        let (arrives, spec) = (*free + spec.delay, *spec);
        let chance = match (spec.burst > 1.0, *losing) {
            (false, _) => spec.loss,
            (true, true) => 1.0 - 1.0 / spec.burst,
            (true, false) => (spec.loss / (spec.burst * (1.0 - spec.loss))).min(1.0),
        };
        *losing = self.rng.random_bool(chance);
        if *losing {
            return;
        }
        let copies = 1 + u32::from(self.rng.random_bool(spec.duplicate));
        for _ in 0..copies {
            let held = match self.rng.random_bool(spec.reorder) {
                true => spec.hold.mul_f64(self.rng.random_range(0.0..1.0)),
                false => Duration::ZERO,
            };
            self.schedule(arrives + held, Happening::Arrive(link, packet.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(net: &mut Network) -> Vec<(u16, u64)> {
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
        let mut net = Network::new(1, &vec![2, 3, 1], clean, clean);
        net.send(3, Destination::Tree, vec![0; 58].into());
        let mut nodes: Vec<u16> = arrivals(&mut net).into_iter().map(|(node, _)| node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2, 4, 5]);
        assert!(net.link_bytes().iter().all(|bytes| *bytes == 100 || *bytes == 0));
        assert_eq!(net.link_bytes().iter().filter(|bytes| **bytes > 0).count(), 5 + 1 + 1 + 2);
    }

    #[test]
    fn packets_queue_at_the_rate_of_a_link_and_overflow() {
        let slow = LinkSpec { queue: 250, ..LinkSpec::clean(1_000_000) };
        let mut net = Network::new(1, &vec![2], slow, slow);
        for _ in 0..3 {
            net.send(0, Destination::Node(1), vec![0; 58].into());
        }
        // 100 us on each of two links of 50 us; the second packet waits for the first, the third is dropped.
        assert_eq!(arrivals(&mut net), [(1, 300_000), (1, 400_000)]);
    }

    #[test]
    fn bursts_lose_the_same_share_in_longer_runs() {
        let bursty = LinkSpec { loss: 0.2, burst: 5.0, queue: u64::MAX, ..LinkSpec::clean(1_000_000) };
        let clean = LinkSpec { queue: u64::MAX, ..LinkSpec::clean(1_000_000) };
        let mut net = Network::new(1, &vec![2], clean, clean);
        *net.link_mut(3) = bursty;
        (0..50_000u32).for_each(|n| net.send(0, Destination::Node(1), n.to_be_bytes().as_slice().into()));
        let mut came = Vec::new();
        while let Some(event) = net.next_event() {
            if let Event::Packet { bytes, .. } = event {
                came.push(u32::from_be_bytes(bytes[..].try_into().expect("four bytes")));
            }
        }
        let runs = came.windows(2).filter(|pair| pair[1] - pair[0] > 1).count();
        let lost = 50_000 - came.len();
        assert!((9_000..11_000).contains(&lost), "{lost}");
        assert!((4.5..5.5).contains(&(lost as f64 / runs as f64)), "{lost} in {runs}");
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
            let mut net = Network::new(seed, &vec![2, 2], faulty, faulty);
            (0..50).for_each(|_| net.send(0, Destination::Tree, vec![0; 58].into()));
            arrivals(&mut net)
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
