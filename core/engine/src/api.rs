//! The values that the agent passes to the engine: groups, calls, transfers, and the list of
//! requests that a rank can make.

use crate::memory::MemoryRange;
use cool_collective::CostModel;
pub use cool_transport::tagged::GroupKey;
pub use cool_types::TreeScope;
use cool_types::{ElementType, Key, Operation, ReduceOp};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The time without progress after which a call fails, unless the call specifies another one.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a node may be silent while others wait for it. It should be longer than the network
/// takes to route around a lost link.
pub const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// The specification of a group: an ordered set of ranks, their nodes, and the trees that connect
/// them. All agents of a group must receive the same specification, and each must have made the
/// group before any rank makes a call on it. The default has no ranks and no trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// The number of the group, unique in the network.
    pub id: u64,
    /// The version of its membership.
    pub epoch: u32,
    /// The ranks, in rank order.
    pub members: Vec<MemberSpec>,
    /// The multicast trees: at most one for each rack and for the rack leaders, and up to
    /// [`Layout::MOST_STRIPES`](cool_collective::Layout::MOST_STRIPES) over all nodes. Where there
    /// is no tree, the chain alone delivers the data.
    pub trees: Vec<TreeSpec>,
    /// Maximum payload of a multicast packet, in bytes.
    pub chunk_bytes: u32,
    /// Rate of the slowest host link in bytes per second; 0 if unknown.
    pub host_bytes_per_second: u64,
    /// The cost model by which plans are chosen.
    pub cost_model: CostModel,
    /// The key and the protection of the group's datagrams. Without a key, a datagram is accepted
    /// by its sender's address.
    pub keyed: Option<GroupKey>,
    /// Whether agents connect when they first have something to send to each other. Otherwise each
    /// connects to all others immediately, and so notices at once if one of them is lost. If a
    /// member has no key of its own, the group's key proves its identity.
    pub on_demand: bool,
    /// Whether the ranks may execute short calls by datagrams, which their agents prepare for them.
    pub quick: bool,
    /// Whether the agents test, before the first of these calls, that datagrams arrive. All agents
    /// of the group must support it.
    pub probe_quick: bool,
    /// Length of the datagrams into which ranks divide long messages of these calls; 0 if they
    /// execute only short calls.
    pub quick_datagram_bytes: u16,
    /// Number of parallel TCP connections of which a connection between two agents consists, up to
    /// [`STREAMS_MAX`](cool_transport::unicast::handshake::STREAMS_MAX); 0 means one. A larger
    /// number is used only between agents that prove their identity, and all agents of the group
    /// must support it.
    pub connections_per_hop: u8,
}

/// The location of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// Its number in the group.
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    /// The incarnation of the node's agent. An agent that was started later does not belong to the
    /// group.
    pub incarnation: u64,
    /// The controller's number of the rack.
    pub rack: u32,
    /// Address of the node's data interface.
    pub ip: IpAddr,
    /// The agent's port for repair.
    pub udp_port: u16,
    /// The agent's TCP port for messages that other agents send in unicast schedules.
    pub tcp_port: u16,
    /// The agent's own key, with which it and the agents that connect to it prove their identity;
    /// `None` if the agent has no key.
    pub key: Option<Key>,
}

impl MemberSpec {
    /// Returns the address at which the agent receives datagrams and from which it sends them.
    pub(crate) fn udp(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.udp_port)
    }

    /// Returns the address at which the agent accepts connections.
    pub(crate) fn tcp(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.tcp_port)
    }
}

/// A multicast tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// The nodes that it connects.
    pub scope: TreeScope,
    /// Its multicast address.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// The rate at which a sender may send, in bytes per second; 0 if unknown.
    pub bytes_per_second: u64,
}

