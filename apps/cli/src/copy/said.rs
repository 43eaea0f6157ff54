//! What ranks of a copy are told, and the lines by which they say how far they are.

use super::join::LateRank;
use super::rates::LinkRates;
use super::secret::Secret;
use super::stored::StoreTask;
use super::target::{Habits, Target};
use crate::own_ranks;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// In how many pieces a copy goes, if they are neither too short nor too long.
const PIECES: u64 = 64;
/// Each takes some processor time of all nodes beside that of its bytes (docs/guide/copy.md).
const PIECE_MIN: usize = 2 << 20;

/// How bytes go from the source to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum CopyVia {
    /// As is best where it goes
    #[default]
    Auto,
    /// By broadcasts over multicast trees
    Tree,
    /// By broadcasts from node to node, rack by rack
    Chain,
    /// By gossip: every node passes on what it has, and none waits for a slow one
    Swarm,
}

impl CopyVia {
    /// The plan of its broadcasts, unless that is picked or it has none.
    pub(crate) fn plan(self) -> Option<&'static str> {
        match self {
            CopyVia::Tree => Some("multicast"),
            CopyVia::Chain => Some("racked:chain"),
            CopyVia::Auto | CopyVia::Swarm => None,
        }
    }
}

/// What is to be copied: the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// The node that has the source.
    pub(super) from: String,
    /// Absolute.
    pub(super) source: PathBuf,
    /// Absolute, with {node} for the node's name.
    pub(super) dest: String,
    /// Whether the source's node is to have a copy, too.
    pub(super) own: bool,
    pub(super) via: CopyVia,
    /// The address of the source's node: others have theirs on the way to it.
    pub(super) address: IpAddr,
    /// Of the slowest node's link, in bytes per second; 0 if it is unknown.
    pub(super) rate: u64,
    /// Of each node's link.
    #[serde(default)]
    pub(super) rates: LinkRates,
    /// Bytes in a second that the source sends at most.
    pub(super) limit: Option<u64>,
    /// Bytes that are sent together at most.
    pub(super) piece_max: usize,
    /// Whether broadcasts give way to others.
    pub(super) background: bool,
    pub(super) compress: bool,
    pub(super) delete: bool,
    pub(super) verify: bool,
    /// If it is out of the nodes' stores, or into them.
    pub(super) store: Option<StoreTask>,
    /// Between two words on how far a node is.
    pub(super) tell_every_ms: u64,
    /// Of a rank that comes when the copy is under way.
    pub(super) late: Option<LateRank>,
    /// It is told otherwise, since other users see what a program is told to do.
    #[serde(skip)]
    pub(super) secret: Option<Secret>,
}

impl Task {
    /// Where the copy is on a node; the store in which it is to be.
    pub(super) fn dest_on(&self, node: &str) -> PathBuf {
        match &self.store {
            Some(store) if store.put.is_some() => store.store.on(node),
            _ => self.dest.replace("{node}", node).into(),
        }
    }

    /// Bytes of a piece where so much is to be sent: enough pieces to go on from if a node is lost, and not too many calls.
    pub(super) fn piece(&self, bytes: u64) -> usize {
        let share = usize::try_from(bytes / PIECES).unwrap_or(usize::MAX);
        share.clamp(PIECE_MIN.min(self.piece_max), self.piece_max)
    }

    /// Whether a path on the source's node is the source, so that there is nothing to copy.
    pub(super) fn is_source(&self, path: &Path) -> bool {
        if self.store.as_ref().is_some_and(|store| store.put.is_some()) {
            return false;
        }
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        real(path) == real(&self.source)
    }

    /// Says how far this node is, and will say it again.
    pub(super) fn teller(&self, target: &Target) -> Teller {
        say_lacks(target);
        let every = Duration::from_millis(self.tell_every_ms);
        Teller { told: Instant::now(), every, whole: target.have().is_full() }
    }

    pub(super) fn habits(&self) -> Habits {
        Habits { delete: self.delete, verify: self.verify }
    }
}

/// Says time and again how much this node lacks, as long as it lacks anything.
pub(super) struct Teller {
    told: Instant,
    every: Duration,
    /// Whether it was said that nothing is lacking.
    whole: bool,
}

impl Teller {
    /// Says it if it is time to, and at once that it lacks nothing any more.
    pub(super) fn tell(&mut self, target: &Target) {
        let whole = target.have().is_full();
        if !self.whole && (whole || self.told.elapsed() >= self.every) {
            (self.told, self.whole) = (Instant::now(), whole);
            say_lacks(target);
        }
    }
}

fn say_lacks(target: &Target) {
    // Whoever does not hear it hears the end.
    drop(Said::Lacks { bytes: target.lacking() }.say());
}

/// A line of a rank.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// By the source: bytes of all data in it.
    Source { bytes: u64 },
    /// By the source: bytes that a node lacks, which are sent now.
    Sending { bytes: u64 },
    /// By the source: what went over the network so far, and by which plan.
    Sent { bytes: u64, via: String },
    /// By the source: why nobody gets a copy.
    GivesUp { reason: String },
    /// By whoever is left: who is not.
    Lost { nodes: Vec<String> },
    /// By a member of a swarm: which one it is, and where it listens.
    Member { rack: u32, slot: u32, contact: SocketAddr },
    /// By a member of a swarm: this node sent it wrong bytes of what it had said to have checked.
    Expelled { node: String },
    /// By one that came late to broadcasts: it takes part.
    Admitted,
    /// By one that came late: the others are gone, or cannot be reached.
    Missed { reason: String },
    /// Bytes that this node lacks.
    Lacks { bytes: u64 },
    /// The copy of this node is in its place, or there is none for this reason; nothing is wrong with one that has none
    /// because it is the source. The rank may go on serving others, and say it again if that changes it.
    Ended { seconds: f64, error: Option<String> },
}

impl Said {
    /// The end of a rank that began then, if not well for this reason.
    pub(super) fn ended(began: Instant, why: Option<impl Display>) -> Said {
        Said::Ended { seconds: began.elapsed().as_secs_f64(), error: why.map(|why| why.to_string()) }
    }

    /// Says it to whoever runs the command.
    pub(super) fn say(&self) -> std::io::Result<()> {
        own_ranks::say(self)
    }
}
