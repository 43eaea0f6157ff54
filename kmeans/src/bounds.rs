//! Assignment without most of the distances: Elkan's lower bounds (ICML 2003), truncated to the nearest centroids of each
//! point with one bound for all others, and kept against two sets of centroids, as in Qiu and Zhang's "Mammoth data in
//! the cloud" (section 1.2).
//!
//! A point knows a lower bound on its distance from each of its `near` centroids, and one for the rest. A centroid that
//! moved by so much is nearer by so much at most (triangle inequality), so what is bounded above the exact distance
//! from the best centroid so far, the own one first, need not be measured. Bounds from one iteration to the next add
//! up the steps of a centroid that goes to and fro; those against an *anchor*, where the centroids were some
//! iterations ago, do not: the larger of both counts. Of the rest only those centroids are measured that moved far enough to matter.
//!
//! **Nothing is lost.** Bounds are integers, in units of 1/64 of the centroids' grid, or twice the grid of [`Precision::Fine`], which
//! keeps distances below 2^30: lower ones rounded down, distances
//! from own centroids and movements rounded up, and skipped is only what is strictly farther. So labels and inertia are
//! those of all distances, and of equally near centroids the first is chosen here too.

use crate::assign::Assigned;
use crate::grid::{Centroids, Points, Precision};
use cool_distance::{Level, Pairs, Panels, Picked, Rows};
use cool_map::threads;

/// Points that a thread takes at a time.
const PIECE: usize = 1024;

/// Rows of the table of all distances from all centroids that a thread fills at a time.
const TABLE_ROWS: usize = 32;

/// What a distance measured by itself costs, in distances of a whole row by the blocked product; chosen, not measured.
const SINGLE_COST: usize = 6;

/// Paths longer than this are begun anew, so that no bound overflows: distances are below 2^30 units.
const LONGEST: u32 = 1 << 30;

/// A bound on the distance from one of the near centroids.
#[derive(Clone, Copy, Debug, Default)]
struct Near {
    centroid: u32,
    /// A lower bound on the distance at some time, plus the length of the centroid's path until then.
    since_step: u32,
    /// A lower bound on the distance from where the centroid was at the anchor.
    since_anchor: u32,
}

/// Bounds on the distances from all centroids that are not near.
#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// As of the iteration before.
    since_step: u32,
    /// From where the centroids were at the anchor.
    since_anchor: u32,
}

/// What is known of the points of a rank from earlier iterations.
pub struct Bounds {
    /// Centroids that a point keeps bounds for, one by one.
    near: usize,
    /// Of each point, in order of `since_step`.
    bounds: Vec<Near>,
    rest: Vec<Rest>,
    /// The points' lengths squared.
    norms: Vec<i64>,
    moves: Moves,
}

/// How the centroids moved.
struct Moves {
    now: Centroids,
    anchor: Centroids,
    /// In the last iteration.
    step: Vec<u32>,
    /// In all since paths were begun anew, added up.
    path: Vec<u32>,
    /// From the anchor, as the crow flies.
    from_anchor: Vec<u32>,
    /// Centroids, those first that moved farthest in the last iteration, and from the anchor.
    by_step: Vec<u32>,
    by_anchor: Vec<u32>,
    iterations: u32,
}

/// The units of bounds.
#[derive(Clone, Copy)]
struct Unit(Precision);

impl Unit {
    /// The root of a squared distance in units, rounded down.
    fn floor_root(self, squared: i64) -> u32 {
        let squared = squared.unsigned_abs();
        let in_units = match self.0 {
            Precision::Byte | Precision::Wide => squared << 12,
            Precision::Fine => squared >> 2,
        };
        in_units.isqrt() as u32
    }

    /// The same, at least as large.
    fn ceil_root(self, squared: i64) -> u32 {
        if squared == 0 { 0 } else { self.floor_root(squared) + 1 }
    }
}

impl Moves {
    fn new(centroids: &Centroids) -> Self {
        let none = vec![0; centroids.len()];
        let order: Vec<u32> = (0..centroids.len() as u32).collect();
        Self {
            now: centroids.clone(),
            anchor: centroids.clone(),
            step: none.clone(),
            path: none.clone(),
            from_anchor: none,
            by_step: order.clone(),
            by_anchor: order,
            iterations: 0,
        }
    }

