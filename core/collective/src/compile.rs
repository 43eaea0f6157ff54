//! Compiles a call into its schedule: validates the call, and lets the levels of the plan fill a
//! builder.

use crate::builder::ScheduleBuilder;
use crate::layout::Layout;
use crate::levels;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank, Schedule};
use cool_types::{CallError, limits};

/// The reason why a call does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The call is invalid for the group.
    #[error("{operation}: {reason}")]
    Call {
        /// The operation.
        operation: Operation,
        /// The rule that it breaks.
        reason: CallError,
    },
    /// The schedule would not fit into memory.
    #[error(
        "plan {plan} needs too many messages for a {operation} over {size} ranks; use another plan, larger \
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
    /// The plan cannot run the operation.
    #[error("plan {plan} cannot run {operation}: {missing}; these can: {}", fitting(*operation))]
    Plan {
        /// The plan.
        plan: Plan,
        /// The operation.
        operation: Operation,
        /// The missing feature.
        missing: String,
    },
}

impl Plan {
    /// Checks that the plan can run `operation`.
    ///
    /// # Errors
    /// Returns [`CompileError::Plan`] if it cannot, with the reason and the plans that can.
    pub fn check(&self, operation: Operation) -> Result<(), CompileError> {
        match self.missing(operation) {
            Some(missing) => Err(CompileError::Plan { plan: *self, operation, missing }),
            None => Ok(()),
        }
    }
}

fn fitting(operation: Operation) -> String {
    Plan::fitting(operation).map(|p| p.to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks that a call is valid for a group and that a plan can run it. The cost does not depend on
/// the length of the schedule.
///
/// # Errors
/// Returns an error if the call contradicts itself or the group, exceeds an address space, or
/// cannot be run by the plan.
pub fn check(call: &Call, layout: &Layout, plan: &Plan) -> Result<(), CompileError> {
    let operation = call.operation;
    call.check(layout.size()).map_err(|reason| CompileError::Call { operation, reason })?;
    plan.check(operation)
}

/// Returns the schedule of a call on a layout. Programs are compiled for the ranks for which `keep`
/// returns true. The numbers of transfers do not depend on `keep`, so agents that compile the same
/// call for different ranks agree on them.
///
/// The order of each program follows one order of all transfers. Executing the actions one by one
/// therefore terminates as surely as starting every action as soon as possible.
///
/// # Errors
/// Returns the errors of [`check`], and an error if the schedule would be too long.
pub fn compile(
    call: &Call,
    layout: &Layout,
    plan: &Plan,
    keep: impl Fn(Rank) -> bool,
) -> Result<Schedule, CompileError> {
    compile_within(call, layout, plan, keep, limits::ACTIONS)
}

/// Returns the same as [`compile`], for schedules of at most `most` actions.
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
    if operation == Operation::Alltoall && size > limits::ALLTOALL_RANKS {
        return Err(long);
    }
    let element = u64::from(call.element);
    let mut builder = ScheduleBuilder::new(layout, element, operation == Operation::Barrier, keep, most);
    levels::emit(call, plan, &mut builder);
    let programs = builder.finish().ok_or(long)?;
    Ok(Schedule { call: call.clone(), programs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RankPlace;

    #[test]
    fn a_schedule_that_would_be_too_long_is_refused_with_a_remedy() {
        let places = |size: u32| (0..size).map(|node| RankPlace { rack: 0, node }).collect::<Vec<_>>();
        let plan: Plan = "flat:ring".parse().unwrap();
        let small = Layout::new(&places(16)).unwrap();
        let call = Call::new(Operation::Allgather, Rank(0), 8, 1);
        let compiled = |most| compile_within(&call, &small, &plan, |_| true, most);
        let actions = 2 * 16 * 15 + 16;
        assert!(compiled(actions).is_ok());
        let error = compiled(actions - 1).unwrap_err().to_string();
        assert!(error.contains("flat:ring") && error.contains("another plan"), "{error}");

        // The cost is that of one rank's program, although all programs have about a thousand
        // million messages.
        let many = Layout::new(&places(32_768)).unwrap();
        let one = compile(&Call::new(Operation::Allgather, Rank(0), 8, 1), &many, &plan, |rank| rank.0 == 7);
        let own = one.unwrap().programs[7].as_ref().map(|program| program.actions.len());
        assert_eq!(own, Some(2 * 32_767 + 1));

        let large = Layout::new(&places(limits::ALLTOALL_RANKS as u32 + 1)).unwrap();
        let all = Call::new(Operation::Alltoall, Rank(0), 1, 1);
        let long = compile(&all, &large, &"cool-p-p".parse().unwrap(), |_| false);
        assert!(matches!(long, Err(CompileError::Long { .. })));
    }
}
