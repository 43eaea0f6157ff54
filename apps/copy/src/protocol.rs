//! The contract between the command and the ranks of a copy: the task that the command passes to
//! every rank, and the events by which a rank reports its progress.
//!
//! Both are JSON. The names in JSON are part of the contract, because the nodes of a cluster may
//! run another release than the command.

use crate::errors::without_os_code;
use crate::link_rates::NodeLinkRates;
use crate::rank_output::send_event;
use crate::secret::CopySecret;
use cool_content::Digest;
use cool_peer::{Contact, PublicKey};
use cool_store::{Store, StoreName};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Number of pieces into which a copy is divided, as long as pieces get neither too short nor too
/// long.
const PIECES: u64 = 64;
/// Minimum length of a piece, in bytes. Every piece costs CPU time on all nodes in addition to that
/// of its bytes (docs/guide/copy.md).
const PIECE_MIN_BYTES: usize = 2 << 20;

/// How the data gets from the source to the other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum CopyVia {
    /// Choose automatically
    #[default]
    Auto,
    /// Broadcast over multicast trees
    Tree,
    /// Broadcast from node to node, rack by rack
    Chain,
    /// Spread by gossip: every node passes on the blocks it has, and no node waits for a slow one
    Swarm,
}

impl CopyVia {
    /// Returns the plan of the broadcasts, or `None` if the planner chooses the plan or there are
    /// no broadcasts.
    #[must_use]
    pub fn plan(self) -> Option<&'static str> {
        match self {
            CopyVia::Tree => Some("multicast"),
            CopyVia::Chain => Some("racked:chain"),
            CopyVia::Auto | CopyVia::Swarm => None,
        }
    }
}

/// The task of a copy's ranks: every rank of a job gets the same one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CopyTask {
    /// The node that has the source.
    pub from: String,
    /// Absolute path of the source on that node.
    pub source: PathBuf,
    /// Absolute path of the copies, in which `{node}` stands for the name of the node.
    pub dest: String,
    /// Whether the source's node gets a copy, too.
    #[serde(rename = "own")]
    pub copy_on_source: bool,
    /// How the data gets to the nodes.
    pub via: CopyVia,
    /// Address of the source's node. Members of a swarm listen on the interface that leads there.
    pub address: IpAddr,
    /// Rate of the slowest node's link, in bytes per second; 0 if it is unknown.
    pub rate: u64,
    /// Rates of all nodes' links.
    #[serde(default)]
    pub rates: NodeLinkRates,
    /// Limit for the source in bytes per second; by swarm, for every node.
    pub limit: Option<u64>,
    /// Maximum length of a piece, in bytes.
    pub piece_max: usize,
    /// Whether broadcasts yield to other traffic.
    pub background: bool,
    /// Whether pieces are compressed before they are broadcast.
    pub compress: bool,
    /// Whether files that the source does not have are removed from the destination.
    pub delete: bool,
    /// Whether each copy is read back from the disk before it is renamed into place.
    pub verify: bool,
    /// How the ranks use the nodes' stores, for copies out of stores or into them.
    pub store: Option<StoreTask>,
    /// Time between two progress reports of a rank, in milliseconds.
    #[serde(rename = "tell_every_ms")]
    pub report_interval_ms: u64,
    /// For a rank of a node that is late: how it joins the copy that is under way.
    pub late: Option<LateRank>,
    /// The secret of the copy. It is passed in the environment, because all users of a node can
    /// read the arguments of a process.
    #[serde(skip)]
    pub secret: Option<CopySecret>,
}

impl CopyTask {
    /// Returns the path of the copy on a node; for a copy into stores, that of the node's store.
    pub(crate) fn dest_on(&self, node: &str) -> PathBuf {
        match &self.store {
            Some(store) if store.put.is_some() => store.store.on(node),
            _ => self.dest.replace("{node}", node).into(),
        }
    }

    /// Returns the length of a piece, in bytes, if `bytes` bytes are sent: there should be enough
    /// pieces to resume from when a node is lost, but not too many calls.
    pub(crate) fn piece_bytes(&self, bytes: u64) -> usize {
        let share = usize::try_from(bytes / PIECES).unwrap_or(usize::MAX);
        share.clamp(PIECE_MIN_BYTES.min(self.piece_max), self.piece_max)
    }

    /// Returns whether a path on the source's node is the source itself, which needs no copy.
    pub(crate) fn is_source(&self, path: &Path) -> bool {
        if self.store.as_ref().is_some_and(|store| store.put.is_some()) {
            return false;
        }
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        real(path) == real(&self.source)
    }
}

/// How the rank of a late node joins a copy that is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LateRank {
    /// A copy by broadcasts admits it, together with the other ranks of its job.
    Broadcast,
    /// It becomes a member of the swarm.
    Swarm(LateMember),
}

/// A swarm member that joins late.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LateMember {
    /// Number of its rack in the swarm.
    pub rack: u32,
    /// Its slot in that rack.
    pub slot: u32,
    /// Addresses and public keys of some of the members.
    pub contacts: Vec<Contact>,
    /// Identity of the manifest that the source's rank has reported. A member that replies with
    /// another manifest is not believed. `None` from a source of an earlier release.
    #[serde(default)]
    pub identity: Option<Digest>,
}

