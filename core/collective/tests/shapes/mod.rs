//! Groups to try schedules on, and how many random ones.

use cool_collective::RankPlace;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

/// Nodes in racks of the given sizes, each with `per_node` ranks.
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

/// The same places with neighbouring ranks far apart: rank `i` where rank `i * stride` was.
pub(crate) fn interleaved(places: &[RankPlace], stride: usize) -> Vec<RankPlace> {
    (0..stride).flat_map(|start| places.iter().skip(start).step_by(stride)).copied().collect()
}

/// That many random cases; the seeds of those that failed are kept beside the test.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    let persistence = FileFailurePersistence::WithSource("regressions");
    // A case that takes long to fail is told of before the test is ended for being slow.
    let max_shrink_time = 60_000;
    ProptestConfig {
        failure_persistence: Some(Box::new(persistence)),
        max_shrink_time,
        ..ProptestConfig::with_cases(cases)
    }
}
