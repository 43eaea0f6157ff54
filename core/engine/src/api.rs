//! What the edges of the agent tell the engine: its address, groups, calls.

use crate::memory::MemoryRange;
use cool_collective::CostModel;
pub use cool_transport::tagged::GroupKey;
pub use cool_types::TreeScope;
use cool_types::{ElementType, Key, Operation, ReduceOp};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Time without any progress after which a call fails, unless the call says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a node may be silent while others wait. Longer than it takes to lead paths round a link that was lost.
pub const DEFAULT_PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// An ordered set of ranks, where they are, and the trees that connect them. All agents of a group get
/// the same one, and each has made the group before any rank calls on it. The default has no ranks, and no trees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its number, unique in the network.
    pub id: u64,
    /// The version of its membership.
    pub epoch: u32,
    /// The ranks, in rank order.
    pub members: Vec<MemberSpec>,
    /// At most one for each scope (and rack); where there is none, the chain alone carries the data.
    pub trees: Vec<TreeSpec>,
    /// Payload bytes of one multicast packet.
    pub chunk_bytes: u32,
    /// Rate of the slowest host link; 0 if unknown.
    pub host_bytes_per_second: u64,
    /// By which plans are picked.
    pub cost_model: CostModel,
    /// What its datagrams are protected by. Without, they are believed by their senders' addresses.
    pub keyed: Option<GroupKey>,
    /// Its agents connect when they first have something to say to each other; else each with all others at once, by which they
    /// hear at once that one is gone. Of members without a key of their own, the group's then proves who they are.
    pub on_demand: bool,
    /// Its ranks may carry out short calls by datagrams, which their agents know how to prepare.
    pub quick: bool,
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberSpec {
    /// Its number in the group.
    pub rank: u32,
    /// Name of its node.
    pub node: String,
    /// Which of the node's agents: a later one, which has started since, is not of the group.
    pub incarnation: u64,
    /// The controller's number of the rack.
    pub rack: u32,
    /// Address of the node's data interface.
    pub ip: IpAddr,
    /// The agent's port for repair.
    pub udp_port: u16,
    /// The agent's port for unicast steps.
    pub tcp_port: u16,
    /// The agent's own key, by which it and those who connect to it prove who they are; none of one that cannot.
    pub key: Option<Key>,
}

impl MemberSpec {
    /// Where the agent takes and sends datagrams.
    pub(crate) fn udp(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.udp_port)
    }

    /// Where the agent takes connections.
    pub(crate) fn tcp(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.tcp_port)
    }
}

/// A multicast tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeSpec {
    /// Whom it connects.
    pub scope: TreeScope,
    /// Its multicast address.
    pub address: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// What a sender may send; 0 if unknown.
    pub bytes_per_second: u64,
}

/// One collective as one local rank calls it, with its buffers named in the driver's way `M`.
#[derive(Clone, Debug)]
pub struct CallRequest<M = MemoryRange> {
    /// The group.
    pub group: u64,
    /// The caller.
    pub rank: u32,
    /// What to do.
    pub operation: Operation,
    /// Source or destination, where the operation has one.
    pub root: u32,
    /// Type of an element; ignored by barrier.
    pub element: ElementType,
    /// How elements are combined, for the operations that do.
    pub reduce: Option<ReduceOp>,
    /// Elements: the message of a bcast, the vector of a reduction or scan, one rank's part else.
    pub count: u64,
    /// For parts of unequal lengths, in place of `count`: the elements of each, as [`Call::counts`](cool_types::Call::counts)
    /// has their bytes.
    pub counts: Option<Vec<u64>>,
    /// By which plan it is to be carried out; empty: the default.
    pub plan: String,
    /// What the rank contributes; absent where it contributes nothing, and for bcast.
    pub input: Option<M>,
    /// What the rank receives; absent where it receives nothing. Bcast's only buffer. Does not
    /// overlap `input`.
    pub output: Option<M>,
    /// Time without any progress after which the call fails; [`DEFAULT_TIMEOUT`] if absent.
    pub timeout: Option<Duration>,
    /// Which of the rank's calls on the group it is, from 0; absent: the next. A rank that carries calls out together with others,
    /// without the engine, has to say it.
    pub call_number: Option<u64>,
    /// The ranks, which are all on this node, carry it out themselves, and this one waits in it: a watched call. It has no buffers,
    /// and its rank looks after its time.
    pub watch: bool,
    /// What this node multicasts for it gives way to all else on its path.
    pub background: bool,
}

