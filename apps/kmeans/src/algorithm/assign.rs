//! Each point's nearest centroid, and the sums of each centroid's points, on all threads of a rank.

use crate::data::grid::{Centroids, PointValues, Points};
use cool_distance::{Panels, RowSelection, SimdLevel};
use cool_map::Rows;
use cool_map::threads;
use std::ops::Range;
use std::time::Instant;

/// The label of points that are not assigned to a centroid.
pub const NO_LABEL: u32 = u32::MAX;

/// Number of points per unit of work of a thread.
pub(crate) const PIECE: usize = 1024;

/// Statistics of an assignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssignmentStats {
    /// Number of points that changed their centroid.
    pub changed: i64,
    /// Sum of squared distances, each multiplied by the point's weight, in squared units of the
    /// centroids' grid.
    pub inertia: u128,
    /// Number of distances that were measured.
    pub measured: u64,
}

impl AssignmentStats {
    /// Records a point of the given weight, and sets its label.
    pub(crate) fn record(&mut self, label: &mut u32, (squared, index): (i64, u32), weight: i64) {
        self.changed += i64::from(*label != index);
        self.inertia += u128::from(squared.unsigned_abs()) * u128::from(weight.unsigned_abs());
        *label = index;
    }

    /// Returns the sum over several parts of the points.
    pub(crate) fn total(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |a, b| Self {
            changed: a.changed + b.changed,
            inertia: a.inertia + b.inertia,
            measured: a.measured + b.measured,
        })
    }
}

/// The labels of consecutive points.
pub struct LabelRun<'a> {
    /// Number of the first point.
    pub first: usize,
    /// Label of each point.
    pub labels: &'a mut [u32],
}

impl<'a> LabelRun<'a> {
    /// Splits the labels of all points into runs of `piece` points.
    pub fn pieces(labels: &'a mut [u32], piece: usize) -> impl Iterator<Item = Self> {
        labels.chunks_mut(piece).enumerate().map(move |(i, labels)| Self { first: i * piece, labels })
    }

    /// Returns the numbers of the points.
    pub fn rows(&self) -> Range<usize> {
        self.first..self.first + self.labels.len()
    }
}

/// Statistics of an assignment, and its cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimedStats {
    /// The statistics.
    pub found: AssignmentStats,
    /// Number of points.
    pub points: usize,
    /// Sum of the threads' seconds.
    pub seconds: f64,
}

impl TimedStats {
    /// Measures the time that `find` takes to assign `points` points.
    pub(crate) fn measure(points: usize, find: impl FnOnce() -> AssignmentStats) -> Self {
        let start = Instant::now();
        Self { found: find(), points, seconds: start.elapsed().as_secs_f64() }
    }

    /// Returns the sum over several parts of the points.
    pub(crate) fn total(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |a, b| Self {
            found: AssignmentStats::total([a.found, b.found]),
            points: a.points + b.points,
            seconds: a.seconds + b.seconds,
        })
    }
}

/// Assigns each point to its nearest centroid by measuring all distances. Of equally near
/// centroids, the one with the smallest number is chosen. Returns the statistics.
pub fn assign(
    points: &Points,
    centroids: &Centroids,
    labels: &mut [u32],
    level: SimdLevel,
    threads: usize,
) -> AssignmentStats {
    assign_runs(points, centroids, LabelRun::pieces(labels, PIECE).collect(), level, threads).found
}

/// Does the same for some runs of points. Returns the statistics with the time.
pub fn assign_runs(
    points: &Points,
    centroids: &Centroids,
    runs: Vec<LabelRun<'_>>,
    level: SimdLevel,
    threads: usize,
) -> TimedStats {
    if runs.is_empty() {
        return TimedStats::default();
    }
    let rows = points.rows();
    let panels = Panels::new(level, centroids.precision, &centroids.values, centroids.dims);
    TimedStats::total(threads::map_mut(threads, runs, |_, LabelRun { first, labels }| {
        let measured = labels.len() * centroids.len();
        let picked = RowSelection::Run { first, count: labels.len() };
        TimedStats::measure(labels.len(), || {
            let mut found = AssignmentStats { measured: measured as u64, ..AssignmentStats::default() };
            panels.nearest(rows, picked, |i, nearest| {
                let weight = points.weight(first + i);
                found.record(&mut labels[i], (nearest.squared, nearest.index), weight);
            });
            found
        })
    }))
}

