//! The ring: each member gets from the one before it and gives to the next, a part at a time, so that in every
//! step each link carries one part and after a round all have all.

use super::{Pattern, Subgroup};
use crate::builder::{Builder, RankSpan, Slot};
use crate::schedule::{Rank, Span};
use core::ops::Range;

pub(super) static RING: Pattern = Pattern {
    segments: 64,
    shares: true,
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(reduce_scatter),
    ..Pattern::new("ring")
};

/// Each its share, combined on the way round, then all shares once round.
fn allreduce(b: &mut Builder<'_>, group: &Subgroup, values: &[RankSpan], dst: &dyn Fn(Rank) -> Span) {
    let whole = values[0].span;
    let shares = b.split(whole, values.len());
    let parts: Vec<Range<u64>> =
        shares.iter().map(|share| share.offset - whole.offset..share.end() - whole.offset).collect();
    let place = |rank: Rank, i: usize| dst(rank).sub(parts[i].start, parts[i].end - parts[i].start);
    let places: Vec<RankSpan> = values
        .iter()
        .enumerate()
        .map(|(i, value)| RankSpan { span: place(value.rank, i), ..*value })
        .collect();
    reduce_scatter(b, values, &parts, &places);
    allgather(b, group, &places, &place);
}

fn allgather(b: &mut Builder<'_>, _: &Subgroup, parts: &[RankSpan], dst: &dyn Fn(Rank, usize) -> Span) {
    let n = parts.len();
    let mut held = parts.to_vec();
    for step in 1..n {
        for (i, part) in held.iter_mut().enumerate() {
            let rank = parts[(i + step) % n].rank;
            let next = RankSpan { rank, span: dst(rank, i) };
            b.send(*part, next);
            *part = next;
        }
    }
}

/// A part begins at the member after its own, and is combined in the order of the list from there.
fn reduce_scatter(b: &mut Builder<'_>, values: &[RankSpan], parts: &[Range<u64>], places: &[RankSpan]) {
    let n = values.len();
    let own = |member: usize, i: usize| RankSpan {
        span: values[member].span.sub(parts[i].start, parts[i].end - parts[i].start),
        ..values[member]
    };
    let mut held: Vec<RankSpan> = (0..n).map(|i| own((i + 1) % n, i)).collect();
    for step in 2..=n {
        for (i, part) in held.iter_mut().enumerate() {
            let own = own((i + step) % n, i);
            let next = if step == n {
                places[i]
            } else {
                RankSpan { span: b.slot(own.rank, Slot::From(part.rank), own.span.len), ..own }
            };
            b.send(*part, next);
            b.reduce(own.rank, own.span, next.span);
            *part = next;
        }
    }
    if n == 1 {
        b.send(held[0], places[0]);
    }
}
