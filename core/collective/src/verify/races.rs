//! Verifies that dependencies order all conflicting accesses of a rank.

use super::{VerifyError, numbered};
use crate::schedule::{ActionId, Program, Rank, RankBuffer, Span};
use std::collections::{BTreeMap, BTreeSet};

/// The last write to a range, and the reads since then.
#[derive(Clone, Default)]
struct Accesses {
    end: u64,
    writer: Option<ActionId>,
    readers: Vec<ActionId>,
}

/// Checks a program. Accesses before the last write need not be checked, because each was found to
/// precede that write.
pub(super) fn check(rank: Rank, program: &Program) -> Result<(), VerifyError> {
    let mut buffers: BTreeMap<RankBuffer, BTreeMap<u64, Accesses>> = BTreeMap::new();
    for (id, action) in numbered(program) {
        let write = action.kind.writes();
        for span in action.kind.reads().chain(write).filter(|span| span.len > 0) {
            let ranges = buffers.entry(span.buffer).or_default();
            split(ranges, span);
            let writes = write == Some(span);
            for (_, range) in ranges.range_mut(span.offset..span.end()) {
                let readers = range.readers.iter().filter(|_| writes);
                for first in range.writer.iter().chain(readers).copied().filter(|first| *first != id) {
                    if !ordered(program, first, id) {
                        return Err(VerifyError::Race { rank, first, second: id, buffer: span.buffer });
                    }
                }
                if writes {
                    range.writer = Some(id);
                    range.readers.clear();
                } else {
                    range.readers.push(id);
                }
            }
        }
    }
    Ok(())
}

/// Splits the ranges at both ends of the span, and adds ranges for the bytes that are touched for
/// the first time.
fn split(ranges: &mut BTreeMap<u64, Accesses>, span: Span) {
    for at in [span.offset, span.end()] {
        let right =
            ranges.range(..at).next_back().map(|(_, range)| range.clone()).filter(|range| range.end > at);
        if let Some(right) = right {
            if let Some((_, left)) = ranges.range_mut(..at).next_back() {
                left.end = at;
            }
            ranges.insert(at, right);
        }
    }
    let mut at = span.offset;
    while at < span.end() {
        let next = ranges.range(at..).next().map(|(start, range)| (*start, range.end));
        match next {
            Some((start, end)) if start == at => at = end,
            next => {
                let end = next.map_or(span.end(), |(start, _)| start.min(span.end()));
                ranges.insert(at, Accesses { end, ..Accesses::default() });
                at = end;
            }
        }
    }
}

/// Returns whether `second` waits for `first`, directly or through other actions.
fn ordered(program: &Program, first: ActionId, second: ActionId) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![second];
    while let Some(id) = open.pop() {
        let after = &program.actions[id.0 as usize].after;
        if after.contains(&first) {
            return true;
        }
        open.extend(after.iter().copied().filter(|earlier| *earlier > first && seen.insert(*earlier)));
    }
    false
}
