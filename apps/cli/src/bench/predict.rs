//! Predictions of the simulator by the group's cost model, for comparison with the measurements.

use super::plan::BenchCase;
use crate::cluster;
use cool_collective::{CostModel, Layout, Plan, Planner, compile};
use cool_proto::control::{Group, tree::Scope};
use cool_sim::schedule::{FabricModel, simulate};

/// Maximum number of simulator events of a case. A case with more would take longer to simulate
/// than to measure.
const EVENTS_MAX: f64 = 3e6;

/// Predicts the times of one group.
#[derive(Debug)]
pub(crate) struct Predictor {
    model: CostModel,
    layout: Layout,
    fabric: FabricModel,
    planner: Planner,
}

impl Predictor {
    /// Returns the predictor for a group; `None` if the controller has no cost model for it.
    pub(crate) fn for_group(group: &Group, pause_ms: Option<u32>) -> Option<Predictor> {
        let model = cluster::cost_model(&group.cost_model).ok()?;
        let layout = cluster::layout(group.members.iter().map(|m| (m.rack, m.node.as_str()))).ok()?;
        let stripes = group.trees.iter().filter(|tree| tree.scope() == Scope::All).count();
        let layout = match stripes {
            0 => layout.without_tree(),
            trees => layout.with_stripes(trees as u32),
        };
        let fabric = FabricModel::of_group(&layout, &model).ok()?;
        let planner = Planner::new(model, layout.clone());
        let mut predictor = Predictor { model, layout, fabric, planner };
        // A repetition uses up the burst of links, which recovers during the barrier and the pause
        // that follow.
        let barrier = BenchCase { op: "barrier".parse().ok()?, bytes: 0 };
        let call = barrier.call(0, predictor.layout.size() as u64)?;
        let plan = predictor.planner.pick(&call).to_string();
        let pause = predictor.seconds(barrier, 0, &plan)? + f64::from(pause_ms.unwrap_or(0)) / 1e3;
        let refilled = (pause * model.rack.bytes_per_second as f64) as u64;
        predictor.fabric.spent = predictor.fabric.burst.saturating_sub(refilled);
        Some(predictor)
    }

    /// Returns the seconds that a case takes with a plan; `None` if it cannot be simulated in
    /// reasonable time.
    pub(crate) fn seconds(&self, case: BenchCase, root: usize, plan: &str) -> Option<f64> {
        let plan: Plan = plan.parse().ok()?;
        let call = case.call(root, self.layout.size() as u64)?;
        if self.planner.estimate(&call, plan)?.events > EVENTS_MAX {
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
    fn every_operation_has_a_prediction() {
        let member =
            |rank: u32| Member { rank, node: format!("h{rank}"), rack: rank % 3, ..Member::default() };
        let cost_model = serde_json::json!(CostModel::default()).to_string();
        let group = Group { members: (0..7).map(member).collect(), cost_model, ..Group::default() };
        let predictor = Predictor::for_group(&group, None).unwrap();
        for op in super::super::plan::BenchOp::all() {
            let seconds = predictor.seconds(BenchCase { op, bytes: 250_000 }, 2, "cool-p-p").unwrap();
            // At least a tenth of the bytes crosses a link, and none of them crosses it many times.
            assert!((0.0001..10.0).contains(&seconds), "{op}: {seconds}");
        }
        let bcast = BenchCase { op: "bcast".parse().unwrap(), bytes: 2_500_000 };
        let seconds = predictor.seconds(bcast, 0, "multicast").unwrap();
        assert!((1.0..1.2).contains(&seconds), "{seconds}");
        assert_eq!(predictor.seconds(bcast, 0, "no plan"), None);
        assert!(Predictor::for_group(&Group::default(), None).is_none());
    }
}
