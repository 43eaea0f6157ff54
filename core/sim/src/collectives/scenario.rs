//! Collectives drawn from a seed: networks, groups, calls and messages of all kinds, and faults.

use super::cluster::ClusterSettings;
use super::tree_faults::TreeFault;
use crate::network::{LinkSpec, PacketNetwork};
use cool_collective::Plan;
use cool_machine::Duration;
use cool_types::Operation;
use cool_types::limits::{BOUNCE_BYTES, COPIED_BYTES, EAGER_BYTES};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Size in bytes of an element in all calls.
pub(super) const ELEMENT: u64 = 4;

/// Maximum time for which ranks wait before a call in scenarios in which one rank does not make a
/// call.
const LATE: Duration = Duration::from_millis(300);

/// Distinguishes the draws of failed steps from those of the scenarios in which they occur.
const STEP_SEED: u64 = 0x57e9;

/// Size of the buffer that agents request for a rank's socket, in bytes.
pub(super) const ROOM: usize = 1 << 20;

/// One call of a group, as all its ranks make it.
#[derive(Clone, Debug)]
pub struct CallScenario {
    /// The operation.
    pub operation: Operation,
    /// The root.
    pub root: u32,
    /// Number of elements, as in a call's request.
    pub count: u64,
    /// Number of elements of each part if their lengths are unequal, in place of `count`.
    pub counts: Option<Vec<u64>>,
    /// The plan to use, or empty if the planner should choose one.
    pub plan: String,
    /// How long each rank waits before it calls.
    pub after: Vec<Duration>,
    /// Whether ranks wait for the call and make no other one in the meantime.
    pub waits: bool,
}

/// A message from one rank to another.
#[derive(Clone, Debug)]
pub struct MessageScenario {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// The tag.
    pub tag: u32,
    /// The length in bytes.
    pub bytes: u64,
    /// When it is sent, and when its receive is posted.
    pub at: [Duration; 2],
}

/// A group, and the calls and messages of its ranks.
#[derive(Clone, Debug)]
pub struct GroupScenario {
    /// The node of each rank.
    pub places: Vec<u16>,
    /// Number of trees over all its nodes.
    pub stripes: usize,
    /// Nodes that do not receive the trees.
    pub deaf: Vec<u16>,
    /// Payload bytes of a multicast packet.
    pub chunk_bytes: u32,
    /// Number of calls that a rank may have pending at a time.
    pub open: usize,
    /// The calls, in order.
    pub calls: Vec<CallScenario>,
    /// The messages. Those of the same ranks and tag are in the order of time.
    pub messages: Vec<MessageScenario>,
    /// How its ranks execute quick calls, if they do.
    pub quick: Option<QuickScenario>,
}

impl GroupScenario {
    /// Returns the length of the datagrams into which ranks divide long messages of quick calls; 0
    /// if they execute only short calls.
    pub(super) fn quick_datagram_bytes(&self) -> u16 {
        self.quick.as_ref().map_or(0, |quick| quick.datagram_bytes)
    }
}

/// How the ranks of a group, each on its own node, execute quick calls.
#[derive(Clone, Debug)]
pub struct QuickScenario {
    /// When the process of each rank starts.
    pub starts: Vec<Duration>,
    /// A rank that cannot execute quick calls, so that no rank of the group may.
    pub declines: Option<u32>,
    /// Pauses of ranks: the rank, the start and the length.
    pub still: Vec<(u32, Duration, Duration)>,
    /// Size of the buffer of a rank's socket, in bytes.
    pub room: usize,
    /// Length of the datagrams into which ranks divide long messages; 0 if they execute only short
    /// calls.
    pub datagram_bytes: u16,
}

impl QuickScenario {
    /// Returns a scenario in which all processes start at once and can execute quick calls.
    pub fn plain(size: usize) -> QuickScenario {
        QuickScenario {
            starts: vec![Duration::ZERO; size],
            declines: None,
            still: Vec::new(),
            room: ROOM,
            datagram_bytes: 0,
        }
    }
}

/// A step that an agent's driver executes for its engine, and that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedStep {
    /// An allocation of memory.
    Allocation,
    /// An attempt to connect to another agent.
    Connect,
    /// A write to a connection, which ends the connection.
    Write,
    /// The test of a group's datagrams.
    Probe,
}

