//! What a call needs before it can begin on a node: a plan, and a schedule compiled by it. Both take milliseconds of a large
//! group, so they are work for another thread than the engine's.

use crate::call_signature::CallSignature;
use crate::failure::{CallFailure, CallFailureKind};
use crate::program::CompiledSchedule;
use cool_collective::{Plan, Planner, compile};
use cool_types::{Call, Rank};
use std::sync::Arc;

/// A call that is to be prepared.
#[derive(Debug)]
pub struct Preparation {
    pub(crate) group: (u64, u32),
    pub(crate) signature: CallSignature,
    pub(crate) planner: Planner,
    /// The place in the group of the node whose ranks' programs are to be compiled.
    pub(crate) node: usize,
    /// Who calls.
    pub(crate) rank: u32,
}

/// A call that was prepared.
#[derive(Debug)]
pub struct PreparedCall {
    pub(crate) signature: CallSignature,
    pub(crate) plan: Plan,
    pub(crate) compiled: Result<Arc<CompiledSchedule>, CallFailure>,
}

impl Preparation {
    /// The group's number and epoch.
    pub fn group(&self) -> (u64, u32) {
        self.group
    }

    /// The call, which together with the group decides on the plan.
    pub fn call(&self) -> &Call {
        &self.signature.call
    }

    /// The plan: what the ranks force, else what is fastest by the group's cost model. The same at all agents of a group.
    pub fn plan(&self) -> Plan {
        let call = &self.signature.call;
        let forced_or_known = self.signature.plan.or_else(|| self.planner.known(call));
        forced_or_known.unwrap_or_else(|| self.planner.best(call))
    }

    /// Compiles the schedule by a plan.
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

    /// Picks the plan and compiles the schedule by it.
    pub fn run(self) -> PreparedCall {
        let plan = self.plan();
        self.compile(plan)
    }
}
