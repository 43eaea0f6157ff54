//! Simulated times equal those computed by hand, and none is below the physical limit.

use cool_collective::{Call, Layout, MulticastScope, Operation, Plan, Planner, Rank, compile};
use cool_machine::Duration;
use cool_sim::schedule::{AgentCosts, FabricModel, Placement, limit, simulate};

/// A plan with a single message for all bytes.
const WHOLE: &str = "flat:linear/1073741824";

/// Rate of every link, in bytes per second.
const RATE: u64 = 1_000_000;

/// Returns a network with links as in hardware, without bursts.
fn fabric(text: &str) -> FabricModel {
    let mut fabric = text.parse::<FabricModel>().unwrap().with_rates(RATE, RATE).unwrap();
    fabric.burst = 0;
    fabric
}

/// Returns the costs of agents that take no time and whose messages do not wait for receivers.
fn free() -> AgentCosts {
    AgentCosts {
        call: Duration::ZERO,
        send: Duration::ZERO,
        receive: Duration::ZERO,
        local: Duration::ZERO,
        copy: u64::MAX,
        reduce: u64::MAX,
        eager: u64::MAX,
        copied: u64::MAX,
        burst: 0,
        ..AgentCosts::default()
    }
}

fn run(operation: Operation, bytes: u64, plan: &str, fabric: &FabricModel, costs: &AgentCosts) -> f64 {
    let layout = fabric.layout(Placement::Packed).unwrap();
    let call = Call::new(operation, Rank(0), bytes, 1);
    let schedule = compile(&call, &layout, &plan.parse().unwrap(), |_| true).unwrap();
    simulate(&schedule, &layout, fabric, costs).unwrap().time.as_secs_f64()
}

/// Returns the time in seconds of bytes on the wire.
fn wire(bytes: u64) -> f64 {
    bytes as f64 / RATE as f64
}

/// Asserts that a time is as expected, except for a 256th, because the ends of messages are
/// computed only to a 256th of their durations.
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() < expected / 256.0, "{found} instead of {expected}");
}

/// Returns the latency of a path. Each switch must receive a whole packet before it forwards it,
/// and each link has its delay.
fn way(links: u32, fabric: &FabricModel, costs: &AgentCosts) -> f64 {
    f64::from(links) * fabric.delay.as_secs_f64() + f64::from(links - 1) * wire(costs.mtu)
}

#[test]
fn one_message_takes_its_bytes_over_the_rate_plus_latency() {
    let costs = free();
    for (text, links) in [("tree:1x2", 2), ("tree:2x1", 4), ("tree:1+1", 4), ("leafspine:2x2x1", 4)] {
        let fabric = fabric(text);
        let time = run(Operation::Bcast, 1 << 20, WHOLE, &fabric, &costs);
        assert_near(time, wire(costs.unicast(1 << 20)) + way(links, &fabric, &costs));
    }
}

#[test]
fn agents_add_their_work_and_large_messages_a_handshake() {
    let (fabric, free) = (fabric("tree:1x2"), free());
    let bytes = 1 << 20;
    let network = wire(free.unicast(bytes)) + way(2, &fabric, &free);
    let millis = Duration::from_millis;
    let costs = AgentCosts { call: millis(5), send: millis(70), receive: millis(900), ..free };
    assert_near(run(Operation::Bcast, bytes, WHOLE, &fabric, &costs), network + 0.975);
    let asks = AgentCosts { eager: 1024, ..free };
    let there_and_back = 2.0 * 2.0 * fabric.delay.as_secs_f64();
    assert_near(run(Operation::Bcast, bytes, WHOLE, &fabric, &asks), network + there_and_back);
}

#[test]
fn a_multicast_takes_as_long_to_all_as_to_the_farthest() {
    let costs = free();
    for (text, links) in
        [("tree:1x8", 2), ("tree:4x4", 4), ("tree:3+1+2", 4), ("leafspine:4x2x4", 4), ("fattree:4", 6)]
    {
        let fabric = fabric(text);
        let time = run(Operation::Bcast, 1 << 20, "multicast/1073741824", &fabric, &costs);
        assert_near(time, wire(costs.multicast(1 << 20)) + way(links, &fabric, &costs));
    }
}

#[test]
fn messages_that_share_a_link_share_its_rate() {
    let costs = free();
    let bytes = 1 << 20;
    // The parts of all other ranks cross the root's link.
    for (text, senders, links) in
        [("tree:1x3", 2, 2), ("tree:1x9", 8, 2), ("tree:2x4", 7, 4), ("fattree:4", 15, 6)]
    {
        let fabric = fabric(text);
        let time = run(Operation::Gather, bytes, WHOLE, &fabric, &costs);
        assert_near(time, senders as f64 * wire(costs.unicast(bytes)) + way(links, &fabric, &costs));
    }
    // Each uplink, at half the rate, carries the blocks of two hosts to two others.
    let fabric = fabric("tree:2x2").with_rates(RATE, RATE / 2).unwrap();
    let time = run(Operation::Alltoall, bytes, "flat:linear", &fabric, &costs);
    assert_near(time, 4.0 * 2.0 * wire(costs.unicast(bytes)) + way(4, &fabric, &costs));
}

