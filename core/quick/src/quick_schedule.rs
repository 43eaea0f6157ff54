//! When a call is quick, and how it is executed. All ranks must decide alike, so the decision
//! depends only on the call and the layout.
//!
//! # When a call is quick
//!
//! The layout has at least two nodes and one rank per node, all parts have one length, the call has
//! data or is a barrier, and one of the plans below sends few and short messages, at most half of
//! [`RETRANSMIT_WINDOW`] per rank. The [limits](CallLimits) depend on the group's network. Where
//! nodes have several ranks, the layout is that of their [leaders](crate::NodeLeaders).
//!
//! | operation | longest vector, or all parts together | with long limits |
//! | --- | --- | --- |
//! | barrier | no data | no data |
//! | bcast, reduce, allreduce, allgather | 16 KiB | 256 KiB |
//! | gather, scatter, reduce_scatter, alltoall | 64 KiB | 384 KiB |
//! | scan, exscan | 4 KiB, because the vector is one message | 384 KiB |
//!
//! A message has at most 4 KiB, with long limits 56 KiB, and the long messages of a rank have at
//! most 384 KiB in all. With long limits, longer calls of up to 16 MiB are executed in pieces: each
//! piece is a call of the same operation on a range of every vector or part. Ranks must execute a
//! barrier before a piece that exceeds their window, as before any other call. In a bcast or reduce
//! the barrier takes place during the piece before, because its root would otherwise wait for it.

use crate::call_limits::{CallLimits, LONG_MESSAGES_BYTES_MAX, MESSAGE_BYTES_MAX};
use cool_collective::{
    ActionId, ActionKind, Dependents, Layout, MulticastScope, Plan, Program, Rank, RankBuffer, Schedule,
    ScheduleAction, Span, compile,
};
use cool_types::{Call, Operation};
use std::sync::Arc;

/// Most pieces of a call. Calls with very long elements would need more.
pub(crate) const PIECES_MAX: u32 = 1 << 9;

/// Marks the transfers of a barrier that is executed together with a piece.
pub(crate) const BARRIER_TRANSFER: u32 = 1 << 21;

/// Bytes that fit into one Ethernet packet with all headers.
const PACKET_BYTES: u64 = 1400;

/// Number of messages that a rank keeps for retransmission. The ranks must execute a barrier before
/// a call if, since all ranks last heard from each other, a rank would have sent more than half
/// this number, or more bytes than the [limits](CallLimits) permit.
pub const RETRANSMIT_WINDOW: u32 = 128;

/// Bytes that arrive with each message in addition to its payload: Ethernet, IP and UDP headers,
/// our header and the tag.
const HEADER_BYTES: u64 = 100;

/// Traffic that may be in flight. Each field is the maximum over all ranks, so that all ranks
/// compute the same value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallTraffic {
    /// Messages that a rank sends.
    pub(crate) messages: u32,
    /// Bytes that arrive at a rank.
    pub(crate) bytes: u64,
    /// Bytes of the messages of more than [`MESSAGE_BYTES_MAX`] that a rank sends.
    pub(crate) long_bytes: u64,
}

impl CallTraffic {
    /// Returns the sum with the traffic of another call.
    pub(crate) fn and(self, other: CallTraffic) -> CallTraffic {
        CallTraffic {
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            long_bytes: self.long_bytes + other.long_bytes,
        }
    }

    /// Returns whether ranks may send this much without hearing from each other: all messages are
    /// still in the retransmission buffers, and no queue overflows.
    pub(crate) fn fits(self, limits: CallLimits) -> bool {
        self.is_retained() && self.bytes <= limits.window_bytes
    }

    /// Returns whether the retransmission buffers hold all messages.
    fn is_retained(self) -> bool {
        self.messages <= RETRANSMIT_WINDOW / 2 && self.long_bytes <= LONG_MESSAGES_BYTES_MAX
    }
}