/// Assigns some points to their nearest centroids, as [`assign`] does.
pub(crate) fn assign_some(
    points: &Points,
    some: &[u32],
    centroids: &Centroids,
    labels: &mut [u32],
    level: SimdLevel,
    threads: usize,
) {
    let rows = points.rows();
    let panels = Panels::new(level, centroids.precision, &centroids.values, centroids.dims);
    let found = threads::map_mut(threads, some.chunks(PIECE).collect(), |_, some| {
        let mut found = Vec::with_capacity(some.len());
        panels.nearest(rows, RowSelection::List(some), |_, nearest| found.push(nearest.index));
        found
    });
    some.iter().zip(found.into_iter().flatten()).for_each(|(i, label)| labels[*i as usize] = label);
}

/// Returns the sums of each centroid's points by coordinate, followed by their weight. Threads
/// share one set of sums, because each sums the points of different centroids.
///
/// Points are processed centroid by centroid, so that a sum stays in the first-level cache until it
/// is complete.
pub fn sum(points: &Points, labels: &[u32], k: usize, threads: usize) -> Rows<i64> {
    let (starts, members) = by_label(labels, k);
    let members = |j: usize| &members[starts[j]..starts[j + 1]];
    let owners: Vec<usize> = (0..k).filter(|j| !members(*j).is_empty()).collect();
    let mut table = Rows::zeros(k, points.dims + 1, &owners);
    let mut rows: Vec<_> = owners.iter().zip(table.rows_mut()).collect();
    let share = rows.len().div_ceil(8 * threads).max(1);
    threads::map_mut(threads, rows.chunks_mut(share).collect(), |_, rows: &mut [(&usize, &mut [i64])]| {
        for (j, row) in rows {
            let (sums, weight) = row.split_at_mut(points.dims);
            add(points, members(**j), sums);
            weight[0] = members(**j).iter().map(|i| points.weight(*i as usize)).sum();
        }
    });
    table
}

/// Sorts the points by label (counting sort). Returns the index at which each label starts, and the
/// points.
fn by_label(labels: &[u32], k: usize) -> (Vec<usize>, Vec<u32>) {
    let labeled = || (0u32..).zip(labels).filter(|(_, label)| **label != NO_LABEL);
    let mut starts = vec![0; k + 1];
    labeled().for_each(|(_, label)| starts[*label as usize + 1] += 1);
    (0..k).for_each(|j| starts[j + 1] += starts[j]);
    let (mut next, mut members) = (starts.clone(), vec![0; starts[k]]);
    for (i, label) in labeled() {
        members[next[*label as usize]] = i;
        next[*label as usize] += 1;
    }
    (starts, members)
}

/// Adds the given points to a sum.
fn add(points: &Points, members: &[u32], sums: &mut [i64]) {
    if points.weights.is_some() {
        for &i in members {
            let weight = points.weight(i as usize);
            sums.iter_mut().zip(points.rows().row(i as usize)).for_each(|(sum, x)| *sum += weight * x);
        }
        return;
    }
    let row = |i: u32| i as usize * points.width()..(i as usize + 1) * points.width();
    match &points.values {
        PointValues::Byte(values) => add_rows(members.iter().map(|&i| &values[row(i)]), sums),
        PointValues::Wide(values) => add_rows(members.iter().map(|&i| &values[row(i)]), sums),
        PointValues::Fine(values) => {
            let mut words = vec![0; points.width()];
            add_rows(members.iter().map(|&i| &values[row(i)]), &mut words);
            let (upper, lower) = words.split_at(points.dims);
            sums.iter_mut().zip(upper.iter().zip(lower)).for_each(|(sum, (u, l))| *sum += 256 * u + l);
        }
    }
}

