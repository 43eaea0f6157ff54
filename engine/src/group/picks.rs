//! Calls until their plan is known. Where nobody forces one, the planner finds it beside the engine, since that
//! may take some milliseconds; then it is kept. Calls begin in the order in which they came.

use super::Group;
use crate::api::CallRequest;
use crate::engine::{Output, Shared};
use crate::what::What;
use cool_collective::{Call, Plan};
use cool_machine::Time;
use cool_proto::local::Failure;

/// A call of a local rank that has not begun.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) token: u64,
    /// When it came.
    pub(super) at: Time,
    pub(super) request: CallRequest,
    /// What it is, or what is wrong with it.
    pub(super) what: Result<What, Failure>,
}

impl Group {
    /// Begins what can begin. One plan at a time is looked for: that of the first call.
    pub(super) fn begin_waiting(&mut self, now: Time, shared: &mut Shared) -> Result<(), Failure> {
        while let Some(first) = self.waiting.front() {
            let plan = match &first.what {
                Ok(what) => match self.plan(what) {
                    Some(plan) => Ok(plan),
                    None => {
                        let call = what.call.clone();
                        self.look_for_plan(shared, call);
                        return Ok(());
                    }
                },
                Err(wrong) => Err(wrong.clone()),
            };
            if let Some(first) = self.waiting.pop_front() {
                self.take_turn(now, shared, &first, plan)?;
            }
        }
        Ok(())
    }

    /// The plan by which every agent carries out a call, if it is known.
    fn plan(&self, what: &What) -> Option<Plan> {
        what.plan.or_else(|| self.planner.known(&what.call))
    }

    fn look_for_plan(&mut self, shared: &mut Shared, call: Call) {
        if !std::mem::replace(&mut self.picking, true) {
            let planner = Box::new(self.planner.clone());
            shared.out.push_back(Output::Pick { group: self.key(), planner, call });
        }
    }

    /// The plan for a call has been found.
    pub(crate) fn picked(
        &mut self,
        now: Time,
        shared: &mut Shared,
        call: &Call,
        plan: Plan,
    ) -> Result<(), Failure> {
        self.picking = false;
        self.planner.keep(call, plan);
        self.begin_waiting(now, shared)
    }
}
