//! Rabenseifner's pattern: members exchange halves of the vector that they combine, then quarters,
//! until each has its share of the result. If one or all members need the whole result, the shares
//! return the same way. Pairs are formed as in recursive doubling.

use super::recursive_doubling::{PowerOfTwoMembers, take};
use super::{Pattern, Subgroup, rotated};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot, consecutive};
use crate::schedule::{Rank, Span};
use core::ops::Range;

pub(super) static RECURSIVE_HALVING: Pattern = Pattern {
    reduce: Some(reduce),
    allreduce: Some(allreduce),
    reduce_scatter: Some(reduce_scatter),
    ..Pattern::new("recursive-halving")
};

/// The shares of a vector after halving it, neighbors first: for each member the place of its
/// share, and its range of the vector.
struct Shares {
    team: PowerOfTwoMembers,
    held: Vec<RankSpan>,
    range: Vec<Range<u64>>,
}

fn halve(b: &mut ScheduleBuilder<'_>, values: &[RankSpan]) -> Shares {
    let team = PowerOfTwoMembers::new(values.len());
    let mut held = values.to_vec();
    let mut range = vec![0..values[0].span.len; values.len()];
    for i in team.idle.iter().copied() {
        held[i - 1].span = take(b, &held, i - 1, i);
    }
    for distance in team.distances() {
        for (first, second) in team.pairs(distance) {
            let [keep, give] = halves(b, held[first].span);
            let [give_back, kept] = halves(b, held[second].span);
            let (x, y) = (held[first].rank, held[second].rank);
            let right = b.slot(x, ScratchSlot::From(y), keep.len);
            let left = b.slot(y, ScratchSlot::From(x), kept.len);
            b.send(RankSpan { rank: x, span: give }, RankSpan { rank: y, span: left });
            b.send(RankSpan { rank: y, span: give_back }, RankSpan { rank: x, span: right });
            let grown = b.growing(RankSpan { rank: x, span: keep });
            b.reduce(x, right, grown);
            b.reduce(y, kept, left);
            held[first].span = grown;
            held[second].span = left;
            let middle = range[first].start + keep.len;
            range[second].start = middle;
            range[first].end = middle;
        }
    }
    Shares { team, held, range }
}

fn halves(b: &ScheduleBuilder<'_>, span: Span) -> [Span; 2] {
    let parts = b.split(span, 2);
    [parts[0], parts[1]]
}

fn part(whole: Span, range: &Range<u64>) -> Span {
    whole.sub(range.start, range.end - range.start)
}

/// The shares are collected along a binomial tree at the destination, which is the first member.
fn reduce(b: &mut ScheduleBuilder<'_>, values: &[RankSpan], into: RankSpan) {
    let Shares { team, held, mut range } = halve(b, &rotated(values, |value| value.rank == into.rank));
    let wholes: Vec<Span> = held
        .iter()
        .map(|share| match share.rank {
            rank if rank == into.rank => into.span,
            rank => b.slot(rank, ScratchSlot::Bundle, into.span.len),
        })
        .collect();
    for i in team.active.iter().copied() {
        b.send(held[i], RankSpan { span: part(wholes[i], &range[i]), ..held[i] });
    }
    for distance in team.distances().rev() {
        // Members that have sent their share are done.
        for (first, second) in team.pairs(distance).filter(|(first, _)| {
            let position = team.active.iter().position(|i| i == first);
            position.is_some_and(|position| position < distance)
        }) {
            let [src, dst] =
                [second, first].map(|i| RankSpan { span: part(wholes[i], &range[second]), ..held[i] });
            b.send(src, dst);
            range[first].end = range[second].end;
        }
    }
}

fn allreduce(b: &mut ScheduleBuilder<'_>, _: &Subgroup, values: &[RankSpan], dst: &dyn Fn(Rank) -> Span) {
    let Shares { team, held, mut range } = halve(b, values);
    let whole = |i: usize| RankSpan { span: dst(held[i].rank), ..held[i] };
    for i in team.active.iter().copied() {
        b.send(held[i], RankSpan { span: part(whole(i).span, &range[i]), ..held[i] });
    }
    for distance in team.distances().rev() {
        for (first, second) in team.pairs(distance) {
            let at = |i: usize, range: &Range<u64>| RankSpan { span: part(whole(i).span, range), ..held[i] };
            b.send(at(first, &range[first]), at(second, &range[first]));
            b.send(at(second, &range[second]), at(first, &range[second]));
            let both = range[first].start..range[second].end;
            range[first] = both.clone();
            range[second] = both;
        }
    }
    for i in team.idle {
        b.send(whole(i - 1), whole(i));
    }
}

/// Halves the parts instead of the vector, distant members first, so that each member ends with its
/// own part. Values of distant members are therefore combined first, with the received value always
/// on the left.
fn reduce_scatter(
    b: &mut ScheduleBuilder<'_>,
    values: &[RankSpan],
    parts: &[Range<u64>],
    places: &[RankSpan],
) {
    let team = PowerOfTwoMembers::new(values.len());
    let mut values = values.to_vec();
    for i in team.idle.iter().copied() {
        values[i - 1].span = take(b, &values, i - 1, i);
    }
    // The place of each part at each member.
    let mut held: Vec<Vec<Span>> =
        values.iter().map(|value| parts.iter().map(|range| part(value.span, range)).collect()).collect();
    // For each part the active member that has it at the end.
    let mut position = vec![0; parts.len()];
    for (at, i) in team.active.iter().enumerate() {
        position[*i] = at;
    }
    for i in &team.idle {
        position[*i] = position[i - 1];
    }
    for distance in team.distances().rev() {
        // The parts of all members on the same side.
        let wanted = |to: usize| -> Vec<usize> {
            let near = |part: &usize| position[*part] / distance == position[to] / distance;
            (0..parts.len()).filter(near).collect()
        };
        for (first, second) in team.pairs(distance) {
            let mut arrived = Vec::new();
            for (from, to) in [(first, second), (second, first)] {
                let parts = wanted(to);
                let lens = parts.iter().map(|i| held[to][*i].len);
                let slot = b.slot(values[to].rank, ScratchSlot::From(values[from].rank), lens.clone().sum());
                let slots: Vec<Span> = consecutive(slot, lens).collect();
                let moves = parts.iter().zip(&slots).map(|(i, slot)| (held[from][*i], *slot));
                b.send_all(values[from].rank, values[to].rank, moves.collect::<Vec<_>>());
                arrived.push((to, parts, slots));
            }
            for (to, parts, slots) in arrived {
                for (i, slot) in parts.into_iter().zip(slots) {
                    b.reduce(values[to].rank, held[to][i], slot);
                    held[to][i] = slot;
                }
            }
        }
    }
    for i in team.active {
        b.send(RankSpan { span: held[i][i], ..values[i] }, places[i]);
        if team.idle.contains(&(i + 1)) {
            b.send(RankSpan { span: held[i][i + 1], ..values[i] }, places[i + 1]);
        }
    }
}
