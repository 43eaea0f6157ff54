//! Assignment that avoids most distances: by Elkan's lower bounds (ICML 2003), limited to the
//! nearest centroids of each point, with one bound per group for all other centroids (Ding et al.,
//! "Yinyang K-Means", ICML 2015), and kept relative to two sets of centroids, as in Qiu and Zhang's
//! "Mammoth data in the cloud" (section 1.2).
//!
//! A point keeps a lower bound on its distance from each of its `near` centroids, and one on the
//! distances from the remaining centroids of each group. When a centroid moves by some length, its
//! distance from any point shrinks by at most that length (triangle inequality). Therefore the
//! distance from a centroid need not be measured if its bound exceeds the exact distance from the
//! nearest centroid found so far. The search starts with the point's own centroid.
//!
//! Bounds that are carried from one iteration to the next accumulate the steps of a centroid that
//! moves back and forth. Bounds relative to an *anchor*, which is the positions of some iterations
//! ago, do not; the larger of both bounds is used. Among the remaining centroids of a group, only
//! those that moved far enough are measured, or the whole group by blocks where that is cheaper.
//! There are several groups because, for most points, a single bound for all remaining centroids
//! would soon fall below the distance from the point's own centroid. With several groups, the
//! bounds of far groups still exceed that distance, and only the others are measured again.
//!
//! **The result is exact.** Bounds are integers, in units of 1/64 of the centroids' grid, or of
//! twice the grid for [`Precision::Fine`], which keeps distances below 2^30. Lower bounds are
//! rounded down, distances from the points' own centroids and movements are rounded up, and only
//! centroids that are strictly farther are skipped. Labels and inertia are therefore those of
//! measuring all distances. Of equally near centroids, the first is chosen.
//!
//! [`Precision::Fine`]: crate::data::grid::Precision::Fine

mod moves;
mod search;

use crate::algorithm::assign::{AssignmentStats, LabelRun, PIECE, TimedStats};
use crate::data::grid::{Centroids, Points};
use cool_distance::{PairDistances, Panels, RowSelection, SimdLevel};
use cool_map::threads;
use moves::{BoundUnit, CentroidMoves, GroupBound};
use search::{BoundSearch, PointPiece};
use std::time::Instant;

/// Minimum average number of centroids of a group. A group should fill several panels of the
/// blocked product, because it shares its first and last panel with its neighbors. With fewer
/// centroids than this, there is one group.
const LEAST_GROUP: usize = 64;

/// Number of single distances that are measured to learn their cost.
const COST_DISTANCES: usize = 512;
/// Number of points that are compared with all centroids by blocks, to learn the cost of that.
const COST_ROWS: usize = 16;
/// Number of repetitions of both measurements.
const COST_REPETITIONS: usize = 3;

/// A bound on the distance from one of the near centroids.
#[derive(Clone, Copy, Debug, Default)]
struct CentroidBound {
    place: u32,
    /// A lower bound on the distance when it was last measured, plus the length of the centroid's
    /// path until then. This number minus the present length of the path is a bound on the present
    /// distance.
    plus_path: u32,
    /// A lower bound on the distance from the centroid's position at the anchor.
    since_anchor: u32,
}

/// Which of a rank's points have bounds. The points are divided into pieces of `piece` points, and
/// one in `every` pieces has bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundCoverage {
    /// Points per piece.
    pub piece: usize,
    /// One in this many pieces has bounds, starting with the first.
    pub every: usize,
}

impl BoundCoverage {
    /// All points have bounds.
    pub const ALL: Self = Self { piece: PIECE, every: 1 };

    /// Returns the labels of the points with bounds, and those of the points without.
    pub fn split<'l>(&self, labels: &'l mut [u32]) -> [Vec<LabelRun<'l>>; 2] {
        let (with, without) =
            LabelRun::pieces(labels, self.piece).partition(|run| self.has(run.first / self.piece));
        [with, without]
    }

    /// Returns whether the points of a piece have bounds.
    pub(crate) fn has(&self, piece: usize) -> bool {
        piece.is_multiple_of(self.every)
    }
}

/// Bounds of a rank's points, kept from one iteration to the next.
pub struct Bounds {
    /// Number of near centroids per point.
    near: usize,
    /// For each point, the bounds of its near centroids, in ascending order of `plus_path`.
    bounds: Vec<CentroidBound>,
    /// For each point, the bounds of each group's other centroids.
    rest: Vec<GroupBound>,
    /// Squared lengths of the points.
    norms: Vec<i64>,
    moves: CentroidMoves,
    /// Measured cost of a single distance, relative to that of a distance in a block.
    single_cost: f64,
}