/// A collective call of one local rank. `M` is the type by which the driver names buffers.
#[derive(Clone, Debug)]
pub struct CallRequest<M = MemoryRange> {
    /// The group.
    pub group: u64,
    /// The caller.
    pub rank: u32,
    /// The operation.
    pub operation: Operation,
    /// The source or destination rank, for operations that have one.
    pub root: u32,
    /// Type of an element; ignored by barrier.
    pub element: ElementType,
    /// How elements are combined, for operations that combine them.
    pub reduce: Option<ReduceOp>,
    /// The number of elements: of the message of a bcast, of the vector of a reduction or scan,
    /// otherwise of one rank's part.
    pub count: u64,
    /// For parts of unequal lengths, in place of `count`: the number of elements of each part, in
    /// the order of [`Call::counts`](cool_types::Call::counts), which holds their bytes.
    pub counts: Option<Vec<u64>>,
    /// The name of the plan to use, or empty for the default plan.
    pub plan: String,
    /// The data that the rank contributes; `None` if it contributes none, and for bcast.
    pub input: Option<M>,
    /// The destination of the data that the rank receives; `None` if it receives none. For bcast it
    /// is the only buffer. It must not overlap `input`.
    pub output: Option<M>,
    /// The time without progress after which the call fails; [`DEFAULT_TIMEOUT`] if `None`.
    pub timeout: Option<Duration>,
    /// The position of the call among the rank's calls on the group, starting at 0; `None` for the
    /// next one. A rank that executes calls without the engine must specify it, because the engine
    /// does not see those calls.
    pub call_number: Option<u64>,
    /// Whether this is a watched call: the ranks execute it themselves, and this rank waits in it.
    /// A watched call has no buffers, and its rank must bound the wait.
    pub watch: bool,
    /// Whether multicasts of this node for the call yield to all other traffic on their paths.
    pub background: bool,
}

impl<M> CallRequest<M> {
    /// Converts the names of the buffers with `name`, and returns the request with the new names.
    pub fn map<N>(self, mut name: impl FnMut(M) -> N) -> CallRequest<N> {
        let CallRequest { group, rank, operation, root, element, reduce, count, counts, plan, .. } = self;
        let (call_number, watch, background) = (self.call_number, self.watch, self.background);
        let (input, output, timeout) = (self.input.map(&mut name), self.output.map(name), self.timeout);
        CallRequest {
            group,
            rank,
            operation,
            root,
            element,
            reduce,
            count,
            counts,
            plan,
            input,
            output,
            timeout,
            call_number,
            watch,
            background,
        }
    }
}

/// A rank's report on its watched call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchReport {
    /// The rank is still waiting. Ranks report this several times per second. The failure detector
    /// treats a rank that stops reporting as stopped, and names it to the ranks that wait for it.
    StillWaits,
    /// The rank has completed the call, or left it.
    Completed,
    /// The rank has waited until its timeout.
    Overdue {
        /// The ranks that have not joined the call.
        ranks: Vec<u32>,
        /// How long the rank has waited.
        timeout: Duration,
    },
    /// Another rank has made a different call.
    Differs {
        /// That rank.
        rank: u32,
        /// The other rank's call, as text.
        text: String,
    },
}

/// The kinds of point-to-point transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Sends a message. The transfer completes when the message's memory may change.
    Send,
    /// Sends a message. The transfer completes when a receive has matched it.
    SynchronousSend,
    /// Receives a message.
    Receive,
    /// Waits until there is a message that a receive would match, without receiving it.
    Probe,
    /// Returns at once whether there is a message that a receive would match, without receiving it.
    ProbeNow,
}

impl TransferKind {
    /// Returns whether the rank is the sender.
    pub fn sends(self) -> bool {
        matches!(self, TransferKind::Send | TransferKind::SynchronousSend)
    }
}