    /// Takes note of where the centroids are now.
    fn advance(&mut self, centroids: &Centroids, threads: usize) {
        let unit = Unit(centroids.precision);
        let moved = |from: &Centroids, j: usize| {
            let pairs = from.coordinates(j).zip(centroids.coordinates(j));
            unit.ceil_root(pairs.map(|(a, b)| (a - b).pow(2)).sum())
        };
        let both = threads::map(threads, centroids.len(), |j| (moved(&self.now, j), moved(&self.anchor, j)));
        (self.step, self.from_anchor) = both.into_iter().unzip();
        self.path.iter_mut().zip(&self.step).for_each(|(path, step)| *path += step);
        self.by_step.sort_unstable_by_key(|&j| std::cmp::Reverse(self.step[j as usize]));
        self.by_anchor.sort_unstable_by_key(|&j| std::cmp::Reverse(self.from_anchor[j as usize]));
        self.now = centroids.clone();
        self.iterations += 1;
    }

    /// Whether this iteration's centroids are to be the next anchor: after 1, 2, 4, ... iterations, since centroids move less
    /// and less.
    fn anchors_anew(&self) -> bool {
        self.iterations.is_power_of_two() || self.path.iter().any(|&path| path > LONGEST)
    }

    fn anchor_here(&mut self) {
        self.anchor = self.now.clone();
        self.path.fill(0);
    }
}

/// What a thread needs for its points.
struct Search<'a> {
    points: &'a Points,
    unit: Unit,
    rows: Rows<'a>,
    norms: &'a [i64],
    pairs: Pairs<'a>,
    panels: Panels<'a>,
    moves: &'a Moves,
    /// Whether this iteration's centroids are the next anchor.
    anchors: bool,
    longest_path: u32,
    farthest_from_anchor: u32,
}

/// A run of points and what is known of them.
struct Piece<'a> {
    first: usize,
    near: usize,
    labels: &'a mut [u32],
    bounds: &'a mut [Near],
    rest: &'a mut [Rest],
}

/// A centroid and its squared distance; smaller is nearer, of equally near ones the first.
type Measured = (i64, u32);

impl Bounds {
    /// Bytes that bounds take for each point.
    pub fn bytes_per_point(near: usize) -> usize {
        near * size_of::<Near>() + size_of::<Rest>() + size_of::<i64>()
    }

    /// Bounds for the `near` nearest centroids of each point. Measures all distances and assigns the points by them.
    pub fn begin(
        points: &Points,
        centroids: &Centroids,
        near: usize,
        labels: &mut [u32],
        level: Level,
        threads: usize,
    ) -> (Self, Assigned) {
        let near = near.clamp(1, centroids.len());
        let rows = points.rows();
        let mut all = Self {
            near,
            bounds: vec![Near::default(); near * points.len()],
            rest: vec![Rest::default(); points.len()],
            norms: (0..points.len()).map(|i| rows.norm(i)).collect(),
            moves: Moves::new(centroids),
        };
        let found = all.each_piece(points, centroids, labels, level, threads, |search, piece| {
            let everyone: Vec<u32> = (0..piece.labels.len() as u32).collect();
            search.measure_all(piece, &everyone)
        });
        (all, found)
    }

    /// Assigns the points to the centroids where they are now.
    pub fn assign(
        &mut self,
        points: &Points,
        centroids: &Centroids,
        labels: &mut [u32],
        level: Level,
        threads: usize,
    ) -> Assigned {
        self.moves.advance(centroids, threads);
        let found = self.each_piece(points, centroids, labels, level, threads, |search, piece| {
            let mut found = Assigned::default();
            let mut unbounded = Vec::new();
            for i in 0..piece.labels.len() {
                if !search.by_bounds(piece, i, &mut found) {
                    unbounded.push(i as u32);
                }
            }
            Assigned::total([found, search.measure_all(piece, &unbounded)])
        });
        if self.moves.anchors_anew() {
            self.moves.anchor_here();
        }
        found
    }

