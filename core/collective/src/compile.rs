//! From a call to its schedule: checks the call, and lets the plan's levels fill a builder.

use crate::builder::ScheduleBuilder;
use crate::layout::Layout;
use crate::levels;
use crate::plan::Plan;
use crate::schedule::{Call, Operation, Rank, Schedule};
use cool_types::{CallError, limits};

/// Why a call does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The call makes no sense for the group.
    #[error("{operation}: {reason}")]
    Call {
        /// The operation.
        operation: Operation,
        /// What is wrong with it.
        reason: CallError,
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
    /// The plan cannot run the operation.
    #[error("plan {plan} cannot run {operation}: {missing}; these can: {}", fitting(*operation))]
    Plan {
        /// The plan.
        plan: Plan,
        /// The operation.
        operation: Operation,
        /// What it lacks.
        missing: String,
    },
}

impl Plan {
    /// Whether it can run `operation`; if not, the error says why, and which can.
    ///
    /// # Errors
    /// [`CompileError::Plan`], if it cannot.
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

/// Whether a call makes sense for a group, and a plan for the call. That costs nothing, however long the schedule.
///
/// # Errors
/// If the call contradicts itself or the group, is larger than an address space, or the plan is not for
/// this operation.
pub fn check(call: &Call, layout: &Layout, plan: &Plan) -> Result<(), CompileError> {
    let operation = call.operation;
    call.check(layout.size()).map_err(|reason| CompileError::Call { operation, reason })?;
    plan.check(operation)
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
    compile_within(call, layout, plan, keep, limits::ACTIONS)
}

/// As [`compile`], but for schedules of `most` actions.
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

        // As fast as one rank's program is long: all messages together are a thousand millions.
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
