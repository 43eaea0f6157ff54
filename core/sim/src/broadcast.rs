//! One reliable multicast over a model network, with real bytes.

use crate::broadcast_error::BroadcastError;
use crate::flow::BulkFlow;
use crate::network::{Event, LinkSpec, PacketNetwork, Shape};
use crate::stream::{Stream, Trees};
use cool_machine::{Duration, Time};
use cool_transport::packet::FRAMING;
use cool_transport::{
    Chain, Hop, Packet, RateSpec, StreamError, StreamId, StreamSpec, StreamStats, StreamTimers,
};

/// The settings of a broadcast to run.
#[derive(Clone, Debug)]
pub struct BroadcastSettings {
    /// Seed of the network's random choices and of the message's bytes.
    pub seed: u64,
    /// Number of nodes in each rack.
    pub shape: Shape,
    /// The node that broadcasts.
    pub source: u16,
    /// The nodes that take part, including the source.
    pub nodes: Vec<u16>,
    /// Other traffic on the network.
    pub rivals: Vec<CrossTraffic>,
    /// The links of the nodes.
    pub host: LinkSpec,
    /// The links of the racks.
    pub uplink: LinkSpec,
    /// Links that differ from the others, by number.
    pub odd_links: Vec<(usize, LinkSpec)>,
    /// Outages of links: number, start and end.
    pub outages: Vec<(usize, Time, Time)>,
    /// Length of the message in bytes.
    pub len: u64,
    /// Size of a chunk in bytes.
    pub chunk_bytes: u32,
    /// Whether there is a tree over all nodes.
    pub multicast: bool,
    /// Nodes that do not receive the tree although there is one.
    pub deaf: Vec<u16>,
    /// Nodes that the switches have forgotten as members of the tree. They receive the tree once
    /// they have renewed their membership.
    pub forgotten: Vec<u16>,
    /// Whether each rack has a tree of its own.
    pub rack_trees: bool,
    /// Nodes that do not receive their rack's tree although there is one.
    pub deaf_in_rack: Vec<u16>,
    /// The ceiling of the source's rate in bytes per second, if it is known ([`RateSpec`]).
    pub ceiling: Option<u64>,
    /// Whether the path is known to carry this rate.
    pub verified: bool,
    /// Maximum length in bytes for which the source does not wait for receivers.
    pub eager: u64,
    /// When each node opens the stream.
    pub opens: Vec<Time>,
    /// Nodes that crash, and when.
    pub crashes: Vec<(u16, Time)>,
    /// The timeouts of the stream.
    pub timers: StreamTimers,
}

impl BroadcastSettings {
    /// Returns the settings of a broadcast from node 0, over lossless links of this rate, that all
    /// nodes open at once.
    pub fn clean(shape: Shape, rate: u64, len: u64) -> BroadcastSettings {
        let nodes: u16 = shape.iter().sum();
        BroadcastSettings {
            seed: 1,
            source: 0,
            nodes: (0..nodes).collect(),
            rivals: Vec::new(),
            host: LinkSpec::clean(rate),
            uplink: LinkSpec::clean(rate),
            odd_links: Vec::new(),
            outages: Vec::new(),
            len,
            chunk_bytes: 1424,
            multicast: true,
            deaf: Vec::new(),
            forgotten: Vec::new(),
            rack_trees: true,
            deaf_in_rack: Vec::new(),
            ceiling: Some(rate),
            verified: true,
            eager: 64 * 1024,
            opens: vec![Time::ZERO; usize::from(nodes)],
            crashes: Vec::new(),
            timers: StreamTimers::default(),
            shape,
        }
    }
}

/// Other traffic on the network: a rival of the broadcast.
#[derive(Clone, Debug)]
pub enum CrossTraffic {
    /// Another broadcast with the same settings.
    Broadcast {
        /// The node that broadcasts.
        source: u16,
        /// The nodes that take part.
        nodes: Vec<u16>,
    },
    /// A bulk flow that backs off as TCP does, until the broadcasts have ended.
    Flow {
        /// The node that sends.
        from: u16,
        /// The node that receives.
        to: u16,
    },
}