impl Bounds {
    /// Returns the number of groups, which is at most `near`, because the bound of a group saves
    /// about as much as that of a near centroid.
    fn groups(near: usize, clusters: usize) -> usize {
        near.min(clusters / LEAST_GROUP).max(1)
    }

    /// Returns the bytes of bounds per point.
    pub fn bytes_per_point(near: usize, clusters: usize) -> usize {
        near * size_of::<CentroidBound>()
            + Self::groups(near, clusters) * size_of::<GroupBound>()
            + size_of::<i64>()
    }

    /// Starts bounds for the `near` nearest centroids of each point of some runs. Measures all
    /// distances and assigns the points. Returns the bounds, and the statistics of the assignment.
    pub fn begin(
        points: &Points,
        centroids: &Centroids,
        near: usize,
        runs: Vec<LabelRun<'_>>,
        level: SimdLevel,
        threads: usize,
    ) -> (Self, TimedStats) {
        let near = near.clamp(1, centroids.len());
        let rows = points.rows();
        let moves = CentroidMoves::new(centroids, Self::groups(near, centroids.len()), level, threads);
        let norms: Vec<i64> = runs.iter().flat_map(LabelRun::rows).map(|i| rows.norm(i)).collect();
        let mut all = Self {
            near,
            bounds: vec![CentroidBound::default(); near * norms.len()],
            rest: vec![GroupBound::default(); moves.groups.len() * norms.len()],
            norms,
            moves,
            single_cost: 1.0,
        };
        all.single_cost = all.measure_costs(points, level);
        let found = all.for_each_piece(points, runs, level, threads, |search, piece| search.begin(piece));
        (all, found)
    }

    /// Assigns the points to the present centroids. The runs must be those of [`Bounds::begin`].
    /// Returns the statistics of the assignment.
    pub fn assign(
        &mut self,
        points: &Points,
        centroids: &Centroids,
        runs: Vec<LabelRun<'_>>,
        level: SimdLevel,
        threads: usize,
    ) -> TimedStats {
        self.moves.advance(centroids, threads);
        let found =
            self.for_each_piece(points, runs, level, threads, |search, piece| search.assign_by_bounds(piece));
        if self.moves.anchors_anew() {
            self.moves.anchor_here();
        }
        found
    }

    fn for_each_piece(
        &mut self,
        points: &Points,
        runs: Vec<LabelRun<'_>>,
        level: SimdLevel,
        threads: usize,
        work: impl Fn(&BoundSearch<'_>, &mut PointPiece<'_>) -> AssignmentStats + Sync,
    ) -> TimedStats {
        let (near, groups) = (self.near, self.moves.groups.len());
        let centroids = &self.moves.now;
        let search = BoundSearch {
            points,
            rows: points.rows(),
            unit: BoundUnit(centroids.precision),
            pairs: PairDistances::new(level, centroids.precision, &centroids.values, centroids.dims),
            panels: Panels::new(level, centroids.precision, &centroids.values, centroids.dims),
            moves: &self.moves,
            anchors: self.moves.anchors_anew(),
            longest_path: self.moves.longest_path(),
            single_cost: self.single_cost,
        };
        let (mut bounds, mut rest, mut norms) = (&mut self.bounds[..], &mut self.rest[..], &self.norms[..]);
        let piece = |LabelRun { first, labels }| -> PointPiece<'_> {
            let count = labels.len();
            let bounds = bounds.split_off_mut(..near * count).expect("the slice has an entry for each point");
            let rest = rest.split_off_mut(..groups * count).expect("the slice has an entry for each point");
            let norms = norms.split_off(..count).expect("the slice has an entry for each point");
            PointPiece { first, near, groups, labels, norms, bounds, rest }
        };
        let pieces: Vec<PointPiece<'_>> = runs.into_iter().map(piece).collect();
        TimedStats::total(threads::map_mut(threads, pieces, |_, mut piece| {
            let points = piece.labels.len();
            TimedStats::measure(points, || work(&search, &mut piece))
        }))
    }

    /// Measures the cost of a single distance, relative to that of a distance in a block.
    fn measure_costs(&self, points: &Points, level: SimdLevel) -> f64 {
        let (rows, centroids) = (points.rows(), &self.moves.now);
        let (n, k) = (rows.len(), centroids.len());
        if n == 0 {
            return 1.0;
        }
        let pairs = PairDistances::new(level, centroids.precision, &centroids.values, centroids.dims);
        let panels = Panels::new(level, centroids.precision, &centroids.values, centroids.dims);
        let (some, groups) = (RowSelection::Run { first: 0, count: COST_ROWS.min(n) }, &self.moves.groups);
        let mut table = vec![0; some.len() * k];
        let block = seconds(|| {
            for run in (0..groups.len()).map(|group| groups.run(group)).filter(|run| !run.is_empty()) {
                panels.all(rows, some, run.clone(), &mut table[..some.len() * run.len()]);
            }
        });
        // The centroids are scattered, so that they are in the cache as rarely as during an
        // assignment.
        let far = |i: usize| pairs.squared(rows, i / 8 % n, 0, i * (k / 7 + 1) % k);
        let singles = seconds(|| {
            std::hint::black_box((0..COST_DISTANCES).map(far).fold(0, i64::wrapping_add));
        });
        singles / COST_DISTANCES as f64 / (block / table.len() as f64).max(f64::MIN_POSITIVE)
    }
}

