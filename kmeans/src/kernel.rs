//! Which centroid is nearest, in exact integers.
//!
//! `|x - c|^2 = |x|^2 - 2 x.c + |c|^2`, so all the time goes into dot products of 16-bit numbers. The loop of
//! `dot` is plain on purpose: compilers turn it into multiply-and-add of eight pairs at once on every 64-bit
//! x86 (`pmaddwd`), about 15 products a nanosecond, where `f32` gets 9 and rounds.

use crate::grid::{Centroids, Points, Precision};

/// Products that a 32-bit sum holds: 256 * 255 * 32768 is just below 2^31.
const BLOCK: usize = 256;

/// Points compared with one centroid after another: few enough to stay in the first-level cache.
const TILE: usize = 16;

/// What the choice of centroids found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Points whose centroid is another than before.
    pub changed: i64,
    /// Sum of squared distances, in grid units with the centroids' fraction.
    pub inertia: u128,
}

/// The dot product of numbers whose products are below 2^23 in magnitude, as those of a byte and an `i16` are.
fn dot(x: &[i16], c: &[i16]) -> i64 {
    let block =
        |(x, c): (&[i16], &[i16])| x.iter().zip(c).map(|(&x, &c)| i32::from(x) * i32::from(c)).sum::<i32>();
    x.chunks(BLOCK).zip(c.chunks(BLOCK)).map(|b| i64::from(block(b))).sum()
}

/// A row's length squared.
fn squared(row: &[i16]) -> i64 {
    row.iter().map(|&v| i64::from(v) * i64::from(v)).sum()
}

/// The squared distance of one point from one centroid, in grid units with the centroids' fraction.
pub fn distance(point: &[i16], centroid: &[i16], precision: Precision) -> i64 {
    let apart = |(&x, &c): (&i16, &i16)| (i64::from(x) << precision.fraction()) - i64::from(c);
    point.iter().zip(centroid).map(|pair| apart(pair).pow(2)).sum()
}

/// Centroids made ready for comparing many points with them.
pub struct Nearest<'a> {
    centroids: &'a Centroids,
    norms: Vec<i64>,
}

impl<'a> Nearest<'a> {
    /// Prepares for these centroids, of which there must be one at least.
    pub fn new(centroids: &'a Centroids) -> Self {
        Self { centroids, norms: centroids.rows().map(squared).collect() }
    }

    /// Gives each point of `rows` (whole points, on the centroids' grid) the number of its nearest centroid, the
    /// smallest of several equally near.
    pub fn assign(&self, rows: &[i16], labels: &mut [u32]) -> Assigned {
        let dims = self.centroids.dims;
        let mut planes = Planes::default();
        let mut all = Assigned::default();
        for (tile, labels) in rows.chunks(TILE * dims).zip(labels.chunks_mut(TILE)) {
            planes.split(tile, self.centroids.precision);
            let mut best = [(i64::MAX, 0u32); TILE];
            for ((centroid, norm), j) in self.centroids.rows().zip(&self.norms).zip(0u32..) {
                for (i, best) in best[..labels.len()].iter_mut().enumerate() {
                    let product = planes.dot(tile, i * dims, centroid);
                    let score = norm - (product << (self.centroids.precision.fraction() + 1));
                    if score < best.0 {
                        *best = (score, j);
                    }
                }
            }
            for ((row, label), (score, j)) in tile.chunks_exact(dims).zip(labels).zip(best) {
                all.changed += i64::from(*label != j);
                *label = j;
                let norm = squared(row) << (2 * self.centroids.precision.fraction());
                all.inertia += (norm + score) as u128;
            }
        }
        all
    }
}

/// Wide coordinates as two planes of bytes, `x = 256 * high + low`, so that one loop serves both precisions.
#[derive(Default)]
struct Planes {
    high: Vec<i16>,
    low: Vec<i16>,
}

impl Planes {
    fn split(&mut self, tile: &[i16], precision: Precision) {
        self.high.clear();
        self.low.clear();
        if precision == Precision::Wide {
            self.high.extend(tile.iter().map(|x| x >> 8));
            self.low.extend(tile.iter().map(|x| x & 255));
        }
    }

    /// The dot product of `centroid` with the point that starts at `at` in `tile`.
    fn dot(&self, tile: &[i16], at: usize, centroid: &[i16]) -> i64 {
        let row = at..at + centroid.len();
        if self.high.is_empty() {
            return dot(&tile[row], centroid);
        }
        (dot(&self.high[row.clone()], centroid) << 8) + dot(&self.low[row], centroid)
    }
}

