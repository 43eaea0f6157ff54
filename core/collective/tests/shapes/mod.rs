//! Groups on which schedules are tested, and the configuration of random tests.

use cool_collective::RankPlace;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

/// Returns nodes in racks of the given sizes, each with `per_node` ranks.
pub(crate) fn racks(sizes: &[u32], per_node: u32) -> Vec<RankPlace> {
    let mut places = Vec::new();
    let mut node = 0;
    for (rack, size) in (0..).zip(sizes) {
        for _ in 0..*size {
            places.extend((0..per_node).map(|_| RankPlace { rack, node }));
            node += 1;
        }
    }
    places
}

/// Returns the same places with neighboring ranks far apart: rank `i` is where rank `i * stride`
/// was.
pub(crate) fn interleaved(places: &[RankPlace], stride: usize) -> Vec<RankPlace> {
    (0..stride).flat_map(|start| places.iter().skip(start).step_by(stride)).copied().collect()
}

/// Returns the configuration for this many random cases. The seeds of failed cases are kept next to
/// the test.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let persistence = FileFailurePersistence::WithSource("regressions");
    // A failing case that takes long to shrink must be reported before the test is killed as too
    // slow.
    let max_shrink_time = 60_000;
    ProptestConfig {
        failure_persistence: Some(Box::new(persistence)),
        max_shrink_time,
        ..ProptestConfig::with_cases(cases)
    }
}