/// Adds rows by 32-bit sums, which can hold 65,536 of the largest numbers.
fn add_rows<'a, T: Copy + Into<i32> + 'a>(rows: impl Iterator<Item = &'a [T]>, sums: &mut [i64]) {
    let mut narrow = vec![0i32; sums.len()];
    let mut flush = |narrow: &mut [i32]| {
        sums.iter_mut().zip(narrow.iter_mut()).for_each(|(s, n)| *s += i64::from(std::mem::take(n)));
    };
    for (i, row) in (1u32..).zip(rows) {
        narrow.iter_mut().zip(row).for_each(|(s, &x)| *s += x.into());
        if i.is_multiple_of(65_536) {
            flush(&mut narrow);
        }
    }
    flush(&mut narrow);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::grid::Precision;
    use cool_distance::scalar;
    use proptest::prelude::*;

    fn case(precision: Precision) -> impl Strategy<Value = (Points, Centroids)> {
        let within = |(least, most)| least..=most;
        (1usize..40, 0usize..60, 1usize..9).prop_flat_map(move |(dims, n, k)| {
            let points = prop::collection::vec(within(precision.range()), n * dims);
            let centroids = prop::collection::vec(within(precision.centroid_range()), k * dims);
            let words = move |rows: &[i64]| -> Vec<i16> {
                rows.chunks(dims).flat_map(|row| precision.to_words(row.iter().copied())).collect()
            };
            (points, centroids).prop_map(move |(points, centroids)| {
                let values = words(&centroids);
                (Points::new(precision, dims, words(&points)), Centroids { precision, dims, values })
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_number_of_threads_matches_the_plain_definition(
            (points, centroids) in prop_oneof![case(Precision::Byte), case(Precision::Wide), case(Precision::Fine)],
            threads in 1usize..5,
            weights in prop::option::of(prop::collection::vec(any::<u16>(), 60)),
        ) {
            let n = points.len();
            let points = Points { weights: weights.map(|weights| weights[..n].to_vec()), ..points };
            let mut labels = vec![u32::MAX; points.len()];
            let found = assign(&points, &centroids, &mut labels, SimdLevel::best(), threads);
            let expected: Vec<_> =
                (0..points.len()).map(|i| scalar::nearest(points.rows(), i, &centroids.values)).collect();
            prop_assert_eq!(&labels, &expected.iter().map(|n| n.index).collect::<Vec<_>>());
            let inertia = (0..n).map(|i| expected[i].squared as u128 * points.weight(i) as u128).sum();
            let measured = (points.len() * centroids.len()) as u64;
            prop_assert_eq!(found, AssignmentStats { changed: points.len() as i64, inertia, measured });

            let mut plain = Rows::new(centroids.len(), points.dims + 1);
            for (i, label) in labels.iter().enumerate() {
                let row: Vec<i64> = points.rows().row(i).chain([1]).map(|x| x * points.weight(i)).collect();
                plain.add(*label as usize, &row);
            }
            let sums = sum(&points, &labels, centroids.len(), threads);
            prop_assert!(sums.iter().eq(plain.iter()));

            let some: Vec<u32> = (0..n as u32).rev().step_by(3).collect();
            let mut few = vec![NO_LABEL; n];
            assign_some(&points, &some, &centroids, &mut few, SimdLevel::best(), threads);
            for (i, label) in (0u32..).zip(few) {
                prop_assert_eq!(label, if some.contains(&i) { labels[i as usize] } else { NO_LABEL });
            }
        }
    }

    #[test]
    fn sums_of_very_many_points_do_not_overflow() {
        let (n, dims) = (200_000, 1);
        for x in [32_767, -32_767] {
            let points = Points::new(Precision::Wide, dims, vec![x; n]);
            let sums = sum(&points, &vec![0; n], 1, 2);
            assert_eq!(sums.iter().next(), Some((0, &[i64::from(x) * n as i64, n as i64][..])));
        }
    }
}
