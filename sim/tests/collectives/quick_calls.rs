//! Ranks that carry out quick calls, beside what engines carry out, from seeds: no wrong byte, no stall, and who is gone is named.

use super::seeded::run_all;
use cool_sim::collectives::CollectiveScenario;

/// How many seeds are run, unless `COOL_SIM_SEEDS` says otherwise.
const SEEDS: u64 = 1_500;

#[test]
fn many_seeded_quick_calls() {
    run_all(SEEDS, CollectiveScenario::with_quick_calls);
}