/// The program of one rank for a quick call.
#[derive(Debug)]
pub struct QuickSchedule {
    pub(crate) call: Call,
    pub(crate) program: Program,
    pub(crate) dependents: Dependents,
    /// The maximum over all ranks of the messages that a rank sends, and of the bytes that arrive
    /// at a rank.
    pub(crate) traffic: CallTraffic,
    /// Whether this rank sends so much that sending it twice would take long compared with the
    /// call. Its receivers would then send NAKs although nothing was lost.
    pub(crate) is_long: bool,
    /// The plan.
    plan: Plan,
    /// Whether no action of any rank accesses several parts of an input or output at once. Only
    /// then may the parts be ranges of longer ones.
    spans_are_within_parts: bool,
    /// Whether the ranks execute a barrier at the same time.
    has_barrier: bool,
    /// The pieces that follow if the call is executed in several.
    following: Option<FollowingPieces>,
}

/// The pieces of a call after the first one, whose schedule is that of the call.
#[derive(Debug)]
struct FollowingPieces {
    /// Number of further pieces of the same length.
    alike: u32,
    /// The schedule of these pieces and of the first one, together with a barrier. `None` for
    /// operations in which most ranks wait for one: fewer barriers, each before a piece, then take
    /// less time than more that are executed during pieces.
    with_barrier: Option<Arc<QuickSchedule>>,
    /// The last piece, if it is shorter.
    last: Option<Arc<QuickSchedule>>,
}

impl QuickSchedule {
    /// Returns the program of `rank` for a call, or `None` if the call is not quick. See the rule
    /// at the top of this file.
    pub fn for_call(call: &Call, layout: &Layout, rank: Rank, limits: CallLimits) -> Option<QuickSchedule> {
        let carries = call.operation == Operation::Barrier || call.bytes > 0;
        let alone = layout.nodes() < 2 || layout.nodes() != layout.size();
        if call.counts.is_some() || !carries || alone {
            return None;
        }
        QuickSchedule::undivided(call, layout, rank, limits)
            .next()
            .or_else(|| QuickSchedule::in_pieces(call, layout, rank, limits))
    }

