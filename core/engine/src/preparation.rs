//! The preparation of a call: the choice of a plan and the compilation of its schedule. Both can
//! take milliseconds for a large group, so they should run on another thread than the engine.

use crate::call_signature::CallSignature;
use crate::failure::{CallFailure, CallFailureKind};
use crate::program::CompiledSchedule;
use cool_collective::{Plan, Planner, compile};
use cool_types::{Call, Rank};
use std::sync::Arc;

/// A call to prepare.
#[derive(Debug)]
pub struct Preparation {
    pub(crate) group: (u64, u32),
    pub(crate) signature: CallSignature,
    pub(crate) planner: Planner,
    /// The index of the node in the group. The schedule is compiled for the ranks of this node.
    pub(crate) node: usize,
    /// The rank that made the call.
    pub(crate) rank: u32,
}

/// A call that has been prepared.
#[derive(Debug)]
pub struct PreparedCall {
    pub(crate) signature: CallSignature,
    pub(crate) plan: Plan,
    pub(crate) compiled: Result<Arc<CompiledSchedule>, CallFailure>,
}

impl Preparation {
    /// Returns the group's number and epoch.
    pub fn group(&self) -> (u64, u32) {
        self.group
    }

    /// Returns whether the plan may count on a tree that reaches all nodes of the group.
    pub fn has_tree(&self) -> bool {
        self.planner.layout().has_tree()
    }

    /// Returns the call, which together with the group and [`Preparation::has_tree`] determines the
    /// plan.
    pub fn call(&self) -> &Call {
        &self.signature.call
    }

    /// Returns the plan: the one that the ranks force, otherwise the fastest one by the group's
    /// cost model. All agents of a group choose the same plan, because they have the same cost
    /// model.
    pub fn plan(&self) -> Plan {
        let call = &self.signature.call;
        let forced_or_known = self.signature.plan.or_else(|| self.planner.known(call));
        forced_or_known.unwrap_or_else(|| self.planner.best(call))
    }

    /// Compiles the schedule of a plan, and returns it together with the plan.
    pub fn compile(self, plan: Plan) -> PreparedCall {
        let Preparation { signature, planner, node, rank, .. } = self;
        let layout = planner.layout();
        let keep = |rank: Rank| layout.node_of(rank) == node;
        let compiled = compile(&signature.call, layout, &plan, keep)
            .map(|schedule| {
                Arc::new(CompiledSchedule::new(
                    schedule,
                    plan,
                    &signature.to_string(),
                    signature.digest(&plan),
                ))
            })
            .map_err(|e| CallFailure::new(CallFailureKind::Invalid, format!("rank {rank}: {e}"), vec![rank]));
        PreparedCall { signature, plan, compiled }
    }

    /// Chooses the plan and compiles its schedule.
    pub fn run(self) -> PreparedCall {
        let plan = self.plan();
        self.compile(plan)
    }
}
