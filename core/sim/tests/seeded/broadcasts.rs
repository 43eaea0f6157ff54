//! Broadcasts from seeds: no wrong byte, no stall, receivers without the message are named, and
//! neither repair nor memory exceeds its bound.

use super::seeds::{assert_none, on_every_seed, seeds};
use cool_machine::Time;
use cool_sim::{Broadcast, BroadcastOutcome, BroadcastSettings, FaultPattern, Scenario};
use cool_transport::{StreamError, StreamStats};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of seeds of each test, unless `COOL_SIM_SEEDS` is set.
const SEEDS: u64 = 20_000;
/// The shortest retransmission timeout of transport, in milliseconds.
const SHORTEST_RTO_MS: u64 = 2;

fn run(settings: &BroadcastSettings) -> Result<BroadcastOutcome, String> {
    let outcome = Broadcast::run(settings.clone()).map_err(|wrong| format!("{wrong:?}"))?;
    judge(settings, &outcome)?;
    Ok(outcome)
}

fn judge(settings: &BroadcastSettings, outcome: &BroadcastOutcome) -> Result<(), String> {
    let dead: Vec<u16> = settings.crashes.iter().map(|(node, _)| *node).collect();
    if dead.contains(&settings.source) {
        return match outcome
            .failures
            .iter()
            .find(|(_, error)| !matches!(error, StreamError::NotStarted { .. } | StreamError::Stalled { .. }))
        {
            Some(failure) => Err(format!("failed for another reason than the lost source: {failure:?}")),
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
        (false, true) => Err(format!("no failure names {missing:?}, which are missing the message")),
        _ => Ok(()),
    }
}

#[test]
fn many_seeded_broadcasts() {
    let packets = AtomicU64::new(0);
    let wrong = on_every_seed(seeds(SEEDS), |seed| {
        let outcome = run(&Scenario::of(seed))?;
        packets.fetch_add(outcome.packets, Ordering::Relaxed);
        Ok(())
    });
    println!("{} seeded broadcasts, {packets:?} packets, {} wrong", seeds(SEEDS).count(), wrong.len());
    assert_none(&wrong);
}

/// The cost of repair in one broadcast, in packets.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Chunks that arrived from a node of the chain and were new.
    mended: u64,
    naks: u64,
    repairs: u64,
    /// Chunks that had already been received.
    duplicates: u64,
}

impl Cost {
    fn of(settings: &BroadcastSettings, outcome: &BroadcastOutcome) -> Cost {
        let receivers = (0u16..).zip(&outcome.stats).filter(|(node, _)| *node != settings.source);
        let mended = receivers.map(|(_, stats)| stats.by_chain).sum();
        let sum = |of: fn(&StreamStats) -> u64| outcome.stats.iter().map(of).sum();
        Cost {
            mended,
            naks: sum(|stats| stats.naks),
            repairs: sum(|stats| stats.served),
            duplicates: sum(|stats| stats.duplicates),
        }
    }
}

/// The maximum cost of repair in any single broadcast, per unit of [`units`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    naks: f64,
    repairs: f64,
    duplicates: f64,
}

/// Returns bounds that exceed the cost of any of a million seeds. For duplicated packets (5.4
/// duplicates) and crashes (0.6 NAKs), only 20,000 seeds were run. The test prints the highest
/// costs of the seeds that it ran.
fn bounds(pattern: FaultPattern) -> Bounds {
    let (naks, repairs, duplicates) = match pattern {
        FaultPattern::Random | FaultPattern::OneLink => (20.0, 4.0, 1.0),
        FaultPattern::Bursty => (10.0, 12.0, 2.0),
        FaultPattern::WholeRack => (10.0, 4.0, 1.0),
        FaultPattern::Tail => (2.0, 4.0, 2.0),
        FaultPattern::Late => (2.0, 4.0, 4.0),
        FaultPattern::Disorder => (10.0, 30.0, 10.0),
        FaultPattern::Deaths => (1.0, 16.0, 1.0),
    };
    Bounds { naks, repairs, duplicates }
}

