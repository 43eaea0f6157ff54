//! The builder to which patterns add their messages. A pattern names the sender, the receiver and
//! the bytes of each message. The builder numbers the transfers, adds both ends to the programs of
//! the ranks that are kept, and derives from the bytes that an action touches the actions for which
//! it must wait.

use crate::hazards::Hazards;
use crate::layout::{Layout, MulticastScope};
use crate::schedule::{
    ActionId, ActionKind, Program, Rank, RankBuffer, ScheduleAction, Span, Stripe, TransferId,
};
use core::ops::Range;
use std::collections::BTreeMap;

/// Number of segments that may be in progress at once in working memory of one purpose: one
/// arrives, one is combined, and one leaves. After this many segments, a slot is reused.
const WINDOW: usize = 3;

/// Bytes of the shortest stripe. Shorter messages complete before several trees become faster than
/// one.
const STRIPE_BYTES_MIN: u64 = 64 * 1024;

/// Bytes of a cache line. Slots in working memory start at multiples of it, so that any element
/// type is aligned.
const ALIGN: u64 = 64;

/// A span at a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankSpan {
    pub(crate) rank: Rank,
    pub(crate) span: Span,
}

/// The purpose of a slot in a rank's working memory. Slots of one purpose are used in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScratchSlot {
    /// Data from a rank that will be combined or copied to its places.
    From(Rank),
    /// Parts from a rank that will be copied to their places.
    Landing(Rank),
    /// The combined value of a node or rack.
    Partial,
    /// The combined value of all ranks, if its destination is elsewhere.
    Total,
    /// Parts on their way through a leader, by level: 0 node, 1 rack, 2 data center.
    Parts(u8),
    /// Parts that are packed into one message to a rank.
    To(Rank),
    /// Data of a multicast at a rank that has the data already.
    Discard,
    /// For use by a pattern: a growing value.
    Value,
    /// For use by a pattern: parts of several ranks on their way.
    Bundle,
    /// One shard of a segment: its combined value of a rack, or of all racks.
    Shard { index: u32, total: bool },
}

/// The slots of one purpose, each with offset and length, which are used in turn.
#[derive(Debug, Default)]
struct SlotRing {
    slots: Vec<(u64, u64)>,
    next: usize,
}

#[derive(Debug, Default)]
struct ProgramDraft {
    program: Program,
    hazards: Hazards,
    rings: BTreeMap<ScratchSlot, SlotRing>,
    /// The actions of the previous round, which end where the current round begins.
    before: Range<u32>,
}

#[derive(Debug)]
pub(crate) struct ScheduleBuilder<'a> {
    layout: &'a Layout,
    drafts: Vec<Option<ProgramDraft>>,
    transfers: u64,
    /// Number of actions of all kept ranks so far, and its limit.
    actions: usize,
    most: usize,
    element: u64,
    /// Whether empty messages are sent. A barrier needs them because only their order matters.
    tokens: bool,
}

