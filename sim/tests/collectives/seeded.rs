//! Collectives from seeds: no wrong byte, no stall, and who is gone is named.

use cool_sim::collectives::{CollectiveScenario, Coverage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many seeds are run, unless `COOL_SIM_SEEDS` says otherwise. Each has some six collectives.
const SEEDS: u64 = 2_500;

/// How many seeds to run, instead of the usual number.
fn seeds(usually: u64) -> u64 {
    match std::env::var("COOL_SIM_SEEDS") {
        Ok(seeds) => seeds.parse().expect("COOL_SIM_SEEDS is a number"),
        Err(_) => usually,
    }
}

/// The first of them.
fn first_seed() -> u64 {
    let first = std::env::var("COOL_SIM_FIRST_SEED");
    first.map_or(0, |seed| seed.parse().expect("COOL_SIM_FIRST_SEED is a number"))
}

/// After this many seeds it is said how many have run.
const PROGRESS: u64 = 10_000;

fn on_demand(seed: u64) -> CollectiveScenario {
    let mut scenario = CollectiveScenario::of(seed);
    scenario.cluster.on_demand = true;
    scenario
}

fn run(seed: u64, scenario: fn(u64) -> CollectiveScenario) -> Result<Coverage, String> {
    let ran = catch_unwind(AssertUnwindSafe(|| scenario(seed).run()));
    let result = ran.unwrap_or_else(|_| Err("it panicked".to_owned()));
    result.map_err(|wrong| format!("seed {seed}: {wrong}"))
}

/// Runs all seeds, usually that number of them; fails with what went wrong.
pub(super) fn run_all(usually: u64, scenario: fn(u64) -> CollectiveScenario) {
    let (first, end) = (first_seed(), first_seed() + seeds(usually));
    let (next, total) = (AtomicU64::new(first), Mutex::new((Coverage::default(), Vec::new())));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let ran = run(seed, scenario);
            let (coverage, wrong) = &mut *total.lock().expect("no thread panics while it adds up");
            match ran {
                Ok(covered) => coverage.add(&covered),
                Err(text) => {
                    eprintln!("{text}");
                    wrong.push(text);
                }
            }
            if (seed + 1 - first).is_multiple_of(PROGRESS) {
                eprintln!("{} seeds, {} wrong", seed + 1 - first, wrong.len());
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let (coverage, wrong) = total.into_inner().expect("no thread panics while it adds up");
    println!("{coverage}");
    let first = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} wrong, the first:\n{}", wrong.len(), first.join("\n"));
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
    let wrong: Vec<String> =
        seeds.iter().filter_map(|seed| run(*seed, CollectiveScenario::of).err()).collect();
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