    /// Returns the programs of `rank` for a call that is executed as a whole, the best plan first.
    fn undivided<'a>(
        call: &'a Call,
        layout: &'a Layout,
        rank: Rank,
        limits: CallLimits,
    ) -> impl Iterator<Item = QuickSchedule> + 'a {
        let total = total_bytes(call, layout.size());
        let plans = plans(call.operation).iter().filter(move |(_, longest)| total <= longest.bytes(limits));
        plans.filter_map(move |(plan, _)| QuickSchedule::with_plan(plan, call, layout, rank, limits))
    }

    /// Returns the program of `rank` for a call that is executed in pieces. Each piece is a call of
    /// the same operation on the same range of every vector or part.
    fn in_pieces(call: &Call, layout: &Layout, rank: Rank, limits: CallLimits) -> Option<QuickSchedule> {
        let total = total_bytes(call, layout.size());
        (call.bytes > 0 && total <= limits.pieces_bytes).then_some(())?;
        let element = u64::from(call.element).max(1);
        // Several pieces then fit into the window, so that one can be sent during the barrier after
        // another.
        let piece_bytes_max = 2 * limits.message_bytes / (total / call.bytes) / element * element;
        (piece_bytes_max > 0).then_some(())?;
        let pieces = call.bytes.div_ceil(piece_bytes_max);
        let piece_bytes = call.bytes.div_ceil(pieces).next_multiple_of(element);
        (call.bytes.div_ceil(piece_bytes) <= PIECES_MAX.into()).then_some(())?;
        let alike = u32::try_from(call.bytes / piece_bytes).ok()?.checked_sub(1)?;
        let piece = |bytes| Call { bytes, ..call.clone() };
        let (first_piece, last_piece) = (piece(piece_bytes), piece(call.bytes % piece_bytes));
        let barrier = QuickSchedule::barrier(layout, rank)?;
        let schedules = QuickSchedule::undivided(&first_piece, layout, rank, limits);
        schedules.filter(|first| first.spans_are_within_parts).find_map(|first| {
            let last = match last_piece.bytes {
                0 => None,
                _ => {
                    let plan = first.plan.to_string();
                    let last = QuickSchedule::with_plan(&plan, &last_piece, layout, rank, limits);
                    Some(Arc::new(last.filter(|last| last.spans_are_within_parts)?))
                }
            };
            let is_simultaneous = matches!(call.operation, Operation::Bcast | Operation::Reduce);
            let with_barrier = is_simultaneous.then(|| Arc::new(first.with_barrier(&barrier)));
            Some(QuickSchedule { following: Some(FollowingPieces { alike, with_barrier, last }), ..first })
        })
    }

    /// Returns the schedule of a piece of the call, or `None` if the call has fewer pieces.
    pub(crate) fn piece(self: &Arc<QuickSchedule>, index: u32) -> Option<&Arc<QuickSchedule>> {
        let (alike, last) = match &self.following {
            Some(following) => (following.alike, following.last.as_ref()),
            None => (0, None),
        };
        if index <= alike { Some(self) } else { last.filter(|_| index == alike + 1) }
    }

    /// Returns the schedule of the piece together with a barrier. Returns `None` for the last piece
    /// of a call, if it is shorter than the others, for a call in one piece, and if the barrier is
    /// better executed before the next piece.
    pub(crate) fn piece_with_barrier(&self, index: u32) -> Option<&Arc<QuickSchedule>> {
        let following = self.following.as_ref().filter(|following| index <= following.alike)?;
        following.with_barrier.as_ref()
    }

    /// Returns the schedule of a call and of a barrier that the ranks execute at the same time.
    fn with_barrier(&self, barrier: &QuickSchedule) -> QuickSchedule {
        let mut program = self.program.clone();
        let first = program.actions.len() as u32;
        let nothing = Span { buffer: RankBuffer::Scratch, offset: 0, len: 0 };
        program.actions.extend(barrier.program.actions.iter().map(|action| {
            let mut kind = action.kind;
            match &mut kind {
                ActionKind::Send { transfer, src: span, .. }
                | ActionKind::Multicast { transfer, src: span, .. }
                | ActionKind::Receive { transfer, dst: span, .. }
                | ActionKind::ReceiveMulticast { transfer, dst: span, .. } => {
                    transfer.0 |= BARRIER_TRANSFER;
                    *span = nothing;
                }
                ActionKind::Reduce { src, dst } | ActionKind::Copy { src, dst } => {
                    (*src, *dst) = (nothing, nothing);
                }
            }
            let after = action.after.iter().map(|on| ActionId(on.0 + first)).collect();
            ScheduleAction { kind, after }
        }));
        QuickSchedule {
            call: self.call.clone(),
            dependents: Dependents::for_program(&program),
            program,
            traffic: self.traffic.and(barrier.traffic),
            is_long: self.is_long,
            plan: self.plan,
            spans_are_within_parts: self.spans_are_within_parts,
            has_barrier: true,
            following: None,
        }
    }

    /// Returns the length of this piece, as in [`Call::bytes`].
    pub(crate) fn piece_bytes(&self) -> u64 {
        self.call.bytes
    }

    /// Returns the length of the call with all its pieces.
    pub(crate) fn whole_bytes(&self) -> u64 {
        let following = self.following.iter();
        let bytes = following.map(|following| {
            let last = following.last.as_ref().map_or(0, |last| last.call.bytes);
            u64::from(following.alike) * self.call.bytes + last
        });
        self.call.bytes + bytes.sum::<u64>()
    }

    /// Returns the program of `rank` by a plan, or `None` if a message is too long or a rank sends
    /// too many messages.
    fn with_plan(
        plan: &str,
        call: &Call,
        layout: &Layout,
        rank: Rank,
        limits: CallLimits,
    ) -> Option<QuickSchedule> {
        let plan: Plan = plan.parse().ok()?;
        let schedule = compile(call, layout, &plan, |_| true).ok()?;
        let all = schedule.programs.iter().flatten();
        let all_sent: Vec<SentMessages> =
            all.map(|program| SentMessages::of(program, limits)).collect::<Option<_>>()?;
        let traffic = CallTraffic {
            messages: all_sent.iter().map(|sent| sent.messages).max()?,
            bytes: schedule.programs.iter().flatten().map(received).max().unwrap_or(0),
            long_bytes: all_sent.iter().map(|sent| sent.long_bytes).max()?,
        };
        traffic.is_retained().then_some(())?;
        let Schedule { call, mut programs } = schedule;
        let spans_are_within_parts = programs.iter().flatten().all(|program| is_within_parts(program, &call));
        let program = programs.get_mut(rank.0 as usize)?.take()?;
        let is_long = SentMessages::of(&program, limits)?.bytes > MESSAGE_BYTES_MAX;
        Some(QuickSchedule {
            call,
            dependents: Dependents::for_program(&program),
            program,
            traffic,
            is_long,
            plan,
            spans_are_within_parts,
            has_barrier: false,
            following: None,
        })
    }

    /// Returns the barrier that the ranks execute between calls.
    pub(crate) fn barrier(layout: &Layout, rank: Rank) -> Option<QuickSchedule> {
        let barrier = Call::new(Operation::Barrier, Rank(0), 0, 1);
        QuickSchedule::for_call(&barrier, layout, rank, CallLimits::SHORT)
    }

    /// Returns the plan of the schedule.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns whether a rank that completes the call, or this piece of it, has heard from all
    /// ranks, directly or through others.
    pub(crate) fn synchronizes(&self) -> bool {
        let hears_all =
            matches!(self.call.operation, Operation::Barrier | Operation::Allreduce | Operation::Allgather);
        hears_all || self.has_barrier
    }

    /// Returns whether a rank is the root of a bcast. Its schedule has only an output, which is
    /// the input of the caller.
    pub(crate) fn is_root_of_bcast(&self, rank: Rank) -> bool {
        self.call.operation == Operation::Bcast && rank == self.call.root
    }

    /// Returns the bytes of the output of a rank in a group of `size` ranks. The root of a bcast
    /// has none.
    pub fn output_bytes(&self, rank: Rank, size: usize) -> u64 {
        if self.is_root_of_bcast(rank) {
            return 0;
        }
        Call { bytes: self.whole_bytes(), ..self.call.clone() }.output_bytes(rank, size)
    }
}

