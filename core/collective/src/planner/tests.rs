//! Tests picks and estimates against plans with known costs.

use super::*;
use crate::{RankPlace, compile, layout::Layout};

fn layout(racks: u32, nodes: u32, ranks: u32) -> Layout {
    let places: Vec<RankPlace> = (0..racks * nodes * ranks)
        .map(|i| i / ranks)
        .map(|node| RankPlace { rack: node / nodes, node })
        .collect();
    Layout::new(&places).unwrap()
}

#[test]
fn every_pick_compiles_for_every_operation_and_size() {
    let layout = layout(3, 2, 2);
    let mut planner = Planner::new(CostModel::default(), layout.clone());
    for operation in Operation::ALL {
        for bytes in [0, 8, 4096, 1 << 20] {
            let call = Call::new(operation, Rank(3), bytes, 4);
            let plan = planner.pick(&call);
            assert!(compile(&call, &layout, &plan, |_| true).is_ok(), "{operation} {bytes} {plan}");
        }
    }
}

#[test]
fn a_pick_does_not_depend_on_earlier_picks() {
    let call = |bytes| Call::new(Operation::Allreduce, Rank(0), bytes, 4);
    let mut one = Planner::new(CostModel::default(), layout(4, 4, 1));
    let mut other = one.clone();
    let sizes = [8, 1000, 1004, 70_000, 66_000, 1 << 20];
    let picks: Vec<Plan> = sizes.iter().map(|bytes| one.pick(&call(*bytes))).collect();
    for (bytes, plan) in sizes.iter().zip(picks).rev() {
        assert_eq!(other.pick(&call(*bytes)), plan);
    }
}

#[test]
fn a_large_message_to_all_goes_by_one_multicast() {
    for (racks, nodes) in [(1, 16), (4, 4), (32, 32)] {
        let mut planner = Planner::new(CostModel::default(), layout(racks, nodes, 1));
        let call = Call::new(Operation::Bcast, Rank(0), 8 << 20, 1);
        assert_eq!(planner.pick(&call).to_string(), "multicast", "{racks}x{nodes}");
    }
}

/// A bridge without shaping, with four nodes on two CPUs (`docs/measurements/wire.md`).
fn fast_model() -> CostModel {
    let level = LinkCost { latency: Duration::from_nanos(4_700), bytes_per_second: 7_750_000_000 };
    let work = Duration::from_micros(22);
    let costs = AgentCosts {
        packet: Duration::from_nanos(6_800),
        socket: 680_000_000,
        send: work,
        receive: work,
        ..AgentCosts::default()
    };
    CostModel { costs, rack: level, core: level, burst: 0, ..CostModel::default() }
}

#[test]
fn messages_avoid_small_packets_where_cpus_are_the_limit() {
    let call = Call::new(Operation::Bcast, Rank(0), 1 << 20, 1);
    let plan = |model| Planner::new(model, layout(1, 4, 1)).pick(&call).to_string();
    let measured = fast_model();
    let unmeasured = AgentCosts { packet: Duration::ZERO, ..measured.costs };
    assert!(plan(CostModel { costs: unmeasured, ..measured }).starts_with("multicast"));
    assert!(plan(measured).starts_with("flat:binomial"), "{}", plan(measured));
    let long_packets = AgentCosts { mtu: 9000, ..measured.costs };
    assert!(plan(CostModel { costs: long_packets, ..measured }).starts_with("multicast"));
}

/// An engine sends and receives one byte after the other, so an exchange takes as long as both.
#[test]
fn an_engine_sends_and_receives_in_turn() {
    let measured = fast_model();
    let seconds = |operation, bytes, plan: &str| {
        let call = Call::new(operation, Rank(0), bytes, 4);
        Planner::new(measured, layout(1, 2, 1)).estimate(&call, plan.parse().unwrap()).unwrap().seconds
    };
    let one_way = seconds(Operation::Bcast, 4 << 20, "flat:binomial");
    let both_ways = seconds(Operation::Allgather, 4 << 20, "flat:recursive-doubling");
    assert!((1.5..2.1).contains(&(both_ways / one_way)), "{one_way} s and {both_ways} s");
}

