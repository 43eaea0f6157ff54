//! Symbols in place of bytes: the origin of each byte in a rank's buffers.

use crate::schedule::{Rank, RankBuffer, Span};
use std::collections::BTreeMap;

/// The number of an expression. The expression of a rank's own data has the number of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Expression(u32);

impl Expression {
    /// Returns the expression of the data that a rank contributes to the call.
    pub(super) fn for_rank(rank: Rank) -> Expression {
        Expression(rank.0)
    }
}

/// All combinations so far, each once, so that equal numbers mean the same operands in the same
/// order.
pub(super) struct Expressions {
    ranks: u32,
    sums: Vec<(Expression, Expression)>,
    numbers: BTreeMap<(Expression, Expression), Expression>,
}

impl Expressions {
    pub(super) fn new(ranks: u32) -> Expressions {
        Expressions { ranks, sums: Vec::new(), numbers: BTreeMap::new() }
    }

    pub(super) fn combine(&mut self, left: Expression, right: Expression) -> Expression {
        *self.numbers.entry((left, right)).or_insert_with(|| {
            self.sums.push((left, right));
            Expression(self.ranks + self.sums.len() as u32 - 1)
        })
    }

    /// Returns the ranks with data in an expression, in its order.
    pub(super) fn ranks_of(&self, expression: Expression) -> Vec<Rank> {
        let mut ranks = Vec::new();
        let mut open = vec![expression];
        while let Some(next) = open.pop() {
            match next.0.checked_sub(self.ranks) {
                None => ranks.push(Rank(next.0)),
                Some(sum) => {
                    let (left, right) = self.sums[sum as usize];
                    open.extend([right, left]);
                }
            }
        }
        ranks
    }

    /// Returns the expression as text.
    pub(super) fn text(&self, expression: Expression) -> String {
        let ranks: Vec<String> = self.ranks_of(expression).iter().map(|rank| rank.0.to_string()).collect();
        format!("the data of rank {}", ranks.join(" + "))
    }
}

/// A run of bytes with one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SymbolRun {
    pub(super) len: u64,
    pub(super) expression: Expression,
    /// The position of the run's first byte in the data from which it was made.
    pub(super) origin: u64,
}

/// The buffers of a rank.
#[derive(Clone, Default)]
pub(super) struct SymbolicMemory {
    buffers: [BTreeMap<u64, SymbolRun>; 3],
}

impl SymbolicMemory {
    /// Returns the contents of a span.
    ///
    /// # Errors
    /// Returns the first byte of the span that no action has written.
    pub(super) fn read(&self, span: Span) -> Result<Vec<SymbolRun>, u64> {
        let runs = &self.buffers[index(span.buffer)];
        let mut found = Vec::new();
        let mut at = span.offset;
        while at < span.end() {
            let (start, run) = runs.range(..=at).next_back().ok_or(at)?;
            let skip = at - start;
            if skip >= run.len {
                return Err(at);
            }
            let len = (run.len - skip).min(span.end() - at);
            found.push(SymbolRun { len, expression: run.expression, origin: run.origin + skip });
            at += len;
        }
        Ok(found)
    }

    /// Writes runs into a span, which they must fill.
    pub(super) fn write(&mut self, span: Span, runs: &[SymbolRun]) {
        if span.len == 0 {
            return;
        }
        let buffer = &mut self.buffers[index(span.buffer)];
        if let Some((start, run)) = buffer.range(..span.offset).next_back().map(|(start, run)| (*start, *run))
        {
            let end = start + run.len;
            if end > span.end() {
                let skip = span.end() - start;
                buffer.insert(
                    span.end(),
                    SymbolRun { len: end - span.end(), origin: run.origin + skip, ..run },
                );
            }
            if end > span.offset {
                buffer.insert(start, SymbolRun { len: span.offset - start, ..run });
            }
        }
        let covered: Vec<u64> = buffer.range(span.offset..span.end()).map(|(start, _)| *start).collect();
        for start in covered {
            if let Some(run) = buffer.remove(&start)
                && start + run.len > span.end()
            {
                let skip = span.end() - start;
                buffer
                    .insert(span.end(), SymbolRun { len: run.len - skip, origin: run.origin + skip, ..run });
            }
        }
        let mut at = span.offset;
        for run in runs {
            buffer.insert(at, *run);
            at += run.len;
        }
    }
}

/// Splits two equally long lists of runs at each other's ends. Returns the pairs.
pub(super) fn aligned(left: &[SymbolRun], right: &[SymbolRun]) -> Vec<(SymbolRun, SymbolRun)> {
    let (mut left, mut right) = (left.iter().copied(), right.iter().copied());
    let (mut l, mut r) = (left.next(), right.next());
    let mut pairs = Vec::new();
    while let (Some(a), Some(b)) = (l, r) {
        let len = a.len.min(b.len);
        pairs.push((SymbolRun { len, ..a }, SymbolRun { len, ..b }));
        let rest = |run: SymbolRun| {
            (run.len > len).then(|| SymbolRun { len: run.len - len, origin: run.origin + len, ..run })
        };
        l = rest(a).or_else(|| left.next());
        r = rest(b).or_else(|| right.next());
    }
    pairs
}

/// Merges adjacent runs that continue each other.
pub(super) fn joined(runs: Vec<SymbolRun>) -> Vec<SymbolRun> {
    let mut out: Vec<SymbolRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match out.last_mut() {
            Some(last) if last.expression == run.expression && last.origin + last.len == run.origin => {
                last.len += run.len;
            }
            _ => out.push(run),
        }
    }
    out
}

fn index(buffer: RankBuffer) -> usize {
    match buffer {
        RankBuffer::Input => 0,
        RankBuffer::Output => 1,
        RankBuffer::Scratch => 2,
    }
}
