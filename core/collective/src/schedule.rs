//! A schedule: per rank, actions over byte ranges with dependencies.
//!
//! A schedule is pure data about one [`Call`]: it says nothing of sockets, and its readers (executor,
//! verifier, analyser, simulator) say nothing of patterns.

use crate::layout::MulticastScope;
pub use cool_types::{Call, Operation, Rank};

/// A rank's buffers during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankBuffer {
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
    pub buffer: RankBuffer,
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
    /// Among how many messages each of `trees` trees is shared, if `concurrent_senders` send a message in such stripes at
    /// once and take the trees in turn.
    pub fn on_tree(self, concurrent_senders: u32, trees: u32) -> u64 {
        (u64::from(concurrent_senders) * u64::from(self.of)).div_ceil(u64::from(trees.max(1))).max(1)
    }
}

/// The index of an action in its rank's [`Program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionId(pub u32);

/// What an action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// Sends a message to one rank.
    Send {
        /// The receiver.
        to: Rank,
        /// The message.
        transfer: TransferId,
        /// What to send.
        src: Span,
    },
    /// Receives a message that one rank sends with [`ActionKind::Send`].
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
        scope: MulticastScope,
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
    /// Receives a message that one rank sends with [`ActionKind::Multicast`].
    ReceiveMulticast {
        /// The sender.
        from: Rank,
        /// Which nodes.
        scope: MulticastScope,
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

impl ActionKind {
    /// The spans whose contents it needs.
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

    /// Which part of a message it sends over a tree, if it does.
    pub fn stripe(&self) -> Option<Stripe> {
        if let ActionKind::Multicast { stripe, .. } = *self { Some(stripe) } else { None }
    }

    /// The span that it changes.
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
    /// What to do.
    pub kind: ActionKind,
    /// Actions of the same rank, all earlier in the program, that must be complete before this starts.
    /// A send or multicast is complete when its span may be overwritten, a receive when its span is full.
    pub after: Vec<ActionId>,
}

/// What one rank does in a call: it is done when every action is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// In an order in which dependencies point backwards.
    pub actions: Vec<ScheduleAction>,
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
