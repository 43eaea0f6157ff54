//! Where patterns write their messages. A pattern says who sends which bytes to whom; the builder numbers
//! the transfers, puts both ends into the programs of the ranks that are kept, and finds what each action
//! must wait for from the bytes that it touches.

use crate::hazards::Hazards;
use crate::layout::{Layout, MulticastScope};
use crate::schedule::{
    ActionId, ActionKind, Program, Rank, RankBuffer, ScheduleAction, Span, Stripe, TransferId,
};
use core::ops::Range;
use std::collections::BTreeMap;

/// Segments that may be under way at once through working memory of one purpose: one arriving, one being worked on, one
/// leaving. A slot is used again after this many.
const WINDOW: usize = 3;

/// Bytes of the shortest stripe of a message to all: shorter ones end before several trees are faster than one.
const STRIPE_BYTES_MIN: u64 = 64 * 1024;

/// Bytes of a cache line: slots in working memory begin at multiples of it, so that any element type is aligned.
const ALIGN: u64 = 64;

/// Bytes at a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankSpan {
    pub(crate) rank: Rank,
    pub(crate) span: Span,
}

/// What a slot in a rank's working memory is for. Slots of one purpose are used in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScratchSlot {
    /// What came from a rank and waits to be combined or put in its places.
    From(Rank),
    /// Parts that came from a rank and wait to be put in their places.
    Landing(Rank),
    /// The combination of the values of a node or rack.
    Partial,
    /// The combination of all values, where its destination is elsewhere.
    Total,
    /// Parts on their way through a leader, by level: 0 node, 1 rack, 2 data center.
    Parts(u8),
    /// Parts put side by side for one message to a rank.
    To(Rank),
    /// What a multicast brings to the rank that has it already.
    Discard,
    /// A pattern's own: a value as it grows.
    Value,
    /// A pattern's own: several ranks' parts on their way.
    Bundle,
    /// One shard of a segment: its combination in a rack, or over all racks.
    Shard { index: u32, total: bool },
}

/// Slots of one purpose, each an offset and a length, taken in turn.
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
    /// The actions of the round before, and where the present one begins.
    before: Range<u32>,
}

#[derive(Debug)]
pub(crate) struct ScheduleBuilder<'a> {
    layout: &'a Layout,
    drafts: Vec<Option<ProgramDraft>>,
    transfers: u64,
    /// Actions of all kept ranks so far, and at most.
    actions: usize,
    most: usize,
    element: u64,
    /// Whether messages of no bytes count, as they do where only their order matters.
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

    /// The programs; none if they have more transfers than have numbers, or more actions than there may be.
    pub(crate) fn finish(self) -> Option<Vec<Option<Program>>> {
        u32::try_from(self.transfers).ok().filter(|_| self.actions <= self.most)?;
        Some(self.drafts.into_iter().map(|draft| Some(draft?.program)).collect())
    }

    /// `len` bytes of working memory at `rank`, free as soon as what last used them there is done.
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
        // Slots of one purpose are of about one length; a longer one than ever before gets a new place.
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

    /// Whether a program of this rank is made.
    pub(crate) fn keeps(&self, rank: Rank) -> bool {
        self.drafts[rank.0 as usize].is_some()
    }

    /// Whether a message of this length between two ranks is one, and so has a number.
    pub(crate) fn counts(&self, len: u64) -> bool {
        len > 0 || self.tokens
    }

    /// Passes over messages between ranks that are not kept: they have numbers like all others.
    pub(crate) fn skip(&mut self, messages: u64) {
        self.transfers += messages;
    }

    /// Moves bytes from one rank to another, or within one; nothing if they are where they should be.
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

    /// Moves bytes from one rank to the leaders of all other nodes of a tree, each putting them at `dst`; where there
    /// are several trees, in stripes.
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
            // Messages that are not split over all trees take them in turn.
            let stripe = Stripe { index: transfer.0 % trees, of };
            self.act(from.rank, ActionKind::Multicast { scope, stripe, transfer, src, concurrent_senders });
            for node in nodes.iter().filter(|node| **node != home) {
                let to = self.layout.node_leader(*node);
                let dst = dst(to).sub(src.offset - from.span.offset, src.len);
                self.act(to, ActionKind::ReceiveMulticast { from: from.rank, scope, transfer, dst });
            }
        }
    }

    /// Moves bytes that lie in several places, at one rank and at the other, as one message; nothing if there
    /// are none. The places correspond one to one.
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

    /// Where a value may grow at its rank: where it is, unless that is the input; there in a copy.
    pub(crate) fn growing(&mut self, value: RankSpan) -> Span {
        if value.span.buffer != RankBuffer::Input {
            return value.span;
        }
        let span = self.slot(value.rank, ScratchSlot::Value, value.span.len);
        self.copy(value.rank, value.span, span);
        span
    }

    /// A span in parts that differ by an element at most.
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

    /// What is still to come at `rank` waits for what has come there since this was called last, so that no more
    /// than one round's messages are under way to it, whatever bytes they touch.
    pub(crate) fn next_round(&mut self, rank: Rank) {
        if let Some(draft) = self.draft(rank) {
            let end = draft.program.actions.len() as u32;
            // Those of a round in which nothing was to do are waited for still.
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

/// The moves without empty ones, those that continue each other at both ends as one.
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

/// Consecutive parts of a span.
pub(crate) fn consecutive(span: Span, lens: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Span> {
    lens.into_iter().scan(0, move |at, len| {
        let part = span.sub(*at, len);
        *at += len;
        Some(part)
    })
}
