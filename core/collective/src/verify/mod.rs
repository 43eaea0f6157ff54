//! Proves that a schedule implements its call, whatever the timing of the network.
//!
//! It runs the schedule on symbols instead of bytes. A part remembers its origin, that is, the rank
//! and the place of its input, and a combination remembers its operands. Three properties make one
//! run valid for all runs. First, conflicting accesses are ordered by dependencies, so every run
//! moves the same values. Second, every message has one sender and exactly the receivers that its
//! tree reaches. Third, the run uses the strictest executor: each rank executes its actions
//! strictly one by one, and every send waits for its receivers. A more permissive executor
//! therefore cannot deadlock either.

mod barrier;
mod races;
mod results;
mod run;
mod symbols;
mod transfers;

use crate::layout::Layout;
use crate::schedule::{
    ActionId, ActionKind, Operation, Program, Rank, RankBuffer, Schedule, ScheduleAction, Span, TransferId,
};

/// The extent of a proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Actions of all ranks.
    pub actions: usize,
    /// Messages. A multicast counts once.
    pub transfers: usize,
    /// The largest working memory of a rank, in bytes.
    pub scratch: u64,
}

/// The reason why a schedule is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The schedule has another number of ranks than the layout.
    #[error("the schedule has {programs} programs for a group of {size} ranks")]
    Size {
        /// Programs of the schedule.
        programs: usize,
        /// Ranks of the layout.
        size: usize,
    },
    /// The schedule was not compiled for a rank.
    #[error("the program of {rank} is missing; compile the schedule for all ranks")]
    Missing {
        /// The rank.
        rank: Rank,
    },
    /// A span lies outside its buffer, splits an element, writes to the input, or overlaps another
    /// span of its action.
    #[error("{rank}, action {}: {span:?} {reason}", action.0)]
    Span {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// The span.
        span: Span,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A dependency does not point backwards.
    #[error("{rank}, action {}: waits for action {}, which is not before it", action.0, on.0)]
    Dependency {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// The action for which it waits.
        on: ActionId,
    },
    /// The ends of a message do not match.
    #[error("transfer {}, {rank}: {reason}", transfer.0)]
    Transfer {
        /// The message.
        transfer: TransferId,
        /// The rank at which this was detected.
        rank: Rank,
        /// The mismatch.
        reason: &'static str,
    },
    /// Two actions touch the same bytes, at least one of them writes, and neither waits for the
    /// other.
    #[error("{rank}: actions {} and {} touch the same bytes of {buffer:?} and neither waits for the other", first.0, second.0)]
    Race {
        /// The rank.
        rank: Rank,
        /// One action.
        first: ActionId,
        /// The other action.
        second: ActionId,
        /// The buffer.
        buffer: RankBuffer,
    },
    /// An action reads bytes that no action has written.
    #[error("{rank}, action {}: reads {buffer:?} at {offset}, which nothing has written", action.0)]
    Unwritten {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// The buffer.
        buffer: RankBuffer,
        /// The first such byte.
        offset: u64,
    },
    /// A reduction combines elements of different positions.
    #[error("{rank}, action {}: combines element bytes {left} and {right} of the vectors", action.0)]
    Misaligned {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// Position of the left operand.
        left: u64,
        /// Position of the right operand.
        right: u64,
    },
    /// The ranks wait for each other.
    #[error("deadlock: {rank} never gets past action {}", action.0)]
    Deadlock {
        /// One of the ranks.
        rank: Rank,
        /// The action at which it stops.
        action: ActionId,
    },
    /// A rank ends without the result that the call promises.
    #[error("{rank}: the output at byte {offset} is {found}, but {operation} requires {wanted}")]
    Output {
        /// The rank.
        rank: Rank,
        /// The operation.
        operation: Operation,
        /// Offset in the output.
        offset: u64,
        /// The data found there.
        found: String,
        /// The data required there.
        wanted: String,
    },
    /// A rank may leave a barrier before another has entered.
    #[error("{rank} may leave the barrier before {before} has entered")]
    Barrier {
        /// The rank that leaves.
        rank: Rank,
        /// The rank that has not entered.
        before: Rank,
    },
}

/// Proves that `schedule`, which must be compiled for all ranks of `layout`, is right.
///
/// # Errors
/// Returns the first violation found.
pub fn verify(schedule: &Schedule, layout: &Layout) -> Result<Proof, VerifyError> {
    let (programs, size) = (schedule.programs.len(), layout.size());
    if programs != size {
        return Err(VerifyError::Size { programs, size });
    }
    let programs: Vec<&Program> = layout
        .ranks()
        .zip(&schedule.programs)
        .map(|(rank, program)| program.as_ref().ok_or(VerifyError::Missing { rank }))
        .collect::<Result<_, _>>()?;
    for (rank, program) in layout.ranks().zip(&programs) {
        check_spans(schedule, rank, program, size)?;
        races::check(rank, program)?;
    }
    let transfers = transfers::matched(&programs, layout)?;
    let (expressions, memories) = run::run(&schedule.call, &programs, &transfers)?;
    results::check(&schedule.call, &memories, &expressions)?;
    if schedule.call.operation == Operation::Barrier {
        barrier::check(&programs)?;
    }
    Ok(Proof {
        actions: programs.iter().map(|p| p.actions.len()).sum(),
        transfers: transfers.len(),
        scratch: programs.iter().map(|p| p.scratch).max().unwrap_or(0),
    })
}

fn check_spans(schedule: &Schedule, rank: Rank, program: &Program, size: usize) -> Result<(), VerifyError> {
    let call = &schedule.call;
    for (action, ScheduleAction { kind, after }) in numbered(program) {
        let fail = |span, reason| Err(VerifyError::Span { rank, action, span, reason });
        for span in kind.reads().chain(kind.writes()) {
            let bytes = match span.buffer {
                RankBuffer::Input => call.input_bytes(rank, size),
                RankBuffer::Output => call.output_bytes(rank, size),
                RankBuffer::Scratch => program.scratch,
            };
            if span.offset.checked_add(span.len).is_none_or(|end| end > bytes) {
                return fail(span, "is outside its buffer");
            }
            let element = u64::from(call.element);
            let begins_within = span.buffer != RankBuffer::Scratch && !span.offset.is_multiple_of(element);
            if begins_within || !span.len.is_multiple_of(element) {
                return fail(span, "cuts an element");
            }
        }
        if let Some(span) = kind.writes().filter(|span| span.buffer == RankBuffer::Input) {
            return fail(span, "writes to the input");
        }
        if let ActionKind::Reduce { src, dst } | ActionKind::Copy { src, dst } = *kind {
            if src.len != dst.len {
                return fail(dst, "is not as long as its source");
            }
            if src.buffer == dst.buffer && src.offset < dst.end() && dst.offset < src.end() {
                return fail(dst, "overlaps its source");
            }
        }
        if let Some(on) = after.iter().copied().find(|on| *on >= action) {
            return Err(VerifyError::Dependency { rank, action, on });
        }
    }
    Ok(())
}

/// Returns a program's actions with their numbers.
fn numbered(program: &Program) -> impl Iterator<Item = (ActionId, &ScheduleAction)> {
    (0..).map(ActionId).zip(&program.actions)
}
