//! Collectives from seeds: no wrong byte, no stall, and who is gone is named.

use super::seeds::{assert_none, on_every_seed, on_seed, seeds};
use cool_sim::collectives::{CollectiveScenario, Coverage};
use std::sync::Mutex;

/// How many seeds are run, unless `COOL_SIM_SEEDS` says otherwise. Each has some six collectives.
const SEEDS: u64 = 2_500;

fn on_demand(seed: u64) -> CollectiveScenario {
    let mut scenario = CollectiveScenario::of(seed);
    scenario.cluster.on_demand = true;
    scenario
}

/// Runs all seeds, usually that number of them; fails with what went wrong.
pub(super) fn run_all(usually: u64, scenario: fn(u64) -> CollectiveScenario) {
    let total = Mutex::new(Coverage::default());
    let wrong = on_every_seed(seeds(usually), |seed| {
        let covered = scenario(seed).run()?;
        total.lock().expect("no thread panics while it adds up").add(&covered);
        Ok(())
    });
    println!("{}", total.into_inner().expect("no thread panics while it adds up"));
    assert_none(&wrong);
}

#[test]
fn many_seeded_collectives() {
    run_all(SEEDS, CollectiveScenario::of);
}

#[test]
fn many_seeded_collectives_whose_agents_connect_on_demand() {
    run_all(SEEDS, on_demand);
}

/// Nothing is wrong with these seeds, as something once was.
fn are_right(seeds: &[u64]) {
    let check = |seed| CollectiveScenario::of(seed).run().map(drop);
    let wrong: Vec<String> = seeds.iter().filter_map(|seed| on_seed(*seed, check).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn who_meets_an_agent_that_has_just_started_names_the_ranks_of_its_node() {
    // The failure was that the agent "has released the group, or never made it", and named nobody.
    are_right(&[346, 783, 1847, 1905]);
}

#[test]
fn an_agent_that_is_started_again_before_others_have_connected_to_it_is_gone() {
    // Its pings were answered, so that calls failed at their own timeout and named ranks that live.
    are_right(&[10_523, 16_190, 45_442, 87_104, 111_266, 143_567]);
}

#[test]
fn a_rank_that_does_not_come_is_among_those_that_are_named() {
    are_right(&[124, 173, 252, 264, 950, 1813]);
}
