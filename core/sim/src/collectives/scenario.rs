//! Collectives made up from a seed: networks, groups, calls and messages of all kinds, and what goes wrong meanwhile.

use super::cluster::ClusterSettings;
use super::quick_scenario::QuickScenario;
use crate::network::{LinkSpec, Network};
use cool_collective::Plan;
use cool_machine::Duration;
use cool_types::Operation;
use cool_types::limits::{BOUNCE_BYTES, COPIED_BYTES, EAGER_BYTES};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes of an element of all calls.
pub(super) const ELEMENT: u64 = 4;

/// The latest that ranks come where one does not come at all.
const LATE: Duration = Duration::from_millis(300);

/// One call of a group, as all its ranks make it.
#[derive(Clone, Debug)]
pub struct CallScenario {
    /// What is called.
    pub operation: Operation,
    /// Its root.
    pub root: u32,
    /// Elements, as of a call's request.
    pub count: u64,
    /// Elements of parts of unequal lengths, in place of `count`.
    pub counts: Option<Vec<u64>>,
    /// The plan that is forced; empty if the planner is to pick one.
    pub plan: String,
    /// How long each rank waits before it calls.
    pub after: Vec<Duration>,
    /// Ranks wait for it, and make no other call meanwhile.
    pub waits: bool,
}

/// A message from rank to rank.
#[derive(Clone, Debug)]
pub struct MessageScenario {
    /// Who sends.
    pub from: u32,
    /// Who receives.
    pub to: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length.
    pub bytes: u64,
    /// When it is sent, and when it is received.
    pub at: [Duration; 2],
}

/// A group and what its ranks do.
#[derive(Clone, Debug)]
pub struct GroupScenario {
    /// The node of each rank.
    pub places: Vec<u16>,
    /// Trees over all its nodes.
    pub stripes: usize,
    /// Nodes that do not hear the trees.
    pub deaf: Vec<u16>,
    /// Payload bytes of a multicast packet.
    pub chunk_bytes: u32,
    /// Calls that a rank has open at a time.
    pub open: usize,
    /// Calls, in order.
    pub calls: Vec<CallScenario>,
    /// Messages; of a pair of ranks and a tag in order of time.
    pub messages: Vec<MessageScenario>,
    /// How its ranks carry out quick calls, if they do.
    pub quick: Option<QuickScenario>,
}

/// The one thing that goes wrong beside packets.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Agents of nodes end.
    Crash {
        /// The nodes.
        nodes: Vec<u16>,
        /// When.
        at: Duration,
        /// How long later they start again, if they do.
        restart: Option<Duration>,
    },
    /// Nodes lose their power.
    PowerOff {
        /// The nodes.
        nodes: Vec<u16>,
        /// When.
        at: Duration,
        /// How long later they start again, if they do.
        restart: Option<Duration>,
    },
    /// A rank's process ends.
    Leave {
        /// Its group, by its place among the groups.
        group: usize,
        /// The rank.
        rank: u32,
        /// When.
        at: Duration,
    },
    /// A rank does not come to a call, though its process is there.
    Absent {
        /// Its group.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
    },
    /// A rank calls something else than the others.
    Mismatch {
        /// Its group.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
    },
    /// All ranks make a call that makes no sense.
    Senseless {
        /// Their group.
        group: usize,
        /// The call.
        call: usize,
    },
    /// A rank revokes its group.
    Revoke {
        /// Its group.
        group: usize,
        /// The rank.
        rank: u32,
        /// When.
        at: Duration,
    },
}

impl Fault {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Crash { restart: None, .. } => "crash",
            Fault::Crash { .. } => "crash and restart",
            Fault::PowerOff { restart: None, .. } => "power off",
            Fault::PowerOff { .. } => "power off and restart",
            Fault::Leave { .. } => "rank leaves",
            Fault::Absent { .. } => "rank does not come",
            Fault::Mismatch { .. } => "ranks disagree",
            Fault::Senseless { .. } => "senseless call",
            Fault::Revoke { .. } => "revoke",
        }
    }
}

/// Collectives of several groups on a cluster, all of which follows from a seed.
#[derive(Clone, Debug)]
pub struct CollectiveScenario {
    /// The cluster.
    pub cluster: ClusterSettings,
    /// Links that behave otherwise than most: number and behaviour.
    pub odd_links: Vec<(usize, LinkSpec)>,
    /// Links that are cut for a while, too short for a node to be taken for gone: number, from when, for how long.
    pub outages: Vec<(usize, Duration, Duration)>,
    /// The groups.
    pub groups: Vec<GroupScenario>,
    /// How long nothing may move in a call.
    pub timeout: Duration,
    /// What goes wrong.
    pub fault: Fault,
}