/// How the ranks of a copy use the stores of their nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreTask {
    /// The stores' directory.
    pub store: StoreLocation,
    /// Name of the object. Blocks of the object that has this name on a node are reused there.
    pub name: StoreName,
    /// For a copy out of stores: the object that is the source.
    pub object: Option<Digest>,
    /// For a copy into stores: how the copy is put into them.
    pub put: Option<PutTask>,
    /// Other nodes with the object in their stores. By swarm they send it, too; they get no copy.
    #[serde(default)]
    pub others: Vec<String>,
}

/// How a copy is put into a store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PutTask {
    /// Time of the put, in milliseconds since 1970.
    pub put_ms: u64,
    /// Quota of the store in bytes from now on; `None` keeps the quota that it has.
    pub quota: Option<u64>,
}

/// Directory of the stores, in which `{node}` stands for the name of the node; `None` for the
/// default directory of the rank's user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreLocation(Option<String>);

impl StoreLocation {
    /// Returns the location of stores in this directory, which must be absolute.
    #[must_use]
    pub fn new(directory: Option<String>) -> StoreLocation {
        StoreLocation(directory)
    }

    /// Returns the directory on a node.
    pub(crate) fn on(&self, node: &str) -> PathBuf {
        match &self.0 {
            Some(directory) => directory.replace("{node}", node).into(),
            None => Store::default_folder(),
        }
    }
}

/// A copy of standard input while it is being read: the same task for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamTask {
    /// The node on which the command runs.
    pub from: String,
    /// Socket at which the rank on that node gets the input.
    pub socket: PathBuf,
    /// Absolute path of the copies, in which `{node}` stands for the name of the node.
    pub dest: String,
    /// Whether the node of the command gets a copy, too.
    #[serde(rename = "own")]
    pub copy_on_source: bool,
    /// How the data gets to the nodes.
    pub via: CopyVia,
    /// Whether broadcasts yield to other traffic.
    pub background: bool,
    /// Mode of a new file, from which the umask of the command is subtracted already. `None` from
    /// commands of earlier releases.
    #[serde(default)]
    pub mode: Option<u32>,
}

/// An event that a rank of a copy reports to the command.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyEvent {
    /// The source was read. Sent by the source's rank.
    Source {
        /// Total size of its files, in bytes.
        bytes: u64,
        /// Identity of its manifest; `None` for a stream.
        #[serde(default)]
        identity: Option<Digest>,
    },
    /// The source starts to send blocks that at least one node is missing. Sent by the source's
    /// rank.
    Sending {
        /// Total size of these blocks, in bytes.
        bytes: u64,
    },
    /// All blocks were sent. Sent by the source's rank.
    Sent {
        /// Bytes that the nodes with the source have sent over the network so far.
        bytes: u64,
        /// The plan of the broadcasts, or "swarm".
        via: String,
    },
    /// The source cannot be read, so no node gets a copy. Sent by the source's rank.
    #[serde(rename = "gives_up")]
    SourceFailed {
        /// The error of the source's node.
        reason: String,
    },
    /// Nodes were lost. Sent by one of the remaining ranks.
    Lost {
        /// Names of the nodes.
        nodes: Vec<String>,
    },
    /// This rank is a member of the swarm.
    Member {
        /// Number of its rack in the swarm.
        rack: u32,
        /// Its slot in that rack.
        slot: u32,
        /// Address at which it listens.
        contact: SocketAddr,
        /// Its public key; `None` from ranks of earlier releases.
        #[serde(default)]
        key: Option<PublicKey>,
    },
    /// A member of the swarm sent this rank wrong bytes for blocks that it had declared to be
    /// checked.
    Expelled {
        /// Name of that member's node.
        node: String,
    },
    /// This rank was late, and was admitted to the broadcasts.
    Admitted,
    /// This rank was too late: the other ranks have ended or cannot be reached.
    Missed {
        /// Details.
        reason: String,
    },
    /// This node does not have all blocks yet.
    #[serde(rename = "lacks")]
    Missing {
        /// Total size of the missing blocks, in bytes.
        bytes: u64,
    },
    /// This node's copy is in place, or it cannot have one. The source itself needs no copy and
    /// reports no error. A rank may serve other nodes after this event, and reports it again if its
    /// outcome changes.
    Ended {
        /// Time since the start of the rank.
        seconds: f64,
        /// The reason, if the node has no copy.
        error: Option<String>,
    },
}

impl CopyEvent {
    /// Returns the last event of a rank that started at `began`; `error` is why its node has no
    /// copy.
    pub(crate) fn ended(began: Instant, error: Option<impl Display>) -> CopyEvent {
        let error = error.map(|error| without_os_code(&error.to_string()));
        CopyEvent::Ended { seconds: began.elapsed().as_secs_f64(), error }
    }

    /// Sends the event to the command.
    pub(crate) fn send(&self) -> std::io::Result<()> {
        send_event(self)
    }
}
