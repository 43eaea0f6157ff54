//! How long a case should take by the group's cost model, in the simulator: what is measured stands beside it.

use super::plan::Case;
use crate::cluster;
use cool_collective::{CostModel, Layout, Plan, Planner, compile};
use cool_proto::control::{Group, tree::Scope};
use cool_sim::schedule::{FabricModel, simulate};

/// A case that takes more events is not simulated: it would take longer than to measure it.
const MOST_EVENTS: f64 = 3e6;

/// Predicts for one group.
#[derive(Debug)]
pub(crate) struct Predictor {
    model: CostModel,
    layout: Layout,
    fabric: FabricModel,
    planner: Planner,
}

impl Predictor {
    /// For a group; none if the controller has told no model for it.
    pub(crate) fn of(group: &Group, pause_ms: Option<u32>) -> Option<Predictor> {
        let model = cluster::cost_model(&group.cost_model).ok()?;
        let layout = cluster::layout(group.members.iter().map(|m| (m.rack, m.node.as_str()))).ok()?;
        let stripes = group.trees.iter().filter(|tree| tree.scope() == Scope::All).count();
        let layout = layout.with_stripes(stripes as u32);
        let fabric = FabricModel::of_group(&layout, &model).ok()?;
        let planner = Planner::new(model, layout.clone());
        let mut predictor = Predictor { model, layout, fabric, planner };
        // A repetition uses up what links let pass at once; until the next they have the time of a barrier, and of a pause.
        let barrier = Case { op: "barrier".parse().ok()?, bytes: 0 };
        let call = barrier.call(0, predictor.layout.size() as u64)?;
        let plan = predictor.planner.pick(&call).to_string();
        let pause = predictor.seconds(barrier, 0, &plan)? + f64::from(pause_ms.unwrap_or(0)) / 1e3;
        let refilled = (pause * model.rack.bytes_per_second as f64) as u64;
        predictor.fabric.spent = predictor.fabric.burst.saturating_sub(refilled);
        Some(predictor)
    }

    /// Seconds that a case takes by a plan; none if it is none that can be simulated in reasonable time.
    pub(crate) fn seconds(&self, case: Case, root: usize, plan: &str) -> Option<f64> {
        let plan: Plan = plan.parse().ok()?;
        let call = case.call(root, self.layout.size() as u64)?;
        if self.planner.estimate(&call, plan)?.events > MOST_EVENTS {
            return None;
        }
        let schedule = compile(&call, &self.layout, &plan, |_| true).ok()?;
        let timing = simulate(&schedule, &self.layout, &self.fabric, &self.model.costs).ok()?;
        Some(timing.time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Member;

    #[test]
    fn every_operation_is_predicted_by_the_groups_model() {
        let member =
            |rank: u32| Member { rank, node: format!("h{rank}"), rack: rank % 3, ..Member::default() };
        let cost_model = serde_json::json!(CostModel::default()).to_string();
        let group = Group { members: (0..7).map(member).collect(), cost_model, ..Group::default() };
        let predictor = Predictor::of(&group, None).unwrap();
        for op in super::super::plan::Op::all() {
            let seconds = predictor.seconds(Case { op, bytes: 250_000 }, 2, "cool-p-p").unwrap();
            // Nothing goes faster than a tenth of the bytes over one link, or takes many times as long as all.
            assert!((0.0001..10.0).contains(&seconds), "{op}: {seconds}");
        }
        let bcast = Case { op: "bcast".parse().unwrap(), bytes: 2_500_000 };
        let seconds = predictor.seconds(bcast, 0, "multicast").unwrap();
        assert!((1.0..1.2).contains(&seconds), "{seconds}");
        assert_eq!(predictor.seconds(bcast, 0, "no plan"), None);
        assert!(Predictor::of(&Group::default(), None).is_none());
    }
}
