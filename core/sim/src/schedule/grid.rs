//! How good the planner's picks are: each beside the plan that the simulator finds best.

use super::{AgentCosts, FabricModel, SimulateError, simulate};
use cool_collective::planner::Planner;
use cool_collective::{Call, CompileError, Layout, Operation, Plan, compile};
use cool_machine::Duration;

/// A candidate that the planner expects to take this many times as long as its pick is not simulated.
const HOPELESS: f64 = 2.0;

/// A pick and the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What the planner picks.
    pub pick: Plan,
    /// What it takes.
    pub pick_time: Duration,
    /// What the simulator finds best.
    pub best: Plan,
    /// What that takes.
    pub best_time: Duration,
    /// Plans that were simulated.
    pub tried: usize,
}

impl Verdict {
    /// How many times as long as the best the pick takes.
    pub fn ratio(&self) -> f64 {
        self.pick_time.as_secs_f64() / self.best_time.as_secs_f64()
    }
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GridError {
    /// The call is none.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A plan cannot be timed.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

/// Compares the pick for a call with all candidates that the planner gives a chance: every fitting plan, in its own
/// segments and in others.
///
/// # Errors
/// If the call is none for this group or network.
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
    for plan in Planner::candidates(call, layout) {
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

/// The call by which an operation is compared at a size: that of the message or vector, or of all parts together; of
/// an alltoall, of all that one rank sends. None if that is less than an element of 8 bytes for each.
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
