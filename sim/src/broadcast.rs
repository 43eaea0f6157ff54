//! One reliable multicast over a model network, with real bytes.

use crate::network::{Destination, Event, LinkSpec, Network, Shape};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_transport::packet::{Body, FRAMING};
use cool_transport::{
    Chain, Hop, Input, Output, Packet, RateSpec, Receiver, Sender, SpecError, Stats, StreamError, StreamId,
    StreamSpec, Timers, To,
};

/// A broadcast to be run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seed of the network's chance and of the message's bytes.
    pub seed: u64,
    /// Nodes of each rack.
    pub shape: Shape,
    /// The node that broadcasts.
    pub source: u16,
    /// Links of the nodes.
    pub host: LinkSpec,
    /// Links of the racks.
    pub uplink: LinkSpec,
    /// Links that behave otherwise: number and behaviour.
    pub odd_links: Vec<(usize, LinkSpec)>,
    /// Links that are cut for a while: number, from when, until when.
    pub outages: Vec<(usize, Time, Time)>,
    /// Length of the message.
    pub len: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Whether there is a tree.
    pub multicast: bool,
    /// Nodes that do not hear the tree although there is one.
    pub deaf: Vec<u16>,
    /// Whether racks have trees of their own.
    pub rack_trees: bool,
    /// Nodes that do not hear their rack's tree although there is one.
    pub deaf_in_rack: Vec<u16>,
    /// What the source is told of its link.
    pub ceiling: Option<u64>,
    /// Up to which length the source does not wait for receivers.
    pub eager: u64,
    /// When each node opens the stream.
    pub opens: Vec<Time>,
    /// Nodes that die, and when.
    pub crashes: Vec<(u16, Time)>,
    /// How long to wait for what.
    pub timers: Timers,
}

impl Settings {
    /// A broadcast from node 0 over clean links of this rate that all nodes open at once.
    pub fn clean(shape: Shape, rate: u64, len: u64) -> Settings {
        let nodes: u16 = shape.iter().sum();
        Settings {
            seed: 1,
            source: 0,
            host: LinkSpec::clean(rate),
            uplink: LinkSpec::clean(rate),
            odd_links: Vec::new(),
            outages: Vec::new(),
            len,
            chunk_bytes: 1424,
            multicast: true,
            deaf: Vec::new(),
            rack_trees: true,
            deaf_in_rack: Vec::new(),
            ceiling: Some(rate),
            eager: 64 * 1024,
            opens: vec![Time::ZERO; usize::from(nodes)],
            crashes: Vec::new(),
            timers: Timers::default(),
            shape,
        }
    }
}

/// What a broadcast did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When each node had the message; `None` for a node that never had.
    pub delivered: Vec<Option<Time>>,
    /// What failed, by node.
    pub failures: Vec<(u16, StreamError)>,
    /// When the last machine that did not die was closed.
    pub ended: Time,
    /// What each node's machine counted; all zero for one that died before it opened.
    pub stats: Vec<Stats>,
    /// Bytes of Ethernet frames on each link, by the numbers of [`Network`].
    pub link_bytes: Vec<u64>,
    /// Bytes of chunks repaired inside a rack, with their headers.
    pub repaired_inside: u64,
    /// Bytes of chunks repaired from one rack to another, with their headers.
    pub repaired_across: u64,
    /// Packets sent, by all nodes.
    pub packets: u64,
    /// The most entries that the lists of a node's machine had.
    pub entries: usize,
}

impl Outcome {
    /// When the last receiver had the message.
    pub fn last_delivery(&self) -> Option<Time> {
        self.delivered.iter().flatten().max().copied()
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The settings make no stream.
    Spec(SpecError),
    /// A node was told that it has the message, and had other bytes.
    Bytes {
        /// The node.
        node: u16,
    },
    /// A node was told twice that it has the message, or to store or send what it had given up.
    Order {
        /// The node.
        node: u16,
        /// What it did.
        what: &'static str,
    },
    /// A packet did not survive its bytes.
    Packet,
    /// A machine asked to be polled again at once without end.
    Spin {
        /// The node.
        node: u16,
    },
    /// Nothing was going to happen any more, or it had taken far too long, and a machine was open.
    Stall {
        /// The node.
        node: u16,
        /// When that was found.
        at: Time,
    },
}

/// The longest that any broadcast may take.
const FOREVER: Time = Time::from_nanos(3_600_000_000_000);
/// Outputs of a machine for one input, beyond what its message could need.
const ENDLESS: u64 = 1_000_000;

#[derive(Debug)]
enum Role {
    Waiting,
    Source(Box<Sender>),
    Sink(Box<Receiver>),
    Dead,
}

#[derive(Debug)]
struct Node {
    role: Role,
    buffer: Vec<u8>,
    wakes: Option<Time>,
    told: bool,
    released: bool,
    closed: bool,
}

/// A broadcast that runs.
#[derive(Debug)]
pub struct Broadcast {
    settings: Settings,
    spec: StreamSpec,
    message: Vec<u8>,
    net: Network,
    nodes: Vec<Node>,
    outcome: Outcome,
}

impl Broadcast {
    /// Runs a broadcast to its end.
    ///
    /// # Errors
    /// If anything happened that must not.
    pub fn run(settings: Settings) -> Result<Outcome, Wrong> {
        let mut this = Broadcast::new(settings)?;
        while let Some(event) = this.net.next_event() {
            if this.net.now() > FOREVER {
                break;
            }
            this.change_links();
            match event {
                Event::Wake { node } => this.wake(node)?,
                Event::Packet { node, bytes } => this.receive(node, &bytes)?,
            }
        }
        this.finish()
    }