/// Returns the bytes of a call's vector, or of all parts together.
fn total_bytes(call: &Call, size: usize) -> u64 {
    match call.operation {
        Operation::Bcast | Operation::Reduce | Operation::Allreduce | Operation::Scan | Operation::Exscan => {
            call.bytes
        }
        _ => call.bytes.saturating_mul(size as u64),
    }
}

/// Returns all plans of quick calls as text.
pub fn quick_plans() -> impl Iterator<Item = &'static str> {
    Operation::ALL.into_iter().flat_map(|operation| plans(operation).iter().map(|(plan, _)| *plan))
}

/// The maximum of the [total bytes](total_bytes) for which a plan is used.
#[derive(Clone, Copy, Debug)]
enum PlanLimit {
    /// This number.
    Bytes(u64),
    /// The longest message.
    Message,
    /// The longest vector that is reduced along a tree.
    Tree,
    /// The longest vector.
    Vector,
    /// All bytes that may arrive at a rank.
    Window,
}

impl PlanLimit {
    fn bytes(self, limits: CallLimits) -> u64 {
        match self {
            PlanLimit::Bytes(bytes) => bytes,
            PlanLimit::Message => limits.message_bytes,
            PlanLimit::Tree => limits.tree_bytes,
            PlanLimit::Vector => limits.vector_bytes,
            PlanLimit::Window => limits.window_bytes,
        }
    }
}

