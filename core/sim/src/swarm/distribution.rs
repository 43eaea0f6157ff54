//! A distribution over links that is to be simulated, and how it may go.

use cool_machine::Duration;
use cool_swarm::{Code, Division, Order, Stats};

/// A distribution to simulate. Nodes are numbered rack by rack.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Nodes of each rack.
    pub racks: Vec<u32>,
    /// Whether rings keep racks together, or run through all nodes by chance.
    pub together: bool,
    /// Of a host's link, each way, in bytes per second.
    pub host: u64,
    /// Nodes whose links are slower, and their rate.
    pub slow: Vec<(usize, u64)>,
    /// A block takes up to as many times as long as its host's links allow, each by chance, as where nodes share processors.
    pub slowed: f64,
    /// Of a rack's uplink, each way; none if nothing limits it.
    pub uplink: Option<u64>,
    /// Bytes of a block as the links see it.
    pub block: u64,
    /// Bytes of a block as memories hold it: few, so that much is tried in little time.
    pub payload: usize,
    /// How the content is divided.
    pub division: Division,
    /// What is sent.
    pub code: Code,
    /// Which generation first.
    pub order: Order,
    /// Nodes that have all from the beginning.
    pub sources: Vec<usize>,
    /// Before a block is through both ends hear that it nearly is.
    pub nearly: Duration,
    /// Of a signal, and of the end of a block.
    pub latency: Duration,
    /// Chance that a signal is lost; that it comes twice; that a block does not arrive.
    pub loss: f64,
    /// See there.
    pub duplicate: f64,
    /// See there.
    pub block_loss: f64,
    /// Who comes late, and when.
    pub joins: Vec<(usize, Duration)>,
    /// Who dies, and when.
    pub deaths: Vec<(usize, Duration)>,
    /// Who begins anew after it has died, and when: with the generations that it had on its disk.
    pub restarts: Vec<(usize, Duration)>,
    /// Who lies.
    pub liars: Vec<Liar>,
    /// The first source dies when this many copies of the content have left it; unless it is to stay.
    pub leaves_after: Option<f64>,
    /// After so long the others hear of deaths.
    pub notice: Duration,
    /// What chance there is.
    pub seed: u64,
}

/// A node that sends wrong bytes; what it holds itself is right.
#[derive(Clone, Copy, Debug)]
pub struct Liar {
    /// The node.
    pub node: usize,
    /// The chance that a block that it sends is wrong.
    pub wrong: f64,
    /// Whether it says of each block that it has checked the generation; else only where that is so.
    pub boasts: bool,
}

/// How a distribution went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DistributionOutcome {
    /// When each node had everything, in seconds; none for sources, and for those that died or starved.
    pub done: Vec<Option<f64>>,
    /// Survivors that lack what no survivor has.
    pub bereft: Vec<usize>,
    /// How often a node has expelled a liar.
    pub expelled: usize,
    /// Bytes that left each rack.
    pub uplinks: Vec<f64>,
    /// Bytes that each node's link carried from it.
    pub sent: Vec<f64>,
    /// What the machines did, added up.
    pub stats: Stats,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DistributionError {
    /// A node holds other bytes than the source.
    #[error("node {node}: block {block} of generation {generation} is wrong")]
    Wrong {
        /// The node.
        node: usize,
        /// The generation.
        generation: u32,
        /// The block in it.
        block: u16,
    },
    /// A node lacks what others have, and nothing comes any more.
    #[error("node {node} lacks rows that others have after {seconds} s")]
    Stalled {
        /// The node.
        node: usize,
        /// After how long.
        seconds: u64,
    },
    /// A node that never lied was expelled.
    #[error("node {node} was expelled by node {by}, and has not lied")]
    Slandered {
        /// The node.
        node: usize,
        /// Who expelled it.
        by: usize,
    },
    /// A node lacks what nobody has, and has not said so.
    #[error("node {node} lacks rows that nobody has, and did not report it")]
    Silent {
        /// The node.
        node: usize,
    },
}

impl Distribution {
    /// Equal hosts at 20 Mbit/s, nothing lost, the first node the source.
    pub fn clean(racks: Vec<u32>, division: Division) -> Distribution {
        Distribution {
            racks,
            together: true,
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
            nearly: Duration::from_millis(2),
            latency: Duration::from_micros(200),
            loss: 0.0,
            duplicate: 0.0,
            block_loss: 0.0,
            joins: Vec::new(),
            deaths: Vec::new(),
            restarts: Vec::new(),
            liars: Vec::new(),
            leaves_after: None,
            notice: Duration::from_millis(500),
            seed: 0,
        }
    }

    /// Seconds that the content takes over a host's link.
    pub fn limit(&self) -> f64 {
        f64::from(self.division.blocks) * self.block as f64 / self.host as f64
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.racks.iter().sum::<u32>() as usize
    }

    /// What a block takes over a link.
    pub(super) fn block_time(&self) -> Duration {
        Duration::from_secs_f64(self.block as f64 / self.host as f64)
    }

    /// The least rate of a host's link.
    fn slowest(&self) -> u64 {
        self.slow.iter().map(|(_, rate)| *rate).fold(self.host, u64::min)
    }

    /// How many times as long blocks take over the slowest link.
    pub(super) fn slowness(&self) -> u32 {
        (self.host / self.slowest().max(1)).max(1) as u32
    }

    /// After so long without anything new nodes say so.
    pub(super) fn starved(&self) -> Duration {
        self.block_time() * 180 * self.slowness() + self.notice
    }

    /// When nodes come and go.
    pub(super) fn changes(&self) -> impl Iterator<Item = Duration> {
        self.joins.iter().chain(&self.deaths).chain(&self.restarts).map(|(_, at)| *at)
    }

    /// How a node lies, if it does.
    pub(super) fn lies(&self, node: usize) -> Option<&Liar> {
        self.liars.iter().find(|liar| liar.node == node)
    }

    /// After which nothing is expected any more.
    pub(super) fn bound(&self) -> u64 {
        let alone = f64::from(self.division.blocks) * self.block as f64 / self.slowest() as f64;
        let last = self.changes().max().unwrap_or_default();
        ((20.0 * alone + 60.0 + last.as_secs_f64()) * 1e9) as u64
    }
}
