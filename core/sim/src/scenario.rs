//! Broadcasts drawn from a seed, with all kinds of shapes, sizes, faults and delays.

use crate::broadcast::{BroadcastSettings, CrossTraffic, ideal};
use crate::network::{LinkSpec, PacketNetwork};
use cool_machine::{Duration, Time};
use cool_transport::StreamTimers;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The single kind of fault in a broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPattern {
    /// Each receiver loses packets separately.
    Random,
    /// Each receiver loses several packets in a row.
    Bursty,
    /// A whole rack loses packets.
    WholeRack,
    /// One link loses packets in one direction.
    OneLink,
    /// The last part of the message is lost by all receivers, by a rack or on one link.
    Tail,
    /// Nodes open the stream late.
    Late,
    /// Packets are duplicated and reordered.
    Disorder,
    /// Up to three nodes crash.
    Deaths,
}

impl FaultPattern {
    /// All kinds of faults.
    pub const ALL: [FaultPattern; 8] = [
        FaultPattern::Random,
        FaultPattern::Bursty,
        FaultPattern::WholeRack,
        FaultPattern::OneLink,
        FaultPattern::Tail,
        FaultPattern::Late,
        FaultPattern::Disorder,
        FaultPattern::Deaths,
    ];
}

/// Draws broadcasts from a seed.
#[derive(Debug)]
pub struct Scenario {
    rng: ChaCha8Rng,
    seed: u64,
}

impl Scenario {
    /// Returns the broadcast of a seed.
    pub fn of(seed: u64) -> BroadcastSettings {
        Scenario { rng: ChaCha8Rng::seed_from_u64(seed), seed }.make()
    }

    fn make(mut self) -> BroadcastSettings {
        let racks = self.rng.random_range(1..=4);
        let shape: Vec<u16> = (0..racks).map(|_| self.rng.random_range(1..=5)).collect();
        let nodes: u16 = shape.iter().sum();
        let rate = [1_000_000, 2_500_000, 12_500_000, 125_000_000][self.rng.random_range(0..4)];
        let len = match self.rng.random_range(0..10) {
            0 => 0,
            1..=4 => self.rng.random_range(1..5_000),
            5..=8 => self.rng.random_range(1..80_000),
            _ => self.rng.random_range(1..400_000),
        };
        let mut settings = BroadcastSettings::clean(shape, rate, len);
        settings.seed = self.seed;
        settings.source = self.rng.random_range(0..nodes);
        settings.chunk_bytes = [256, 1424, 1424, 8924][self.rng.random_range(0..4)];
        settings.multicast = self.rng.random_bool(0.85);
        settings.ceiling = self.rng.random_bool(0.5).then_some(rate);
        settings.eager = [0, 8 * 1024, 1 << 30][self.rng.random_range(0..3)];
        settings.timers = StreamTimers {
            start: Duration::from_secs(20),
            ready: Duration::from_secs(5),
            stall: Duration::from_secs(10),
            // Taken from the seed without a draw, so that recorded seeds keep their meaning.
            ack_delay: Duration::from_millis(self.seed % 2 * 5),
            ..StreamTimers::default()
        };
        // The same holds for these settings.
        settings.rack_trees = !(self.seed / 2).is_multiple_of(4);
        if (self.seed / 8).is_multiple_of(8) {
            settings.deaf_in_rack = (0..nodes).filter(|node| self.seed >> (6 + node % 8) & 1 == 1).collect();
        }
        if self.seed / 64 % 8 == 5 {
            settings.forgotten = (0..nodes).filter(|node| self.seed >> (9 + node % 8) & 1 == 1).collect();
        }
        self.faults(&mut settings);
        self.manners(&mut settings);
        self.opens(&mut settings);
        if nodes > 1 && self.rng.random_bool(0.1) {
            let node = self.rng.random_range(0..nodes);
            settings.crashes.push((node, self.instant(60)));
        }
        settings
    }

    /// Returns the broadcast of a seed with a single kind of fault.
    pub fn of_pattern(pattern: FaultPattern, seed: u64) -> BroadcastSettings {
        Scenario { rng: ChaCha8Rng::seed_from_u64(seed), seed }.make_pattern(pattern)
    }

    fn make_pattern(mut self, pattern: FaultPattern) -> BroadcastSettings {
        let racks = self.rng.random_range(1..=4);
        let mut shape: Vec<u16> = (0..racks).map(|_| self.rng.random_range(1..=5)).collect();
        shape[0] += 1;
        let nodes: u16 = shape.iter().sum();
        let rate = [2_500_000, 12_500_000][self.rng.random_range(0..2)];
        let mut settings = BroadcastSettings::clean(shape, rate, self.rng.random_range(1..40_000));
        settings.seed = self.seed;
        settings.source = self.rng.random_range(0..nodes);
        settings.chunk_bytes = [256, 1424][self.rng.random_range(0..2)];
        settings.eager = [0, 1 << 30][self.rng.random_range(0..2)];
        settings.rack_trees = self.rng.random_bool(0.8);
        settings.timers.stall = Duration::from_secs(10);
        self.one_fault(pattern, &mut settings);
        settings
    }