/// Returns the units in which the costs of a broadcast are counted: repaired chunks plus nodes.
/// Where the network itself duplicates packets, duplicates are counted per arriving chunk. Nodes
/// that are missing chunks that only crashed nodes have send NAKs until they give up, so NAKs are
/// then also counted per shortest retransmission timeout.
fn units(
    pattern: FaultPattern,
    settings: &BroadcastSettings,
    outcome: &BroadcastOutcome,
    mended: u64,
) -> Bounds {
    let nodes = outcome.stats.len() as u64;
    let each = (mended + nodes) as f64;
    let units = Bounds { naks: each, repairs: each, duplicates: each };
    let chunks = settings.len.div_ceil(u64::from(settings.chunk_bytes)).max(1);
    let elapsed = (outcome.ended - Time::ZERO).as_millis() as u64;
    match pattern {
        FaultPattern::Disorder => Bounds { duplicates: (mended + nodes * chunks) as f64, ..units },
        FaultPattern::Deaths => Bounds { naks: each + (nodes * elapsed / SHORTEST_RTO_MS) as f64, ..units },
        _ => units,
    }
}

/// The costs of all broadcasts of a pattern.
#[derive(Debug, Default)]
struct Costs {
    sums: Mutex<[u64; 4]>,
    worst: Mutex<[f64; 3]>,
}

/// Runs the broadcast of a pattern and a seed, adds up its costs and checks them.
fn check_costs(pattern: FaultPattern, seed: u64, costs: &Costs) -> Result<(), String> {
    let settings = Scenario::of_pattern(pattern, seed);
    let outcome = run(&settings).map_err(|wrong| format!("{pattern:?}, {wrong}"))?;
    let cost = Cost::of(&settings, &outcome);
    let Cost { mended, naks, repairs, duplicates } = cost;
    for (sum, cost) in
        costs.sums.lock().expect("no test panicked").iter_mut().zip([mended, naks, repairs, duplicates])
    {
        *sum += cost;
    }
    let (units, most) = (units(pattern, &settings, &outcome, mended), bounds(pattern));
    let ratios =
        [naks as f64 / units.naks, repairs as f64 / units.repairs, duplicates as f64 / units.duplicates];
    for (worst, ratio) in costs.worst.lock().expect("no test panicked").iter_mut().zip(ratios) {
        *worst = worst.max(ratio);
    }
    let chunks = settings.len.div_ceil(u64::from(settings.chunk_bytes)).max(1) as usize;
    // A node may remember only this many ranges, requests and packets, however long it runs.
    let entries = outcome.entries > 12 * (chunks + 10);
    let dear =
        ratios.iter().zip([most.naks, most.repairs, most.duplicates]).any(|(ratio, most)| *ratio > most);
    if dear || entries {
        let nodes = outcome.stats.len();
        return Err(format!(
            "{pattern:?}: {cost:?} of {nodes} nodes ({ratios:.2?}, at most {most:?}), {} entries for {chunks} chunks",
            outcome.entries
        ));
    }
    Ok(())
}

/// Checks the total costs of all broadcasts of a pattern in which packets are lost and no node
/// crashes.
fn check_sums(pattern: FaultPattern, costs: &Costs) -> Result<(), String> {
    if matches!(pattern, FaultPattern::Disorder | FaultPattern::Deaths) {
        return Ok(());
    }
    let [mended, naks, repairs, duplicates] =
        costs.sums.lock().expect("no test panicked").map(|sum| sum as f64);
    // Repairs are lost too. But where a rack loses packets together, one repair serves several
    // nodes.
    let per_chunk = if pattern == FaultPattern::WholeRack { 0.9 } else { 1.4 };
    match naks < mended && repairs < per_chunk * mended && duplicates < 0.05 * mended {
        true => Ok(()),
        false => Err(format!("{pattern:?} in all: {costs:?}")),
    }
}

#[test]
fn repair_costs_no_more_than_its_bounds() {
    let Range { start, end } = seeds(SEEDS);
    let each = (end - start).div_ceil(FaultPattern::ALL.len() as u64);
    let mut wrong = Vec::new();
    for pattern in FaultPattern::ALL {
        let costs = Costs::default();
        wrong.extend(on_every_seed(start..start + each, |seed| check_costs(pattern, seed, &costs)));
        println!("{pattern:?}, {each} seeds: {costs:?}");
        wrong.extend(check_sums(pattern, &costs).err());
    }
    assert_none(&wrong);
}
