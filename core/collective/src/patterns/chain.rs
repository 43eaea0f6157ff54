//! The pipelined chain: each member passes segment after segment to the next, so that every link
//! carries the message once, and all links work at the same time (Zhang and Qiu, 4.2).

use super::Pattern;
use super::tree::{TreeEdge, tree};
use crate::builder::{RankSpan, ScheduleBuilder, ScratchSlot};

pub(super) static CHAIN: Pattern = Pattern { scan: Some(scan), ..tree!("chain", edges, 128) };

fn edges(n: usize) -> Vec<TreeEdge> {
    (1..n).map(|child| TreeEdge { parent: child - 1, below: child..n }).collect()
}

fn scan(b: &mut ScheduleBuilder<'_>, values: &[RankSpan], exclusive: bool, places: &[RankSpan]) {
    // The value for the next member.
    let mut total = values[0];
    if !exclusive {
        b.send(values[0], places[0]);
    }
    for (value, place) in values.iter().zip(places).skip(1) {
        b.send(total, *place);
        let rank = place.rank;
        total = if exclusive {
            let span = b.slot(rank, ScratchSlot::Value, value.span.len);
            b.copy(rank, place.span, span);
            RankSpan { rank, span }
        } else {
            *place
        };
        b.reduce(rank, value.span, total.span);
    }
}