    fn each_piece(
        &mut self,
        points: &Points,
        centroids: &Centroids,
        labels: &mut [u32],
        level: Level,
        threads: usize,
        work: impl Fn(&Search<'_>, &mut Piece<'_>) -> Assigned + Sync,
    ) -> Assigned {
        let near = self.near;
        let search = Search {
            points,
            rows: points.rows(),
            norms: &self.norms,
            unit: Unit(centroids.precision),
            pairs: Pairs::new(level, centroids.precision, &centroids.values, centroids.dims),
            panels: Panels::new(level, centroids.precision, &centroids.values, centroids.dims),
            moves: &self.moves,
            anchors: self.moves.anchors_anew(),
            longest_path: self.moves.path.iter().copied().max().unwrap_or(0),
            farthest_from_anchor: self.moves.from_anchor.iter().copied().max().unwrap_or(0),
        };
        let bounds = self.bounds.chunks_mut(PIECE * near).zip(self.rest.chunks_mut(PIECE));
        let pieces = labels.chunks_mut(PIECE).zip(bounds).enumerate();
        let piece = |(i, (labels, (bounds, rest)))| Piece { first: i * PIECE, near, labels, bounds, rest };
        let pieces: Vec<Piece<'_>> = pieces.map(piece).collect();
        Assigned::total(threads::map_mut(threads, pieces, |_, mut piece| work(&search, &mut piece)))
    }
}

