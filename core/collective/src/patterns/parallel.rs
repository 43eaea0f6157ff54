//! The parallel pattern (COOL paper, III.B): all members exchange messages with a single member,
//! which does all the work, in one step. Messages to all members are multicast where a tree exists.

use super::{Pattern, Subgroup};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot};
use crate::schedule::{Rank, Span};
use core::ops::Range;
use std::collections::BTreeMap;

pub(crate) static PARALLEL: Pattern = Pattern {
    segments: 16,
    multicasts: true,
    bcast: Some(bcast),
    reduce: Some(reduce),
    allreduce: Some(allreduce),
    gather: Some(exchange),
    scatter: Some(exchange),
    allgather: Some(allgather),
    reduce_scatter: Some(reduce_scatter),
    alltoall: Some(alltoall),
    scan: Some(scan),
    ..Pattern::new("parallel")
};

fn bcast(b: &mut ScheduleBuilder<'_>, group: &Subgroup, from: RankSpan, dst: &dyn Fn(Rank) -> Span) {
    to_all(b, group, from, 1, dst);
}

/// Combines in the order of the list, wherever the result belongs.
fn reduce(b: &mut ScheduleBuilder<'_>, values: &[RankSpan], into: RankSpan) {
    for (i, value) in values.iter().enumerate() {
        if i == 0 {
            b.send(*value, into);
        } else if value.rank == into.rank {
            b.reduce(into.rank, value.span, into.span);
        } else {
            let slot = b.slot(into.rank, ScratchSlot::From(value.rank), value.span.len);
            b.send(*value, RankSpan { rank: into.rank, span: slot });
            b.reduce(into.rank, slot, into.span);
        }
    }
}

fn allreduce(b: &mut ScheduleBuilder<'_>, group: &Subgroup, values: &[RankSpan], dst: &dyn Fn(Rank) -> Span) {
    // The place of each value at each member. The first value arrives where the result belongs.
    let mut spans: Vec<BTreeMap<Rank, Span>> = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let mut at = BTreeMap::from([(value.rank, value.span)]);
        for to in group.members.iter().copied().filter(|to| *to != value.rank) {
            let span =
                if i == 0 { dst(to) } else { b.slot(to, ScratchSlot::From(value.rank), value.span.len) };
            at.insert(to, span);
        }
        to_all(b, group, *value, values.len(), &|to| at[&to]);
        spans.push(at);
    }
    for rank in group.members.iter().copied() {
        let into = RankSpan { rank, span: dst(rank) };
        b.send(RankSpan { rank, span: spans[0][&rank] }, into);
        for at in &spans[1..] {
            b.reduce(rank, at[&rank], into.span);
        }
    }
}

fn exchange(b: &mut ScheduleBuilder<'_>, parts: &[(RankSpan, RankSpan)]) {
    for (from, to) in parts {
        b.send(*from, *to);
    }
}

fn allgather(
    b: &mut ScheduleBuilder<'_>,
    group: &Subgroup,
    parts: &[RankSpan],
    dst: &dyn Fn(Rank, usize) -> Span,
) {
    for (i, part) in parts.iter().enumerate() {
        to_all(b, group, *part, group.members.len(), &|to| dst(to, i));
    }
}

/// Each member combines its part of all values, in the order of the list.
pub(super) fn reduce_scatter(
    b: &mut ScheduleBuilder<'_>,
    values: &[RankSpan],
    parts: &[Range<u64>],
    places: &[RankSpan],
) {
    for (part, place) in parts.iter().zip(places) {
        let values: Vec<RankSpan> = values
            .iter()
            .map(|value| RankSpan { span: value.span.sub(part.start, part.end - part.start), ..*value })
            .collect();
        reduce(b, &values, *place);
    }
}

/// Each member sends to its next member, then to the next but one, and so on, so that no member is
/// the first destination of all others. Blocks of several packets are exchanged in rounds of one
/// block each way, because all blocks at once would overflow the switches' queues.
pub(super) fn alltoall(
    b: &mut ScheduleBuilder<'_>,
    members: &[Rank],
    block: &dyn Fn(usize, usize) -> (Span, Span),
) {
    const SEVERAL_PACKETS: u64 = 2 * 1024;
    let n = members.len();
    let len = |from, to| block(from, to).0.len;
    let rounds = (0..n).any(|from| (0..n).any(|to| len(from, to) >= SEVERAL_PACKETS));
    for distance in 0..n {
        for from in 0..n {
            let to = (from + distance) % n;
            b.send_all(members[from], members[to], [block(from, to)]);
        }
        if rounds {
            members.iter().for_each(|rank| b.next_round(*rank));
        }
    }
}

/// Each member sends its value to all members after it.
fn scan(b: &mut ScheduleBuilder<'_>, values: &[RankSpan], exclusive: bool, places: &[RankSpan]) {
    for (i, place) in places.iter().enumerate() {
        let values = &values[..i + usize::from(!exclusive)];
        if !values.is_empty() {
            reduce(b, values, *place);
        }
    }
}

fn to_all(
    b: &mut ScheduleBuilder<'_>,
    group: &Subgroup,
    from: RankSpan,
    concurrent_senders: usize,
    dst: &dyn Fn(Rank) -> Span,
) {
    if let Some(tree) = group.tree {
        return b.multicast(from, tree, concurrent_senders, dst);
    }
    for rank in group.members.iter().copied().filter(|rank| *rank != from.rank) {
        b.send(from, RankSpan { rank, span: dst(rank) });
    }
}