/// The fault of a scenario, in addition to lost packets.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// No fault.
    None,
    /// The agents of some nodes end.
    Crash {
        /// The nodes.
        nodes: Vec<u16>,
        /// When they end.
        at: Duration,
        /// Time after which they restart, if they do.
        restart: Option<Duration>,
    },
    /// Some nodes are powered off.
    PowerOff {
        /// The nodes.
        nodes: Vec<u16>,
        /// When they are powered off.
        at: Duration,
        /// Time after which they restart, if they do.
        restart: Option<Duration>,
    },
    /// A rank's process ends.
    Leave {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// When it ends.
        at: Duration,
    },
    /// A rank does not make a call, although its process is running.
    Absent {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
    },
    /// A rank makes a different call from the others.
    Mismatch {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
    },
    /// A step of a call that a rank executes itself fails, so that the rank leaves the call
    /// incomplete. It continues with its other calls.
    IncompleteCall {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
        /// Number of steps of the call that succeed before.
        after: u32,
    },
    /// A rank starts a call in which the others wait.
    Started {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// The call.
        call: usize,
    },
    /// All ranks make an invalid call.
    Senseless {
        /// Their group, by index.
        group: usize,
        /// The call.
        call: usize,
    },
    /// A step of a node's agent fails once.
    Step {
        /// The node.
        node: u16,
        /// The step.
        step: FailedStep,
        /// Number of such steps of the node that succeed before it.
        before: u64,
    },
    /// A rank revokes its group.
    Revoke {
        /// Its group, by index.
        group: usize,
        /// The rank.
        rank: u32,
        /// When it revokes it.
        at: Duration,
    },
}

impl Fault {
    /// Returns the number of steps after which a rank leaves a call incomplete, if it does.
    pub(super) fn fails_after(&self, group: usize, rank: u32, call: usize) -> Option<u32> {
        match self {
            Fault::IncompleteCall { group: of, rank: at, call: number, after } => {
                ((*of, *at, *number) == (group, rank, call)).then_some(*after)
            }
            _ => None,
        }
    }

    /// Returns the name of the fault.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Crash { restart: None, .. } => "crash",
            Fault::Crash { .. } => "crash and restart",
            Fault::PowerOff { restart: None, .. } => "power off",
            Fault::PowerOff { .. } => "power off and restart",
            Fault::Leave { .. } => "rank leaves",
            Fault::Absent { .. } => "rank is absent",
            Fault::Mismatch { .. } => "ranks disagree",
            Fault::IncompleteCall { .. } => "incomplete call",
            Fault::Started { .. } => "rank starts a call",
            Fault::Senseless { .. } => "senseless call",
            Fault::Revoke { .. } => "revoke",
            Fault::Step { step: FailedStep::Allocation, .. } => "allocation fails",
            Fault::Step { step: FailedStep::Connect, .. } => "connection cannot be made",
            Fault::Step { step: FailedStep::Write, .. } => "connection breaks",
            Fault::Step { step: FailedStep::Probe, .. } => "test of datagrams fails",
        }
    }
}

/// Collectives of several groups on a cluster. Everything follows from a seed.
#[derive(Clone, Debug)]
pub struct CollectiveScenario {
    /// The cluster.
    pub cluster: ClusterSettings,
    /// Links that differ from the others, by number.
    pub odd_links: Vec<(usize, LinkSpec)>,
    /// Outages of links, too short for a node to be declared lost: number, start and length.
    pub outages: Vec<(usize, Duration, Duration)>,
    /// The groups.
    pub groups: Vec<GroupScenario>,
    /// Trees that fail for some time. The trees of their groups are proven again and again.
    pub tree_faults: Vec<TreeFault>,
    /// Time without progress after which a call fails.
    pub timeout: Duration,
    /// The fault.
    pub fault: Fault,
}

impl CollectiveScenario {
    /// Returns the scenario of a seed.
    pub fn of(seed: u64) -> CollectiveScenario {
        let mut draw = ScenarioGenerator::new(seed);
        let mut scenario = draw.quiet(seed);
        draw.links(&mut scenario);
        let groups = draw.pick(&[(60, 1), (30, 2), (10, 3)]);
        let nodes: u16 = scenario.cluster.shape.iter().sum();
        scenario.groups = (0..groups).map(|_| draw.group(nodes)).collect();
        draw.fault(&mut scenario, nodes);
        scenario
    }