    fn new(settings: Settings) -> Result<Broadcast, Wrong> {
        let mut net = Network::new(settings.seed, &settings.shape, settings.host, settings.uplink);
        for (link, spec) in &settings.odd_links {
            *net.link_mut(*link) = *spec;
        }
        net.set_deaf(&settings.deaf, &settings.deaf_in_rack);
        let nodes = net.nodes();
        let racks = settings.shape.len() as u16;
        let home = net.rack_of(settings.source);
        let mut order: Vec<u16> = (0..nodes).collect();
        order.sort_by_key(|n| (*n != settings.source, (net.rack_of(*n) + racks - home) % racks, *n));
        let hops = order.iter().map(|n| Hop { node: *n, rack: net.rack_of(*n) }).collect();
        let spec = StreamSpec {
            id: StreamId { group: 1, epoch: 1, call: settings.seed, transfer: 0, source: settings.source },
            len: settings.len,
            digest: settings.seed ^ settings.len,
            chunk_bytes: settings.chunk_bytes,
            chain: Chain::new(hops).map_err(Wrong::Spec)?,
            multicast: settings.multicast,
            rack_tree: settings.rack_trees,
            rate: RateSpec { ceiling: settings.ceiling },
            eager: settings.eager,
            timers: settings.timers,
        };
        for (node, at) in (0..nodes).zip(&settings.opens) {
            net.wake(node, *at);
        }
        for (node, at) in &settings.crashes {
            net.wake(*node, *at);
        }
        let node = || Node {
            role: Role::Waiting,
            buffer: Vec::new(),
            wakes: None,
            told: false,
            released: false,
            closed: false,
        };
        let count = usize::from(nodes);
        Ok(Broadcast {
            message: bytes_of(settings.seed, settings.len),
            spec,
            nodes: (0..nodes).map(|_| node()).collect(),
            outcome: Outcome {
                delivered: vec![None; count],
                failures: Vec::new(),
                ended: Time::ZERO,
                stats: vec![Stats::default(); count],
                link_bytes: Vec::new(),
                repaired_inside: 0,
                repaired_across: 0,
                packets: 0,
                entries: 0,
            },
            net,
            settings,
        })
    }

    fn change_links(&mut self) {
        let now = self.net.now();
        for (link, from, until) in &self.settings.outages {
            self.net.set_up(*link, now < *from || now >= *until);
        }
    }

    fn wake(&mut self, node: u16) -> Result<(), Wrong> {
        let now = self.net.now();
        let index = usize::from(node);
        if self.settings.crashes.iter().any(|(dead, at)| *dead == node && *at <= now) {
            self.nodes[index].role = Role::Dead;
            return Ok(());
        }
        if matches!(self.nodes[index].role, Role::Waiting) && self.settings.opens[index] <= now {
            self.open(node)?;
        }
        self.drain(node)
    }

    fn open(&mut self, node: u16) -> Result<(), Wrong> {
        let now = self.net.now();
        let this = &mut self.nodes[usize::from(node)];
        if node == self.settings.source {
            let sender = Sender::new(now, self.spec.clone()).map_err(Wrong::Spec)?;
            this.role = Role::Source(Box::new(sender));
            self.outcome.delivered[usize::from(node)] = Some(now);
        } else {
            let me = self.spec.chain.position(node).unwrap_or(0);
            let receiver = Receiver::new(now, self.spec.clone(), me).map_err(Wrong::Spec)?;
            this.role = Role::Sink(Box::new(receiver));
            this.buffer = vec![0; self.message.len()];
        }
        Ok(())
    }

    fn receive(&mut self, node: u16, bytes: &[u8]) -> Result<(), Wrong> {
        let (packet, payload) = Packet::decode(bytes).map_err(|_| Wrong::Packet)?;
        let now = self.net.now();
        let input = Input::Packet { packet: &packet, payload: payload.len() };
        let this = &mut self.nodes[usize::from(node)];
        match &mut this.role {
            Role::Source(machine) if !this.closed => machine.handle(now, input),
            Role::Source(_) => {
                if let Some(answer) = Sender::farewell(&packet) {
                    self.transmit(node, To::Node(packet.from), &answer, 0..0);
                }
                return Ok(());
            }
            Role::Sink(machine) if !this.closed => machine.handle(now, input),
            _ => return Ok(()),
        }
        self.drain_with(node, payload)
    }