impl Search<'_> {
    fn squared(&self, point: usize, centroid: u32) -> i64 {
        self.pairs.squared(self.rows, point, self.norms[point], centroid as usize)
    }

    /// A bound by a distance that was just measured.
    fn bound(&self, (squared, centroid): Measured) -> Near {
        let (distance, j) = (self.unit.floor_root(squared), centroid as usize);
        let since_anchor = distance.saturating_sub(self.moves.from_anchor[j]);
        Near { centroid, since_step: distance + self.moves.path[j], since_anchor }
    }

    /// How near the centroid of a bound may be by now.
    fn lower(&self, bound: &Near) -> u32 {
        let j = bound.centroid as usize;
        let since_step = bound.since_step.saturating_sub(self.moves.path[j]);
        since_step.max(bound.since_anchor.saturating_sub(self.moves.from_anchor[j]))
    }

    /// Assigns a point by what is known of it; false if too much would have to be measured.
    fn by_bounds(&self, piece: &mut Piece<'_>, i: usize, found: &mut Assigned) -> bool {
        let (near, point, own) = (piece.near, piece.first + i, piece.labels[i]);
        let bounds = &mut piece.bounds[i * near..(i + 1) * near];
        let own_measured: Measured = (self.squared(point, own), own);
        found.measured += 1;
        let mut best = own_measured;
        let mut changed = self.among_near(point, bounds, &mut best, found);
        let Some(outside) = self.outside(piece.rest[i], self.unit.ceil_root(best.0)) else { return false };
        let mut rest = Rest { since_step: outside.beyond, ..piece.rest[i] };
        for &centroid in outside.suspects {
            if bounds.iter().any(|bound| bound.centroid == centroid) {
                continue;
            }
            let lower = self.rest_lower(piece.rest[i], centroid);
            if lower > self.unit.ceil_root(best.0) {
                rest.since_step = rest.since_step.min(lower);
                continue;
            }
            let measured = (self.squared(point, centroid), centroid);
            found.measured += 1;
            best = best.min(measured);
            self.keep(bounds, own_measured, measured, best, &mut rest);
            changed = true;
        }
        if best.1 != own {
            self.renew(bounds, own_measured);
            changed = true;
        }
        self.finish(bounds, &mut rest, changed);
        piece.rest[i] = rest;
        found.note(&mut piece.labels[i], best, self.points.weight(point));
        true
    }

    /// Looks for a nearer one among the near centroids; says whether a bound was renewed.
    fn among_near(
        &self,
        point: usize,
        bounds: &mut [Near],
        best: &mut Measured,
        found: &mut Assigned,
    ) -> bool {
        let (own, mut changed) = (best.1, false);
        for bound in bounds {
            // All that follow were as far at least.
            if bound.since_step.saturating_sub(self.longest_path) > self.unit.ceil_root(best.0) {
                break;
            }
            if bound.centroid == own || self.lower(bound) > self.unit.ceil_root(best.0) {
                continue;
            }
            let measured = (self.squared(point, bound.centroid), bound.centroid);
            found.measured += 1;
            *bound = self.bound(measured);
            *best = (*best).min(measured);
            changed = true;
        }
        changed
    }

    /// How near a centroid that is not near may be by now.
    fn rest_lower(&self, rest: Rest, centroid: u32) -> u32 {
        let since_step = rest.since_step.saturating_sub(self.moves.step[centroid as usize]);
        since_step.max(rest.since_anchor.saturating_sub(self.moves.from_anchor[centroid as usize]))
    }

    /// Which centroids may be nearer than `limit` though they are not near; `None` if that is most of them.
    fn outside<'s>(&'s self, rest: Rest, limit: u32) -> Option<Outside<'s>> {
        let among = |order: &'s [u32], lower: u32, moved: &[u32]| {
            let lower = |&j: &u32| lower.saturating_sub(moved[j as usize]);
            let (suspects, others) = order.split_at(order.partition_point(|j| lower(j) <= limit));
            Outside { suspects, beyond: others.first().map_or(u32::MAX, lower) }
        };
        let moves = self.moves;
        let by_step = among(&moves.by_step, rest.since_step, &moves.step);
        let by_anchor = among(&moves.by_anchor, rest.since_anchor, &moves.from_anchor);
        let key = |o: &Outside<'_>| (o.suspects.len(), u32::MAX - o.beyond);
        let best = if key(&by_step) <= key(&by_anchor) { by_step } else { by_anchor };
        (best.suspects.len() * SINGLE_COST <= moves.step.len()).then_some(best)
    }

    /// Takes a measured centroid among the near ones, in place of the farthest, if it is nearer than that one or the best.
    fn keep(&self, bounds: &mut [Near], own: Measured, measured: Measured, best: Measured, rest: &mut Rest) {
        let farthest = bounds.iter_mut().filter(|b| b.centroid != best.1).max_by_key(|b| self.lower(b));
        let distance = self.unit.floor_root(measured.0);
        match farthest {
            Some(bound) if measured == best || distance < self.lower(bound) => {
                let gone = if bound.centroid == own.1 { self.bound(own) } else { *bound };
                rest.since_step = rest.since_step.min(self.lower(&gone));
                rest.since_anchor = rest.since_anchor.min(gone.since_anchor);
                *bound = self.bound(measured);
            }
            _ => rest.since_step = rest.since_step.min(distance),
        }
    }

    /// Replaces a centroid's bound by a distance that was just measured.
    fn renew(&self, bounds: &mut [Near], measured: Measured) {
        if let Some(bound) = bounds.iter_mut().find(|bound| bound.centroid == measured.1) {
            *bound = self.bound(measured);
        }
    }

    /// Leaves the bounds as the next iteration wants them.
    fn finish(&self, bounds: &mut [Near], rest: &mut Rest, changed: bool) {
        if self.anchors {
            for bound in bounds.iter_mut() {
                let lower = self.lower(bound);
                (bound.since_step, bound.since_anchor) = (lower, lower);
            }
            rest.since_anchor = rest.since_step;
        }
        if changed || self.anchors {
            bounds.sort_unstable_by_key(|bound| bound.since_step);
        }
    }

    /// Measures all distances of the given points of a piece, and begins their bounds anew.
    fn measure_all(&self, piece: &mut Piece<'_>, points: &[u32]) -> Assigned {
        let (k, near) = (self.panels.len(), piece.near);
        let mut found = Assigned { measured: (points.len() * k) as u64, ..Assigned::default() };
        let mut table = vec![0; k * TABLE_ROWS.min(points.len())];
        let mut order: Vec<Measured> = Vec::with_capacity(k);
        for points in points.chunks(TABLE_ROWS) {
            let rows: Vec<u32> = points.iter().map(|i| piece.first as u32 + i).collect();
            let table = &mut table[..k * points.len()];
            self.panels.all(self.rows, Picked::List(&rows), table);
            for (&i, distances) in points.iter().zip(table.chunks_exact(k)) {
                let i = i as usize;
                order.clear();
                order.extend(distances.iter().copied().zip(0u32..));
                let bounds = &mut piece.bounds[i * near..(i + 1) * near];
                piece.rest[i] = self.begin_bounds(&mut order, bounds);
                found.note(&mut piece.labels[i], order[0], self.points.weight(piece.first + i));
            }
        }
        found
    }

    /// Bounds by all distances, of which the smallest is put first.
    fn begin_bounds(&self, all: &mut [Measured], bounds: &mut [Near]) -> Rest {
        let mut rest = Rest { since_step: u32::MAX, since_anchor: u32::MAX };
        if bounds.len() < all.len() {
            let (_, next, _) = all.select_nth_unstable(bounds.len());
            rest.since_step = self.unit.floor_root(next.0);
            rest.since_anchor = rest.since_step.saturating_sub(self.farthest_from_anchor);
        }
        let nearest = &mut all[..bounds.len()];
        nearest.sort_unstable();
        bounds.iter_mut().zip(nearest).for_each(|(bound, measured)| *bound = self.bound(*measured));
        self.finish(bounds, &mut rest, true);
        rest
    }
}