/// The result of a broadcast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BroadcastOutcome {
    /// When each node received the message, or `None` if it never did.
    pub delivered: Vec<Option<Time>>,
    /// The failures, by node.
    pub failures: Vec<(u16, StreamError)>,
    /// When the last machine that did not crash was closed.
    pub ended: Time,
    /// The counters of each node's machine. All are zero for a node that crashed before it opened
    /// the stream.
    pub stats: Vec<StreamStats>,
    /// Bytes of Ethernet frames on each link, by the link numbers of [`PacketNetwork`].
    pub link_bytes: Vec<u64>,
    /// Bytes of chunks retransmitted within a rack, including headers.
    pub repaired_inside: u64,
    /// Bytes of chunks retransmitted from one rack to another, including headers.
    pub repaired_across: u64,
    /// Number of packets that all nodes sent.
    pub packets: u64,
    /// The largest number of entries in the lists of a node's machine.
    pub entries: usize,
    /// For each rival, the bytes of Ethernet frames that it multicast, or that were acknowledged to
    /// it, until the last receiver of this broadcast had the message.
    pub rivals: Vec<u64>,
}

impl BroadcastOutcome {
    /// Returns when the last receiver had the message.
    pub fn last_delivery(&self) -> Option<Time> {
        self.delivered.iter().flatten().max().copied()
    }
}

/// The time limit of a broadcast.
const FOREVER: Time = Time::from_nanos(3_600_000_000_000);
/// A running broadcast and its rivals.
#[derive(Debug)]
pub struct Broadcast {
    settings: BroadcastSettings,
    net: PacketNetwork,
    /// The observed broadcast, followed by its rivals.
    streams: Vec<Stream>,
    flows: Vec<BulkFlow>,
    rivals: Vec<u64>,
}

impl Broadcast {
    /// Runs a broadcast to its end. Returns its result.
    ///
    /// # Errors
    /// Fails if the stream's contract was violated.
    pub fn run(settings: BroadcastSettings) -> Result<BroadcastOutcome, BroadcastError> {
        let mut this = Broadcast::new(settings)?;
        while let Some(event) = this.net.next_event() {
            if this.net.now() > FOREVER || this.streams.iter().all(Stream::is_over) {
                break;
            }
            this.change_links();
            match event {
                Event::Wake { whom } => this.wake(whom)?,
                Event::Packet { node, bytes, .. } => this.receive(node, &bytes)?,
                // Broadcasts have no connections.
                Event::Segment { .. } | Event::SegmentLost { .. } => {}
            }
        }
        this.finish()
    }

    fn new(settings: BroadcastSettings) -> Result<Broadcast, BroadcastError> {
        let mut net = PacketNetwork::new(settings.seed, &settings.shape, settings.host, settings.uplink);
        for (link, spec) in &settings.odd_links {
            *net.link_mut(*link) = *spec;
        }
        let mut this =
            Broadcast { net, streams: Vec::new(), flows: Vec::new(), rivals: Vec::new(), settings };
        let (source, nodes) = (this.settings.source, this.settings.nodes.clone());
        this.add_stream(source, &nodes)?;
        for rival in this.settings.rivals.clone() {
            match rival {
                CrossTraffic::Broadcast { source, nodes } => this.add_stream(source, &nodes)?,
                CrossTraffic::Flow { .. } => {}
            }
        }
        let count = this.net.nodes();
        for whom in (0u32..).take(this.streams.len() * usize::from(count)) {
            this.net.wake(whom, this.settings.opens[whom as usize % usize::from(count)]);
        }
        for (node, at) in &this.settings.crashes {
            this.net.wake(u32::from(*node), *at);
        }
        for rival in &this.settings.rivals {
            if let CrossTraffic::Flow { from, to } = rival {
                let (whom, number) = (this.streams.len() as u32 * u32::from(count), this.flows.len() as u8);
                this.flows.push(BulkFlow::new(number, *from, *to, whom + u32::from(number)));
                this.net.wake(whom + u32::from(number), Time::ZERO);
            }
        }
        Ok(this)
    }

