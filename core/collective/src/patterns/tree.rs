//! The common part of all trees: messages go down from position 0, or up to it. Each tree's file
//! defines its edges, or the messages of several trees that carry parts. Positions count from the
//! root and wrap around the list of members.

use super::{Subgroup, rotated};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot, consecutive};
use crate::schedule::{Rank, Span};
use core::ops::Range;

/// An edge from a parent to a child. The child and all positions below it are consecutive.
#[derive(Clone, Debug)]
pub(super) struct TreeEdge {
    pub(super) parent: usize,
    pub(super) below: Range<usize>,
}

impl TreeEdge {
    fn child(&self) -> usize {
        self.below.start
    }
}

/// Returns the edges of a tree with this many positions. Each edge must follow those above it, and
/// the children of one parent must be in descending order.
pub(super) type TreeEdges = fn(usize) -> Vec<TreeEdge>;

/// The messages of a broadcast along trees: for each the part of the whole that it carries, its
/// parent and its child. A reduction has the same ones, in reverse order and direction.
pub(super) type TreeMessages = fn(&ScheduleBuilder<'_>, Span, usize) -> Vec<(Span, usize, usize)>;

/// Returns the messages of one tree with these edges, which carry the whole.
pub(super) fn along(edges: Vec<TreeEdge>, whole: Span) -> Vec<(Span, usize, usize)> {
    edges.into_iter().map(|edge| (whole, edge.parent, edge.child())).collect()
}

/// Makes a pattern from a tree's name, edges and number of segments.
macro_rules! tree {
    ($name:literal, $edges:expr, $segments:literal) => {
        $crate::patterns::Pattern {
            segments: $segments,
            gather: Some(|b, moves| $crate::patterns::tree::gather($edges, b, moves)),
            scatter: Some(|b, moves| $crate::patterns::tree::scatter($edges, b, moves)),
            ..$crate::patterns::tree::trees!($name, |_, whole, n| {
                $crate::patterns::tree::along($edges(n), whole)
            })
        }
    };
}
pub(super) use tree;

/// Makes a pattern from a name and the messages of one or several trees.
macro_rules! trees {
    ($name:literal, $messages:expr) => {
        $crate::patterns::Pattern {
            bcast: Some(|b, group, from, dst| $crate::patterns::tree::bcast($messages, b, group, from, dst)),
            reduce: Some(|b, values, into| $crate::patterns::tree::reduce($messages, b, values, into)),
            allreduce: Some(|b, group, values, dst| {
                $crate::patterns::tree::allreduce($messages, b, group, values, dst);
            }),
            ..$crate::patterns::Pattern::new($name)
        }
    };
}
pub(super) use trees;

pub(super) fn bcast(
    messages: TreeMessages,
    b: &mut ScheduleBuilder<'_>,
    group: &Subgroup,
    from: RankSpan,
    dst: &dyn Fn(Rank) -> Span,
) {
    let mut members = rotated(&group.members, |rank| *rank == from.rank);
    if members.first() != Some(&from.rank) {
        members.insert(0, from.rank);
    }
    for (part, parent, child) in messages(b, from.span, members.len()) {
        let held = |i: usize| {
            let whole = if i == 0 { from.span } else { dst(members[i]) };
            RankSpan { rank: members[i], span: whole.sub(part.offset - from.span.offset, part.len) }
        };
        b.send(held(parent), held(child));
    }
}

/// A parent combines its value with those of its children, in the reverse order of the messages.
pub(super) fn reduce(
    messages: TreeMessages,
    b: &mut ScheduleBuilder<'_>,
    values: &[RankSpan],
    into: RankSpan,
) {
    let mut held = rotated(values, |value| value.rank == into.rank);
    let mut grown = vec![false; held.len()];
    let whole = held[0].span;
    for (part, parent, child) in messages(b, whole, held.len()).into_iter().rev() {
        if !grown[parent] {
            grown[parent] = true;
            held[parent].span = if held[parent].rank == into.rank {
                b.send(held[parent], into);
                into.span
            } else {
                b.growing(held[parent])
            };
        }
        let of = |span: Span| span.sub(part.offset - whole.offset, part.len);
        let RankSpan { rank, span } = held[parent];
        let arrived = of(b.slot(rank, ScratchSlot::From(held[child].rank), whole.len));
        b.send(RankSpan { span: of(held[child].span), ..held[child] }, RankSpan { rank, span: arrived });
        b.reduce(rank, arrived, of(span));
    }
    b.send(held[0], into);
}

/// Reduces to the first member, and broadcasts from it.
pub(super) fn allreduce(
    messages: TreeMessages,
    b: &mut ScheduleBuilder<'_>,
    group: &Subgroup,
    values: &[RankSpan],
    dst: &dyn Fn(Rank) -> Span,
) {
    let rank = values[0].rank;
    let total = RankSpan { rank, span: dst(rank) };
    reduce(messages, b, values, total);
    bcast(messages, b, group, total, dst);
}

/// Members with others below them collect all those parts side by side in a slot.
pub(super) fn gather(edges: TreeEdges, b: &mut ScheduleBuilder<'_>, moves: &[(RankSpan, RankSpan)]) {
    let Some((_, RankSpan { rank: root, .. })) = moves.first() else { return };
    let way = TreeMoves::new(edges, b, moves, *root, |(from, _)| from);
    for (i, (from, to)) in way.moves.iter().enumerate() {
        if from.rank == *root {
            b.send(*from, *to);
        } else if way.slots[i].is_some() {
            b.copy(from.rank, from.span, way.place(i, i, |(_, to)| to).span);
        }
    }
    for edge in way.edges.iter().rev() {
        let at = |holder: usize, i: usize| {
            if way.slots[holder].is_some() || holder == 0 {
                way.place(holder, i, |(_, to)| to)
            } else {
                way.moves[i].0
            }
        };
        let spans = edge.below.clone().map(|i| (at(edge.child(), i).span, at(edge.parent, i).span));
        b.send_all(way.rank(edge.child()), way.rank(edge.parent), spans.collect::<Vec<_>>());
    }
}

/// The reverse of [`gather`].
pub(super) fn scatter(edges: TreeEdges, b: &mut ScheduleBuilder<'_>, moves: &[(RankSpan, RankSpan)]) {
    let Some((RankSpan { rank: root, .. }, _)) = moves.first() else { return };
    let way = TreeMoves::new(edges, b, moves, *root, |(_, to)| to);
    for edge in &way.edges {
        let at = |holder: usize, i: usize| {
            if way.slots[holder].is_some() || holder == 0 {
                way.place(holder, i, |(from, _)| from)
            } else {
                way.moves[i].1
            }
        };
        let spans = edge.below.clone().map(|i| (at(edge.parent, i).span, at(edge.child(), i).span));
        b.send_all(way.rank(edge.parent), way.rank(edge.child()), spans.collect::<Vec<_>>());
    }
    for (i, (from, to)) in way.moves.iter().enumerate() {
        if to.rank == *root {
            b.send(*from, *to);
        } else if way.slots[i].is_some() {
            b.copy(to.rank, way.place(i, i, |(from, _)| from).span, to.span);
        }
    }
}

/// The parts of a gather or scatter by position. If the root has no part, its part is empty.
struct TreeMoves {
    edges: Vec<TreeEdge>,
    moves: Vec<(RankSpan, RankSpan)>,
    member: fn(&(RankSpan, RankSpan)) -> &RankSpan,
    /// For each position with others below it, except the root, the place of all their parts.
    slots: Vec<Option<(usize, Vec<Span>)>>,
}

impl TreeMoves {
    fn new(
        edges: TreeEdges,
        b: &mut ScheduleBuilder<'_>,
        moves: &[(RankSpan, RankSpan)],
        root: Rank,
        member: fn(&(RankSpan, RankSpan)) -> &RankSpan,
    ) -> TreeMoves {
        let mut moves = rotated(moves, |parts| member(parts).rank == root);
        if moves.first().is_none_or(|parts| member(parts).rank != root) {
            let nothing = RankSpan { rank: root, span: Span { len: 0, ..moves[0].0.span } };
            moves.insert(0, (nothing, nothing));
        }
        let edges = edges(moves.len());
        let mut slots = vec![None; moves.len()];
        for edge in edges.iter().filter(|edge| edge.below.len() > 1) {
            let lens: Vec<u64> = moves[edge.below.clone()].iter().map(|(from, _)| from.span.len).collect();
            let slot = b.slot(member(&moves[edge.child()]).rank, ScratchSlot::Bundle, lens.iter().sum());
            slots[edge.child()] = Some((edge.child(), consecutive(slot, lens).collect()));
        }
        TreeMoves { edges, moves, member, slots }
    }

    fn rank(&self, position: usize) -> Rank {
        (self.member)(&self.moves[position]).rank
    }

    /// Returns the place of a part at a position that holds several; at the root, the end of the
    /// move that `end` selects.
    fn place(&self, holder: usize, part: usize, end: fn(&(RankSpan, RankSpan)) -> &RankSpan) -> RankSpan {
        match &self.slots[holder] {
            Some((first, spans)) => RankSpan { rank: self.rank(holder), span: spans[part - first] },
            None => *end(&self.moves[part]),
        }
    }
}
