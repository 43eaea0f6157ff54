//! What goes into the engine and what comes out of it.

use crate::api::{GroupError, GroupSpec, RankCommand, RankRequest};
use crate::failure::{CallFailure, CallStats};
use crate::ids::{AgentConnectionId, NodeId, WorkId};
use crate::memory::MemoryRange;
use crate::preparation::{Preparation, PreparedCall};
use cool_transport::Packet;
use cool_transport::unicast::AgentId;
use cool_transport::unicast::handshake::PeerKey;
use cool_types::{ElementType, ReduceOp};
use core::ops::Range;
use std::net::{IpAddr, SocketAddr};

/// What happens to the engine.
#[derive(Debug)]
pub enum Input<'a> {
    /// The controller makes a group; answered by [`Output::GroupMade`].
    MakeGroup(&'a GroupSpec),
    /// The controller releases a group. It is forgotten as soon as no other node needs what was sent, which
    /// [`Output::GroupForgotten`] tells.
    ReleaseGroup {
        /// The group.
        group: u64,
    },
    /// A rank of this node makes a request; the engine replies with [`Output::Done`].
    Request {
        /// Names the request in the reply. The driver chooses it, and must not use a token twice.
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
    /// Whether the rank of this node in a group for quick calls, which has come, can carry them out. [`Output::Quick`] says whether all can.
    Quick {
        /// The group.
        group: u64,
        /// Whether.
        able: bool,
    },
    /// A datagram came. [`Output::Store`]s that follow name bytes of it.
    Datagram {
        /// Its sender.
        from: SocketAddr,
        /// Its payload: packets.
        bytes: &'a [u8],
        /// The group whose key its tag was made with, which was right and has not come before.
        proven: Option<u64>,
    },
    /// Another agent connected.
    Accepted {
        /// Its connection.
        connection: AgentConnectionId,
        /// Its address.
        from: IpAddr,
        /// Who it is, if it has proved that by the key of this agent.
        proven: Option<AgentId>,
    },
    /// A node that was to be connected to is.
    Connected {
        /// The node.
        node: NodeId,
        /// Its connection.
        connection: AgentConnectionId,
    },
    /// A node that was to be connected to cannot be reached.
    Unreachable {
        /// The node.
        node: NodeId,
        /// Why, in words.
        why: String,
    },
    /// Bytes came over a connection. [`Output::Store`]s that follow name bytes of `bytes`.
    Bytes {
        /// The connection.
        connection: AgentConnectionId,
        /// How many bytes came before these, and have been put where the last [`Output::Await`] said.
        placed: u32,
        /// The bytes after them.
        bytes: &'a [u8],
    },
    /// Bytes of earlier [`Output::Write`]s have been written, or copied to be: their memory may change.
    Written {
        /// The connection.
        connection: AgentConnectionId,
        /// How many bytes more, heads and payload.
        bytes: u64,
    },
    /// A connection ended by itself.
    Closed {
        /// The connection.
        connection: AgentConnectionId,
        /// Why, in words.
        why: String,
    },
    /// A [`Work::Copy`] or [`Work::Reduce`] is done.
    WorkDone(WorkId),
    /// A [`Work::Prepare`] is done.
    Prepared(WorkId, PreparedCall),
    /// There is no memory for an [`Output::Allocate`]. What names it afterwards may be left undone.
    AllocationFailed(crate::MemoryId),
}

/// A group that was made, as its driver needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeGroup {
    /// The place of this node among the group's, as its packets say it.
    pub place: u16,
    /// How many nodes the group has.
    pub nodes: u16,
    /// The trees that reach this node, to listen to.
    pub trees: Vec<SocketAddr>,
}

