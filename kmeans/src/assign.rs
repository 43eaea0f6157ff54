//! Each point's nearest centroid, and the sums of each centroid's points, on all threads of a rank.

use crate::grid::{Centroids, Points, Values};
use crate::threads;
use cool_distance::{Level, Panels, Picked};

/// Points that a thread takes at a time.
const PIECE: usize = 2048;

/// What the choice of centroids found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Points whose centroid is another than before.
    pub changed: i64,
    /// Sum of squared distances, in units of the centroids' grid, squared.
    pub inertia: u128,
    /// Distances that were measured.
    pub measured: u64,
}

impl Assigned {
    /// Takes note of a point.
    pub(crate) fn note(&mut self, label: &mut u32, index: u32, squared: i64) {
        self.changed += i64::from(*label != index);
        self.inertia += squared.unsigned_abs() as u128;
        *label = index;
    }

    /// Of several parts of the points.
    pub(crate) fn total(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |a, b| Self {
            changed: a.changed + b.changed,
            inertia: a.inertia + b.inertia,
            measured: a.measured + b.measured,
        })
    }
}

/// Gives each point the number of its nearest centroid, the smallest of several equally near, by all distances.
pub fn assign(
    points: &Points,
    centroids: &Centroids,
    labels: &mut [u32],
    level: Level,
    threads: usize,
) -> Assigned {
    let rows = points.rows();
    let panels = Panels::new(level, centroids.precision, &centroids.values, centroids.dims);
    let found = threads::map_mut(threads, labels.chunks_mut(PIECE).collect(), |piece, labels| {
        let measured = labels.len() * centroids.len();
        let mut found = Assigned { measured: measured as u64, ..Assigned::default() };
        let picked = Picked::Run { first: piece * PIECE, count: labels.len() };
        panels.nearest(rows, picked, |i, nearest| found.note(&mut labels[i], nearest.index, nearest.squared));
        found
    });
    Assigned::total(found)
}

/// Sums and counts of each centroid's points, one set whatever the threads.
///
/// Points are taken centroid by centroid, so that a sum stays in the first-level cache until it is complete.
pub fn sum(points: &Points, labels: &[u32], k: usize, threads: usize) -> (Vec<i64>, Vec<i64>) {
    let (starts, members) = by_label(labels, k);
    let counts = starts.windows(2).map(|w| (w[1] - w[0]) as i64).collect();
    let mut sums = vec![0i64; k * points.dims];
    let share = k.div_ceil(8 * threads).max(1);
    threads::map_mut(threads, sums.chunks_mut(share * points.dims).collect(), |piece, sums| {
        for (sums, j) in sums.chunks_exact_mut(points.dims).zip(piece * share..) {
            add(points, &members[starts[j]..starts[j + 1]], sums);
        }
    });
    (sums, counts)
}

/// The points in order of their labels (counting sort), and where each label's begin.
fn by_label(labels: &[u32], k: usize) -> (Vec<usize>, Vec<u32>) {
    let mut starts = vec![0; k + 1];
    labels.iter().for_each(|&label| starts[label as usize + 1] += 1);
    (0..k).for_each(|j| starts[j + 1] += starts[j]);
    let (mut next, mut members) = (starts.clone(), vec![0; labels.len()]);
    for (i, &label) in (0u32..).zip(labels) {
        members[next[label as usize]] = i;
        next[label as usize] += 1;
    }
    (starts, members)
}

/// Adds the given points.
fn add(points: &Points, members: &[u32], sums: &mut [i64]) {
    let row = |i: u32| i as usize * points.dims..(i as usize + 1) * points.dims;
    match &points.values {
        Values::Byte(values) => add_rows(members.iter().map(|&i| &values[row(i)]), sums),
        Values::Wide(values) => add_rows(members.iter().map(|&i| &values[row(i)]), sums),
    }
}

/// Adds rows by 32-bit sums, which hold 65,536 of the largest numbers.
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
    use crate::grid::Precision;
    use cool_distance::scalar;
    use proptest::prelude::*;

    fn case(precision: Precision) -> impl Strategy<Value = (Points, Centroids)> {
        let (x, c) = match precision {
            Precision::Byte => (0..=255i16, 0..=32_640i16),
            Precision::Wide => (-32_767..=32_767i16, -32_767..=32_767i16),
        };
        (1usize..40, 0usize..60, 1usize..9).prop_flat_map(move |(dims, n, k)| {
            let points = prop::collection::vec(x.clone(), n * dims);
            let centroids = prop::collection::vec(c.clone(), k * dims);
            (points, centroids).prop_map(move |(x, values)| {
                (Points::new(precision, dims, x), Centroids { precision, dims, values })
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_number_of_threads_chooses_and_sums_as_the_plain_definition(
            (points, centroids) in prop_oneof![case(Precision::Byte), case(Precision::Wide)],
            threads in 1usize..5,
        ) {
            let mut labels = vec![u32::MAX; points.len()];
            let found = assign(&points, &centroids, &mut labels, Level::best(), threads);
            let expected: Vec<_> =
                (0..points.len()).map(|i| scalar::nearest(points.rows(), i, &centroids.values)).collect();
            prop_assert_eq!(&labels, &expected.iter().map(|n| n.index).collect::<Vec<_>>());
            let inertia = expected.iter().map(|n| n.squared as u128).sum();
            let measured = (points.len() * centroids.len()) as u64;
            prop_assert_eq!(found, Assigned { changed: points.len() as i64, inertia, measured });

            let (sums, counts) = sum(&points, &labels, centroids.len(), threads);
            for j in 0..centroids.len() {
                let mine: Vec<_> = (0..points.len()).filter(|&i| labels[i] == j as u32).collect();
                prop_assert_eq!(counts[j], mine.len() as i64);
                let mut plain = vec![0; points.dims];
                for i in mine {
                    plain.iter_mut().zip(points.rows().row(i)).for_each(|(s, x)| *s += x);
                }
                prop_assert_eq!(&sums[j * points.dims..(j + 1) * points.dims], plain);
            }
        }
    }

    #[test]
    fn sums_of_very_many_points_do_not_overflow() {
        let (n, dims) = (200_000, 1);
        for x in [32_767, -32_767] {
            let points = Points::new(Precision::Wide, dims, vec![x; n]);
            assert_eq!(sum(&points, &vec![0; n], 1, 2), (vec![i64::from(x) * n as i64], vec![n as i64]));
        }
    }
}
