//! Broadcasts from seeds: no wrong byte, no stall, who did not get the message is named, and neither repair nor memory
//! costs more than is said here.

use cool_sim::{Broadcast, Outcome, Pattern, Scenario, Settings};
use cool_transport::{Stats, StreamError};
use std::sync::atomic::{AtomicU64, Ordering};

/// How many seeds each test runs, unless `COOL_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 20_000;

fn seeds() -> u64 {
    match std::env::var("COOL_SIM_SEEDS") {
        Ok(seeds) => seeds.parse().expect("COOL_SIM_SEEDS is a number"),
        Err(_) => SEEDS,
    }
}

fn run(seed: u64, settings: &Settings) -> Result<Outcome, String> {
    let outcome = Broadcast::run(settings.clone()).map_err(|wrong| format!("seed {seed}: {wrong:?}"))?;
    judge(settings, &outcome).map_err(|wrong| format!("seed {seed}: {wrong}"))?;
    Ok(outcome)
}

fn judge(settings: &Settings, outcome: &Outcome) -> Result<(), String> {
    let dead: Vec<u16> = settings.crashes.iter().map(|(node, _)| *node).collect();
    if dead.contains(&settings.source) {
        return match outcome
            .failures
            .iter()
            .find(|(_, error)| !matches!(error, StreamError::NotStarted { .. } | StreamError::Stalled { .. }))
        {
            Some(failure) => Err(format!("failed otherwise than for want of the source: {failure:?}")),
            None => Ok(()),
        };
    }
    let mut missing = Vec::new();
    for (node, delivered) in (0u16..).zip(&outcome.delivered) {
        match delivered {
            None if !dead.contains(&node) => return Err(format!("node {node} never had the message")),
            None => missing.push(node),
            Some(_) => {}
        }
    }
    for (node, error) in &outcome.failures {
        match error {
            StreamError::Incomplete { nodes, .. }
                if *node == settings.source && nodes.iter().all(|node| dead.contains(node)) => {}
            other => return Err(format!("node {node} failed: {other}")),
        }
    }
    match (missing.is_empty(), outcome.failures.is_empty()) {
        (false, true) => Err(format!("nobody was told that {missing:?} lack the message")),
        _ => Ok(()),
    }
}

/// Runs `check` on every seed, on all processors; what was wrong.
fn on_every_seed(seeds: u64, check: impl Fn(u64) -> Result<(), String> + Sync) -> Vec<String> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return wrong;
            }
            wrong.extend(check(seed).err());
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a broadcast does not panic")).collect()
    })
}

fn assert_none(wrong: &[String]) {
    let first = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} wrong, the first:\n{}", wrong.len(), first.join("\n"));
}

#[test]
fn many_seeded_broadcasts() {
    let packets = AtomicU64::new(0);
    let wrong = on_every_seed(seeds(), |seed| {
        let outcome = run(seed, &Scenario::of(seed))?;
        packets.fetch_add(outcome.packets, Ordering::Relaxed);
        Ok(())
    });
    println!("{} seeded broadcasts, {packets:?} packets, {} wrong", seeds(), wrong.len());
    assert_none(&wrong);
}

/// What repair cost: chunks that were mended, requests, repairs sent, and chunks that came twice.
#[derive(Debug, Default)]
struct Costs {
    mended: AtomicU64,
    requests: AtomicU64,
    served: AtomicU64,
    doubles: AtomicU64,
}

/// The most that repair may cost.
#[derive(Debug)]
struct Bounds {
    requests: u64,
    served: u64,
    doubles: u64,
}

/// Of any one broadcast, for each chunk that was mended and each node: more than any of a million seeds took.
fn bounds(pattern: Pattern) -> Bounds {
    let (requests, served, doubles) = match pattern {
        Pattern::Random | Pattern::OneLink => (20, 4, 1),
        Pattern::Bursty => (10, 12, 2),
        Pattern::WholeRack => (10, 4, 1),
        Pattern::Tail => (2, 4, 2),
        Pattern::Late => (2, 4, 4),
        // Every packet may come twice, every gap be none.
        Pattern::Disorder => (10, 30, 600),
        // Who lacks chunks that only the dead source had asks until it gives up.
        Pattern::Deaths => (10_000, 16, 1),
    };
    Bounds { requests, served, doubles }
}

/// Runs the broadcast of a pattern and a seed, and adds up what it cost.
fn check_costs(pattern: Pattern, seed: u64, costs: &Costs) -> Result<(), String> {
    let settings = Scenario::of_pattern(pattern, seed);
    let outcome = run(seed, &settings).map_err(|wrong| format!("{pattern:?}, {wrong}"))?;
    let receivers = (0u16..).zip(&outcome.stats).filter(|(node, _)| *node != settings.source);
    let mended: u64 = receivers.map(|(_, stats)| stats.by_chain).sum();
    let sum = |of: fn(&Stats) -> u64| outcome.stats.iter().map(of).sum::<u64>();
    let (requests, served) = (sum(|stats| stats.requests), sum(|stats| stats.served));
    let doubles = sum(|stats| stats.duplicates);
    for (cost, sum) in [(mended, &costs.mended), (requests, &costs.requests)] {
        sum.fetch_add(cost, Ordering::Relaxed);
    }
    for (cost, sum) in [(served, &costs.served), (doubles, &costs.doubles)] {
        sum.fetch_add(cost, Ordering::Relaxed);
    }
    let most = bounds(pattern);
    let per = mended + outcome.stats.len() as u64;
    let chunks = settings.len.div_ceil(u64::from(settings.chunk_bytes)).max(1) as usize;
    // Ranges, requests and packets that a node remembers, however long it goes on.
    let entries = outcome.entries > 12 * (chunks + 10);
    if requests > most.requests * per || served > most.served * per || doubles > most.doubles * per || entries
    {
        return Err(format!(
            "{pattern:?}, seed {seed}: {requests} requests, {served} repairs and {doubles} doubles for {mended} mended \
             chunks of {} nodes, {} entries for {chunks} chunks",
            outcome.stats.len(),
            outcome.entries
        ));
    }
    Ok(())
}

/// What all broadcasts of a pattern cost in all, where packets are lost and nobody dies.
fn check_sums(pattern: Pattern, costs: &Costs) -> Result<(), String> {
    if matches!(pattern, Pattern::Disorder | Pattern::Deaths) {
        return Ok(());
    }
    let [mended, requests, served, doubles] = [&costs.mended, &costs.requests, &costs.served, &costs.doubles]
        .map(|sum| sum.load(Ordering::Relaxed) as f64);
    // Repairs are lost too; but where a rack loses together, one mends several nodes.
    let repairs = if pattern == Pattern::WholeRack { 0.9 } else { 1.4 };
    match requests < mended && served < repairs * mended && doubles < 0.05 * mended {
        true => Ok(()),
        false => Err(format!("{pattern:?} in all: {costs:?}")),
    }
}

#[test]
fn repair_costs_no_more_than_is_said_whatever_is_lost() {
    let each = seeds().div_ceil(Pattern::ALL.len() as u64);
    let mut wrong = Vec::new();
    for pattern in Pattern::ALL {
        let costs = Costs::default();
        wrong.extend(on_every_seed(each, |seed| check_costs(pattern, seed, &costs)));
        println!("{pattern:?}, {each} seeds: {costs:?}");
        wrong.extend(check_sums(pattern, &costs).err());
    }
    assert_none(&wrong);
}