    /// Makes a step of an agent fail, drawn from a seed, in place of the scenario's fault.
    pub fn with_failed_step(mut self, seed: u64) -> CollectiveScenario {
        let mut draw = ScenarioGenerator::new(seed ^ STEP_SEED);
        let nodes: usize = self.cluster.shape.iter().copied().map(usize::from).sum();
        let step = draw.pick(&[
            (50, FailedStep::Allocation),
            (15, FailedStep::Connect),
            (30, FailedStep::Write),
            (5, FailedStep::Probe),
        ]);
        // Exponents are drawn, because most nodes execute few of these steps.
        let before = (1 << draw.below(8)) - 1;
        let before = before + draw.below(before + 1);
        self.fault = Fault::Step { node: draw.below(nodes) as u16, step, before: before as u64 };
        self
    }

    /// Returns an upper bound for the payload bytes of all calls and messages, from which time
    /// limits follow.
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

/// Draws the parts of scenarios from a seed.
pub(super) struct ScenarioGenerator {
    rng: ChaCha8Rng,
}

impl ScenarioGenerator {
    pub(super) fn new(seed: u64) -> ScenarioGenerator {
        ScenarioGenerator { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.rng.random_bool(share)
    }

    /// Returns one of the choices, drawn by weight.
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

    /// Returns a random time up to `longest`.
    pub(super) fn moment(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.random_range(0.0..1.0))
    }

    /// Returns a scenario of a cluster without faults.
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
        let (odd_links, outages, groups, tree_faults) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        CollectiveScenario { cluster, odd_links, outages, groups, tree_faults, timeout, fault: Fault::None }
    }

    /// Draws the losses, duplicates, delays and outages of links.
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
        let probe = PacketNetwork::new(0, &cluster.shape, cluster.host, cluster.uplink);
        let links = 2 * (usize::from(probe.nodes()) + cluster.shape.len());
        let any = self.below(links);
        let rates = [cluster.host.rate, cluster.uplink.rate];
        let (host, uplink) = match self.below(3) {
            // Each receiver loses packets separately, as with a drop rule at its port.
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

    /// Returns messages that are, at both ends, in order for each pair of ranks and tag.
    pub(super) fn messages(&mut self, messages: usize, size: u32, chunk: u64) -> Vec<MessageScenario> {
        let mut messages: Vec<MessageScenario> = (0..messages).map(|_| self.message(size, chunk)).collect();
        for side in 0..2 {
            let mut times: Vec<Duration> = messages.iter().map(|message| message.at[side]).collect();
            times.sort_unstable();
            messages.iter_mut().zip(times).for_each(|(message, at)| message.at[side] = at);
        }
        messages
    }

    /// Returns the length of an array in bytes.
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

    /// Returns a named or one-level plan, a plan composed at random, or none (empty).
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

    /// Draws patterns until they form a plan for the operation. Returns `None` after twenty failed
    /// attempts.
    fn composition(&mut self, operation: Operation) -> Option<Plan> {
        // Another pattern would change the scenarios of all seeds, also of those that once failed.
        let patterns: Vec<&str> = Plan::patterns().filter(|pattern| *pattern != "double-tree").collect();
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
            35..45 if scenario.groups[group].quick.is_some() => {
                let most = self.pick(&[(30, 4), (40, 12), (30, 40)]);
                Fault::IncompleteCall { group, rank, call, after: self.below(most) as u32 }
            }
            45..50 if size > 1 && scenario.groups[group].quick.is_some() => {
                Fault::Started { group, rank, call }
            }
            _ => Fault::None,
        };
        if let Fault::Crash { .. } | Fault::PowerOff { .. } = scenario.fault {
            // An unreachable node may be indistinguishable from a lost one.
            scenario.outages.clear();
        }
        if let Fault::Absent { .. } = scenario.fault {
            // All other ranks have made the call long before it times out.
            scenario.timeout = Duration::from_secs(6) + self.moment(Duration::from_secs(4));
            let calls = scenario.groups.iter_mut().flat_map(|group| &mut group.calls);
            calls.flat_map(|call| &mut call.after).for_each(|after| *after = (*after).min(LATE));
        }
    }
}
