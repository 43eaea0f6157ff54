//! From a call to its schedule: checks the call, and lets the plan's levels fill a builder.

use crate::builder::Builder;
use crate::layout::Layout;
use crate::levels;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank, Schedule};

/// Bytes of all ranks' parts or vectors together: what one process can address.
const MAX_TOTAL: u64 = 1 << 47;

/// Ranks of an alltoall at most: it has a block, with its places, for each two of them.
const MAX_ALLTOALL: usize = 4096;

/// Actions of all kept ranks together at most: each takes a few hundred bytes.
const MAX_ACTIONS: usize = 1 << 24;

/// Why a call does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The root is not a rank of the group.
    #[error("the root of the {operation} is {root}, but the group has ranks 0 to {}", size - 1)]
    Root {
        /// The operation.
        operation: Operation,
        /// The root.
        root: Rank,
        /// Ranks of the group.
        size: usize,
    },
    /// The message is not a whole number of elements.
    #[error("the {operation} of {bytes} bytes is not a whole number of elements of {element} bytes")]
    Element {
        /// The operation.
        operation: Operation,
        /// Bytes of the call.
        bytes: u64,
        /// Bytes of an element.
        element: u32,
    },
    /// The arrays do not fit an address space.
    #[error("a {operation} of {bytes} bytes per rank over {size} ranks is too large; split it")]
    Size {
        /// The operation.
        operation: Operation,
        /// Bytes of the call.
        bytes: u64,
        /// Ranks of the group.
        size: usize,
    },
    /// The schedule would not fit into memory.
    #[error(
        "plan {plan} makes too many messages of a {operation} over {size} ranks; take another plan, larger \
         segments or smaller groups"
    )]
    Long {
        /// The plan.
        plan: Plan,
        /// The operation.
        operation: Operation,
        /// Ranks of the group.
        size: usize,
    },
    /// The parts' lengths are not what the operation takes.
    #[error("the {operation}'s counts {reason}")]
    Counts {
        /// The operation.
        operation: Operation,
        /// What is wrong, and what would fit.
        reason: String,
    },
    /// The plan cannot run the operation.
    #[error("plan {plan} cannot run {operation}: {lacking}; these can: {}", fitting(*operation))]
    Plan {
        /// The plan.
        plan: Plan,
        /// The operation.
        operation: Operation,
        /// What it lacks.
        lacking: String,
    },
}

impl Plan {
    /// Whether it can run `operation`; if not, the error says why, and which can.
    ///
    /// # Errors
    /// [`CompileError::Plan`], if it cannot.
    pub fn check(&self, operation: Operation) -> Result<(), CompileError> {
        match self.lacking(operation) {
            Some(lacking) => Err(CompileError::Plan { plan: *self, operation, lacking }),
            None => Ok(()),
        }
    }
}

fn fitting(operation: Operation) -> String {
    Plan::fitting(operation).map(|p| p.to_string()).collect::<Vec<_>>().join(", ")
}

/// Whether a call makes sense for a group, and a plan for the call. That costs nothing, however long the schedule.
///
/// # Errors
/// If the call contradicts itself or the group, is larger than an address space, or the plan is not for
/// this operation.
pub fn check(call: &Call, layout: &Layout, plan: &Plan) -> Result<(), CompileError> {
    let (operation, size) = (call.operation, layout.size());
    if call.root.0 as usize >= size {
        return Err(CompileError::Root { operation, root: call.root, size });
    }
    let element = u64::from(call.element);
    if element == 0 || (call.counts.is_none() && !call.bytes.is_multiple_of(element)) {
        return Err(CompileError::Element { operation, bytes: call.bytes, element: call.element });
    }
    if let Some(reason) = wrong_counts(call, size) {
        return Err(CompileError::Counts { operation, reason });
    }
    plan.check(operation)?;
    if total(call, size).is_none_or(|total| total > MAX_TOTAL) {
        return Err(CompileError::Size { operation, bytes: call.bytes, size });
    }
    Ok(())
}

/// The schedule of a call on a layout. Programs are made for the ranks that `keep` names; transfers are
/// numbered alike whatever it says, so agents that compile the same call for different ranks agree.
///
/// Each program's order is that of one order of all transfers: ranks that run their actions one by one
/// finish as surely as ranks that start every action as soon as it may.
///
/// # Errors
/// As [`check`], or if the schedule would be too long.
pub fn compile(
    call: &Call,
    layout: &Layout,
    plan: &Plan,
    keep: impl Fn(Rank) -> bool,
) -> Result<Schedule, CompileError> {
    compile_within(call, layout, plan, keep, MAX_ACTIONS)
}

/// As [`compile`], but for schedules of so many actions at most.
pub(crate) fn compile_within(
    call: &Call,
    layout: &Layout,
    plan: &Plan,
    keep: impl Fn(Rank) -> bool,
    most: usize,
) -> Result<Schedule, CompileError> {
    check(call, layout, plan)?;
    let (operation, size) = (call.operation, layout.size());
    let long = CompileError::Long { plan: *plan, operation, size };
    if operation == Operation::Alltoall && size > MAX_ALLTOALL {
        return Err(long);
    }
    let element = u64::from(call.element);
    let mut builder = Builder::new(layout, element, operation == Operation::Barrier, keep, most);
    levels::emit(call, plan, &mut builder);
    let programs = builder.finish().ok_or(long)?;
    Ok(Schedule { call: call.clone(), programs })
}

/// What is wrong with the lengths of parts, if something is.
fn wrong_counts(call: &Call, size: usize) -> Option<String> {
    let counts = call.counts.as_ref()?;
    if !call.operation.takes_counts() {
        return Some("are given, but it takes none; leave them out".to_owned());
    }
    let wanted = if call.operation == Operation::Alltoall { size * size } else { size };
    if counts.len() != wanted {
        return Some(format!("are {}, but {size} ranks need {wanted}", counts.len()));
    }
    let (i, bytes) = counts.iter().enumerate().find(|(_, c)| !c.is_multiple_of(u64::from(call.element)))?;
    Some(format!("have {bytes} bytes at {i}, which is not a whole number of elements of {}", call.element))
}

/// Bytes of all ranks' arrays; none if that is beyond counting.
fn total(call: &Call, size: usize) -> Option<u64> {
    match (&call.counts, call.operation) {
        (Some(counts), _) => counts.iter().try_fold(0, |total: u64, bytes| total.checked_add(*bytes)),
        (None, Operation::Alltoall) => call.bytes.checked_mul(size as u64)?.checked_mul(size as u64),
        (None, _) => call.bytes.checked_mul(size as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[test]
    fn a_schedule_that_would_be_too_long_is_refused_with_a_remedy() {
        let places = |size: u32| (0..size).map(|node| Place { rack: 0, node }).collect::<Vec<_>>();
        let plan: Plan = "flat:ring".parse().unwrap();
        let small = Layout::new(&places(16)).unwrap();
        let call = Call::new(Operation::Allgather, Rank(0), 8, 1);
        let compiled = |most| compile_within(&call, &small, &plan, |_| true, most);
        let actions = 2 * 16 * 15 + 16;
        assert!(compiled(actions).is_ok());
        let error = compiled(actions - 1).unwrap_err().to_string();
        assert!(error.contains("flat:ring") && error.contains("another plan"), "{error}");

        let large = Layout::new(&places(MAX_ALLTOALL as u32 + 1)).unwrap();
        let all = Call::new(Operation::Alltoall, Rank(0), 1, 1);
        let long = compile(&all, &large, &"cool-p-p".parse().unwrap(), |_| false);
        assert!(matches!(long, Err(CompileError::Long { .. })));
    }
}
