//! The inputs and outputs of the engine.

use crate::api::{GroupError, GroupSpec, RankCommand, RankRequest};
use crate::failure::{CallFailure, CallStats};
use crate::ids::{AgentConnectionId, NodeId, WorkId};
use crate::memory::MemoryRange;
use crate::preparation::{Preparation, PreparedCall};
use cool_machine::Duration;
use cool_transport::Packet;
use cool_transport::unicast::AgentId;
use cool_transport::unicast::handshake::PeerKey;
use cool_types::{ElementType, ReduceOp};
use core::ops::Range;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// An event that the driver hands to the engine.
#[derive(Debug)]
pub enum Input<'a> {
    /// The controller makes a group. The engine replies with [`Output::GroupMade`].
    MakeGroup(&'a GroupSpec),
    /// The controller releases a group. The engine forgets it, with [`Output::GroupForgotten`],
    /// once no other node needs data that was sent in it.
    ReleaseGroup {
        /// The group.
        group: u64,
    },
    /// The controller requests a proof that the trees of a group work, including those that an
    /// earlier proof has withdrawn. The engine replies with [`Output::TreesProbed`].
    ProveTrees {
        /// The group.
        group: u64,
        /// The number of the proof. Later proofs of a group must have larger numbers.
        number: u64,
        /// The time until which the engine must reply.
        time_max: Duration,
    },
    /// The controller concludes a proof. Streams that begin from now on use all trees except the
    /// withdrawn ones. If nodes learn this at different times, streams arrive along the chain where
    /// their ends disagree.
    ConcludeTreeProof {
        /// The group.
        group: u64,
        /// The addresses of the trees that must not be used.
        withdrawn: BTreeSet<IpAddr>,
    },
    /// A rank of this node makes a request; the engine replies with [`Output::Done`].
    Request {
        /// Names the request in the reply. The driver chooses the token and must not use it twice.
        token: u64,
        /// The request.
        request: RankRequest,
    },
    /// A rank of this node makes a request that has no reply.
    Command {
        /// The rank's group.
        group: u64,
        /// The rank.
        rank: u32,
        /// The request.
        command: RankCommand,
    },
    /// Reports whether the rank of this node in a group for quick calls can execute them. The
    /// engine replies with [`Output::Quick`] once it is known for all nodes.
    Quick {
        /// The group.
        group: u64,
        /// Whether the rank can execute quick calls.
        able: bool,
    },
    /// Reports the result of a test that the engine requested with [`Output::ProbeQuick`].
    QuickProbed {
        /// The group.
        group: u64,
        /// Whether datagrams have arrived at this node.
        passed: bool,
    },
    /// A datagram arrived. The [`Output::Store`]s that follow name bytes of it.
    Datagram {
        /// Its sender.
        from: SocketAddr,
        /// Its payload, which consists of packets.
        bytes: &'a [u8],
        /// The group whose key the tag of the datagram proves, if the tag is valid and not a
        /// replay.
        proven: Option<u64>,
    },
    /// Another agent connected.
    Accepted {
        /// The number of its connection.
        connection: AgentConnectionId,
        /// Its address.
        from: IpAddr,
        /// The agent's identity, if it has proved it with this agent's key.
        proven: Option<AgentId>,
    },
    /// A connection that the engine requested with [`Output::Connect`] has been made.
    Connected {
        /// The node.
        node: NodeId,
        /// The number of its connection.
        connection: AgentConnectionId,
    },
    /// A connection that the engine requested with [`Output::Connect`] could not be made.
    Unreachable {
        /// The node.
        node: NodeId,
        /// The reason, as text.
        why: String,
    },
    /// Bytes arrived over a connection. The [`Output::Store`]s that follow name bytes of `bytes`.
    Bytes {
        /// The connection.
        connection: AgentConnectionId,
        /// The number of bytes that arrived before these and that the driver has already put where
        /// the last [`Output::Await`] requested.
        placed: u32,
        /// The bytes after them.
        bytes: &'a [u8],
    },
    /// Bytes of earlier [`Output::Write`]s have been written, or copied for writing. Their memory
    /// may change from now on.
    Written {
        /// The connection.
        connection: AgentConnectionId,
        /// Number of bytes since the last such report, of headers and payload together.
        bytes: u64,
    },
    /// The other side closed a connection, or it broke.
    Closed {
        /// The connection.
        connection: AgentConnectionId,
        /// The reason, as text.
        why: String,
    },
    /// A [`Work::Copy`] or [`Work::Reduce`] has completed.
    WorkDone(WorkId),
    /// A [`Work::Prepare`] has completed.
    Prepared(WorkId, PreparedCall),
    /// There was not enough memory for an [`Output::Allocate`]. The driver must report this before
    /// it polls the engine again, because the engine then assumes that the memory exists. Later
    /// outputs do not name this memory, except one that frees it, which the driver must ignore.
    AllocationFailed(crate::MemoryId),
}

