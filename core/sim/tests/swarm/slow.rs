//! Links of different rates: fast nodes must not wait for slow ones.

use cool_sim::swarm::SwarmScenario;
use cool_swarm::Division;

/// Returns, for the fast and for the slow nodes, the time of the last one divided by that of the
/// content on its link: the worst of several seeds.
fn worst(what: &SwarmScenario, slower: u64, seeds: std::ops::RangeInclusive<u64>) -> (f64, f64) {
    let last = |done: &[Option<f64>], slow| {
        let such = done.iter().enumerate().filter(|(node, _)| (node % 2 == 1) == slow);
        such.filter_map(|(_, seconds)| *seconds).fold(0.0, f64::max) / what.limit()
    };
    let of = |seed| {
        let slow = (0..what.racks.iter().sum::<u32>() as usize).filter(|node| node % 2 == 1);
        let slow = slow.map(|node| (node, what.host / slower)).collect();
        let outcome = SwarmScenario { seed, slow, ..what.clone() }.run().expect("nothing wrong");
        (last(&outcome.done, false), last(&outcome.done, true) / slower as f64)
    };
    seeds.map(of).fold((0.0, 0.0), |(fast, slow), (f, s)| (f64::max(fast, f), f64::max(slow, s)))
}

#[test]
fn fast_nodes_are_delayed_little_by_slow_ones() {
    let clean = SwarmScenario::clean(vec![48], Division { blocks: 256, generation: 32 });
    let (fast, slow) = worst(&clean, 2, 1..=4);
    assert!(fast <= 1.25, "the last fast node takes {fast} times the content over its link");
    assert!(slow <= 1.15, "the last slow node takes {slow} times the content over its link");
}

/// In racks of two fast and two slow nodes, all nodes also wait for blocks that enter the rack.
#[test]
fn in_mixed_racks_fast_nodes_are_faster_than_by_a_broadcast() {
    let clean = SwarmScenario::clean(vec![4; 4], Division { blocks: 256, generation: 32 });
    let (fast, slow) = worst(&SwarmScenario { uplink: Some(2 * clean.host), ..clean }, 2, 1..=2);
    assert!(fast <= 1.75, "a broadcast goes at the pace of the slowest, 2; the last fast node takes {fast}");
    assert!(slow <= 1.25, "the last slow node takes {slow} times the content over its link");
}
