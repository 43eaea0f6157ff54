//! A schedule: per rank, actions over byte ranges with dependencies.
//!
//! A schedule is plain data about one [`Call`]. It does not refer to sockets, and its readers
//! (executor, verifier, analyzer, simulator) do not depend on patterns.

use crate::layout::MulticastScope;
pub use cool_types::{Call, Operation, Rank};

/// A rank's buffers during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankBuffer {
    /// The rank's contribution; read only. A bcast has none.
    Input,
    /// The result. It is the only buffer of a bcast, and holds the message at the root from the
    /// start.
    Output,
    /// Working memory of [`Program::scratch`] bytes with undefined initial contents.
    Scratch,
}

/// A byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buffer: RankBuffer,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Span {
    /// Returns `len` bytes of this span, starting at its byte `offset`. Both must lie within the
    /// span.
    pub fn sub(self, offset: u64, len: u64) -> Span {
        debug_assert!(offset + len <= self.len, "{len} bytes at {offset} of {self:?}");
        Span { buffer: self.buffer, offset: self.offset + offset, len }
    }

    /// Returns the first byte after the span.
    pub fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// A message of a schedule. The number is the same at its sender and its receivers, and unique in
/// the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u32);

/// One stripe of a message to all nodes. Each stripe has a tree of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripe {
    /// The index of its tree among the trees over the same nodes, starting at 0.
    pub index: u32,
    /// The number of stripes of the message, which are sent at the same time. At least one, at most
    /// the number of trees.
    pub of: u32,
}

impl Stripe {
    /// Returns the number of messages that share each of `trees` trees, if `concurrent_senders`
    /// ranks send a message in this many stripes at once and use the trees in turn.
    pub fn on_tree(self, concurrent_senders: u32, trees: u32) -> u64 {
        (u64::from(concurrent_senders) * u64::from(self.of)).div_ceil(u64::from(trees.max(1))).max(1)
    }
}

/// The index of an action in its rank's [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub u32);

/// The kind of an action, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// Sends a message to one rank.
    Send {
        /// The receiver.
        to: Rank,
        /// The message.
        transfer: TransferId,
        /// The bytes to send.
        src: Span,
    },
    /// Receives a message that one rank sends with [`ActionKind::Send`].
    Receive {
        /// The sender.
        from: Rank,
        /// The message.
        transfer: TransferId,
        /// The destination.
        dst: Span,
    },
    /// Sends a message to the leaders of all other nodes of a tree. The tree must contain the
    /// sender's node.
    Multicast {
        /// The nodes of the tree.
        scope: MulticastScope,
        /// The stripe, which selects one of the trees over these nodes.
        stripe: Stripe,
        /// The message.
        transfer: TransferId,
        /// The bytes to send.
        src: Span,
        /// The number of ranks, including this one, that multicast at once to the same receivers at
        /// this point of the schedule. Each may use this fraction of the tree's rate.
        concurrent_senders: u32,
    },
    /// Receives a message that one rank sends with [`ActionKind::Multicast`].
    ReceiveMulticast {
        /// The sender.
        from: Rank,
        /// The nodes of the tree.
        scope: MulticastScope,
        /// The message.
        transfer: TransferId,
        /// The destination.
        dst: Span,
    },
    /// Computes `dst[i] = dst[i] op src[i]` for every element.
    Reduce {
        /// The right operand.
        src: Span,
        /// The left operand and result.
        dst: Span,
    },
    /// Copies bytes within the rank.
    Copy {
        /// The source.
        src: Span,
        /// The destination, which must not overlap `src`.
        dst: Span,
    },
}

impl ActionKind {
    /// Returns the spans that the action reads.
    pub fn reads(&self) -> impl Iterator<Item = Span> + use<> {
        let (first, second) = match *self {
            ActionKind::Send { src, .. }
            | ActionKind::Multicast { src, .. }
            | ActionKind::Copy { src, .. } => (Some(src), None),
            ActionKind::Reduce { src, dst } => (Some(src), Some(dst)),
            ActionKind::Receive { .. } | ActionKind::ReceiveMulticast { .. } => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Returns the stripe if the action is a multicast.
    pub fn stripe(&self) -> Option<Stripe> {
        if let ActionKind::Multicast { stripe, .. } = *self { Some(stripe) } else { None }
    }

    /// Returns the span that the action writes.
    pub fn writes(&self) -> Option<Span> {
        match *self {
            ActionKind::Receive { dst, .. } | ActionKind::ReceiveMulticast { dst, .. } => Some(dst),
            ActionKind::Reduce { dst, .. } | ActionKind::Copy { dst, .. } => Some(dst),
            ActionKind::Send { .. } | ActionKind::Multicast { .. } => None,
        }
    }
}

/// One action of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleAction {
    /// The kind.
    pub kind: ActionKind,
    /// Actions of the same rank, all earlier in the program, that must be complete before this
    /// action starts. A send or multicast is complete when its span may be overwritten, a receive
    /// when its span is full.
    pub after: Vec<ActionId>,
}

/// The actions of one rank in a call. The rank is done when all of them are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The actions, in an order in which dependencies point backwards.
    pub actions: Vec<ScheduleAction>,
    /// Bytes of working memory that the program needs.
    pub scratch: u64,
}

/// A call compiled for one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The call.
    pub call: Call,
    /// The programs in rank order; `None` for ranks for which the schedule was not compiled.
    pub programs: Vec<Option<Program>>,
}