/// Assigns all points with several threads; each takes a run of them.
pub fn assign(points: &Points, centroids: &Centroids, labels: &mut [u32], threads: usize) -> Assigned {
    let nearest = Nearest::new(centroids);
    let share = points.len().div_ceil(threads).max(1);
    let parts = points.values.chunks(share * points.dims).zip(labels.chunks_mut(share));
    let found: Vec<Assigned> = std::thread::scope(|scope| {
        let nearest = &nearest;
        let running: Vec<_> =
            parts.map(|(rows, labels)| scope.spawn(move || nearest.assign(rows, labels))).collect();
        running.into_iter().map(joined).collect()
    });
    found.into_iter().fold(Assigned::default(), |a, b| Assigned {
        changed: a.changed + b.changed,
        inertia: a.inertia + b.inertia,
    })
}

/// Sums and counts of each centroid's points. Each thread takes a run of centroids, so that a node holds one set of
/// sums whatever its threads.
pub fn sum(points: &Points, labels: &[u32], k: usize, threads: usize) -> (Vec<i64>, Vec<i64>) {
    let mut sums = vec![0i64; k * points.dims];
    let mut counts = vec![0i64; k];
    let share = k.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts =
            sums.chunks_mut(share * points.dims).zip(counts.chunks_mut(share)).zip((0..k).step_by(share));
        for ((sums, counts), first) in parts {
            scope.spawn(move || {
                for (row, &label) in points.values.chunks_exact(points.dims).zip(labels) {
                    let Some(j) = (label as usize).checked_sub(first).filter(|j| *j < counts.len()) else {
                        continue;
                    };
                    counts[j] += 1;
                    let sums = &mut sums[j * points.dims..(j + 1) * points.dims];
                    sums.iter_mut().zip(row).for_each(|(s, &x)| *s += i64::from(x));
                }
            });
        }
    });
    (sums, counts)
}

/// A thread's result; its panic goes on in the caller.
pub(crate) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain_choice(points: &Points, centroids: &Centroids) -> (Vec<u32>, u128) {
        let nearest = |i: usize| {
            let all = centroids.rows().zip(0u32..);
            all.map(|(c, j)| (distance(points.row(i), c, points.precision), j)).min().expect("k > 0")
        };
        let chosen: Vec<_> = (0..points.len()).map(nearest).collect();
        (chosen.iter().map(|c| c.1).collect(), chosen.iter().map(|c| c.0 as u128).sum())
    }

    fn case(precision: Precision) -> impl Strategy<Value = (Points, Centroids)> {
        let x = match precision {
            Precision::Byte => 0..=255i16,
            Precision::Wide => -32767..=32767i16,
        };
        let c = match precision {
            Precision::Byte => 0..=32640i16,
            Precision::Wide => -32767..=32767i16,
        };
        (1usize..600, 0usize..40, 1usize..9).prop_flat_map(move |(dims, n, k)| {
            let points = prop::collection::vec(x.clone(), n * dims);
            let centroids = prop::collection::vec(c.clone(), k * dims);
            (points, centroids).prop_map(move |(values, c)| {
                (Points { precision, dims, values }, Centroids { precision, dims, values: c })
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_number_of_threads_chooses_as_the_plain_definition(
            (points, centroids) in prop_oneof![case(Precision::Byte), case(Precision::Wide)],
            threads in 1usize..5,
        ) {
            let mut labels = vec![u32::MAX; points.len()];
            let found = assign(&points, &centroids, &mut labels, threads);
            let (expected, inertia) = plain_choice(&points, &centroids);
            prop_assert_eq!(&labels, &expected);
            prop_assert_eq!(found, Assigned { changed: points.len() as i64, inertia });

            let (sums, counts) = sum(&points, &labels, centroids.len(), threads);
            for j in 0..centroids.len() {
                let mine: Vec<_> = (0..points.len()).filter(|&i| labels[i] == j as u32).collect();
                prop_assert_eq!(counts[j], mine.len() as i64);
                for d in 0..points.dims {
                    let plain: i64 = mine.iter().map(|&i| i64::from(points.row(i)[d])).sum();
                    prop_assert_eq!(sums[j * points.dims + d], plain);
                }
            }
        }
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        for (precision, x, c) in [(Precision::Byte, 255, 32640), (Precision::Wide, -32767, -32768)] {
            let points = Points { precision, dims: 5000, values: vec![x; 5000] };
            let centroids = Centroids { precision, dims: 5000, values: vec![c; 5000] };
            let found = assign(&points, &centroids, &mut [0], 1);
            assert_eq!(found.inertia, plain_choice(&points, &centroids).1);
        }
    }

    #[test]
    fn of_equally_near_centroids_the_first_is_chosen() {
        let points = Points { precision: Precision::Wide, dims: 1, values: vec![0] };
        let centroids = Centroids { precision: Precision::Wide, dims: 1, values: vec![3, -3, 3] };
        let mut labels = [9];
        assign(&points, &centroids, &mut labels, 1);
        assert_eq!(labels, [0]);
    }
}
