//! A schedule: per rank, actions over byte ranges with dependencies.
//!
//! A schedule is pure data about one [`Call`]: it says nothing of sockets, and its readers (executor,
//! verifier, analyser, simulator) say nothing of patterns.

use crate::layout::Scope;
use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

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
    /// The elementwise combination of all vectors, one part to each rank.
    ReduceScatter,
    /// Every rank's array, one part to each rank, which puts the parts in rank order.
    Alltoall,
    /// At each rank the elementwise combination of its vector and those of all ranks before it.
    Scan,
    /// At each rank the elementwise combination of the vectors of all ranks before it; nothing at rank 0.
    Exscan,
    /// Nobody leaves before all have come.
    Barrier,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 11] = [
        Operation::Bcast,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::Gather,
        Operation::Allgather,
        Operation::Scatter,
        Operation::ReduceScatter,
        Operation::Alltoall,
        Operation::Scan,
        Operation::Exscan,
        Operation::Barrier,
    ];

    /// Whether it has a root.
    pub fn rooted(self) -> bool {
        matches!(self, Operation::Bcast | Operation::Reduce | Operation::Gather | Operation::Scatter)
    }

    /// Whether it combines elements.
    pub fn combines(self) -> bool {
        matches!(
            self,
            Operation::Reduce
                | Operation::Allreduce
                | Operation::ReduceScatter
                | Operation::Scan
                | Operation::Exscan
        )
    }

    /// Whether it is about one part per rank, so that each may have its own length.
    pub fn takes_counts(self) -> bool {
        matches!(
            self,
            Operation::Gather
                | Operation::Allgather
                | Operation::Scatter
                | Operation::ReduceScatter
                | Operation::Alltoall
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Bcast => "bcast",
            Operation::Reduce => "reduce",
            Operation::Allreduce => "allreduce",
            Operation::Gather => "gather",
            Operation::Allgather => "allgather",
            Operation::Scatter => "scatter",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Alltoall => "alltoall",
            Operation::Scan => "scan",
            Operation::Exscan => "exscan",
            Operation::Barrier => "barrier",
        })
    }
}

/// There is no such operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no operation {name:?}; there are: {}", Operation::ALL.map(|o| o.to_string()).join(", "))]
pub struct UnknownOperation {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(text: &str) -> Result<Operation, UnknownOperation> {
        let named = Operation::ALL.into_iter().find(|operation| operation.to_string() == text);
        named.ok_or_else(|| UnknownOperation { name: text.to_owned() })
    }
}

/// One collective, as all ranks of the group call it. Equal calls of all ranks make equal schedules: what
/// agents compare before they start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// What to do.
    pub operation: Operation,
    /// Source or destination, where the operation has one.
    pub root: Rank,
    /// Bytes of the message of a bcast, of the vector of a reduction or scan, of one rank's part else. A
    /// barrier has none, whatever stands here.
    pub bytes: u64,
    /// Bytes of one element; `bytes` is a multiple of it, and no span cuts an element.
    pub element: u32,
    /// For parts of unequal lengths (MPI's v-forms): the bytes of each rank's part, in rank order, in place of
    /// `bytes`; of an alltoall those from rank 0 to each rank, then those from rank 1, and so on.
    pub counts: Option<Arc<[u64]>>,
}

impl Call {
    /// A call whose parts, if it has any, are all of `bytes` bytes.
    pub fn new(operation: Operation, root: Rank, bytes: u64, element: u32) -> Call {
        Call { operation, root, bytes, element, counts: None }
    }

    /// The same call with the parts' lengths in bytes; see [`Call::counts`].
    pub fn with_counts(self, counts: impl Into<Arc<[u64]>>) -> Call {
        Call { counts: Some(counts.into()), ..self }
    }

    /// Bytes of [`Buffer::Input`] at `rank` of a group of `size` ranks. [`crate::compile`] refuses calls
    /// for which this overflows.
    pub fn input_bytes(&self, rank: Rank, size: usize) -> u64 {
        match self.operation {
            Operation::Bcast | Operation::Barrier => 0,
            Operation::Reduce | Operation::Allreduce | Operation::Scan | Operation::Exscan => self.bytes,
            Operation::Gather | Operation::Allgather => self.part(rank),
            Operation::Scatter if rank == self.root => self.total(size),
            Operation::Scatter => 0,
            Operation::ReduceScatter => self.total(size),
            Operation::Alltoall => sum((0..size).map(|to| self.block(rank.0 as usize, to, size))),
        }
    }