impl<'a> ScheduleBuilder<'a> {
    pub(crate) fn new(
        layout: &'a Layout,
        element: u64,
        tokens: bool,
        keep: impl Fn(Rank) -> bool,
        most: usize,
    ) -> ScheduleBuilder<'a> {
        let drafts = layout.ranks().map(|rank| keep(rank).then(ProgramDraft::default)).collect();
        ScheduleBuilder { layout, drafts, transfers: 0, actions: 0, most, element, tokens }
    }

    pub(crate) fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Returns the programs, or `None` if they have more transfers than can be numbered, or more
    /// actions than the limit.
    pub(crate) fn finish(self) -> Option<Vec<Option<Program>>> {
        u32::try_from(self.transfers).ok().filter(|_| self.actions <= self.most)?;
        Some(self.drafts.into_iter().map(|draft| Some(draft?.program)).collect())
    }

    /// Returns `len` bytes of working memory at `rank`. Actions on these bytes wait until the
    /// previous use of the slot is over.
    pub(crate) fn slot(&mut self, rank: Rank, slot: ScratchSlot, len: u64) -> Span {
        // Parts of all racks pass through the last leader at once.
        let window = if slot == ScratchSlot::Parts(2) { WINDOW * self.layout.racks() } else { WINDOW };
        let Some(draft) = self.draft(rank) else {
            return Span { buffer: RankBuffer::Scratch, offset: 0, len };
        };
        let ring = draft.rings.entry(slot).or_default();
        let index = ring.next % window;
        ring.next += 1;
        let fresh = (draft.program.scratch, len.max(1).next_multiple_of(ALIGN));
        // Slots of one purpose have similar lengths. A longer one gets new memory.
        let offset = match ring.slots.get_mut(index) {
            Some((offset, room)) if *room >= len => *offset,
            Some(outgrown) => {
                draft.program.scratch += fresh.1;
                *outgrown = fresh;
                fresh.0
            }
            None => {
                draft.program.scratch += fresh.1;
                ring.slots.push(fresh);
                fresh.0
            }
        };
        Span { buffer: RankBuffer::Scratch, offset, len }
    }

    /// Returns whether the builder makes a program for this rank.
    pub(crate) fn keeps(&self, rank: Rank) -> bool {
        self.drafts[rank.0 as usize].is_some()
    }

    /// Returns whether a message of this length between two ranks is sent and numbered.
    pub(crate) fn counts(&self, len: u64) -> bool {
        len > 0 || self.tokens
    }

    /// Skips the numbers of messages between ranks that are not kept, because all agents must
    /// number the later messages alike.
    pub(crate) fn skip(&mut self, messages: u64) {
        self.transfers += messages;
    }

    /// Moves bytes from one rank to another, or within one. Does nothing if they are in place
    /// already.
    pub(crate) fn send(&mut self, from: RankSpan, to: RankSpan) {
        debug_assert_eq!(from.span.len, to.span.len);
        if from.rank == to.rank {
            if from.span != to.span {
                self.copy(from.rank, from.span, to.span);
            }
            return;
        }
        if !self.counts(from.span.len) {
            return;
        }
        let transfer = self.transfer();
        self.act(from.rank, ActionKind::Send { to: to.rank, transfer, src: from.span });
        self.act(to.rank, ActionKind::Receive { from: from.rank, transfer, dst: to.span });
    }

    /// Multicasts bytes from one rank to the leaders of all other nodes of a tree, each of which
    /// stores them at `dst`. If there are several trees, the message is sent in stripes.
    pub(crate) fn multicast(
        &mut self,
        from: RankSpan,
        scope: MulticastScope,
        concurrent_senders: usize,
        dst: &dyn Fn(Rank) -> Span,
    ) {
        let home = self.layout.node_of(from.rank);
        let nodes = self.layout.nodes_of(scope);
        debug_assert!(nodes.contains(&home), "{} is outside the tree {scope:?}", from.rank);
        if nodes.len() == 1 || (from.span.len == 0 && !self.tokens) {
            return;
        }
        let concurrent_senders = u32::try_from(concurrent_senders).unwrap_or(u32::MAX);
        let most = u32::try_from(from.span.len / STRIPE_BYTES_MIN).unwrap_or(u32::MAX);
        let trees = self.layout.stripes(scope);
        let of = trees.min(most).max(1);
        for src in self.split(from.span, of as usize) {
            let transfer = self.transfer();
            // Messages that are not striped over all trees use the trees in turn.
            let stripe = Stripe { index: transfer.0 % trees, of };
            self.act(from.rank, ActionKind::Multicast { scope, stripe, transfer, src, concurrent_senders });
            for node in nodes.iter().filter(|node| **node != home) {
                let to = self.layout.node_leader(*node);
                let dst = dst(to).sub(src.offset - from.span.offset, src.len);
                self.act(to, ActionKind::ReceiveMulticast { from: from.rank, scope, transfer, dst });
            }
        }
    }

    /// Moves bytes in several places of one rank to several places of another as one message. Does
    /// nothing if there are no bytes. The places must correspond one to one.
    pub(crate) fn send_all(&mut self, from: Rank, to: Rank, moves: impl IntoIterator<Item = (Span, Span)>) {
        let moves = joined(moves);
        let len = moves.iter().map(|(src, _)| src.len).sum();
        if len == 0 {
            return;
        }
        if from == to || moves.len() == 1 {
            for (src, dst) in moves {
                self.send(RankSpan { rank: from, span: src }, RankSpan { rank: to, span: dst });
            }
            return;
        }
        let srcs = joined(moves.iter().map(|(src, _)| (*src, *src)));
        let dsts = joined(moves.iter().map(|(_, dst)| (*dst, *dst)));
        let packed = match srcs.as_slice() {
            [(src, _)] => *src,
            _ => self.slot(from, ScratchSlot::To(to), len),
        };
        let landed = match dsts.as_slice() {
            [(dst, _)] => *dst,
            _ => self.slot(to, ScratchSlot::From(from), len),
        };
        for (part, (src, _)) in consecutive(packed, srcs.iter().map(|(src, _)| src.len)).zip(&srcs) {
            if part != *src {
                self.copy(from, *src, part);
            }
        }
        self.send(RankSpan { rank: from, span: packed }, RankSpan { rank: to, span: landed });
        for (part, (dst, _)) in consecutive(landed, dsts.iter().map(|(dst, _)| dst.len)).zip(&dsts) {
            if part != *dst {
                self.copy(to, part, *dst);
            }
        }
    }

    /// Returns a span in which a value may be combined: its own, or that of a copy if the value is
    /// in the input, which is read-only.
    pub(crate) fn growing(&mut self, value: RankSpan) -> Span {
        if value.span.buffer != RankBuffer::Input {
            return value.span;
        }
        let span = self.slot(value.rank, ScratchSlot::Value, value.span.len);
        self.copy(value.rank, value.span, span);
        span
    }

    /// Splits a span into parts that differ by at most one element.
    pub(crate) fn split(&self, span: Span, parts: usize) -> Vec<Span> {
        let elements = u128::from(span.len / self.element);
        let at = |i: usize| (elements * i as u128 / parts as u128) as u64 * self.element;
        (0..parts).map(|i| span.sub(at(i), at(i + 1) - at(i))).collect()
    }

    /// Combines `src` into `dst`, both at `rank`.
    pub(crate) fn reduce(&mut self, rank: Rank, src: Span, dst: Span) {
        self.local(rank, ActionKind::Reduce { src, dst }, src, dst);
    }

    /// Copies `src` to `dst`, both at `rank`.
    pub(crate) fn copy(&mut self, rank: Rank, src: Span, dst: Span) {
        self.local(rank, ActionKind::Copy { src, dst }, src, dst);
    }

    fn local(&mut self, rank: Rank, kind: ActionKind, src: Span, dst: Span) {
        if src.len > 0 {
            self.act(rank, kind);
        } else if let Some(draft) = self.draft(rank) {
            draft.hazards.pass_token(src, dst);
        }
    }

    fn act(&mut self, rank: Rank, kind: ActionKind) {
        if self.actions > self.most {
            return;
        }
        let Some(draft) = &mut self.drafts[rank.0 as usize] else { return };
        self.actions += 1;
        let id = ActionId(draft.program.actions.len() as u32);
        let mut after: Vec<ActionId> = draft.before.clone().map(ActionId).collect();
        for span in kind.reads() {
            draft.hazards.read(span, id, &mut after);
        }
        if let Some(span) = kind.writes() {
            draft.hazards.write(span, id, &mut after);
        }
        after.sort_unstable();
        after.dedup();
        draft.program.actions.push(ScheduleAction { kind, after });
    }

    /// Starts a new round at `rank`: later actions wait for the messages of the previous round, so
    /// that at most one round's messages are in flight to the rank, whatever bytes they touch.
    pub(crate) fn next_round(&mut self, rank: Rank) {
        if let Some(draft) = self.draft(rank) {
            let end = draft.program.actions.len() as u32;
            // If a round had no actions, the round before it is still waited for.
            if end > draft.before.end {
                draft.before = draft.before.end..end;
            }
        }
    }

    fn draft(&mut self, rank: Rank) -> Option<&mut ProgramDraft> {
        self.drafts[rank.0 as usize].as_mut()
    }

    fn transfer(&mut self) -> TransferId {
        let id = TransferId(self.transfers as u32);
        self.transfers += 1;
        id
    }
}

/// Returns the moves without empty ones, and merges moves that are consecutive at both ends.
fn joined(moves: impl IntoIterator<Item = (Span, Span)>) -> Vec<(Span, Span)> {
    let mut out: Vec<(Span, Span)> = Vec::new();
    for (src, dst) in moves.into_iter().filter(|(src, _)| src.len > 0) {
        match out.last_mut() {
            Some((s, d)) if follows(*s, src) && follows(*d, dst) => {
                s.len += src.len;
                d.len += src.len;
            }
            _ => out.push((src, dst)),
        }
    }
    out
}

fn follows(first: Span, second: Span) -> bool {
    first.buffer == second.buffer && first.end() == second.offset
}

/// Returns consecutive parts of a span.
pub(crate) fn consecutive(span: Span, lens: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Span> {
    lens.into_iter().scan(0, move |at, len| {
        let part = span.sub(*at, len);
        *at += len;
        Some(part)
    })
}