    fn add_stream(&mut self, source: u16, nodes: &[u16]) -> Result<(), BroadcastError> {
        let BroadcastSettings {
            seed,
            len,
            chunk_bytes,
            multicast,
            rack_trees,
            ceiling,
            verified,
            eager,
            timers,
            ..
        } = self.settings;
        let BroadcastSettings { deaf, forgotten, deaf_in_rack, .. } = &self.settings;
        let racks = self.settings.shape.len() as u16;
        let home = self.net.rack_of(source);
        let mut order = nodes.to_vec();
        order.sort_by_key(|n| (*n != source, (self.net.rack_of(*n) + racks - home) % racks, *n));
        let hops = order.iter().map(|n| Hop { node: *n, rack: self.net.rack_of(*n) }).collect();
        let spec = StreamSpec {
            on_hold: false,
            in_parts: false,
            id: StreamId { group: 1, epoch: 1, call: self.streams.len() as u64, transfer: 0, source },
            len,
            digest: seed ^ len,
            chunk_bytes,
            further_bytes: 0,
            chain: Chain::new(hops).map_err(BroadcastError::Spec)?,
            multicast,
            rack_tree: rack_trees,
            rate: RateSpec { ceiling, verified, found: None, background: false },
            eager,
            timers,
        };
        let hear =
            |deaf: &[u16]| nodes.iter().copied().filter(|node| !deaf.contains(node)).collect::<Vec<_>>();
        let in_rack = hear(deaf_in_rack);
        let all = self.net.add_tree(hear(&[&deaf[..], forgotten].concat()));
        let racks = (0..racks).map(|rack| {
            let nodes =
                in_rack.iter().copied().filter(|node| self.net.rack_of(*node) == rack).collect::<Vec<_>>();
            self.net.add_tree(nodes)
        });
        let trees = Trees { all, racks: racks.collect(), forgotten: forgotten.iter().copied().collect() };
        let first = self.streams.len() as u32 * u32::from(self.net.nodes());
        self.streams.push(Stream::new(spec, trees, first, seed, self.net.nodes()));
        Ok(())
    }

    fn change_links(&mut self) {
        let now = self.net.now();
        for (link, from, until) in &self.settings.outages {
            self.net.set_up(*link, now < *from || now >= *until);
        }
    }

    fn wake(&mut self, whom: u32) -> Result<(), BroadcastError> {
        let count = u32::from(self.net.nodes());
        let (number, node) = ((whom / count) as usize, (whom % count) as u16);
        let Some(stream) = self.streams.get_mut(number) else {
            self.flows[whom as usize - self.streams.len() * count as usize].wake(&mut self.net);
            return Ok(());
        };
        let now = self.net.now();
        if self.settings.crashes.iter().any(|(dead, at)| *dead == node && *at <= now) {
            self.streams.iter_mut().for_each(|stream| stream.kill(node));
            return Ok(());
        }
        if self.settings.opens[usize::from(node)] <= now {
            stream.open(&mut self.net, node)?;
        }
        stream.drain(&mut self.net, node, &[])
    }

    fn receive(&mut self, node: u16, bytes: &[u8]) -> Result<(), BroadcastError> {
        if let Some(flow) = BulkFlow::number_of(bytes) {
            self.flows[usize::from(flow)].receive(&mut self.net, node, bytes);
            return Ok(());
        }
        let (packet, payload) = Packet::decode(bytes).map_err(|_| BroadcastError::Packet)?;
        let stream = self.streams.get_mut(packet.id.call as usize).ok_or(BroadcastError::Packet)?;
        stream.receive(&mut self.net, node, &packet, payload)?;
        if self.rivals.len() < self.settings.rivals.len() && self.streams[0].is_delivered() {
            self.rivals = self.rival_bytes();
        }
        Ok(())
    }

    /// Returns the bytes that each rival has transferred so far.
    fn rival_bytes(&self) -> Vec<u64> {
        let (mut streams, mut flows) = (self.streams[1..].iter(), self.flows.iter());
        let brought = |rival: &CrossTraffic| match rival {
            CrossTraffic::Broadcast { .. } => streams.next().map_or(0, Stream::multicast),
            CrossTraffic::Flow { .. } => flows.next().map_or(0, BulkFlow::bytes),
        };
        self.settings.rivals.iter().map(brought).collect()
    }

    fn finish(self) -> Result<BroadcastOutcome, BroadcastError> {
        let at = self.net.now();
        let mut stats = Vec::new();
        for stream in &self.streams {
            stats.push(stream.stats(at)?);
        }
        let results = self.streams[0].results().clone();
        Ok(BroadcastOutcome {
            delivered: results.delivered,
            failures: results.failures,
            ended: results.ended,
            stats: stats.swap_remove(0),
            link_bytes: self.net.link_bytes(),
            repaired_inside: results.repaired_inside,
            repaired_across: results.repaired_across,
            packets: results.packets,
            entries: results.entries,
            rivals: self.rivals,
        })
    }
}

/// Returns the time that `len` bytes in chunks take on a link of this rate. No broadcast can be
/// faster.
pub fn ideal(len: u64, chunk_bytes: u32, rate: u64) -> Duration {
    let chunks = len.div_ceil(u64::from(chunk_bytes)).max(1);
    let frames = len + chunks * (cool_transport::packet::DATA_HEADER + FRAMING) as u64;
    Duration::from_nanos(frames * 1_000_000_000 / rate)
}
