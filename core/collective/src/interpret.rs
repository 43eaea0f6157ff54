//! Runs a schedule on real bytes in one process. This is the reference for executors, and a second
//! check of the verifier. Actions run one at a time, in an order that is drawn from a seed among
//! all actions that may run.

use crate::schedule::{ActionId, ActionKind, Operation, Rank, RankBuffer, Schedule, Span, TransferId};
use crate::topological_order::topological_order;
use std::collections::BTreeMap;

/// The reason why a schedule cannot run on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// The schedule was not compiled for a rank, or the rank has no input.
    #[error("{0} has no program or no input; compile for all ranks and pass an input for each")]
    Missing(Rank),
    /// An input does not have the length that the call requires.
    #[error("the input of {rank} has {found} bytes, but the call needs {wanted}")]
    Input {
        /// The rank.
        rank: Rank,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        wanted: u64,
    },
    /// A span of an action lies outside its buffer, or differs in length from the other end of its
    /// message.
    #[error("{rank}, action {}: a span does not fit its buffer or its message", action.0)]
    Span {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
    },
    /// No action may run, but some are not complete.
    #[error("stuck: {rank} never runs action {}", action.0)]
    Stuck {
        /// A rank that waits.
        rank: Rank,
        /// The action that it cannot run.
        action: ActionId,
    },
}

/// Returns the outputs of all ranks. `inputs` holds the contribution of each rank; for a bcast, the
/// message at the root and nothing elsewhere. `combine` is the reduce operation, which must combine
/// its second argument into its first.
///
/// # Errors
/// Returns an error if the inputs do not fit the call, or [`crate::verify`] would refuse the
/// schedule.
pub fn interpret(
    schedule: &Schedule,
    inputs: &[Vec<u8>],
    combine: impl Fn(&mut [u8], &[u8]),
    seed: u64,
) -> Result<Vec<Vec<u8>>, InterpretError> {
    let size = schedule.programs.len();
    let mut programs = Vec::with_capacity(size);
    let mut machine = Interpreter { buffers: Vec::with_capacity(size), messages: BTreeMap::new() };
    for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
        let (Some(program), Some(input)) = (program, inputs.get(rank.0 as usize)) else {
            return Err(InterpretError::Missing(rank));
        };
        machine.buffers.push(buffers(schedule, rank, input, program.scratch)?);
        programs.push(program);
    }
    let mut random = seed;
    let order = topological_order(&programs, |ready| (next_random(&mut random) % ready as u64) as usize)
        .map_err(|(rank, action)| InterpretError::Stuck { rank, action })?;
    for (rank, action) in order {
        let kind = programs[rank.0 as usize].actions[action.0 as usize].kind;
        machine.run(rank, kind, &combine).ok_or(InterpretError::Span { rank, action })?;
    }
    Ok(machine.buffers.into_iter().map(|[_, output, _]| output).collect())
}

/// Returns the next number of SplitMix64 (Steele, Lea, Flood 2014).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Interpreter {
    /// Input, output and scratch of each rank.
    buffers: Vec<[Vec<u8>; 3]>,
    messages: BTreeMap<TransferId, Vec<u8>>,
}

impl Interpreter {
    /// Runs an action. Returns `None` if its spans do not fit.
    fn run(&mut self, rank: Rank, kind: ActionKind, combine: &impl Fn(&mut [u8], &[u8])) -> Option<()> {
        let r = rank.0 as usize;
        match kind {
            ActionKind::Send { transfer, src, .. } | ActionKind::Multicast { transfer, src, .. } => {
                let message = self.span(r, src)?.to_vec();
                self.messages.insert(transfer, message);
            }
            ActionKind::Receive { transfer, dst, .. }
            | ActionKind::ReceiveMulticast { transfer, dst, .. } => {
                let message = self.messages.get(&transfer)?.clone();
                let place = self.span(r, dst)?;
                (place.len() == message.len()).then(|| place.copy_from_slice(&message))?;
            }
            ActionKind::Reduce { src, dst } => {
                let operand = self.span(r, src)?.to_vec();
                let place = self.span(r, dst)?;
                (place.len() == operand.len()).then(|| combine(place, &operand))?;
            }
            ActionKind::Copy { src, dst } => {
                let bytes = self.span(r, src)?.to_vec();
                let place = self.span(r, dst)?;
                (place.len() == bytes.len()).then(|| place.copy_from_slice(&bytes))?;
            }
        }
        Some(())
    }

    fn span(&mut self, rank: usize, span: Span) -> Option<&mut [u8]> {
        let buffer = match span.buffer {
            RankBuffer::Input => 0,
            RankBuffer::Output => 1,
            RankBuffer::Scratch => 2,
        };
        let end = span.offset.checked_add(span.len)?;
        self.buffers[rank][buffer].get_mut(usize::try_from(span.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// Returns a rank's buffers before the call. Undefined bytes are not zero, so that a read of them
/// shows.
fn buffers(
    schedule: &Schedule,
    rank: Rank,
    input: &[u8],
    scratch: u64,
) -> Result<[Vec<u8>; 3], InterpretError> {
    let call = &schedule.call;
    let size = schedule.programs.len();
    let undefined = |len: u64| vec![0xa5; len as usize];
    let output = call.output_bytes(rank, size);
    let source = call.operation == Operation::Bcast && rank == call.root;
    let wanted = if source { output } else { call.input_bytes(rank, size) };
    if input.len() as u64 != wanted {
        return Err(InterpretError::Input { rank, found: input.len(), wanted });
    }
    Ok(if source {
        [Vec::new(), input.to_vec(), undefined(scratch)]
    } else {
        [input.to_vec(), undefined(output), undefined(scratch)]
    })
}