/// Centroids that are not near.
struct Outside<'a> {
    /// Those that may matter.
    suspects: &'a [u32],
    /// A lower bound on the distances from all others.
    beyond: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::{assign, sum};
    use crate::grid::Metric;
    use crate::partition::draw;
    use proptest::prelude::*;

    /// Points in groups, so that bounds hold for some and fail for others.
    fn grouped(precision: Precision, n: usize, dims: usize, groups: u64, seed: u64) -> Points {
        let value = |i: usize| {
            let group = draw(seed, (i / dims) as u64) % groups;
            let corner = draw(seed + 1, group * dims as u64 + (i % dims) as u64) % 200;
            let near = (corner + draw(seed + 2, i as u64) % 40) as i64;
            // Beyond what one word holds, and with all of the lower one's values.
            if precision == Precision::Fine { near * 33_333 - 4_000_000 } else { near }
        };
        let rows = (0..n).map(|i| (i * dims..(i + 1) * dims).map(value));
        Points::new(precision, dims, rows.flat_map(|row| precision.to_words(row)).collect())
    }

    /// Lloyd's iterations, with labels and inertia of each by bounds and by all distances.
    fn check(
        points: &Points,
        k: usize,
        near: usize,
        level: Level,
        threads: usize,
        iterations: usize,
    ) -> Vec<u64> {
        let mut centroids = Centroids::at(points);
        centroids.values.truncate(k * points.width());
        let (mut labels, mut plain) = (vec![u32::MAX; points.len()], vec![u32::MAX; points.len()]);
        let mut bounds = None;
        let mut measured = Vec::new();
        for iteration in 0..iterations {
            let expected = assign(points, &centroids, &mut plain, Level::best(), 1);
            let found = match &mut bounds {
                None => {
                    let (begun, found) = Bounds::begin(points, &centroids, near, &mut labels, level, threads);
                    bounds = Some(begun);
                    found
                }
                Some(bounds) => bounds.assign(points, &centroids, &mut labels, level, threads),
            };
            assert_eq!(labels, plain, "iteration {iteration}");
            assert_eq!((found.changed, found.inertia), (expected.changed, expected.inertia));
            assert!(found.measured <= expected.measured + points.len() as u64 * 2);
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
            (k, n) in (1usize..40).prop_flat_map(|k| (Just(k), k..250)),
            dims in 1usize..12,
            groups in 1u64..30,
            near in 1usize..45,
            level in prop::sample::select(Level::available()),
            threads in 1usize..4,
            seed in 0u64..1 << 40,
        ) {
            check(&grouped(precision, n, dims, groups, seed), k, near, level, threads, 12);
        }
    }

    #[test]
    fn in_the_end_only_the_own_distance_is_measured() {
        let points = grouped(Precision::Byte, 3000, 16, 60, 3);
        let measured = check(&points, 50, 8, Level::best(), 2, 40);
        assert_eq!((measured[0], measured[39]), (150_000, 3000), "{measured:?}");
    }

    #[test]
    fn roots_enclose_the_distance() {
        let (short, fine) = ((Precision::Wide, 48, 64.0), (Precision::Fine, 61, 0.5));
        for (precision, bits, units) in [short, fine] {
            for squared in [0, 1, 2, 3, 4, 1 << 30, (1 << bits) - 1, 1 << bits] {
                let real = (squared as f64).sqrt() * units;
                let (low, high) = (Unit(precision).floor_root(squared), Unit(precision).ceil_root(squared));
                assert!(f64::from(low) <= real && real <= f64::from(high) && high - low <= 1, "{squared}");
            }
        }
    }
}