impl<M> CallRequest<M> {
    /// The same with buffers named in another way.
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

/// What a rank reports of a watched call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchReport {
    /// It waits still. A rank says so several times a second: one that does not is stopped, and those who wait for it are told its name.
    StillWaits,
    /// The rank has completed the call, or left it.
    Completed,
    /// It has waited for as long as it may.
    Overdue {
        /// For whom: these have not come to the call.
        ranks: Vec<u32>,
        /// For how long.
        timeout: Duration,
    },
    /// Another rank has called something else.
    Differs {
        /// That rank.
        rank: u32,
        /// What it has called.
        text: String,
    },
}

/// What a rank does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// Sends it; done when its bytes may change.
    Send,
    /// Sends it; done when a receive has taken it.
    SynchronousSend,
    /// Receives it.
    Receive,
    /// Waits until there is one that a receive would take, and leaves it there.
    Probe,
    /// Tells whether there is one that a receive would take, and leaves it there.
    ProbeNow,
}

impl TransferKind {
    /// Whether the rank is the sender.
    pub fn sends(self) -> bool {
        matches!(self, TransferKind::Send | TransferKind::SynchronousSend)
    }
}

/// One message as one local rank sends or receives it; see [`CallRequest`].
#[derive(Clone, Debug)]
pub struct TransferRequest<M = MemoryRange> {
    /// The group.
    pub group: u64,
    /// The caller.
    pub rank: u32,
    /// What it does with it.
    pub kind: TransferKind,
    /// By which the rank may cancel it: its choice, once each.
    pub id: u64,
    /// The other rank; absent where it receives from any.
    pub peer: Option<u32>,
    /// What the message is known by; absent where any is received.
    pub tag: Option<u32>,
    /// Type of an element; that of both sides. A probe finds any.
    pub element: ElementType,
    /// What is sent, or where to put what comes, which may be shorter. A probe has none.
    pub data: Option<M>,
    /// Time without any progress after which it fails.
    pub timeout: Duration,
}

impl<M> TransferRequest<M> {
    /// The same with the buffer named in another way.
    pub fn map<N>(self, name: impl FnOnce(M) -> N) -> TransferRequest<N> {
        let TransferRequest { group, rank, kind, id, peer, tag, element, data, timeout } = self;
        TransferRequest { group, rank, kind, id, peer, tag, element, data: data.map(name), timeout }
    }
}

/// A request of a rank of this node to which the engine replies once, with [`Output::Done`](crate::Output::Done).
///
/// This enum and [`RankCommand`] are the one list of everything that a rank can ask of its engine, with the buffers named
/// in the driver's way `M`.
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

    /// Returns the same request with its buffers named in another way.
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
    /// Reports on a watched call. The engine ignores the report if it has answered the call meanwhile.
    Watched {
        /// The number of the call in its group.
        call_number: u64,
        /// The report.
        report: WatchReport,
    },
    /// Revokes the group: all calls on it fail, at every rank (revocation in the sense of ULFM, User-Level Failure
    /// Mitigation for MPI).
    Revoke,
    /// Reports that the rank is lost, for example because its process ended.
    Lost {
        /// The reason, in words.
        why: String,
        /// How many calls the rank has completed, if that is known of a rank that executes calls without the engine.
        /// Otherwise the calls that it has made here count.
        completed_calls: Option<u64>,
    },
}

/// Why a group cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The group is there already.
    #[error("group {0} exists on this node already; release it first or choose another number")]
    Exists(u64),
    /// Its description makes no sense.
    #[error("group {group}: {reason}")]
    Invalid {
        /// The group.
        group: u64,
        /// What is wrong with it.
        reason: String,
    },
}
