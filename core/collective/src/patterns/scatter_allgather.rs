//! Scatter and allgather: the root scatters pieces of the message along a binomial tree, and the
//! pieces then go around a ring (the bucket algorithm), so that no link carries much more than
//! twice the message.

use super::binomial::BINOMIAL;
use super::ring::RING;
use super::{Pattern, Subgroup, rotated};
use crate::builder::{RankSpan, ScheduleBuilder};
use crate::schedule::{Rank, Span};

pub(super) static SCATTER_ALLGATHER: Pattern =
    Pattern { bcast: Some(bcast), ..Pattern::new("scatter-allgather") };

fn bcast(b: &mut ScheduleBuilder<'_>, group: &Subgroup, from: RankSpan, dst: &dyn Fn(Rank) -> Span) {
    let mut members = rotated(&group.members, |rank| *rank == from.rank);
    if members.first() != Some(&from.rank) {
        members.insert(0, from.rank);
    }
    let pieces = b.split(from.span, members.len());
    let place = |rank: Rank, i: usize| {
        let whole = if rank == from.rank { from.span } else { dst(rank) };
        whole.sub(pieces[i].offset - from.span.offset, pieces[i].len)
    };
    let own: Vec<RankSpan> =
        members.iter().enumerate().map(|(i, rank)| RankSpan { rank: *rank, span: place(*rank, i) }).collect();
    let moves: Vec<(RankSpan, RankSpan)> = pieces
        .iter()
        .zip(&own)
        .map(|(piece, to)| (RankSpan { rank: from.rank, span: *piece }, *to))
        .collect();
    if let (Some(scatter), Some(allgather)) = (BINOMIAL.scatter, RING.allgather) {
        scatter(b, &moves);
        allgather(b, group, &own, &place);
    }
}