/// A point-to-point message that one local rank sends or receives; see [`CallRequest`].
#[derive(Clone, Debug)]
pub struct TransferRequest<M = MemoryRange> {
    /// The group.
    pub group: u64,
    /// The caller.
    pub rank: u32,
    /// What the rank does with the message.
    pub kind: TransferKind,
    /// A number by which the rank can cancel the transfer. The rank chooses it and must not use it
    /// twice.
    pub id: u64,
    /// The other rank; `None` to receive from any rank.
    pub peer: Option<u32>,
    /// The tag of the message; `None` to receive any tag.
    pub tag: Option<u32>,
    /// The element type, which must be the same on both sides. A probe matches any type.
    pub element: ElementType,
    /// The message to send, or the buffer to receive into, which may be longer than the message.
    /// `None` for a probe.
    pub data: Option<M>,
    /// The time without progress after which the transfer fails.
    pub timeout: Duration,
}

impl<M> TransferRequest<M> {
    /// Converts the name of the buffer with `name`, and returns the request with the new name.
    pub fn map<N>(self, name: impl FnOnce(M) -> N) -> TransferRequest<N> {
        let TransferRequest { group, rank, kind, id, peer, tag, element, data, timeout } = self;
        TransferRequest { group, rank, kind, id, peer, tag, element, data: data.map(name), timeout }
    }
}

/// A request of a rank of this node to which the engine replies once, with
/// [`Output::Done`](crate::Output::Done).
///
/// This enum and [`RankCommand`] together list everything that a rank can request of its engine.
/// `M` is the type by which the driver names buffers.
#[derive(Clone, Debug)]
pub enum RankRequest<M = MemoryRange> {
    /// A collective call.
    Call(CallRequest<M>),
    /// A message to or from another rank.
    Transfer(TransferRequest<M>),
}

impl<M> RankRequest<M> {
    /// Returns the group and the rank that makes the request.
    pub fn source(&self) -> (u64, u32) {
        match self {
            RankRequest::Call(request) => (request.group, request.rank),
            RankRequest::Transfer(request) => (request.group, request.rank),
        }
    }

    /// Converts the names of the buffers with `name`, and returns the request with the new names.
    pub fn map<N>(self, name: impl FnMut(M) -> N) -> RankRequest<N> {
        match self {
            RankRequest::Call(request) => RankRequest::Call(request.map(name)),
            RankRequest::Transfer(request) => RankRequest::Transfer(request.map(name)),
        }
    }
}

impl<M> From<CallRequest<M>> for RankRequest<M> {
    fn from(request: CallRequest<M>) -> RankRequest<M> {
        RankRequest::Call(request)
    }
}

impl<M> From<TransferRequest<M>> for RankRequest<M> {
    fn from(request: TransferRequest<M>) -> RankRequest<M> {
        RankRequest::Transfer(request)
    }
}

/// A request of a rank of this node, or a report about one, to which the engine does not reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankCommand {
    /// Cancels a receive or probe, which fails at once unless it already has its message.
    Cancel {
        /// The number that the rank gave the transfer, see [`TransferRequest::id`].
        id: u64,
    },
    /// Reports on a watched call. The engine ignores the report if it has answered the call
    /// meanwhile.
    Watched {
        /// The number of the call in its group.
        call_number: u64,
        /// The report.
        report: WatchReport,
    },
    /// Revokes the group: all calls on it fail, at every rank (revocation in the sense of ULFM,
    /// User-Level Failure Mitigation for MPI).
    Revoke {
        /// Why the rank left a call incomplete, for the errors of the other ranks. The engine cuts
        /// long texts. Empty if the program has revoked the group.
        cause: String,
    },
    /// Reports that the rank is lost, for example because its process ended.
    Lost {
        /// The reason, as text.
        why: String,
        /// Number of calls that the rank has completed. It must be set for a rank that executes
        /// calls without the engine, if it is known. If `None`, the engine uses the number of calls
        /// that the rank has made here.
        completed_calls: Option<u64>,
    },
}

/// The reasons why a group cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// A group with this number exists already.
    #[error("group {0} exists on this node already; release it first or choose another number")]
    Exists(u64),
    /// Its description is inconsistent.
    #[error("group {group}: {reason}")]
    Invalid {
        /// The group.
        group: u64,
        /// The inconsistency.
        reason: String,
    },
}