#[test]
fn no_alltoall_is_estimated_faster_than_a_node_link_allows() {
    let model = CostModel::default();
    let planner = Planner::new(model, layout(8, 8, 1));
    let call = Call::new(Operation::Alltoall, Rank(0), 245_000, 1);
    let least = 63.0 * 245_000.0 / model.rack.bytes_per_second as f64;
    for estimate in planner.rank(&call) {
        assert!(estimate.seconds >= 0.9 * least, "{} in {} s of {least} s", estimate.plan, estimate.seconds);
    }
}

/// For 1152 ranks, the small messages of trees are timed as they are. When they were extrapolated,
/// cool-b-r was estimated at 4.4 times its real time, and recursive halving at half.
#[test]
fn a_short_allreduce_of_a_thousand_ranks_goes_level_by_level() {
    let mut planner = Planner::new(CostModel::default(), layout(16, 24, 3));
    let call = Call::new(Operation::Allreduce, Rank(0), 4096, 4);
    assert_eq!(planner.pick(&call).to_string(), "cool-b-r");
}

/// In smaller groups the bursts of idle links hid the load of the uplinks: the estimate was 8 ms,
/// but the call takes 338 ms.
#[test]
fn bursts_do_not_hide_the_load_that_grows_with_the_group() {
    let planner = Planner::new(CostModel::default(), layout(16, 24, 3));
    let call = Call::new(Operation::ReduceScatter, Rank(0), 8, 8);
    let halving = planner.estimate(&call, "flat:recursive-halving".parse().unwrap()).unwrap();
    assert!((0.15..0.85).contains(&halving.seconds), "{} s", halving.seconds);
}

/// An allgather by flat:parallel cuts each part, not the array over all ranks: 64 KiB into 8
/// segments, not into 1000.
#[test]
fn parts_of_a_flat_allgather_are_timed_in_their_segments() {
    let level = |bytes_per_second| LinkCost { bytes_per_second, ..CostModel::default().rack };
    let model = CostModel { burst: 0, core: level(10_000_000), ..CostModel::default() };
    let planner = Planner::new(model, layout(5, 25, 1));
    let call = Call::new(Operation::Allgather, Rank(0), 1 << 16, 1);
    let parallel = planner.estimate(&call, "flat:parallel".parse().unwrap()).unwrap();
    assert!((14.0..21.0).contains(&parallel.seconds), "{} s instead of 17.3", parallel.seconds);
}

#[test]
fn no_extrapolation_is_below_the_time_of_the_roots_link() {
    let model = CostModel::default();
    let planner = Planner::new(model, layout(16, 24, 3));
    for operation in [Operation::Gather, Operation::Scatter, Operation::Allgather] {
        let call = Call::new(operation, Rank(0), 4096, 1);
        let least = (1149.0 * 4096.0 - model.burst as f64) / model.rack.bytes_per_second as f64;
        for Estimate { plan, seconds, .. } in planner.rank(&call) {
            assert!(seconds >= least, "{operation} by {plan} in {seconds} s of {least} s");
        }
    }
}

#[test]
fn broadcasts_use_no_chain_of_all_nodes_if_no_tree_reaches_them() {
    let planner = |model, layout: Layout| Planner::new(model, layout.without_tree());
    let mut without_tree = planner(CostModel::default(), layout(1, 64, 1));
    let picked = |planner: &mut Planner, bytes| {
        planner.pick(&Call::new(Operation::Bcast, Rank(0), bytes, 1)).to_string()
    };
    assert_eq!(picked(&mut without_tree, 8), "flat:4-nomial");
    assert_eq!(picked(&mut without_tree, 1 << 20), "flat:double-tree");
    let older_agents = CostModel { unicast_plans: false, ..CostModel::default() };
    assert_eq!(picked(&mut planner(older_agents, layout(1, 64, 1)), 8), "multicast");
}

#[test]
fn parts_of_unequal_lengths_are_planned_by_their_mean() {
    let mut planner = Planner::new(CostModel::default(), layout(2, 2, 1));
    let even = Call::new(Operation::Gather, Rank(0), 4096, 4);
    let uneven = Call::new(Operation::Gather, Rank(0), 0, 4).with_counts([0, 8192, 4096, 4096]);
    assert_eq!(planner.pick(&even), planner.pick(&uneven));
}

#[test]
fn a_cost_model_is_read_as_it_is_written() {
    let model = CostModel::default();
    let text = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<CostModel>(&text).unwrap(), model);
}