/// What the engine asks of its driver, in this order.
#[derive(Debug)]
pub enum Output {
    /// A group was made, or it cannot be.
    GroupMade {
        /// The group.
        group: u64,
        /// This node's part in it.
        result: Result<MadeGroup, GroupError>,
    },
    /// A group is gone: nothing that comes over its trees is of use any more.
    GroupForgotten {
        /// The group.
        group: u64,
    },
    /// A group has failed: all that is open in it is answered, once no work uses its memory, and all that comes to it is refused.
    GroupFailed {
        /// The group.
        group: u64,
    },
    /// It is known whether all ranks of a group can carry out quick calls.
    Quick {
        /// The group.
        group: u64,
        /// Whether.
        all: bool,
    },
    /// A call or message is done. Its rank's memory is named no more.
    Done {
        /// The token that it came with.
        token: u64,
        /// What it cost, or why it failed.
        result: Result<CallStats, CallFailure>,
    },
    /// Send a data packet to a node or a tree. It may be lost.
    Data {
        /// Where to.
        to: SocketAddr,
        /// The packet, to be encoded with [`Packet::encode`].
        packet: Packet,
        /// Its payload: what stands there now.
        payload: MemoryRange,
    },
    /// Send a datagram of control packets. It may be lost.
    Control {
        /// Where to.
        to: SocketAddr,
        /// The group that they are of.
        group: u64,
        /// The encoded packets.
        bytes: Vec<u8>,
    },
    /// Connect to a node, within bounds again and again: its agent may be starting.
    Connect {
        /// The node.
        node: NodeId,
        /// Its address.
        to: SocketAddr,
        /// The key of its agent, to be proved before the first frame; none of one that cannot.
        key: Option<PeerKey>,
    },
    /// Write a frame. Its payload does not change before [`Input::Written`] says that all of it is written or copied;
    /// what is not written at once is to be copied at once.
    Write {
        /// The connection.
        connection: AgentConnectionId,
        /// The frame's head.
        head: Vec<u8>,
        /// What follows it.
        payload: Option<MemoryRange>,
    },
    /// What comes next over a connection, until this is said again: the rest of a frame's payload, of `bytes` bytes. If
    /// `place` is given it belongs there, and may be put there without a copy in between (see [`Input::Bytes`]).
    Await {
        /// The connection.
        connection: AgentConnectionId,
        /// Bytes of payload to come; 0 if a frame's head is next.
        bytes: u64,
        /// Where they belong, if that is known and worth it: as many bytes.
        place: Option<MemoryRange>,
    },
    /// Write what is left to write, then close.
    Hangup {
        /// The connection.
        connection: AgentConnectionId,
    },
    /// Put bytes of the [`Input::Datagram`] or [`Input::Bytes`] that was handled last to their place, before the next such
    /// input.
    Store {
        /// Which of the input's bytes.
        within: Range<usize>,
        /// Their place, as many bytes.
        to: MemoryRange,
    },
    /// Make a memory of zeros.
    Allocate {
        /// Its name.
        memory: crate::MemoryId,
        /// Bytes.
        bytes: u64,
    },
    /// Forget a memory that was allocated. Work on it that has not ended keeps it until it does.
    Free {
        /// Its name.
        memory: crate::MemoryId,
    },
    /// Copy at once, into or out of a bounce buffer or of packets that came too early: of one input, no more than these hold.
    Copy {
        /// The bytes.
        from: MemoryRange,
        /// Where they go: as many, elsewhere.
        to: MemoryRange,
    },
    /// Do something that may take long, best on another thread, and say when it is done.
    Work {
        /// Its number.
        id: WorkId,
        /// What it is.
        work: Work,
    },
}

/// Something that may take long.
#[derive(Debug)]
pub enum Work {
    /// Copy bytes; answered by [`Input::WorkDone`].
    Copy {
        /// The bytes.
        from: MemoryRange,
        /// Where they go: as many, elsewhere.
        to: MemoryRange,
    },
    /// Combine elements, `to[i] = to[i] op from[i]` (see [`combine`](crate::combine)); answered by [`Input::WorkDone`].
    Reduce {
        /// Their type.
        element: ElementType,
        /// How they are combined.
        op: ReduceOp,
        /// The second operands.
        from: MemoryRange,
        /// The first operands and the results: as many bytes, elsewhere.
        to: MemoryRange,
    },
    /// Pick a plan and compile a schedule; answered by [`Input::Prepared`].
    Prepare(Box<Preparation>),
}

impl Work {
    /// Bytes that are moved; none if that is not what takes time.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Work::Copy { to, .. } | Work::Reduce { to, .. } => Some(to.len),
            Work::Prepare(_) => None,
        }
    }
}
