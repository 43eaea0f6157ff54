//! Verifies that every rank ends with the result that the call promises.

use super::VerifyError;
use super::symbols::{Expression, Expressions, SymbolRun, SymbolicMemory, aligned, joined};
use crate::schedule::{Call, Operation, Rank, RankBuffer, Span};
use std::collections::BTreeSet;

pub(super) fn check(
    call: &Call,
    memories: &[SymbolicMemory],
    expressions: &Expressions,
) -> Result<(), VerifyError> {
    let size = memories.len();
    let mut combined: Option<Vec<SymbolRun>> = None;
    for (rank, memory) in (0..).map(Rank).zip(memories) {
        let span = Span { buffer: RankBuffer::Output, offset: 0, len: call.output_bytes(rank, size) };
        let found = memory.read(span).map(joined).map_err(|offset| VerifyError::Output {
            rank,
            operation: call.operation,
            offset,
            found: "unwritten".to_owned(),
            wanted: "a value".to_owned(),
        })?;
        match call.operation {
            Operation::Reduce | Operation::Allreduce => {
                check_combination(call, rank, &found, (0, size), expressions)?;
                // The results must be identical at all ranks: the same operands in the same order.
                if span.len > 0 {
                    let first = combined.get_or_insert_with(|| found.clone());
                    compare(call, rank, &found, first, expressions)?;
                }
            }
            Operation::ReduceScatter => {
                let start = call.parts(0..rank.0 as usize);
                check_combination(call, rank, &found, (start, size), expressions)?;
            }
            Operation::Scan => {
                check_combination(call, rank, &found, (0, rank.0 as usize + 1), expressions)?;
            }
            Operation::Exscan => check_combination(call, rank, &found, (0, rank.0 as usize), expressions)?,
            _ => compare(call, rank, &found, &promised(call, rank, size), expressions)?,
        }
    }
    Ok(())
}

/// Returns the output of an operation that moves data without combining.
fn promised(call: &Call, rank: Rank, size: usize) -> Vec<SymbolRun> {
    let run = |of: Rank, origin, len| SymbolRun { len, expression: Expression::for_rank(of), origin };
    let ranks = || (0..size as u32).map(Rank);
    let runs: Vec<SymbolRun> = match call.operation {
        Operation::Bcast => vec![run(call.root, 0, call.bytes)],
        Operation::Scatter => vec![run(call.root, call.parts(0..rank.0 as usize), call.part(rank))],
        Operation::Allgather => ranks().map(|of| run(of, 0, call.part(of))).collect(),
        Operation::Gather if rank == call.root => ranks().map(|of| run(of, 0, call.part(of))).collect(),
        Operation::Alltoall => ranks()
            .map(|of| {
                let block = |to: usize| call.block(of.0 as usize, to, size);
                let to = rank.0 as usize;
                run(of, (0..to).map(block).sum(), block(to))
            })
            .collect(),
        _ => Vec::new(),
    };
    runs.into_iter().filter(|run| run.len > 0).collect()
}

/// Checks that the output, which starts at `start` of the vector, combines the vectors of the first
/// `first` ranks, each once and at its own position. A scan must combine them in their order.
fn check_combination(
    call: &Call,
    rank: Rank,
    found: &[SymbolRun],
    (start, first): (u64, usize),
    expressions: &Expressions,
) -> Result<(), VerifyError> {
    let mut offset = 0;
    let mut known = BTreeSet::new();
    for run in found {
        let complete = known.contains(&run.expression) || {
            let mut ranks = expressions.ranks_of(run.expression);
            if !matches!(call.operation, Operation::Scan | Operation::Exscan) {
                ranks.sort_unstable();
            }
            ranks.into_iter().map(|rank| rank.0).eq(0..first as u32)
        };
        if !complete || run.origin != start + offset {
            let wanted = format!("the data of the first {first} ranks, each once, at {}", start + offset);
            return Err(wrong(call, rank, offset, *run, wanted, expressions));
        }
        known.insert(run.expression);
        offset += run.len;
    }
    Ok(())
}

fn compare(
    call: &Call,
    rank: Rank,
    found: &[SymbolRun],
    wanted: &[SymbolRun],
    expressions: &Expressions,
) -> Result<(), VerifyError> {
    let mut offset = 0;
    for (found, wanted) in aligned(found, wanted) {
        if found != wanted {
            let wanted = format!("{} at {}", expressions.text(wanted.expression), wanted.origin);
            return Err(wrong(call, rank, offset, found, wanted, expressions));
        }
        offset += found.len;
    }
    Ok(())
}

fn wrong(
    call: &Call,
    rank: Rank,
    offset: u64,
    found: SymbolRun,
    wanted: String,
    expressions: &Expressions,
) -> VerifyError {
    let found = format!("{} at {}", expressions.text(found.expression), found.origin);
    VerifyError::Output { rank, operation: call.operation, offset, found, wanted }
}