#[test]
fn messages_to_different_racks_take_different_spines() {
    let costs = free();
    let time = |text: &str| {
        let fabric = fabric(text).with_rates(RATE, RATE / 2).unwrap();
        run(Operation::Scatter, 1 << 20, WHOLE, &fabric, &costs)
    };
    let half = 2.0 * wire(costs.unicast(1 << 20));
    assert_near(time("leafspine:3x1x1"), 2.0 * half);
    assert_near(time("tree:3x1"), 2.0 * half);
    assert_near(time("leafspine:3x2x1"), half);
}

#[test]
fn stripes_use_slow_uplinks_to_all_spines_at_once() {
    let mut fabric = "leafspine:3x2x2".parse::<FabricModel>().unwrap().with_rates(RATE, RATE / 2).unwrap();
    fabric.burst = 0;
    let costs = free();
    let layout = fabric.layout(Placement::Packed).unwrap();
    for (operation, plan) in [(Operation::Bcast, "multicast"), (Operation::Allgather, "multicast-each/60000")]
    {
        let call = Call::new(operation, Rank(0), 600_000, 1);
        let [one, two] = [1, 2].map(|trees| {
            let layout = layout.clone().with_stripes(trees);
            let schedule = compile(&call, &layout, &plan.parse().unwrap(), |_| true).unwrap();
            simulate(&schedule, &layout, &fabric, &costs).unwrap().time.as_secs_f64()
        });
        let limit = limit(&call, &layout, &fabric).unwrap().as_secs_f64();
        assert!(two < 1.3 * limit && one > 1.8 * two, "{operation}: {one} {two}, at best {limit}");
    }
    assert_eq!(layout.stripes(MulticastScope::All), 2);
}

#[test]
fn a_chain_forwards_a_segment_while_the_next_arrives() {
    let costs = free();
    let (segment, count) = (1 << 16, 16);
    for hosts in [2u32, 3, 9] {
        let fabric = fabric(&format!("tree:1x{hosts}"));
        let time = run(Operation::Bcast, segment * count, &format!("flat:chain/{segment}"), &fabric, &costs);
        let passed_on = f64::from(hosts - 2) * (wire(costs.unicast(segment)) + way(2, &fabric, &costs));
        let all = count as f64 * wire(costs.unicast(segment)) + way(2, &fabric, &costs);
        assert_near(time, all + passed_on);
    }
}

#[test]
fn no_plan_is_faster_than_the_limit() {
    let costs = free();
    for text in ["tree:4x4", "tree:3+1+2x2", "leafspine:3x2x2", "fattree:4", "tree:1x5"] {
        let fabric = fabric(text);
        let layout: Layout = fabric.layout(Placement::Interleaved).unwrap();
        for operation in Operation::ALL {
            let call = Call::new(operation, Rank(1), 48 << 10, 1);
            let Some(least) = limit(&call, &layout, &fabric) else { continue };
            for plan in Planner::suitable(&call, &layout) {
                let schedule = compile(&call, &layout, &plan, |_| true).unwrap();
                let time = simulate(&schedule, &layout, &fabric, &costs).unwrap().time;
                assert!(time >= least, "{operation} by {plan} on {text}: {time:?} {least:?}");
            }
        }
    }
}

#[test]
fn racks_of_32_by_32_by_32_ranks_are_simulated() {
    let fabric = fabric("tree:32x32x32");
    let layout = fabric.layout(Placement::Packed).unwrap();
    let call = Call::new(Operation::Allreduce, Rank(0), 1 << 20, 8);
    let plan: Plan = "cool-b-r".parse().unwrap();
    let schedule = compile(&call, &layout, &plan, |_| true).unwrap();
    let timing = simulate(&schedule, &layout, &fabric, &AgentCosts::default()).unwrap();
    let least = limit(&call, &layout, &fabric).unwrap();
    assert!(timing.time > least && timing.time < 20 * least, "{timing:?}");
}

/// Groups of more than a thousand ranks of different shapes, compared with all plans that can be
/// simulated in a short time. The worst case is an allreduce of 4 KiB on tree:40x30 with 1.84 times
/// the best: recursive halving, whose cost is extrapolated.
#[test]
fn short_message_picks_take_at_most_twice_the_best_time() {
    let costs = AgentCosts::default();
    for text in ["tree:16x24x3", "tree:40x30", "tree:3x100x4"] {
        let fabric: FabricModel = text.parse().unwrap();
        let layout = fabric.layout(Placement::Packed).unwrap();
        let planner = Planner::new(fabric.cost_model(&costs), layout.clone());
        for (operation, bytes) in
            [(Operation::Reduce, 8), (Operation::Allreduce, 4096), (Operation::Gather, 8)]
        {
            let call = Call::new(operation, Rank(0), bytes, 1);
            let time = |plan: &Plan| {
                let schedule = compile(&call, &layout, plan, |_| true).unwrap();
                simulate(&schedule, &layout, &fabric, &costs).unwrap().time
            };
            let short =
                |plan: &Plan| planner.estimate(&call, *plan).is_some_and(|found| found.events < 20_000.0);
            let candidates = planner.candidates(&call).into_iter().filter(short);
            let best = candidates.map(|plan| time(&plan)).min().unwrap();
            let pick = planner.best(&call);
            let found = time(&pick);
            assert!(
                found <= best.mul_f64(2.0),
                "{operation} of {bytes} on {text} by {pick}: {found:?}, best {best:?}"
            );
        }
    }
}
