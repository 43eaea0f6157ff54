//! Runs a schedule on real bytes in one place: the reference for executors, and a second opinion on the
//! verifier. Actions run one at a time, in an order drawn from a seed among all that may run.

use crate::schedule::{Action, ActionId, Buffer, Kind, Operation, Rank, Schedule, Span, TransferId};
use std::collections::BTreeMap;

/// Why a schedule cannot be run on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// A rank was left out when the schedule was compiled, or has no input.
    #[error("{0} has no program or no input; compile for all ranks and give an input for each")]
    Missing(Rank),
    /// An input is not as long as the call says.
    #[error("the input of {rank} has {found} bytes, the call says {wanted}")]
    Input {
        /// The rank.
        rank: Rank,
        /// Bytes given.
        found: usize,
        /// Bytes wanted.
        wanted: u64,
    },
    /// An action's spans are outside their buffers, or differ in length from those at the other end.
    #[error("{rank}, action {}: a span does not fit its buffer or its message", action.0)]
    Span {
        /// The rank.
        rank: Rank,
        /// The action.
        action: ActionId,
    },
    /// Nothing may run, but not everything has.
    #[error("stuck: {rank} never runs action {}", action.0)]
    Stuck {
        /// One of the ranks that wait.
        rank: Rank,
        /// What it does not run.
        action: ActionId,
    },
}

/// The outputs of all ranks. `inputs` are what each rank contributes; for a bcast that is the message at the
/// root, and nothing elsewhere. `combine` is the operation of a reduction: it combines its second argument
/// into its first.
///
/// # Errors
/// If the inputs are not the call's, or the schedule is one that [`crate::verify`] would refuse.
pub fn interpret(
    schedule: &Schedule,
    inputs: &[Vec<u8>],
    combine: impl Fn(&mut [u8], &[u8]),
    seed: u64,
) -> Result<Vec<Vec<u8>>, InterpretError> {
    let mut machine = Machine::new(schedule, inputs)?;
    let mut random = seed;
    while !machine.ready.is_empty() {
        let pick = next_random(&mut random) % machine.ready.len() as u64;
        let (rank, action) = machine.ready.swap_remove(pick as usize);
        machine.run(rank, action, &combine).ok_or(InterpretError::Span { rank, action })?;
    }
    for (rank, waiting) in (0..).map(Rank).zip(&machine.waiting) {
        if let Some(action) = waiting.iter().position(|w| *w != DONE) {
            return Err(InterpretError::Stuck { rank, action: ActionId(action as u32) });
        }
    }
    Ok(machine.buffers.into_iter().map(|[_, output, _]| output).collect())
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What an action that has run waits for.
const DONE: usize = usize::MAX;

struct Machine<'a> {
    actions: Vec<&'a [Action]>,
    /// Input, output and scratch of each rank.
    buffers: Vec<[Vec<u8>; 3]>,
    /// For each action how many events it still waits for: dependencies, and its message if it receives one.
    waiting: Vec<Vec<usize>>,
    /// For each action those that wait for it.
    followers: Vec<Vec<Vec<ActionId>>>,
    receivers: BTreeMap<TransferId, Vec<(Rank, ActionId)>>,
    messages: BTreeMap<TransferId, Vec<u8>>,
    ready: Vec<(Rank, ActionId)>,
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Schedule, inputs: &[Vec<u8>]) -> Result<Machine<'a>, InterpretError> {
        let mut machine = Machine {
            actions: Vec::new(),
            buffers: Vec::new(),
            waiting: Vec::new(),
            followers: Vec::new(),
            receivers: BTreeMap::new(),
            messages: BTreeMap::new(),
            ready: Vec::new(),
        };
        for (rank, program) in (0..).map(Rank).zip(&schedule.programs) {
            let (Some(program), Some(input)) = (program, inputs.get(rank.0 as usize)) else {
                return Err(InterpretError::Missing(rank));
            };
            machine.buffers.push(buffers(schedule, rank, input, program.scratch)?);
            machine.add(rank, &program.actions);
        }
        Ok(machine)
    }

    fn add(&mut self, rank: Rank, actions: &'a [Action]) {
        let mut followers = vec![Vec::new(); actions.len()];
        let mut waiting = Vec::with_capacity(actions.len());
        for (id, action) in (0..).map(ActionId).zip(actions) {
            for on in &action.after {
                if let Some(list) = followers.get_mut(on.0 as usize) {
                    list.push(id);
                }
            }
            let mut count = action.after.len();
            if let Kind::Receive { transfer, .. } | Kind::Hear { transfer, .. } = action.kind {
                self.receivers.entry(transfer).or_default().push((rank, id));
                count += 1;
            }
            if count == 0 {
                self.ready.push((rank, id));
            }
            waiting.push(count);
        }
        self.actions.push(actions);
        self.followers.push(followers);
        self.waiting.push(waiting);
    }

    /// Runs an action and tells those that waited for it; none if its spans do not fit.
    fn run(&mut self, rank: Rank, id: ActionId, combine: &impl Fn(&mut [u8], &[u8])) -> Option<()> {
        let r = rank.0 as usize;
        match self.actions[r][id.0 as usize].kind {
            Kind::Send { transfer, src, .. } | Kind::Multicast { transfer, src, .. } => {
                let message = self.span(r, src)?.to_vec();
                self.messages.insert(transfer, message);
                for (to, action) in self.receivers.remove(&transfer).unwrap_or_default() {
                    self.arrived(to, action);
                }
            }
            Kind::Receive { transfer, dst, .. } | Kind::Hear { transfer, dst, .. } => {
                let message = self.messages.get(&transfer)?.clone();
                let place = self.span(r, dst)?;
                (place.len() == message.len()).then(|| place.copy_from_slice(&message))?;
            }
            Kind::Reduce { src, dst } => {
                let operand = self.span(r, src)?.to_vec();
                let place = self.span(r, dst)?;
                (place.len() == operand.len()).then(|| combine(place, &operand))?;
            }
            Kind::Copy { src, dst } => {
                let bytes = self.span(r, src)?.to_vec();
                let place = self.span(r, dst)?;
                (place.len() == bytes.len()).then(|| place.copy_from_slice(&bytes))?;
            }
        }
        self.waiting[r][id.0 as usize] = DONE;
        for follower in std::mem::take(&mut self.followers[r][id.0 as usize]) {
            self.arrived(rank, follower);
        }
        Some(())
    }

    fn arrived(&mut self, rank: Rank, action: ActionId) {
        let count = &mut self.waiting[rank.0 as usize][action.0 as usize];
        *count -= 1;
        if *count == 0 {
            self.ready.push((rank, action));
        }
    }

    fn span(&mut self, rank: usize, span: Span) -> Option<&mut [u8]> {
        let buffer = match span.buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        };
        let end = span.offset.checked_add(span.len)?;
        self.buffers[rank][buffer].get_mut(usize::try_from(span.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// A rank's buffers before the call; what is undefined is not zero.
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
