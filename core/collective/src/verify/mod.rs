//! Proves that a schedule does what its call says, whatever the network's timing.
//!
//! It runs the schedule on symbols instead of bytes: a part remembers whose input it began in and where, a
//! combination remembers its operands. Three properties make one run speak for all: accesses that conflict
//! are ordered by dependencies, so every run moves the same values; every message has one sender and the
//! receivers that its tree reaches; and the run is made under the hardest regime, each rank doing its
//! actions strictly one by one with every send waiting for its receivers, so that a more willing executor
//! cannot come to a stop either.

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

/// What a proof covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Actions of all ranks.
    pub actions: usize,
    /// Messages, a multicast counted once.
    pub transfers: usize,
    /// The largest working memory of a rank, in bytes.
    pub scratch: u64,
}

/// Why a schedule is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The schedule is for another number of ranks.
    #[error("the schedule has {programs} programs for a group of {size} ranks")]
    Size {
        /// Programs of the schedule.
        programs: usize,
        /// Ranks of the layout.
        size: usize,
    },
    /// A rank was left out when it was compiled.
    #[error("the program of {rank} is missing; compile the schedule for all ranks")]
    Missing {
        /// The rank.
        rank: Rank,
    },
    /// A span is outside its buffer, cuts an element, writes to the input or overlaps another of its action.
    #[error("{rank}, action {}: {span:?} {reason}", action.0)]
    Span {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// The span.
        span: Span,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A dependency does not point backwards.
    #[error("{rank}, action {}: waits for action {}, which is not before it", action.0, on.0)]
    Dependency {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// What it waits for.
        on: ActionId,
    },
    /// The ends of a message do not fit together.
    #[error("transfer {}, {rank}: {reason}", transfer.0)]
    Transfer {
        /// The message.
        transfer: TransferId,
        /// The rank where it shows.
        rank: Rank,
        /// What does not fit.
        reason: &'static str,
    },
    /// Two actions touch the same bytes, one of them writing, and neither waits for the other.
    #[error("{rank}: actions {} and {} touch the same bytes of {buffer:?} and neither waits for the other", first.0, second.0)]
    Race {
        /// The rank.
        rank: Rank,
        /// The one.
        first: ActionId,
        /// The other.
        second: ActionId,
        /// Where.
        buffer: RankBuffer,
    },
    /// An action reads what nothing has written.
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
    /// A reduction combines elements of different places.
    #[error("{rank}, action {}: combines element bytes {left} and {right} of the vectors", action.0)]
    Misaligned {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
        /// Place of the left operand.
        left: u64,
        /// Place of the right operand.
        right: u64,
    },
    /// The ranks wait for each other.
    #[error("deadlock: {rank} never gets past action {}", action.0)]
    Deadlock {
        /// One of them.
        rank: Rank,
        /// Where it stops.
        action: ActionId,
    },
    /// A rank ends without what the call promises.
    #[error("{rank}: the output at byte {offset} is {found}, but {operation} promises {wanted}")]
    Output {
        /// The rank.
        rank: Rank,
        /// The operation.
        operation: Operation,
        /// Where.
        offset: u64,
        /// What is there.
        found: String,
        /// What should be.
        wanted: String,
    },
    /// A rank may leave a barrier before another has come.
    #[error("{rank} may leave the barrier before {before} has come")]
    Barrier {
        /// Who leaves.
        rank: Rank,
        /// Who has not come.
        before: Rank,
    },
}

/// Proves that `schedule`, compiled for all ranks of `layout`, is right.
///
/// # Errors
/// Names the first thing found to be wrong.
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

/// A program's actions with their numbers.
fn numbered(program: &Program) -> impl Iterator<Item = (ActionId, &ScheduleAction)> {
    (0..).map(ActionId).zip(&program.actions)
}