/// Returns the plans for an operation, each with its limit. The first plan that covers the call and
/// has short enough messages is used.
///
/// If all ranks receive the same data, one rank collects it and multicasts it to the whole group. A
/// vector longer than a packet is reduced along a tree in which few ranks send to one at a time,
/// because the vectors of many senders would wait in its port queue. For still longer vectors each
/// rank combines a share, so that every link carries about one vector. Parts that leaders cannot
/// send in one message are sent directly. Segments of 57344 bytes are the longest messages in
/// parts, and those of 114688 bytes contain all parts of a piece.
fn plans(operation: Operation) -> &'static [(&'static str, PlanLimit)] {
    use PlanLimit::{Bytes, Message, Tree, Vector, Window};
    match operation {
        Operation::Bcast => &[
            ("multicast", Message),
            ("multicast/4096", Bytes(CallLimits::SHORT.vector_bytes)),
            ("multicast/57344", Vector),
        ],
        Operation::Barrier => &[("multicast", Bytes(0))],
        Operation::Reduce => &[
            ("cool-p-p", Bytes(PACKET_BYTES)),
            ("node:parallel,rack:binomial,center:binomial", Tree),
            ("sharded", Vector),
        ],
        Operation::Allreduce => &[
            ("multicast", Bytes(PACKET_BYTES)),
            ("node:parallel,rack:binomial+parallel,center:binomial+parallel,spread:once", Tree),
            ("sharded", Vector),
        ],
        Operation::Allgather => &[
            ("multicast", Bytes(MESSAGE_BYTES_MAX)),
            ("multicast-each", Bytes(CallLimits::SHORT.vector_bytes)),
            ("multicast-each/57344", Vector),
        ],
        Operation::Gather | Operation::Scatter => &[
            ("cool-p-p", Bytes(CallLimits::SHORT.window_bytes)),
            ("flat:parallel", Bytes(CallLimits::SHORT.window_bytes)),
            ("cool-p-p/114688", Window),
            ("flat:parallel/114688", Window),
        ],
        Operation::ReduceScatter | Operation::Alltoall | Operation::Scan | Operation::Exscan => {
            &[("cool-p-p", Window)]
        }
    }
}

/// The messages that a program sends. A multicast counts once.
#[derive(Clone, Copy, Debug, Default)]
struct SentMessages {
    messages: u32,
    bytes: u64,
    /// Bytes of the messages that are longer than [`MESSAGE_BYTES_MAX`].
    long_bytes: u64,
}

impl SentMessages {
    /// Returns the messages of a program, or `None` if a message is too long or uses a tree that
    /// does not span all nodes.
    fn of(program: &Program, limits: CallLimits) -> Option<SentMessages> {
        let mut sent = SentMessages::default();
        for action in &program.actions {
            let (src, scope) = match action.kind {
                ActionKind::Send { src, .. } => (src, MulticastScope::All),
                ActionKind::Multicast { src, scope, .. } => (src, scope),
                ActionKind::Receive { .. }
                | ActionKind::ReceiveMulticast { .. }
                | ActionKind::Reduce { .. }
                | ActionKind::Copy { .. } => continue,
            };
            (src.len <= limits.message_bytes && scope == MulticastScope::All).then_some(())?;
            sent.messages += 1;
            sent.bytes += src.len;
            sent.long_bytes += if src.len > MESSAGE_BYTES_MAX { src.len } else { 0 };
        }
        Some(sent)
    }
}