/// The properties of a new group that its driver needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeGroup {
    /// The index of this node among the nodes of the group, as in its packets.
    pub place: u16,
    /// Number of nodes of the group.
    pub nodes: u16,
    /// The addresses of the trees that reach this node. The driver must receive from them; from
    /// source-specific ones (RFC 4607) only the sources that [`Output::JoinSource`] names.
    pub trees: Vec<SocketAddr>,
}

/// Probes of a tree that have not arrived at this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingProbes {
    /// The address of the tree.
    pub tree: IpAddr,
    /// The names of the nodes that have sent them.
    pub from: Vec<String>,
}

/// A request of the engine to its driver. The driver must execute outputs in order.
#[derive(Debug)]
pub enum Output {
    /// Reports that a group was made, or why it could not be made.
    GroupMade {
        /// The group.
        group: u64,
        /// This node's part in the group.
        result: Result<MadeGroup, GroupError>,
    },
    /// The group no longer exists. Everything that still arrives over its trees can be dropped.
    GroupForgotten {
        /// The group.
        group: u64,
    },
    /// The group has failed. The engine answers all open requests once no work uses their memory,
    /// and refuses new ones.
    GroupFailed {
        /// The group.
        group: u64,
    },
    /// Reports the result of a proof of a group's trees at this node, once for each
    /// [`Input::ProveTrees`]. The node sends probes until [`Input::ConcludeTreeProof`].
    TreesProbed {
        /// The group.
        group: u64,
        /// The number of the proof.
        number: u64,
        /// The probes that have not arrived, by tree.
        missing: Vec<MissingProbes>,
        /// Number of probes that have arrived, of different nodes or over different trees.
        received: usize,
    },
    /// Renew this node's membership of these trees: leave and join them, so that the network learns
    /// of it again. They were withdrawn, and are about to be proven again.
    RenewTrees {
        /// The addresses of the trees.
        trees: Vec<SocketAddr>,
    },
    /// The multicasts of these trees do not arrive here, although others send them. The driver must
    /// renew this node's membership, as for [`Output::RenewTrees`], and should report the group to
    /// the controller, which may prove its trees again.
    TreesSilent {
        /// The group.
        group: u64,
        /// The addresses of the trees.
        trees: Vec<SocketAddr>,
        /// Number of these outputs since the last multicast arrived, including this one.
        renewals: u32,
    },
    /// Receive the multicasts of a source from a source-specific tree of a group. May be repeated.
    JoinSource {
        /// The group.
        group: u64,
        /// The address of the tree.
        tree: SocketAddr,
        /// The address of the source.
        source: IpAddr,
    },
    /// Stop receiving the multicasts of a source for a group.
    LeaveSource {
        /// The group.
        group: u64,
        /// The address of the tree.
        tree: SocketAddr,
        /// The address of the source.
        source: IpAddr,
    },
    /// Reports whether multicasts of this node over a source-specific tree arrive. If not, the node
    /// sends its messages along the chain, and tries again later.
    SourceProbed {
        /// The group.
        group: u64,
        /// The address of the tree.
        tree: IpAddr,
        /// The names of the nodes at which no probe has arrived.
        missing: Vec<String>,
    },
    /// Test whether the datagrams of a group's quick calls arrive at this node, and send datagrams
    /// for the tests of other nodes until the result for all is known ([`Output::Quick`]).
    ProbeQuick {
        /// The group.
        group: u64,
    },
    /// Reports whether all ranks of a group can execute quick calls.
    Quick {
        /// The group.
        group: u64,
        /// Whether all of them can.
        all: bool,
    },
    /// Replies to a rank's request. The engine no longer names the memory of the request.
    Done {
        /// The token of the request.
        token: u64,
        /// The cost of the request, or the reason why it failed.
        result: Result<CallStats, CallFailure>,
    },
    /// Packets of full length from a node do not arrive here, although shorter ones do, so an
    /// interface or a switch port between the nodes has a smaller MTU. The streams of the group
    /// use short packets from now on. The driver should report this.
    LongPacketsLost {
        /// The address of the node.
        from: SocketAddr,
        /// Bytes of a packet of full length.
        bytes: u64,
    },
    /// Send a data packet to a node or a tree. The packet may be lost.
    Data {
        /// The destination.
        to: SocketAddr,
        /// The packet, which must be encoded with [`Packet::encode`].
        packet: Packet,
        /// Its payload: the current content of this range.
        payload: MemoryRange,
    },
    /// Send a datagram of control packets. It may be lost.
    Control {
        /// The destination.
        to: SocketAddr,
        /// The group of the packets.
        group: u64,
        /// The encoded packets.
        bytes: Vec<u8>,
    },
    /// Connect to a node. The driver must retry for a while, because the agent there may be
    /// starting.
    Connect {
        /// The node.
        node: NodeId,
        /// Its address.
        to: SocketAddr,
        /// The key with which both agents must prove their identity before the first frame; `None`
        /// if the agent there has no key.
        key: Option<PeerKey>,
        /// Number of parallel TCP connections of which the connection must consist if the agents
        /// prove their identity; 0 means one. The engine sees one connection.
        streams: u8,
    },
    /// Write a frame. The payload does not change before [`Input::Written`] reports that all of it
    /// has been written or copied. The driver must immediately copy the part that it cannot write
    /// at once.
    Write {
        /// The connection.
        connection: AgentConnectionId,
        /// The header of the frame.
        head: Vec<u8>,
        /// The payload that follows the header.
        payload: Option<MemoryRange>,
    },
    /// Announces the data that arrives next over a connection, until the next `Await`: the
    /// remaining `bytes` bytes of a frame's payload. If `place` is given, the payload belongs
    /// there, and the driver may read it directly to that place (see [`Input::Bytes`]).
    Await {
        /// The connection.
        connection: AgentConnectionId,
        /// The number of payload bytes to expect; 0 if the next thing is a frame header.
        bytes: u64,
        /// The destination of the payload, with as many bytes, if it is known and long enough to be
        /// worth it.
        place: Option<MemoryRange>,
    },
    /// Write the remaining data, then close the connection.
    Hangup {
        /// The connection.
        connection: AgentConnectionId,
    },
    /// Copy bytes of the last [`Input::Datagram`] or [`Input::Bytes`] to their destination, before
    /// the next such input.
    Store {
        /// The range within the input's bytes.
        within: Range<usize>,
        /// The destination, with as many bytes.
        to: MemoryRange,
    },
    /// Allocate memory that is filled with zeros.
    Allocate {
        /// The name of the memory.
        memory: crate::MemoryId,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Free memory that was allocated. The memory must stay valid until work on it that is still in
    /// progress has completed.
    Free {
        /// The name of the memory.
        memory: crate::MemoryId,
    },
    /// Copy immediately, into or out of a bounce buffer or a buffer of packets that arrived early.
    /// The buffers bound how much is copied for one input.
    Copy {
        /// The source.
        from: MemoryRange,
        /// The destination, which has the same length and does not overlap the source.
        to: MemoryRange,
    },
    /// Execute an operation that may take long, preferably on another thread, and report its
    /// completion.
    Work {
        /// The number of the work.
        id: WorkId,
        /// The operation.
        work: Work,
    },
}

/// An operation that may take long.
#[derive(Debug)]
pub enum Work {
    /// Copy bytes. The driver must report completion with [`Input::WorkDone`].
    Copy {
        /// The source.
        from: MemoryRange,
        /// The destination, which has the same length and does not overlap the source.
        to: MemoryRange,
    },
    /// Combine elements, `to[i] = to[i] op from[i]` (see [`combine`](crate::combine)). The driver
    /// must report completion with [`Input::WorkDone`].
    Reduce {
        /// The element type.
        element: ElementType,
        /// The operation on two elements.
        op: ReduceOp,
        /// The second operands.
        from: MemoryRange,
        /// The first operands and the results, with the same length, not overlapping `from`.
        to: MemoryRange,
    },
    /// Choose a plan and compile a schedule. The driver must report completion with
    /// [`Input::Prepared`].
    Prepare(Box<Preparation>),
}

impl Work {
    /// Returns the number of bytes to move, or `None` if moving bytes is not the cost of this work.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Work::Copy { to, .. } | Work::Reduce { to, .. } => Some(to.len),
            Work::Prepare(_) => None,
        }
    }
}
