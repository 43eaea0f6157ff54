//! A schedule: per rank, actions over byte ranges with dependencies.
//!
//! A schedule is pure data about one [`Call`]: it says nothing of sockets, and its readers (executor,
//! verifier, analyser, simulator) say nothing of patterns.

use crate::layout::Scope;
use core::fmt;

/// A rank: the index of an application process in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// What the ranks of a group do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The root's message to all.
    Bcast,
    /// The elementwise combination of all vectors, at the root.
    Reduce,
    /// The elementwise combination of all vectors, at every rank.
    Allreduce,
    /// Every rank's part, in rank order, at the root.
    Gather,
    /// Every rank's part, in rank order, at every rank.
    Allgather,
    /// The root's array, one part to each rank.
    Scatter,
    /// Nobody leaves before all have come.
    Barrier,
}

/// One collective, as all ranks of the group call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What to do.
    pub operation: Operation,
    /// Source or destination, where the operation has one.
    pub root: Rank,
    /// Bytes of the message of a bcast, of the vector of a reduction, of one rank's part else.
    pub bytes: u64,
    /// Bytes of one element; `bytes` is a multiple of it, and no span cuts an element.
    pub element: u32,
}

/// A rank's buffers during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// What the rank contributes; read only. Absent for bcast.
    Input,
    /// What the rank receives. Bcast's only buffer: the root's holds the message from the start.
    Output,
    /// Working memory, [`Program::scratch`] bytes, contents undefined at the start.
    Scratch,
}

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Which buffer of the rank.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A message of a schedule: the same number at its sender and at its receivers, unique in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// The index of an action in its rank's [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub u32);

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sends a message to one rank.
    Send {
        /// The receiver.
        to: Rank,
        /// The message.
        transfer: TransferId,
        /// What to send.
        src: Span,
    },
    /// Receives a message that one rank sends with [`Kind::Send`].
    Receive {
        /// The sender.
        from: Rank,
        /// The message.
        transfer: TransferId,
        /// Where to put it.
        dst: Span,
    },
    /// Sends a message to the leaders of every other node of a tree. The sender's node is in the tree.
    Multicast {
        /// Which tree.
        scope: Scope,
        /// The message.
        transfer: TransferId,
        /// What to send.
        src: Span,
        /// How many ranks multicast at once to the same receivers at this point of the schedule, this
        /// one included: each may use that part of the tree's rate.
        sharers: u32,
    },
    /// Receives a message that one rank sends with [`Kind::Multicast`].
    Hear {
        /// The sender.
        from: Rank,
        /// Which tree.
        scope: Scope,
        /// The message.
        transfer: TransferId,
        /// Where to put it.
        dst: Span,
    },
    /// `dst[i] = dst[i] op src[i]` for every element.
    Reduce {
        /// Right operand.
        src: Span,
        /// Left operand and result.
        dst: Span,
    },
    /// Copies bytes within the rank.
    Copy {
        /// From.
        src: Span,
        /// To; never overlaps `src`.
        dst: Span,
    },
}

/// One action of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// What to do.
    pub kind: Kind,
    /// Actions of the same rank, all earlier in the program, that must be complete before this starts.
    /// A send or multicast is complete when its span may be overwritten, a receive when its span is full.
    pub after: Vec<ActionId>,
}

/// What one rank does in a call: it is done when every action is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// In an order in which dependencies point backwards.
    pub actions: Vec<Action>,
    /// Bytes of working memory it needs.
    pub scratch: u64,
}

/// A call compiled for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What it does.
    pub call: Call,
    /// The programs, in rank order; `None` for ranks that the compiler was told to leave out.
    pub programs: Vec<Option<Program>>,
}