/// Returns whether no action of a program accesses several parts of an input or output at once.
fn is_within_parts(program: &Program, call: &Call) -> bool {
    let is_within = |span: Span| {
        let start = span.offset.checked_rem(call.bytes).unwrap_or(0);
        span.buffer == RankBuffer::Scratch || start + span.len <= call.bytes
    };
    program.actions.iter().all(|action| match action.kind {
        ActionKind::Send { src, .. } | ActionKind::Multicast { src, .. } => is_within(src),
        ActionKind::Receive { dst, .. } | ActionKind::ReceiveMulticast { dst, .. } => is_within(dst),
        ActionKind::Reduce { src, dst } | ActionKind::Copy { src, dst } => is_within(src) && is_within(dst),
    })
}

/// Returns the bytes, with headers, that arrive at a rank that executes a program.
fn received(program: &Program) -> u64 {
    let bytes = program.actions.iter().map(|action| match action.kind {
        ActionKind::Receive { dst, .. } | ActionKind::ReceiveMulticast { dst, .. } => dst.len + HEADER_BYTES,
        ActionKind::Send { .. }
        | ActionKind::Multicast { .. }
        | ActionKind::Reduce { .. }
        | ActionKind::Copy { .. } => 0,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::RankPlace;

    fn layout(nodes: u32) -> Layout {
        let places: Vec<RankPlace> = (0..nodes).map(|node| RankPlace { rack: node / 4, node }).collect();
        Layout::new(&places).unwrap()
    }

    fn is_quick(operation: Operation, bytes: u64, nodes: u32) -> bool {
        let call = Call::new(operation, Rank(0), bytes, 8);
        QuickSchedule::for_call(&call, &layout(nodes), Rank(1), CallLimits::SHORT).is_some()
    }

    #[test]
    fn short_calls_are_quick_and_long_ones_are_not() {
        assert!(is_quick(Operation::Barrier, 0, 16));
        for (operation, longest) in [
            (Operation::Scan, MESSAGE_BYTES_MAX),
            (Operation::Bcast, CallLimits::SHORT.vector_bytes),
            (Operation::Reduce, CallLimits::SHORT.vector_bytes),
            (Operation::Allreduce, CallLimits::SHORT.vector_bytes),
            (Operation::Allgather, CallLimits::SHORT.vector_bytes / 16),
            (Operation::Gather, CallLimits::SHORT.window_bytes / 16),
            (Operation::Scatter, CallLimits::SHORT.window_bytes / 16),
        ] {
            assert!(is_quick(operation, 8, 16), "{operation}");
            assert!(is_quick(operation, longest, 16), "{operation}");
            assert!(!is_quick(operation, longest + 8, 16), "{operation}");
            assert!(!is_quick(operation, 0, 16), "{operation} of nothing");
        }
    }

    #[test]
    fn plans_follow_the_length() {
        let plan = |operation, bytes| {
            let call = Call::new(operation, Rank(0), bytes, 8);
            QuickSchedule::for_call(&call, &layout(16), Rank(1), CallLimits::SHORT)
                .unwrap()
                .plan()
                .to_string()
        };
        assert_eq!(plan(Operation::Bcast, 4096), "multicast");
        assert_eq!(plan(Operation::Bcast, 4104), "multicast/4096");
        assert_eq!(plan(Operation::Reduce, 1400), "cool-p-p");
        assert_eq!(plan(Operation::Reduce, 1408), "node:parallel,rack:binomial,center:binomial");
        assert_eq!(plan(Operation::Allgather, 264), "multicast-each");
        assert_eq!(plan(Operation::Allreduce, 1408), plans(Operation::Allreduce)[1].0);
        assert_eq!(plan(Operation::Reduce, 4104), "sharded");
        assert_eq!(plan(Operation::Allreduce, 16384), "sharded");
        assert!(quick_plans().all(|plan| plan.parse::<Plan>().unwrap().to_string() == plan));
        // The parts of a rack are one message of its leader, or each part is a message.
        assert_eq!(plan(Operation::Scatter, 1024), "cool-p-p");
        assert_eq!(plan(Operation::Gather, 1032), "flat:parallel");
    }

    #[test]
    fn long_calls_are_quick_under_long_limits() {
        let plan = |operation, bytes, nodes| {
            let call = Call::new(operation, Rank(0), bytes, 8);
            let schedule = QuickSchedule::for_call(&call, &layout(nodes), Rank(1), CallLimits::LONG)?;
            Some(schedule.plan().to_string())
        };
        let known = |operation, bytes| plan(operation, bytes, 4).unwrap_or_default();
        assert_eq!(known(Operation::Bcast, 8192), "multicast");
        assert_eq!(known(Operation::Bcast, 256 << 10), "multicast/57344");
        assert_eq!(known(Operation::Reduce, 128 << 10), plans(Operation::Reduce)[1].0);
        assert_eq!(known(Operation::Allreduce, 128 << 10), plans(Operation::Allreduce)[1].0);
        assert_eq!(known(Operation::Allgather, 32 << 10), "multicast-each/57344");
        assert_eq!(known(Operation::Alltoall, 32 << 10), "cool-p-p");
        assert_eq!(known(Operation::Scan, 60 << 10), "cool-p-p");
        assert_eq!(known(Operation::Bcast, 1 << 20), "multicast/57344");
        assert_eq!(known(Operation::Bcast, CallLimits::LONG.pieces_bytes + 8), "");
        assert_eq!(plan(Operation::Scatter, 8 << 10, 16), Some("cool-p-p/114688".to_owned()));
        // A leader's message with the parts of its rack would be too long.
        assert_eq!(plan(Operation::Scatter, 32 << 10, 16), Some("flat:parallel/114688".to_owned()));
    }

    #[test]
    fn pieces_of_a_call_are_as_long_as_the_call() {
        for (operation, bytes, pieces) in [
            (Operation::Bcast, 250_008, 1),
            (Operation::Bcast, 270_000, 3),
            (Operation::Bcast, 1_048_568, 10),
            (Operation::Allgather, 120_000, 5),
        ] {
            let call = Call::new(operation, Rank(0), bytes, 8);
            let schedule = QuickSchedule::for_call(&call, &layout(4), Rank(1), CallLimits::LONG).unwrap();
            let schedule = Arc::new(schedule);
            let lengths: Vec<u64> =
                (0..).map_while(|index| Some(schedule.piece(index)?.piece_bytes())).collect();
            assert_eq!((lengths.len(), lengths.iter().sum()), (pieces, bytes), "{operation}");
            assert_eq!(schedule.whole_bytes(), bytes);
            assert!(lengths.iter().all(|length| length % 8 == 0));
        }
    }

    #[test]
    fn a_group_with_several_ranks_on_a_node_has_no_quick_calls() {
        let places =
            [RankPlace { rack: 0, node: 0 }, RankPlace { rack: 0, node: 0 }, RankPlace { rack: 0, node: 1 }];
        let call = Call::new(Operation::Bcast, Rank(0), 8, 8);
        let layout = Layout::new(&places).unwrap();
        assert!(QuickSchedule::for_call(&call, &layout, Rank(0), CallLimits::SHORT).is_none());
    }

    #[test]
    fn a_call_with_too_many_messages_per_rank_is_not_quick() {
        assert!(is_quick(Operation::Barrier, 0, 64));
        let barrier = Call::new(Operation::Barrier, Rank(0), 0, 1);
        assert!(QuickSchedule::for_call(&barrier, &layout(4), Rank(0), CallLimits::LONG).is_some());
        assert!(QuickSchedule::in_pieces(&barrier, &layout(4), Rank(0), CallLimits::LONG).is_none());
        assert!(is_quick(Operation::Scatter, 512, 64));
        assert!(!is_quick(Operation::Scatter, 8, 300));
        assert!(is_quick(Operation::Allreduce, CallLimits::SHORT.vector_bytes, 2));
        assert!(is_quick(Operation::Allreduce, CallLimits::SHORT.vector_bytes, 64));
        assert!(!is_quick(Operation::Allreduce, CallLimits::SHORT.vector_bytes, 300));
    }
}