/// Returns the shortest duration of several executions, in seconds, because other processes may
/// disturb some of them.
fn seconds(mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..COST_REPETITIONS).map(once).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::assign::{assign, sum};
    use crate::data::grid::{Metric, Precision};
    use crate::data::partition::draw;
    use proptest::prelude::*;

    /// Points in groups, so that bounds hold for some points and fail for others.
    fn grouped(precision: Precision, n: usize, dims: usize, groups: u64, seed: u64) -> Points {
        let value = |i: usize| {
            let group = draw(seed, (i / dims) as u64) % groups;
            let corner = draw(seed + 1, group * dims as u64 + (i % dims) as u64) % 200;
            let near = (corner + draw(seed + 2, i as u64) % 40) as i64;
            // Beyond the range of one word, with all values of the lower word.
            if precision == Precision::Fine { near * 33_333 - 4_000_000 } else { near }
        };
        let rows = (0..n).map(|i| (i * dims..(i + 1) * dims).map(value));
        Points::new(precision, dims, rows.flat_map(|row| precision.to_words(row)).collect())
    }

    /// Compares labels and inertia by bounds with those by all distances, over several of Lloyd's
    /// iterations.
    fn check(
        points: &Points,
        k: usize,
        near: usize,
        level: SimdLevel,
        threads: usize,
        iterations: usize,
    ) -> Vec<u64> {
        let mut centroids = Centroids::at(points);
        centroids.values.truncate(k * points.width());
        let (mut labels, mut plain) = (vec![u32::MAX; points.len()], vec![u32::MAX; points.len()]);
        let mut bounds = None;
        let mut measured = Vec::new();
        for iteration in 0..iterations {
            let expected = assign(points, &centroids, &mut plain, SimdLevel::best(), 1);
            let [runs, _] = BoundCoverage { piece: 100, every: 1 }.split(&mut labels);
            let TimedStats { found, .. } = match &mut bounds {
                None => {
                    let (begun, found) = Bounds::begin(points, &centroids, near, runs, level, threads);
                    bounds = Some(begun);
                    found
                }
                Some(bounds) => bounds.assign(points, &centroids, runs, level, threads),
            };
            assert_eq!(labels, plain, "iteration {iteration}");
            assert_eq!((found.changed, found.inertia), (expected.changed, expected.inertia));
            assert!(found.measured <= 2 * expected.measured);
            measured.push(found.measured);
            for (j, row) in sum(points, &labels, k, 1).iter() {
                let (sums, weight) = row.split_at(points.dims);
                let mean = centroids.mean(j, Metric::Euclidean, sums, weight[0]);
                centroids.values[j * points.width()..][..points.width()].copy_from_slice(&mean);
            }
        }
        measured
    }

    fn cases() -> u32 {
        std::env::var("COOL_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases()))]
        #[test]
        fn bounds_give_the_labels_and_inertia_of_all_distances(
            precision in prop::sample::select(vec![Precision::Byte, Precision::Wide, Precision::Fine]),
            (k, n) in (1usize..200).prop_flat_map(|k| (Just(k), k..250)),
            dims in 1usize..12,
            groups in 1u64..30,
            near in 1usize..45,
            level in prop::sample::select(SimdLevel::available()),
            threads in 1usize..4,
            seed in 0u64..1 << 40,
        ) {
            check(&grouped(precision, n, dims, groups, seed), k, near, level, threads, 12);
        }
    }

    #[test]
    fn at_the_end_one_distance_per_point_is_measured() {
        let points = grouped(Precision::Byte, 3000, 16, 60, 3);
        let measured = check(&points, 50, 8, SimdLevel::best(), 2, 40);
        assert_eq!((measured[0], measured[39]), (150_000, 3000), "{measured:?}");
    }
}