    /// Bytes of [`Buffer::Output`] at `rank` of a group of `size` ranks; as [`Call::input_bytes`].
    pub fn output_bytes(&self, rank: Rank, size: usize) -> u64 {
        match self.operation {
            Operation::Barrier => 0,
            Operation::Bcast | Operation::Allreduce | Operation::Scan => self.bytes,
            Operation::Exscan => {
                if rank.0 == 0 {
                    0
                } else {
                    self.bytes
                }
            }
            Operation::Scatter | Operation::ReduceScatter => self.part(rank),
            Operation::Allgather => self.total(size),
            Operation::Reduce if rank == self.root => self.bytes,
            Operation::Gather if rank == self.root => self.total(size),
            Operation::Reduce | Operation::Gather => 0,
            Operation::Alltoall => sum((0..size).map(|from| self.block(from, rank.0 as usize, size))),
        }
    }

    /// Bytes of a rank's part.
    pub(crate) fn part(&self, rank: Rank) -> u64 {
        self.counts.as_ref().map_or(self.bytes, |counts| counts[rank.0 as usize])
    }

    /// Bytes of what goes from one rank to another in an alltoall.
    pub(crate) fn block(&self, from: usize, to: usize, size: usize) -> u64 {
        self.counts.as_ref().map_or(self.bytes, |counts| counts[from * size + to])
    }

    /// Bytes of all ranks' parts.
    fn total(&self, size: usize) -> u64 {
        match &self.counts {
            None => self.bytes.saturating_mul(size as u64),
            Some(counts) => sum(counts.iter().copied()),
        }
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
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

impl Span {
    /// `len` bytes of this span, from its byte `offset` on; both lie within it.
    pub fn sub(self, offset: u64, len: u64) -> Span {
        debug_assert!(offset + len <= self.len, "{len} bytes at {offset} of {self:?}");
        Span { buffer: self.buffer, offset: self.offset + offset, len }
    }

    /// The first byte after the span.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// A message of a schedule: the same number at its sender and at its receivers, unique in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// One of the parts of a message to all, each of which has a tree of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// Which of the trees over the same nodes, from 0.
    pub index: u32,
    /// How many parts the message has, sent at the same time; at least one, at most as many as there are trees.
    pub of: u32,
}

impl Stripe {
    /// Among how many parts a tree is shared, one of so many trees which so many concurrent_senders take in turn.
    pub fn on_tree(self, concurrent_senders: u32, trees: u32) -> u64 {
        (u64::from(concurrent_senders) * u64::from(self.of)).div_ceil(u64::from(trees.max(1))).max(1)
    }
}

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
        /// Which nodes.
        scope: Scope,
        /// Which of the trees over these nodes.
        stripe: Stripe,
        /// The message.
        transfer: TransferId,
        /// What to send.
        src: Span,
        /// How many ranks multicast at once to the same receivers at this point of the schedule, this
        /// one included: each may use that part of the tree's rate.
        concurrent_senders: u32,
    },
    /// Receives a message that one rank sends with [`Kind::Multicast`].
    ReceiveMulticast {
        /// The sender.
        from: Rank,
        /// Which nodes.
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

impl Kind {
    /// The spans whose contents it needs.
    pub fn reads(&self) -> impl Iterator<Item = Span> + use<> {
        let (first, second) = match *self {
            Kind::Send { src, .. } | Kind::Multicast { src, .. } | Kind::Copy { src, .. } => {
                (Some(src), None)
            }
            Kind::Reduce { src, dst } => (Some(src), Some(dst)),
            Kind::Receive { .. } | Kind::ReceiveMulticast { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Which part of a message it sends over a tree, if it does.
    pub fn stripe(&self) -> Option<Stripe> {
        if let Kind::Multicast { stripe, .. } = *self { Some(stripe) } else { None }
    }

    /// The span that it changes.
    pub fn writes(&self) -> Option<Span> {
        match *self {
            Kind::Receive { dst, .. } | Kind::ReceiveMulticast { dst, .. } => Some(dst),
            Kind::Reduce { dst, .. } | Kind::Copy { dst, .. } => Some(dst),
            Kind::Send { .. } | Kind::Multicast { .. } => None,
        }
    }
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