impl CollectiveScenario {
    /// The scenario of a seed.
    pub fn of(seed: u64) -> CollectiveScenario {
        let mut draw = Draw::new(seed);
        let mut scenario = draw.quiet(seed);
        draw.links(&mut scenario);
        let groups = draw.pick(&[(60, 1), (30, 2), (10, 3)]);
        let nodes: u16 = scenario.cluster.shape.iter().sum();
        scenario.groups = (0..groups).map(|_| draw.group(nodes)).collect();
        draw.fault(&mut scenario, nodes);
        scenario
    }

    /// The most payload bytes of all its calls and messages together, as a bound for times.
    pub fn bytes(&self) -> u64 {
        let of_call = |call: &CallScenario, size: u64| {
            let counted = call.counts.as_ref().map_or(call.count * size * size, |counts| counts.iter().sum());
            counted * ELEMENT
        };
        let of_group = |group: &GroupScenario| {
            let size = group.places.len() as u64;
            let calls: u64 = group.calls.iter().map(|call| of_call(call, size)).sum();
            calls + group.messages.iter().map(|message| message.bytes).sum::<u64>()
        };
        self.groups.iter().map(of_group).sum()
    }
}

pub(super) struct Draw {
    rng: ChaCha8Rng,
}

impl Draw {
    pub(super) fn new(seed: u64) -> Draw {
        Draw { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.rng.random_bool(share)
    }

    /// One of these, by their weights.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let mut at = self.rng.random_range(0..choices.iter().map(|(weight, _)| weight).sum::<u32>());
        for (weight, choice) in choices {
            if at < *weight {
                return *choice;
            }
            at -= weight;
        }
        choices[0].1
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }

    /// Up to a longest time.
    pub(super) fn moment(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.random_range(0.0..1.0))
    }

    /// A cluster without faults.
    pub(super) fn quiet(&mut self, seed: u64) -> CollectiveScenario {
        let racks = self.pick(&[(30, 1), (35, 2), (25, 3), (10, 4)]);
        let shape = (0..racks).map(|_| self.pick(&[(40, 1), (35, 2), (20, 3), (5, 4)])).collect();
        let rate = self.pick(&[(20, 12_500_000), (60, 125_000_000), (20, 1_250_000_000)]);
        let mut cluster = ClusterSettings::clean(seed, shape, rate);
        cluster.uplink.rate /= self.pick(&[(60, 1), (40, 4)]);
        let first = self.rng.random_range(0..9);
        cluster.racks = (0..racks).map(|rack| (first + 7 * rack) % 10).collect();
        cluster.bounce_bytes = self.pick(&[(60, BOUNCE_BYTES), (20, 300_000), (20, 0)]);
        cluster.pooled = self.pick(&[(60, 0.25), (20, 0.0), (20, 1.0)]);
        cluster.work = Duration::from_micros(self.pick(&[(70, 300), (20, 3_000), (10, 30_000)]));
        let timeout = Duration::from_secs(60);
        let (odd_links, outages, groups) = (Vec::new(), Vec::new(), Vec::new());
        CollectiveScenario { cluster, odd_links, outages, groups, timeout, fault: Fault::None }
    }

    /// What links lose, double, hold back, and when they are cut.
    pub(super) fn links(&mut self, scenario: &mut CollectiveScenario) {
        let cluster = &mut scenario.cluster;
        let most = self.pick(&[(40, 0.0), (30, 0.02), (30, 0.2)]);
        let share = |rng: &mut ChaCha8Rng, most: f64| most * rng.random_range(0.0..=1.0);
        let faulty = LinkSpec {
            loss: share(&mut self.rng, most),
            burst: self.pick(&[(70, 1.0), (30, 3.0)]),
            duplicate: self.pick(&[(70, 0.0), (30, 0.05)]),
            reorder: self.pick(&[(60, 0.0), (40, 0.2)]),
            hold: Duration::from_micros(self.rng.random_range(1..3_000)),
            delay: Duration::from_micros(self.rng.random_range(1..300)),
            queue: self.pick(&[(20, 32), (60, 128), (20, 512)]) * 1024,
            bucket: self.pick(&[(70, 0), (30, 16 * 1024)]),
            ..cluster.host
        };
        let mild = LinkSpec { loss: faulty.loss / 4.0, ..faulty };
        let none = LinkSpec { loss: 0.0, ..faulty };
        let probe = Network::new(0, &cluster.shape, cluster.host, cluster.uplink);
        let links = 2 * (usize::from(probe.nodes()) + cluster.shape.len());
        let any = self.below(links);
        let rates = [cluster.host.rate, cluster.uplink.rate];
        let (host, uplink) = match self.below(3) {
            // Receivers lose on their own, as with a drop rule at their port.
            0 => {
                let ports = (0..probe.nodes()).map(|node| (probe.to_node(node), faulty));
                scenario.odd_links = ports.collect();
                (none, none)
            }
            1 => (mild, mild),
            _ => {
                let rate = rates[usize::from(any >= 2 * usize::from(probe.nodes()))];
                scenario.odd_links.push((any, LinkSpec { rate, ..faulty }));
                (none, none)
            }
        };
        (cluster.host, cluster.uplink) = (host, LinkSpec { rate: rates[1], ..uplink });
        if self.rng.random_bool(0.1) {
            let (from, long) = (self.moment(Duration::from_millis(50)), self.moment(Duration::from_secs(1)));
            scenario.outages.push((any, from, long));
        }
    }

    fn group(&mut self, nodes: u16) -> GroupScenario {
        let size = self.pick(&[(5, 1), (15, 2), (50, 5), (25, 8), (5, 12)]);
        let size = self.rng.random_range(1..=size);
        let places: Vec<u16> = (0..size).map(|_| self.rng.random_range(0..nodes)).collect();
        let chunk_bytes = self.pick(&[(60, 1424), (20, 256), (20, 8_000)]);
        let calls = self.pick(&[(40, 2), (40, 4), (20, 8)]);
        let calls = (0..calls).map(|_| self.call(size, chunk_bytes.into())).collect();
        let messages = self.pick(&[(70, 0), (20, 2), (10, 12)]);
        let messages = self.messages(messages, size as u32, chunk_bytes.into());
        let deaf =
            if self.rng.random_bool(0.05) { vec![self.rng.random_range(0..nodes)] } else { Vec::new() };
        GroupScenario {
            places,
            stripes: self.pick(&[(20, 0), (60, 1), (20, 2)]),
            deaf,
            chunk_bytes,
            open: self.pick(&[(50, 1), (50, 3)]),
            calls,
            messages,
            quick: None,
        }
    }

    /// Messages, of which both sides are in order of a pair of ranks and a tag.
    pub(super) fn messages(&mut self, messages: usize, size: u32, chunk: u64) -> Vec<MessageScenario> {
        let mut messages: Vec<MessageScenario> = (0..messages).map(|_| self.message(size, chunk)).collect();
        for side in 0..2 {
            let mut times: Vec<Duration> = messages.iter().map(|message| message.at[side]).collect();
            times.sort_unstable();
            messages.iter_mut().zip(times).for_each(|(message, at)| message.at[side] = at);
        }
        messages
    }

    /// Bytes of an array.
    fn length(&mut self, chunk: u64) -> u64 {
        let near = |rng: &mut ChaCha8Rng, border: u64| border + ELEMENT * rng.random_range(0..3) - ELEMENT;
        let kind = self.rng.random_range(0..10_000);
        match kind {
            0..800 => 0,
            800..3500 => self.rng.random_range(1..64),
            3500..6500 => {
                let border = chunk * self.rng.random_range(1..5);
                near(&mut self.rng, border)
            }
            6500..9500 => self.rng.random_range(0..12_000),
            9500..9960 => near(&mut self.rng, EAGER_BYTES),
            9960..9992 => self.rng.random_range(0..400_000),
            9992..9999 => near(&mut self.rng, COPIED_BYTES),
            _ => self.rng.random_range(0..4 * 1024 * 1024),
        }
    }

    pub(super) fn call(&mut self, size: usize, chunk: u64) -> CallScenario {
        let operation = Operation::ALL[self.below(Operation::ALL.len())];
        let whole = self.length(chunk) / ELEMENT;
        let parts = if operation.takes_counts() && self.rng.random_bool(0.7) { size as u64 } else { 1 };
        let count = if whole * ELEMENT > EAGER_BYTES * 2 && operation.takes_counts() {
            whole / size as u64
        } else {
            whole / parts
        };
        let counts = (operation.takes_counts() && self.rng.random_bool(0.3)).then(|| {
            let parts = if operation == Operation::Alltoall { size * size } else { size };
            let part = |_| if self.rng.random_bool(0.4) { 0 } else { self.rng.random_range(0..=2 * count) };
            (0..parts).map(part).collect()
        });
        let longest =
            Duration::from_micros(self.pick(&[(40, 0), (40, 1_000), (15, 300_000), (5, 5_000_000)]));
        let plan = self.plan(operation, count * ELEMENT);
        let after = (0..size).map(|_| self.moment(longest)).collect();
        CallScenario { operation, root: self.below(size) as u32, count, counts, plan, after, waits: false }
    }

    /// A plan with a name or of one level, one that is put together at random, or none.
    fn plan(&mut self, operation: Operation, bytes: u64) -> String {
        let plan = match self.below(10) {
            0 => return String::new(),
            1..6 => {
                let fitting: Vec<Plan> = Plan::fitting(operation).collect();
                fitting[self.below(fitting.len())]
            }
            _ => match self.composition(operation) {
                Some(plan) => plan,
                None => return String::new(),
            },
        };
        match self.below(3) {
            0 => {
                let segment = (bytes >> self.below(6)).max(64);
                plan.with_segment(segment).to_string()
            }
            _ => plan.to_string(),
        }
    }

    /// Patterns drawn until they fit.
    fn composition(&mut self, operation: Operation) -> Option<Plan> {
        let patterns: Vec<&str> = Plan::patterns().collect();
        (0..20).find_map(|_| {
            let mut pattern = || patterns[self.below(patterns.len())];
            let mut text = format!("rack:{},center:{}", pattern(), pattern());
            match self.below(5) {
                0 => text = format!("node:{},{text}", patterns[self.below(patterns.len())]),
                1 => text.push_str(",leaders:sharded"),
                2 => text.push_str(",spread:once"),
                3 => text = format!("racked:{}", patterns[self.below(patterns.len())]),
                _ => {}
            }
            text.parse::<Plan>().ok().filter(|plan| plan.fits(operation))
        })
    }

    fn message(&mut self, size: u32, chunk: u64) -> MessageScenario {
        let soon = Duration::from_millis(5);
        MessageScenario {
            from: self.rng.random_range(0..size),
            to: self.rng.random_range(0..size),
            tag: self.rng.random_range(0..2),
            bytes: self.length(chunk),
            at: [self.moment(soon), self.moment(soon)],
        }
    }

    pub(super) fn fault(&mut self, scenario: &mut CollectiveScenario, nodes: u16) {
        let longest = Duration::from_micros(self.pick(&[(40, 3_000), (40, 30_000), (20, 1_000_000)]));
        let at = self.moment(longest);
        let group = self.below(scenario.groups.len());
        let size = scenario.groups[group].places.len();
        let rank = self.below(size) as u32;
        let call = self.below(scenario.groups[group].calls.len());
        let dead: Vec<u16> =
            (0..self.pick(&[(70, 1), (30, 2)])).map(|_| self.rng.random_range(0..nodes)).collect();
        let again = self.rng.random_bool(0.5);
        let kind = self.below(100);
        scenario.fault = match kind {
            0..8 => {
                let restart = again.then(|| self.moment(Duration::from_secs(2)));
                Fault::Crash { nodes: dead, at, restart }
            }
            8..14 => {
                let restart = again.then(|| Duration::from_secs(3) + self.moment(Duration::from_secs(2)));
                Fault::PowerOff { nodes: dead, at, restart }
            }
            14..19 => Fault::Leave { group, rank, at },
            19..23 if size > 1 => Fault::Absent { group, rank, call },
            23..28 if size > 1 => Fault::Mismatch { group, rank, call },
            28..32 => Fault::Senseless { group, call },
            32..35 => Fault::Revoke { group, rank, at },
            _ => Fault::None,
        };
        if let Fault::Crash { .. } | Fault::PowerOff { .. } = scenario.fault {
            // Who cannot be reached may not be told from who is gone.
            scenario.outages.clear();
        }
        if let Fault::Absent { .. } = scenario.fault {
            // All others have come to the call long before it is given up.
            scenario.timeout = Duration::from_secs(6) + self.moment(Duration::from_secs(4));
            let calls = scenario.groups.iter_mut().flat_map(|group| &mut group.calls);
            calls.flat_map(|call| &mut call.after).for_each(|after| *after = (*after).min(LATE));
        }
    }
}
