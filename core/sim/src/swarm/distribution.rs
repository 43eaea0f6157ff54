//! The settings and results of a simulated distribution over links.

use cool_machine::Duration;
use cool_swarm::{Code, Division, Order, SwarmStats};

/// A distribution to simulate. Nodes are numbered rack by rack.
#[derive(Clone, Debug)]
pub struct SwarmScenario {
    /// Number of nodes in each rack.
    pub racks: Vec<u32>,
    /// Whether rings keep racks together, or are random over all nodes.
    pub keeps_racks_together: bool,
    /// Rate of a host's link in each direction, in bytes per second.
    pub host: u64,
    /// Nodes with slower links, and their rates.
    pub slow: Vec<(usize, u64)>,
    /// A block takes up to this many times as long as its hosts' links require, by a random factor
    /// for each block, as on nodes that share CPUs.
    pub slowed: f64,
    /// Rate of a rack's uplink in each direction, or none if it is unlimited.
    pub uplink: Option<u64>,
    /// Size of a block on the links in bytes.
    pub block: u64,
    /// Size of a block in memory in bytes. It is small, so that many cases can be tried quickly.
    pub payload: usize,
    /// The division of the content.
    pub division: Division,
    /// Which blocks are sent: coded ones, or originals only.
    pub code: Code,
    /// Which generation is sent first.
    pub order: Order,
    /// Nodes that hold everything from the beginning.
    pub sources: Vec<usize>,
    /// How long before the end of a block both ends are notified.
    pub end_notice: Duration,
    /// Latency of a signal, and of the end of a block.
    pub latency: Duration,
    /// Probability that a signal is lost.
    pub loss: f64,
    /// Probability that a signal arrives twice.
    pub duplicate: f64,
    /// Probability that a block is lost.
    pub block_loss: f64,
    /// Nodes that join late, and when.
    pub joins: Vec<(usize, Duration)>,
    /// Nodes that crash, and when.
    pub crashes: Vec<(usize, Duration)>,
    /// Nodes that restart after a crash, and when. They hold the generations on their disks.
    pub restarts: Vec<(usize, Duration)>,
    /// Nodes that lie.
    pub liars: Vec<Liar>,
    /// The first source crashes when this many copies of the content have left it. If `None`, it
    /// stays.
    pub leaves_after: Option<f64>,
    /// Time after which other nodes are notified of a crash.
    pub notice: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// A node that sends wrong bytes. Its own holdings are right.
#[derive(Clone, Copy, Debug)]
pub struct Liar {
    /// The node.
    pub node: usize,
    /// Probability that a block that it sends is wrong.
    pub wrong: f64,
    /// Whether it claims of each block that it has checked the generation, even if it has not.
    pub boasts: bool,
}

/// The result of a distribution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistributionOutcome {
    /// When each node had everything, in seconds. None for sources, and for nodes that crashed or
    /// starved.
    pub done: Vec<Option<f64>>,
    /// Survivors that are missing blocks that no survivor has.
    pub bereft: Vec<usize>,
    /// Number of times that a node expelled a liar.
    pub expelled: usize,
    /// Number of bytes that left each rack.
    pub uplinks: Vec<f64>,
    /// Number of bytes that left each node.
    pub sent: Vec<f64>,
    /// The sum of the machines' counters.
    pub stats: SwarmStats,
}

/// A violation of the swarm's contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// A node holds different bytes from the source.
    #[error("node {node}: block {block} of generation {generation} is wrong")]
    Wrong {
        /// The node.
        node: usize,
        /// The generation.
        generation: u32,
        /// The block in it.
        block: u16,
    },
    /// A node is missing blocks that others have, and receives nothing more.
    #[error("node {node} is missing blocks that others have after {seconds} s")]
    Stalled {
        /// The node.
        node: usize,
        /// When that was detected.
        seconds: u64,
    },
    /// A node that never lied was expelled.
    #[error("node {node} was expelled by node {by} but has not lied")]
    WronglyExpelled {
        /// The node.
        node: usize,
        /// The node that expelled it.
        by: usize,
    },
    /// A node is missing blocks that no survivor has, and did not report it.
    #[error("node {node} is missing blocks that no node has, and did not report it")]
    Silent {
        /// The node.
        node: usize,
    },
}

impl SwarmScenario {
    /// Returns a distribution on equal hosts at 20 Mbit/s without losses. The first node is the
    /// source.
    pub fn clean(racks: Vec<u32>, division: Division) -> SwarmScenario {
        SwarmScenario {
            racks,
            keeps_racks_together: true,
            host: 2_500_000,
            slow: Vec::new(),
            slowed: 1.0,
            uplink: None,
            block: 65_536,
            payload: 0,
            division,
            code: Code::Linear,
            order: Order::LowestRank { window: 4 },
            sources: vec![0],
            end_notice: Duration::from_millis(2),
            latency: Duration::from_micros(200),
            loss: 0.0,
            duplicate: 0.0,
            block_loss: 0.0,
            joins: Vec::new(),
            crashes: Vec::new(),
            restarts: Vec::new(),
            liars: Vec::new(),
            leaves_after: None,
            notice: Duration::from_millis(500),
            seed: 0,
        }
    }

    /// Returns the time in seconds that the content takes over a host's link.
    pub fn limit(&self) -> f64 {
        f64::from(self.division.blocks) * self.block as f64 / self.host as f64
    }

    /// Returns the number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.racks.iter().sum::<u32>() as usize
    }

    /// Returns the time that a block takes over a link.
    pub(super) fn block_time(&self) -> Duration {
        Duration::from_secs_f64(self.block as f64 / self.host as f64)
    }

    /// Returns the lowest rate of a host's link.
    fn slowest(&self) -> u64 {
        self.slow.iter().map(|(_, rate)| *rate).fold(self.host, u64::min)
    }

    /// Returns how many times as long as over other links a block takes over the slowest link.
    pub(super) fn slowness(&self) -> u32 {
        (self.host / self.slowest().max(1)).max(1) as u32
    }

    /// Returns the time without any new block after which nodes report that they are starved.
    pub(super) fn starved(&self) -> Duration {
        self.block_time() * 180 * self.slowness() + self.notice
    }

    /// Returns when nodes join, crash and restart.
    pub(super) fn changes(&self) -> impl Iterator<Item = Duration> {
        self.joins.iter().chain(&self.crashes).chain(&self.restarts).map(|(_, at)| *at)
    }

    /// Returns how a node lies, if it does.
    pub(super) fn lies(&self, node: usize) -> Option<&Liar> {
        self.liars.iter().find(|liar| liar.node == node)
    }

    /// Returns the time limit of the distribution in nanoseconds.
    pub(super) fn bound(&self) -> u64 {
        let alone = f64::from(self.division.blocks) * self.block as f64 / self.slowest() as f64;
        let last = self.changes().max().unwrap_or_default();
        ((20.0 * alone + 60.0 + last.as_secs_f64()) * 1e9) as u64
    }
}
