//! Random clusterings: with any ranks, threads, instructions, methods and losses, the result must
//! have the bits of a single thread that computes all distances by the scalar definition.

use crate::losses::{essence, with_losses};
use crate::runs::{alone, clustering, loading, write_bytes};
use cool::embedded::Embedded;
use cool_distance::SimdLevel;
use cool_kmeans::grid::Metric;
use cool_kmeans::npy;
use cool_kmeans::options::{ClusteringOptions, Empty, Init};
use cool_kmeans::partition::draw;
use cool_kmeans::point_share::LoadOptions;
use cool_kmeans::tuning::{AssignMethod, Tuning};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use std::path::Path;

/// Number of cases; `COOL_CASES` overrides it.
const CASES: u32 = 80;

#[derive(Clone, Debug)]
struct Case {
    points: Points,
    how: ClusteringOptions,
    layout: Embedded,
    /// The ranks that are lost, each with the iteration after which it is lost, or `None` if it is
    /// lost before it loads.
    losses: Vec<(usize, Option<usize>)>,
}

#[derive(Clone, Debug)]
struct Points {
    count: usize,
    dims: usize,
    /// Number of corners around which points lie. A small number makes some centroids empty.
    corners: usize,
    seed: u64,
    real: bool,
    metric: Metric,
}

impl Points {
    /// Writes a file of bytes or of 64-bit floating-point numbers.
    fn write(&self, directory: &Path) -> LoadOptions {
        let path = directory.join("points.npy");
        let number = |at: usize| {
            let (point, dim) = ((at / self.dims) as u64, at % self.dims);
            let corner = draw(self.seed, point) as usize % self.corners;
            let near = draw(self.seed ^ 1, (corner * self.dims + dim) as u64) % 200;
            near + draw(self.seed ^ 2, at as u64) % 40
        };
        let numbers = (0..self.count * self.dims).map(number);
        if self.real {
            npy::write(&path, &numbers.map(|n| n as f64 / 7.0 - 9.0).collect::<Vec<_>>(), self.dims)
                .expect("written");
        } else {
            write_bytes(&path, &numbers.map(|n| n as u8).collect::<Vec<_>>(), self.dims);
        }
        let mut load = loading(&[path], 0);
        load.select.metric = self.metric;
        load
    }
}

fn any_points() -> impl Strategy<Value = Points> {
    let metric = select(vec![Metric::Euclidean, Metric::Euclidean, Metric::Cosine]);
    (20usize..300, 1usize..40, 1usize..12, any::<u64>(), any::<bool>(), metric).prop_map(
        |(count, dims, corners, seed, real, metric)| Points { count, dims, corners, seed, real, metric },
    )
}

fn any_effort() -> impl Strategy<Value = Tuning> {
    let method = select(vec![AssignMethod::Auto, AssignMethod::Full, AssignMethod::Bounds]);
    let memory = select(vec![None, Some(1 << 24)]);
    (method, select(SimdLevel::available()), prop::option::of(0usize..9), memory, 1usize..5)
        .prop_map(|(method, level, near, memory, threads)| Tuning { method, near, memory, level, threads })
}

fn any_clustering() -> impl Strategy<Value = ClusteringOptions> {
    let init = select(vec![Init::PlusPlus, Init::Random, Init::Parallel]);
    let empty = select(vec![Empty::Keep, Empty::Split]);
    (1usize..20, any_effort(), init, empty, prop::option::of(5u64..100), 1usize..3).prop_map(
        |(k, tuning, init, empty, mini_batch, restarts)| ClusteringOptions {
            init: Some(init),
            empty,
            mini_batch,
            restarts,
            tuning,
            ..clustering(k, 1)
        },
    )
}

fn any_case() -> impl Strategy<Value = Case> {
    let layout = (1usize..9, 1usize..4, 1usize..4).prop_map(|(ranks, ranks_per_node, racks)| Embedded {
        ranks,
        ranks_per_node,
        racks,
    });
    let losses = prop::collection::vec((any::<Index>(), prop::option::of(1usize..8)), 0..4);
    (any_points(), any_clustering(), layout, losses).prop_map(|(points, how, layout, losses)| {
        // The last rank is not lost.
        let mut losses: Vec<_> = losses
            .into_iter()
            .filter(|_| layout.ranks > 1)
            .map(|(rank, when)| (rank.index(layout.ranks - 1), when))
            .collect();
        losses.sort_unstable();
        losses.dedup_by_key(|loss| loss.0);
        Case { points, how, layout, losses }
    })
}

#[test]
fn random_clusterings_are_bitwise_equal_despite_losses() {
    let cases = std::env::var("COOL_CASES").map_or(CASES, |n| n.parse().expect("COOL_CASES is a number"));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let check = |case: Case| {
        let directory = tempfile::tempdir().expect("a directory");
        let load = case.points.write(directory.path());
        let plain =
            Tuning { method: AssignMethod::Full, level: SimdLevel::Scalar, ..Tuning::with_threads(1) };
        let expected = alone(&load, &ClusteringOptions { tuning: plain, ..case.how.clone() });
        let found = with_losses(&case.layout, &load, &case.how, &case.losses);
        prop_assert_eq!(essence(&found), essence(&expected));
        Ok(())
    };
    TestRunner::new(config).run(&any_case(), check).unwrap_or_else(|failure| panic!("{failure}"));
}