    fn one_fault(&mut self, pattern: FaultPattern, settings: &mut BroadcastSettings) {
        let probe = PacketNetwork::new(0, &settings.shape, settings.host, settings.uplink);
        let ports: Vec<usize> = (0..probe.nodes()).map(|node| probe.to_node(node)).collect();
        let rack = probe.to_rack(self.rng.random_range(0..settings.shape.len() as u16));
        let any = self.rng.random_range(0..ports.len() * 2 + settings.shape.len() * 2);
        let mut lossy = LinkSpec { loss: self.rng.random_range(0.0..0.3), ..settings.host };
        let whole = ideal(settings.len, settings.chunk_bytes, settings.host.rate);
        let part = |share: f64| Time::ZERO + whole.mul_f64(share);
        let links = match pattern {
            FaultPattern::Random => ports,
            FaultPattern::Bursty => {
                lossy.burst = self.rng.random_range(2.0..10.0);
                ports
            }
            FaultPattern::WholeRack => vec![rack],
            FaultPattern::OneLink => vec![any],
            FaultPattern::Disorder => {
                let (duplicate, reorder) = (self.rng.random_range(0.0..0.3), self.rng.random_range(0.0..0.5));
                let hold = Duration::from_micros(self.rng.random_range(1..5_000));
                lossy = LinkSpec { loss: 0.0, duplicate, reorder, hold, ..lossy };
                (settings.host, settings.uplink) = (lossy, lossy);
                Vec::new()
            }
            FaultPattern::Tail => {
                settings.eager = 1 << 30;
                let cut = match self.rng.random_range(0..3) {
                    0 => ports,
                    1 => vec![rack],
                    _ => vec![any],
                };
                let (from, until) =
                    (part(self.rng.random_range(0.3..1.0)), part(1.0) + Duration::from_millis(5));
                settings.outages = cut.into_iter().map(|link| (link, from, until)).collect();
                Vec::new()
            }
            FaultPattern::Late => {
                settings.eager = 1 << 30;
                for open in &mut settings.opens {
                    if self.rng.random_bool(0.3) {
                        *open = part(self.rng.random_range(0.0..3.0));
                    }
                }
                Vec::new()
            }
            FaultPattern::Deaths => {
                lossy.loss /= 4.0;
                for _ in 0..self.rng.random_range(1..=3) {
                    let node = self.rng.random_range(0..ports.len() as u16);
                    settings.crashes.push((node, part(self.rng.random_range(0.0..2.0))));
                }
                ports
            }
        };
        settings.odd_links.extend(links.into_iter().map(|link| (link, lossy)));
    }

    fn faults(&mut self, settings: &mut BroadcastSettings) {
        let p = if self.rng.random_bool(0.2) { 0.0 } else { self.rng.random_range(0.0..0.3) };
        let faulty = LinkSpec {
            loss: p,
            duplicate: self.chance(0.1),
            reorder: self.chance(0.3),
            hold: Duration::from_micros(self.rng.random_range(1..3_000)),
            delay: Duration::from_micros(self.rng.random_range(1..500)),
            queue: [32, 128, 512][self.rng.random_range(0..3)] * 1024,
            ..settings.host
        };
        let mild = LinkSpec { loss: p / 4.0, ..faulty };
        let probe = PacketNetwork::new(0, &settings.shape, settings.host, settings.uplink);
        let nodes = probe.nodes();
        let link = self.rng.random_range(0..2 * (nodes + settings.shape.len() as u16));
        match self.rng.random_range(0..4) {
            // Each receiver loses packets separately, as with a drop rule at its port.
            0 => {
                (settings.host, settings.uplink) =
                    (LinkSpec { loss: 0.0, ..faulty }, LinkSpec { loss: 0.0, ..faulty });
                settings.odd_links = (0..nodes).map(|node| (probe.to_node(node), faulty)).collect();
            }
            1 => (settings.host, settings.uplink) = (mild, mild),
            2 => settings.odd_links = vec![(usize::from(link), faulty)],
            _ => (settings.host, settings.uplink) = (mild, faulty),
        }
        if self.rng.random_bool(0.1) {
            settings.deaf = (0..nodes).filter(|_| self.rng.random_bool(0.3)).collect();
        }
        if self.rng.random_bool(0.1) {
            let from = self.instant(50);
            let until = from + Duration::from_millis(self.rng.random_range(1..400));
            settings.outages.push((usize::from(link), from, until));
        }
    }

    /// Draws the bursts of links, and whether another flow shares them. Uses a separate generator,
    /// so that recorded seeds keep their other settings.
    fn manners(&mut self, settings: &mut BroadcastSettings) {
        let mut rng = ChaCha8Rng::seed_from_u64(!self.seed);
        let bucket = [0, 0, 16 * 1024][rng.random_range(0..3)];
        let burst = [1.0, 1.0, rng.random_range(2.0..4.0)][rng.random_range(0..3)];
        let odd = settings.odd_links.iter_mut().map(|(_, link)| link);
        for link in odd.chain([&mut settings.host, &mut settings.uplink]) {
            (link.bucket, link.burst) = (bucket, burst);
        }
        let nodes = settings.nodes.len() as u16;
        if nodes > 1 && rng.random_bool(0.05) {
            let from = rng.random_range(0..nodes);
            let rival = CrossTraffic::Flow { from, to: (from + rng.random_range(1..nodes)) % nodes };
            // A short queue that a flow keeps full has no room for packets six times as long as
            // those of the flow.
            settings.rivals.extend((settings.chunk_bytes < 2048).then_some(rival));
        }
    }

    fn opens(&mut self, settings: &mut BroadcastSettings) {
        let spread = [0, 1, 20, 300][self.rng.random_range(0..4)];
        for open in &mut settings.opens {
            *open = self.instant(spread);
        }
    }

    fn instant(&mut self, within_ms: u64) -> Time {
        Time::from_nanos(self.rng.random_range(0..=within_ms * 1_000_000))
    }

    /// Returns 0 in most cases, otherwise up to `most`.
    fn chance(&mut self, most: f64) -> f64 {
        if self.rng.random_bool(0.6) { 0.0 } else { self.rng.random_range(0.0..most) }
    }
}