    fn drain(&mut self, node: u16) -> Result<(), Wrong> {
        self.drain_with(node, &[])
    }

    fn drain_with(&mut self, node: u16, payload: &[u8]) -> Result<(), Wrong> {
        let now = self.net.now();
        let index = usize::from(node);
        for _ in 0..ENDLESS {
            let this = &mut self.nodes[index];
            if this.closed {
                return Ok(());
            }
            let (entries, poll) = match &mut this.role {
                Role::Source(machine) => (machine.entries(), machine.poll(now)),
                Role::Sink(machine) => (machine.entries(), machine.poll(now)),
                Role::Waiting | Role::Dead => return Ok(()),
            };
            self.outcome.entries = self.outcome.entries.max(entries);
            match poll {
                Poll::Output(output) => self.obey(node, output, payload)?,
                Poll::Idle(None) => return Ok(()),
                Poll::Idle(Some(at)) if at <= now => return Err(Wrong::Spin { node }),
                Poll::Idle(Some(at)) => {
                    // A wake that comes too early is answered with the right time.
                    if this.wakes.is_none_or(|wakes| wakes <= now || at < wakes) {
                        this.wakes = earliest(Some(at), None);
                        self.net.wake(node, at);
                    }
                    return Ok(());
                }
            }
        }
        Err(Wrong::Spin { node })
    }

    fn obey(&mut self, node: u16, output: Output, payload: &[u8]) -> Result<(), Wrong> {
        let now = self.net.now();
        let index = usize::from(node);
        let this = &mut self.nodes[index];
        let wrong = |what| Err(Wrong::Order { node, what });
        match output {
            Output::Transmit { to, packet, payload } => {
                if !payload.is_empty() && this.released {
                    return wrong("sent what it had released");
                }
                self.transmit(node, to, &packet, payload.start as usize..payload.end as usize);
            }
            Output::Store(range) => {
                if this.told || range.end - range.start != payload.len() as u64 {
                    return wrong("stored what it did not get");
                }
                this.buffer[range.start as usize..range.end as usize].copy_from_slice(payload);
            }
            Output::Delivered => {
                if this.told {
                    return wrong("delivered twice");
                }
                this.told = true;
                if this.buffer != self.message {
                    return Err(Wrong::Bytes { node });
                }
                self.outcome.delivered[index] = Some(now);
            }
            Output::Released => this.released = true,
            Output::Closed => {
                this.closed = true;
                self.outcome.ended = now;
            }
            Output::Failed(error) => self.outcome.failures.push((node, error)),
            Output::Mismatch { .. } => return wrong("found a mismatch"),
        }
        Ok(())
    }

    fn transmit(&mut self, node: u16, to: To, packet: &Packet, payload: core::ops::Range<usize>) {
        let mut bytes = Vec::with_capacity(128 + payload.len());
        packet.encode(&mut bytes);
        let source = node == self.settings.source;
        let from = if source { &self.message } else { &self.nodes[usize::from(node)].buffer };
        bytes.extend_from_slice(&from[payload]);
        self.outcome.packets += 1;
        let to = match to {
            To::Tree => Destination::Tree,
            To::Rack => {
                self.outcome.repaired_inside += (bytes.len() + FRAMING) as u64;
                Destination::Rack
            }
            To::Node(other) => {
                if matches!(packet.body, Body::Data { .. }) {
                    let inside = self.net.rack_of(node) == self.net.rack_of(other);
                    let outcome = &mut self.outcome;
                    let sum =
                        if inside { &mut outcome.repaired_inside } else { &mut outcome.repaired_across };
                    *sum += (bytes.len() + FRAMING) as u64;
                }
                Destination::Node(other)
            }
        };
        self.net.send(node, to, bytes.into());
    }

    fn finish(mut self) -> Result<Outcome, Wrong> {
        let at = self.net.now();
        for (node, this) in (0u16..).zip(&self.nodes) {
            let stats = match &this.role {
                Role::Dead => continue,
                Role::Source(machine) => machine.stats(),
                Role::Sink(machine) => machine.stats(),
                Role::Waiting => return Err(Wrong::Stall { node, at }),
            };
            if !this.closed {
                return Err(Wrong::Stall { node, at });
            }
            self.outcome.stats[usize::from(node)] = stats;
        }
        self.outcome.link_bytes = self.net.link_bytes();
        Ok(self.outcome)
    }
}

/// A message that differs from one seed, and from one place, to the next.
fn bytes_of(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at.wrapping_add(seed)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The time that `len` bytes in chunks take on a link of this rate: what no broadcast can be faster than.
pub fn ideal(len: u64, chunk_bytes: u32, rate: u64) -> Duration {
    let chunks = len.div_ceil(u64::from(chunk_bytes)).max(1);
    let frames = len + chunks * (cool_transport::packet::DATA_HEADER + FRAMING) as u64;
    Duration::from_nanos(frames * 1_000_000_000 / rate)
}
