//! Distributions from seeds: every survivor ends with the right bytes, or reports that it is
//! missing blocks that no survivor has.

use super::seeds::{assert_none, on_every_seed, seeds};
use cool_sim::swarm::SwarmScenario;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of seeds, unless `COOL_SIM_SEEDS` is set.
const SEEDS: u64 = 500;

#[test]
fn many_seeded_distributions() {
    let [whole, bereft] = [const { AtomicUsize::new(0) }; 2];
    let wrong = on_every_seed(seeds(SEEDS), |seed| {
        let what = SwarmScenario::of(seed);
        let outcome = what.run().map_err(|error| format!("{error} ({:?}, {:?})", what.code, what.order))?;
        whole.fetch_add(outcome.done.iter().flatten().count(), Ordering::Relaxed);
        bereft.fetch_add(outcome.bereft.len(), Ordering::Relaxed);
        Ok(())
    });
    let (whole, bereft, runs) = (whole.into_inner(), bereft.into_inner(), seeds(SEEDS).count());
    println!(
        "{runs} distributions: {whole} nodes ended with everything, {bereft} were missing blocks that no survivor had"
    );
    assert_none(&wrong);
    let covers = whole > 5 * runs / 2 && bereft > 0;
    assert!(covers || runs < SEEDS as usize, "the seeds cover too few cases");
}
