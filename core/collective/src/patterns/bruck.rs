//! Bruck's pattern: log n steps for any number of members. In each step every member sends the data
//! that it has, or the blocks that must travel that far, to the member at twice the distance of the
//! step before.

use super::{Pattern, Subgroup};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot, consecutive};
use crate::schedule::{Rank, Span};

pub(super) static BRUCK: Pattern =
    Pattern { allgather: Some(allgather), alltoall: Some(alltoall), ..Pattern::new("bruck") };

fn allgather(
    b: &mut ScheduleBuilder<'_>,
    _: &Subgroup,
    parts: &[RankSpan],
    dst: &dyn Fn(Rank, usize) -> Span,
) {
    let n = parts.len();
    let held = |at: usize, i: usize| if at == i { parts[i].span } else { dst(parts[at].rank, i) };
    let mut has = 1;
    while has < n {
        for from in 0..n {
            let to = (from + n - has) % n;
            let moves = (0..has.min(n - has)).map(|k| (from + k) % n).map(|i| (held(from, i), held(to, i)));
            b.send_all(parts[from].rank, parts[to].rank, moves.collect::<Vec<_>>());
        }
        has *= 2;
    }
}

/// Sends each block by the binary digits of its distance, the lowest first.
fn alltoall(b: &mut ScheduleBuilder<'_>, members: &[Rank], block: &dyn Fn(usize, usize) -> (Span, Span)) {
    let n = members.len();
    // The place of the block of each member and distance.
    let mut places: Vec<Vec<Span>> =
        (0..n).map(|i| (0..n).map(|distance| block(i, (i + distance) % n).0).collect()).collect();
    for (i, rank) in members.iter().enumerate() {
        b.send_all(*rank, *rank, [block(i, i)]);
    }
    let mut step = 1;
    while step < n {
        let before = places.clone();
        for from in 0..n {
            let to = (from + step) % n;
            let traveling = (1..n).filter(|distance| distance & step != 0);
            // A block that has traveled by its lower digits started that much earlier.
            let blocks: Vec<(usize, usize)> =
                traveling.map(|distance| ((from + n - (distance & (step - 1))) % n, distance)).collect();
            let ends = |distance: usize| distance < 2 * step;
            let waiting = blocks.iter().filter(|(_, distance)| !ends(*distance));
            let lens: Vec<u64> = waiting.map(|(i, distance)| before[*i][*distance].len).collect();
            let slot = b.slot(members[to], ScratchSlot::From(members[from]), lens.iter().sum());
            let mut slots = consecutive(slot, lens);
            for (i, distance) in &blocks {
                let place =
                    if ends(*distance) { Some(block(*i, (i + distance) % n).1) } else { slots.next() };
                places[*i][*distance] = place.unwrap_or(slot);
            }
            let moves = blocks.iter().map(|(i, distance)| (before[*i][*distance], places[*i][*distance]));
            b.send_all(members[from], members[to], moves.collect::<Vec<_>>());
        }
        step *= 2;
    }
}
