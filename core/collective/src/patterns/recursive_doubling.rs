//! Recursive doubling: in each step, members exchange all data that they have with members twice as
//! far away. If the number of members is not a power of two, the first members form pairs, and one
//! member of each pair acts for both.

use super::{Pattern, Subgroup};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot};
use crate::schedule::{Rank, Span};

pub(crate) static RECURSIVE_DOUBLING: Pattern = Pattern {
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    scan: Some(scan),
    ..Pattern::new("recursive-doubling")
};

/// The members of the exchanges: the largest power of two, and the pairs that make the others fit.
pub(super) struct PowerOfTwoMembers {
    /// Positions in the group, ascending.
    pub(super) active: Vec<usize>,
    /// Positions that do not take part. The position before each acts for it.
    pub(super) idle: Vec<usize>,
}

impl PowerOfTwoMembers {
    pub(super) fn new(n: usize) -> PowerOfTwoMembers {
        let pairs = n - (1 << n.ilog2());
        let idle: Vec<usize> = (0..pairs).map(|i| 2 * i + 1).collect();
        PowerOfTwoMembers { active: (0..n).filter(|i| !idle.contains(i)).collect(), idle }
    }

    /// Returns the pairs that exchange at a distance, the first before the second.
    pub(super) fn pairs(&self, distance: usize) -> impl Iterator<Item = (usize, usize)> {
        let first = (0..self.active.len()).filter(move |i| i & distance == 0);
        first.map(move |i| (self.active[i], self.active[i | distance]))
    }

    /// Returns the distances at which members exchange: 1, 2, 4, ...
    pub(super) fn distances(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (0..self.active.len().ilog2()).map(|bit| 1 << bit)
    }
}

/// Combines in the order of the list, neighbors first.
fn allreduce(b: &mut ScheduleBuilder<'_>, _: &Subgroup, values: &[RankSpan], dst: &dyn Fn(Rank) -> Span) {
    let team = PowerOfTwoMembers::new(values.len());
    let mut held = values.to_vec();
    for i in team.idle.iter().copied() {
        held[i - 1].span = take(b, &held, i - 1, i);
    }
    for distance in team.distances() {
        for (first, second) in team.pairs(distance) {
            let other = |b: &mut ScheduleBuilder<'_>, at: usize, from: usize| RankSpan {
                span: b.slot(held[at].rank, ScratchSlot::From(held[from].rank), held[at].span.len),
                ..held[at]
            };
            let (left, right) = (other(b, second, first), other(b, first, second));
            b.send(held[first], left);
            b.send(held[second], right);
            let grown = b.growing(held[first]);
            b.reduce(left.rank, held[second].span, left.span);
            b.reduce(right.rank, right.span, grown);
            held[first].span = grown;
            held[second].span = left.span;
        }
    }
    for i in team.active {
        let total = RankSpan { span: dst(held[i].rank), ..held[i] };
        b.send(held[i], total);
        if team.idle.contains(&(i + 1)) {
            b.send(total, RankSpan { span: dst(held[i + 1].rank), ..held[i + 1] });
        }
    }
}

/// Combines one member's value with the next member's, which is sent to it. Returns the place of
/// the result.
pub(super) fn take(b: &mut ScheduleBuilder<'_>, held: &[RankSpan], at: usize, from: usize) -> Span {
    let grown = b.growing(held[at]);
    let slot = b.slot(held[at].rank, ScratchSlot::From(held[from].rank), grown.len);
    b.send(held[from], RankSpan { span: slot, ..held[at] });
    b.reduce(held[at].rank, slot, grown);
    grown
}

fn allgather(
    b: &mut ScheduleBuilder<'_>,
    _: &Subgroup,
    parts: &[RankSpan],
    dst: &dyn Fn(Rank, usize) -> Span,
) {
    let team = PowerOfTwoMembers::new(parts.len());
    let rank = |i: usize| parts[i].rank;
    let mut has: Vec<Vec<usize>> = (0..parts.len()).map(|i| vec![i]).collect();
    let send = |b: &mut ScheduleBuilder<'_>, from: usize, to: usize, parts_to_send: &[usize]| {
        let moves = parts_to_send.iter().map(|i| {
            let src = if *i == from { parts[*i].span } else { dst(rank(from), *i) };
            (src, dst(rank(to), *i))
        });
        b.send_all(rank(from), rank(to), moves.collect::<Vec<_>>());
    };
    for i in team.idle.iter().copied() {
        send(b, i, i - 1, &[i]);
        has[i - 1].push(i);
    }
    for distance in team.distances() {
        for (first, second) in team.pairs(distance) {
            send(b, first, second, &has[first]);
            send(b, second, first, &has[second]);
            let both = [has[first].as_slice(), &has[second]].concat();
            has[first].clone_from(&both);
            has[second] = both;
        }
    }
    for i in team.idle {
        let others: Vec<usize> = (0..parts.len()).filter(|part| *part != i).collect();
        send(b, i - 1, i, &others);
    }
}

/// Each member combines its value with those from members before it, at growing distances. An
/// exclusive scan then moves all results one member further.
fn scan(b: &mut ScheduleBuilder<'_>, values: &[RankSpan], exclusive: bool, places: &[RankSpan]) {
    let mut held = values.to_vec();
    let mut distance = 1;
    while distance < values.len() {
        let before = held.clone();
        for i in distance..values.len() {
            let span = b.slot(held[i].rank, ScratchSlot::From(before[i - distance].rank), held[i].span.len);
            held[i].span = span;
            b.send(before[i - distance], held[i]);
        }
        for i in distance..values.len() {
            b.reduce(held[i].rank, before[i].span, held[i].span);
        }
        distance *= 2;
    }
    let skip = usize::from(exclusive);
    for (total, place) in held.iter().zip(&places[skip.min(places.len())..]) {
        b.send(*total, *place);
    }
}
