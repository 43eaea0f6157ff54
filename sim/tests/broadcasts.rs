//! Broadcasts from seeds: no wrong byte, no stall, and who did not get the message is named.

use cool_sim::{Broadcast, Outcome, Scenario, Settings};
use cool_transport::StreamError;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many seeds `many_seeded_broadcasts` runs, unless `COOL_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 20_000;

/// Runs the broadcast of a seed and says what is wrong with it.
fn check(seed: u64) -> Result<Outcome, String> {
    let settings = Scenario::of(seed);
    let outcome = Broadcast::run(settings.clone()).map_err(|wrong| format!("seed {seed}: {wrong:?}"))?;
    judge(&settings, &outcome).map_err(|wrong| format!("seed {seed}: {wrong}"))?;
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
            StreamError::Incomplete { nodes, .. } if *node == settings.source && *nodes == dead => {}
            other => return Err(format!("node {node} failed: {other}")),
        }
    }
    match (missing.is_empty(), outcome.failures.is_empty()) {
        (false, true) => Err(format!("nobody was told that {missing:?} lack the message")),
        _ => Ok(()),
    }
}

#[test]
fn many_seeded_broadcasts() {
    let seeds = match std::env::var("COOL_SIM_SEEDS") {
        Ok(seeds) => seeds.parse().expect("COOL_SIM_SEEDS is a number"),
        Err(_) => SEEDS,
    };
    let (next, packets) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        let mut wrong = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return wrong;
            }
            match check(seed) {
                Ok(outcome) => drop(packets.fetch_add(outcome.packets, Ordering::Relaxed)),
                Err(what) => wrong.push(what),
            }
        }
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a broadcast does not panic")).collect()
    });
    println!("{seeds} seeded broadcasts, {} packets, {} wrong", packets.load(Ordering::Relaxed), wrong.len());
    assert!(
        wrong.is_empty(),
        "{} wrong, the first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
