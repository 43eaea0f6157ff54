//! The ring: each member receives from the one before it and sends to the next, one part at a time.
//! In every step each link carries one part, and after a full round all members have all parts.

use super::{Pattern, Subgroup};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot};
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

/// Each share is combined on its way around the ring, and then all shares go around once.
fn allreduce(b: &mut ScheduleBuilder<'_>, group: &Subgroup, values: &[RankSpan], dst: &dyn Fn(Rank) -> Span) {
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

fn allgather(
    b: &mut ScheduleBuilder<'_>,
    _: &Subgroup,
    parts: &[RankSpan],
    dst: &dyn Fn(Rank, usize) -> Span,
) {
    let ring = RingMembers::new(b, parts.iter().map(|part| (part.rank, part.span.len)));
    let mut held = parts.to_vec();
    for step in 1..parts.len() {
        ring.step(b, step, |b, i, [from, to]| {
            let next = RankSpan { rank: to, span: dst(to, i) };
            b.send(RankSpan { rank: from, ..held[i] }, next);
            held[i] = next;
        });
    }
}

/// A part starts at the member after its own, and is combined in the order of the list from there.
fn reduce_scatter(
    b: &mut ScheduleBuilder<'_>,
    values: &[RankSpan],
    parts: &[Range<u64>],
    places: &[RankSpan],
) {
    let n = values.len();
    let own = |member: usize, i: usize| RankSpan {
        span: values[member].span.sub(parts[i].start, parts[i].end - parts[i].start),
        ..values[member]
    };
    let ring = RingMembers::new(
        b,
        values.iter().zip(parts).map(|(value, part)| (value.rank, part.end - part.start)),
    );
    let mut held: Vec<RankSpan> = (0..n).map(|i| own((i + 1) % n, i)).collect();
    for step in 2..=n {
        ring.step(b, step, |b, i, [from, to]| {
            let own = own((i + step) % n, i);
            let next = if step == n {
                places[i]
            } else {
                RankSpan { rank: to, span: b.slot(to, ScratchSlot::From(from), own.span.len) }
            };
            b.send(RankSpan { rank: from, ..held[i] }, next);
            b.reduce(to, own.span, next.span);
            held[i] = next;
        });
    }
    if n == 1 {
        b.send(held[0], places[0]);
    }
}

/// The members of a ring, each with a part of its own. In each step every part moves from one
/// member to the next. Only messages of kept ranks are made, so that compiling the program of one
/// rank takes time linear in the number of members. The places of other ranks' parts are then not
/// tracked, because no message needs them.
struct RingMembers {
    ranks: Vec<Rank>,
    /// The members with kept programs, as positions in the ring.
    kept: Vec<usize>,
    /// For each part the number of parts before it that make messages, followed by the total.
    counted: Vec<u64>,
}

impl RingMembers {
    fn new(b: &ScheduleBuilder<'_>, members: impl Iterator<Item = (Rank, u64)>) -> RingMembers {
        let (ranks, lens): (Vec<Rank>, Vec<u64>) = members.unzip();
        let kept = (0..ranks.len()).filter(|place| b.keeps(ranks[*place])).collect();
        let mut counted = vec![0];
        counted.extend(lens.iter().scan(0, |before, len| {
            *before += u64::from(b.counts(*len));
            Some(*before)
        }));
        RingMembers { ranks, kept, counted }
    }

    /// Moves part `i` to the member `step` positions after its own, and all other parts alike.
    /// `make` must make the message of a part between two ranks.
    fn step(
        &self,
        b: &mut ScheduleBuilder<'_>,
        step: usize,
        mut make: impl FnMut(&mut ScheduleBuilder<'_>, usize, [Rank; 2]),
    ) {
        let n = self.ranks.len();
        // The parts that a member sends and receives.
        let concerned = |place: &usize| [(place + n + 1 - step) % n, (place + n - step) % n];
        let mut parts: Vec<usize> = self.kept.iter().flat_map(concerned).collect();
        parts.sort_unstable();
        parts.dedup();
        let mut passed = 0;
        for i in parts {
            b.skip(self.counted[i] - passed);
            make(b, i, [step - 1, step].map(|steps| self.ranks[(i + steps) % n]));
            passed = self.counted[i + 1];
        }
        b.skip(self.counted[n] - passed);
    }
}
