//! From a call to its schedule: checks the call, and lets the plan's levels fill a builder.

use crate::builder::Builder;
use crate::layout::Layout;
use crate::levels;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank, Schedule};

/// Bytes of all ranks' parts or vectors together: what one process can address.
const MAX_TOTAL: u64 = 1 << 47;

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
    /// The arrays do not fit an address space, or the schedule would be too long.
    #[error("a {operation} of {bytes} bytes per rank over {size} ranks is too large; split it")]
    Size {
        /// The operation.
        operation: Operation,
        /// Bytes of the call.
        bytes: u64,
        /// Ranks of the group.
        size: usize,
    },
    /// The plan cannot run the operation.
    #[error("plan {plan} cannot run {operation}; these can: {}", fitting(*operation))]
    Plan {
        /// The plan.
        plan: Plan,
        /// The operation.
        operation: Operation,
    },
}

fn fitting(operation: Operation) -> String {
    Plan::fitting(operation).map(|p| p.to_string()).collect::<Vec<_>>().join(", ")
}

/// The schedule of a call on a layout. Programs are made for the ranks that `keep` names; transfers are
/// numbered alike whatever it says, so agents that compile the same call for different ranks agree.
///
/// Each program's order is that of one order of all transfers: ranks that run their actions one by one
/// finish as surely as ranks that start every action as soon as it may.
///
/// # Errors
/// If the call contradicts itself or the group, is larger than an address space, or the plan is not for
/// this operation.
pub fn compile(
    call: &Call,
    layout: &Layout,
    plan: &Plan,
    keep: impl Fn(Rank) -> bool,
) -> Result<Schedule, CompileError> {
    let (operation, size) = (call.operation, layout.size());
    if call.root.0 as usize >= size {
        return Err(CompileError::Root { operation, root: call.root, size });
    }
    if call.element == 0 || !call.bytes.is_multiple_of(u64::from(call.element)) {
        return Err(CompileError::Element { operation, bytes: call.bytes, element: call.element });
    }
    if !plan.fits(operation) {
        return Err(CompileError::Plan { plan: *plan, operation });
    }
    let too_large = CompileError::Size { operation, bytes: call.bytes, size };
    if call.bytes.checked_mul(size as u64).is_none_or(|total| total > MAX_TOTAL) {
        return Err(too_large);
    }
    let mut builder = Builder::new(layout, keep);
    levels::emit(call, plan, &mut builder);
    let programs = builder.finish().ok_or(too_large)?;
    Ok(Schedule { call: *call, programs })
}
