//! Evaluates the planner's choices: each is compared with the plan that is best in the simulator.

use super::{AgentCosts, FabricModel, SimulateError, simulate};
use cool_collective::planner::Planner;
use cool_collective::{Call, CompileError, Layout, Operation, Plan, compile};
use cool_machine::Duration;

/// A candidate is not simulated if the planner expects it to take this many times as long as its
/// choice.
const HOPELESS: f64 = 2.0;

/// A choice, and the best plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The planner's choice.
    pub pick: Plan,
    /// The simulated time of that choice.
    pub pick_time: Duration,
    /// The best plan in the simulator.
    pub best: Plan,
    /// The simulated time of the best plan.
    pub best_time: Duration,
    /// Number of simulated plans.
    pub tried: usize,
}

impl Verdict {
    /// Returns the time of the choice divided by that of the best plan.
    pub fn ratio(&self) -> f64 {
        self.pick_time.as_secs_f64() / self.best_time.as_secs_f64()
    }
}

/// Why a choice cannot be evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GridError {
    /// The call is not valid.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A plan cannot be timed.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// Compares the planner's choice for a call with all promising candidates: every fitting plan, with
/// its own segment size and with others.
///
/// # Errors
/// Fails if the call is not valid for this group or network.
pub fn judge(
    call: &Call,
    layout: &Layout,
    fabric: &FabricModel,
    costs: &AgentCosts,
) -> Result<Verdict, GridError> {
    let mut planner = Planner::new(fabric.cost_model(costs), layout.clone());
    let pick = planner.pick(call);
    let run = |plan: Plan| -> Result<Duration, GridError> {
        let schedule = compile(call, layout, &plan, |_| true)?;
        Ok(simulate(&schedule, layout, fabric, costs)?.time)
    };
    let pick_time = run(pick)?;
    let mut verdict = Verdict { pick, pick_time, best: pick, best_time: pick_time, tried: 1 };
    let expected = planner.estimate(call, pick).map_or(f64::INFINITY, |estimate| estimate.seconds);
    for plan in planner.candidates(call) {
        let others = Planner::segmented(plan, call, layout);
        for plan in core::iter::once(plan).chain(others).filter(|plan| *plan != pick) {
            let hopeful = |seconds: f64| seconds < expected * HOPELESS;
            if planner.estimate(call, plan).is_some_and(|estimate| hopeful(estimate.seconds)) {
                let time = run(plan)?;
                verdict.tried += 1;
                if time < verdict.best_time {
                    (verdict.best, verdict.best_time) = (plan, time);
                }
            }
        }
    }
    Ok(verdict)
}

/// Returns the call by which an operation is compared at a size. The size is that of the message or
/// vector, or of all parts together, or for an alltoall of everything that one rank sends. Returns
/// none if that is less than an element of 8 bytes for each part.
pub fn call_of(operation: Operation, bytes: u64, layout: &Layout) -> Option<Call> {
    let parts = if operation.takes_counts() { layout.size() as u64 } else { 1 };
    let bytes = match operation {
        Operation::Barrier => 0,
        _ => (bytes / parts / ELEMENT * ELEMENT).max(if parts == 1 { ELEMENT } else { 0 }),
    };
    let empty = bytes == 0 && operation != Operation::Barrier;
    (!empty).then(|| Call::new(operation, cool_collective::Rank(0), bytes, ELEMENT as u32))
}

const ELEMENT: u64 = 8;
