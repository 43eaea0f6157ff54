//! Every rank must end with what the call promises.

use super::VerifyError;
use super::symbols::{Expression, Expressions, Memory, Run, aligned, joined};
use crate::schedule::{Buffer, Call, Operation, Rank, Span};
use std::collections::BTreeSet;

pub(super) fn check(call: &Call, memories: &[Memory], expressions: &Expressions) -> Result<(), VerifyError> {
    let size = memories.len();
    let mut combined: Option<Vec<Run>> = None;
    for (rank, memory) in (0..).map(Rank).zip(memories) {
        let span = Span { buffer: Buffer::Output, offset: 0, len: call.output_bytes(rank, size) };
        let found = memory.read(span).map(joined).map_err(|offset| VerifyError::Output {
            rank,
            operation: call.operation,
            offset,
            found: "unwritten".to_owned(),
            wanted: "a value".to_owned(),
        })?;
        match call.operation {
            Operation::Reduce | Operation::Allreduce => {
                check_combination(call, rank, &found, size, expressions)?;
                // Alike to the last bit at all ranks: the same operands in the same order.
                if span.len > 0 {
                    let first = combined.get_or_insert_with(|| found.clone());
                    compare(call, rank, &found, first, expressions)?;
                }
            }
            _ => compare(call, rank, &found, &promised(call, rank, size), expressions)?,
        }
    }
    Ok(())
}

/// The output of an operation that moves data without combining any.
fn promised(call: &Call, rank: Rank, size: usize) -> Vec<Run> {
    let part = |of: Rank, origin| Run { len: call.bytes, expression: Expression::of(of), origin };
    let all = || (0..size as u32).map(|of| part(Rank(of), 0)).collect();
    match call.operation {
        _ if call.bytes == 0 => Vec::new(),
        Operation::Bcast => vec![part(call.root, 0)],
        Operation::Scatter => vec![part(call.root, u64::from(rank.0) * call.bytes)],
        Operation::Allgather => all(),
        Operation::Gather if rank == call.root => all(),
        Operation::Gather | Operation::Barrier | Operation::Reduce | Operation::Allreduce => Vec::new(),
    }
}

/// Every rank's vector once, at its own place.
fn check_combination(
    call: &Call,
    rank: Rank,
    found: &[Run],
    size: usize,
    expressions: &Expressions,
) -> Result<(), VerifyError> {
    let mut offset = 0;
    let mut known = BTreeSet::new();
    for run in found {
        let complete = known.contains(&run.expression) || {
            let mut ranks = expressions.ranks_of(run.expression);
            ranks.sort_unstable();
            ranks.into_iter().map(|rank| rank.0).eq(0..size as u32)
        };
        if !complete || run.origin != offset {
            let wanted = format!("the data of all {size} ranks, each once, at {offset}");
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
    found: &[Run],
    wanted: &[Run],
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
    found: Run,
    wanted: String,
    expressions: &Expressions,
) -> VerifyError {
    let found = format!("{} at {}", expressions.text(found.expression), found.origin);
    VerifyError::Output { rank, operation: call.operation, offset, found, wanted }
}
