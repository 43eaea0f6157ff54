//! Clustering of points that a program has in memory, in the units of the input: centers are the
//! means of the points as the program passed them, and each point belongs to the nearest of them.
//!
//! The iterations work on the grid, which rounds coordinates. The final means must not be rounded
//! that way, so they are computed from the original numbers. The numbers are converted to integers
//! of 53 bits, because sums of integers are the same on any ranks and threads.

use crate::algorithm::lloyd::GridClustering;
use crate::data::grid::{Grid, MAX_DIMS, PointValues, Reals};
use crate::data::inputs::PointSource;
use crate::data::partition::Subsample;
use crate::data::point_share::{PointShare, grid_between};
use crate::data::weights::Weights;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Op;
use cool_map::Rows;
use cool_map::threads;

/// Bits of the integers that represent real numbers, without the sign.
const BITS: i32 = 53;

/// Bits of the lower of the two parts of a sum.
const LOW_BITS: u32 = 34;

/// Number of rows per unit of work of a thread.
const PIECE: usize = 1024;

/// Number of squares that are added in parallel.
const LANES: usize = 8;

/// Rows of numbers, one after the other.
#[derive(Clone, Copy, Debug)]
pub enum InputRows<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Finite numbers.
    Reals(&'a [f64]),
}

impl InputRows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(numbers) => numbers.len(),
            Self::Reals(numbers) => numbers.len(),
        }
    }

    /// Passes each row to `take`.
    fn each(&self, dims: usize, mut take: impl FnMut(usize, &[f64])) {
        match self {
            Self::Reals(numbers) => {
                numbers.chunks_exact(dims).enumerate().for_each(|(i, row)| take(i, row));
            }
            Self::Bytes(numbers) => {
                let mut real = vec![0.0; dims];
                for (i, row) in numbers.chunks_exact(dims).enumerate() {
                    real.iter_mut().zip(row).for_each(|(to, byte)| *to = f64::from(*byte));
                    take(i, &real);
                }
            }
        }
    }
}

/// A clustering in the units of the points.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    /// Coordinates of the centers, at all ranks.
    pub centers: Vec<f64>,
    /// The nearest center of each of this rank's points; of equally near centers, the first.
    pub labels: Vec<u32>,
    /// Sum of squared distances between all ranks' points and their centers.
    pub inertia: f64,
}

impl PointShare {
    /// Returns this rank's share of the points that the ranks pass. Points are numbered in the
    /// order of ranks. Weights must be finite numbers of at least 0; by default, each is 1. All
    /// ranks must call this, with equal `dims` and the same kind of numbers. A rank may have no
    /// rows. `reals` determines how numbers other than bytes are stored.
    pub fn from_memory(
        peers: &PeerRanks<'_>,
        rows: InputRows<'_>,
        dims: usize,
        weights: Option<&[f64]>,
        reals: Reals,
    ) -> Result<Self, Error> {
        let most = if matches!(rows, InputRows::Bytes(_)) { MAX_DIMS } else { reals.max_dims() };
        let checked = if (1..=most).contains(&dims) {
            Ok(())
        } else {
            Err(Error::Input(format!("points of {dims} coordinates; 1 to {most} are supported")))
        };
        peers.agree(checked)?;
        let kind = u64::from(matches!(rows, InputRows::Bytes(_))) + 2 * u64::from(weights.is_some());
        let all = peers.all_gather(vec![(rows.len() / dims) as u64, dims as u64, kind])?;
        let each: Vec<&[u64]> = all.chunks_exact(3).collect();
        if let Some(other) = each.iter().position(|one| one[1..] != each[0][1..]) {
            return Err(Error::Input(format!(
                "rank {other} passed points of {} coordinates, rank 0 of {}, or they differ in the type of numbers or in whether they have weights",
                each[other][1], each[0][1]
            )));
        }
        let first: u64 = each[..peers.rank()].iter().map(|one| one[0]).sum();
        let range = first..first + each[peers.rank()][0];
        let total = each.iter().map(|one| one[0]).sum();
        let grid = match rows {
            InputRows::Bytes(_) => Grid::bytes(dims, 1.0),
            InputRows::Reals(_) => spanning(peers, reals, rows, dims)?,
        };
        let mut points = grid.empty_points();
        match rows {
            InputRows::Bytes(numbers) => points.values = PointValues::Byte(numbers.to_vec()),
            InputRows::Reals(numbers) => {
                points.reserve(numbers.len() / dims);
                grid.quantize(numbers, &mut points);
            }
        }
        let weights = match weights {
            Some(weights) => {
                let (weights, integers) = Weights::from_memory(peers, weights)?;
                points.weights = Some(integers);
                Some(weights)
            }
            None => None,
        };
        let chosen = Subsample::new(total, u64::MAX, 0);
        let source = PointSource::InMemory { rows: total, dims };
        Ok(Self { source, chosen, range, grid, points, weights })
    }

    /// Returns the clustering of these points in the units of the input. All ranks must call this.
    pub fn in_input_units(
        &self,
        peers: &PeerRanks<'_>,
        rows: InputRows<'_>,
        clustered: &GridClustering,
        threads: usize,
    ) -> Result<Clustering, Error> {
        let centers = self.means(peers, rows, clustered)?;
        let nearest = match rows {
            InputRows::Reals(numbers) => nearest(numbers, &centers, self.points.dims, threads),
            InputRows::Bytes(numbers) => {
                let real: Vec<f64> = numbers.iter().map(|byte| f64::from(*byte)).collect();
                nearest(&real, &centers, self.points.dims, threads)
            }
        };
        let (labels, squared): (Vec<u32>, Vec<f64>) = nearest.into_iter().unzip();
        let largest = squared.iter().fold(0.0f64, |most, x| most.max(*x));
        let fixed = FixedPoint::holding(peers.combine(vec![largest], Op::Max)?[0]);
        let weigh = |(i, x): (usize, &f64)| i128::from(fixed.integer(*x)) * i128::from(self.points.weight(i));
        let (high, low) = parts(squared.iter().enumerate().map(weigh).sum());
        let all = peers.combine(vec![high, low], Op::Sum)?;
        let unit = self.weights.as_ref().map_or(1.0, |weights| weights.unit);
        Ok(Clustering { centers, labels, inertia: unit * fixed.real(joined_sum(all[0], all[1])) })
    }

    /// Returns the mean of the points of each cluster. For a cluster without points, returns its
    /// centroid.
    fn means(
        &self,
        peers: &PeerRanks<'_>,
        rows: InputRows<'_>,
        clustered: &GridClustering,
    ) -> Result<Vec<f64>, Error> {
        let (dims, k) = (self.points.dims, clustered.centroids.len());
        let mut most = vec![0.0f64; dims];
        rows.each(dims, |_, row| most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(x.abs())));
        let fixed: Vec<FixedPoint> =
            peers.combine(most, Op::Max)?.into_iter().map(FixedPoint::holding).collect();
        // For each coordinate the high and the low part, then the weight of the points.
        let mut sums = Rows::<i64>::new(k, 2 * dims + 1);
        rows.each(dims, |i, row| {
            let (sum, weight) = (sums.row_mut(clustered.labels[i] as usize), self.points.weight(i));
            for (d, (x, fixed)) in row.iter().zip(&fixed).enumerate() {
                let (high, low) = parts(i128::from(fixed.integer(*x)) * i128::from(weight));
                sum[2 * d] += high;
                sum[2 * d + 1] += low;
            }
            sum[2 * dims] += weight;
        });
        let sums = peers.share(peers.regroup(sums)?)?;
        let mut centers = self.grid.real(&clustered.centroids);
        for (j, sum) in sums.iter().filter(|(_, sum)| sum[2 * dims] > 0) {
            let count = sum[2 * dims] as f64;
            for (d, fixed) in fixed.iter().enumerate() {
                centers[j * dims + d] = fixed.real(joined_sum(sum[2 * d], sum[2 * d + 1])) / count;
            }
        }
        Ok(centers)
    }
}

/// Returns the grid that spans all ranks' rows.
fn spanning(peers: &PeerRanks<'_>, reals: Reals, rows: InputRows<'_>, dims: usize) -> Result<Grid, Error> {
    let mut bounds = (vec![f64::MAX; dims], vec![f64::MIN; dims]);
    rows.each(dims, |_, row| {
        bounds.0.iter_mut().zip(row).for_each(|(low, x)| *low = low.min(*x));
        bounds.1.iter_mut().zip(row).for_each(|(high, x)| *high = high.max(*x));
    });
    grid_between(peers, reals, bounds.0, bounds.1)
}

/// Returns the nearest center of each row, of equally near ones the first, and its squared
/// distance.
pub fn nearest(rows: &[f64], centers: &[f64], dims: usize, threads: usize) -> Vec<(u32, f64)> {
    let piece = |i: usize| {
        let rows = &rows[i * PIECE * dims..rows.len().min((i + 1) * PIECE * dims)];
        rows.chunks_exact(dims).map(|row| nearest_of(row, centers, dims)).collect::<Vec<_>>()
    };
    threads::map(threads, rows.len().div_ceil(PIECE * dims), piece).concat()
}

fn nearest_of(row: &[f64], centers: &[f64], dims: usize) -> (u32, f64) {
    let mut nearest = (0, f64::INFINITY);
    for (j, center) in centers.chunks_exact(dims).enumerate() {
        let squared = squared(row, center);
        if squared < nearest.1 {
            nearest = (j as u32, squared);
        }
    }
    nearest
}

/// Returns a squared distance. Its terms are added to [`LANES`] partial sums, so that the compiler
/// can use vector instructions without changing the result.
fn squared(row: &[f64], center: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (rows, row_rest) = row.as_chunks::<LANES>();
    let (centers, center_rest) = center.as_chunks::<LANES>();
    for (x, c) in rows.iter().zip(centers) {
        for lane in 0..LANES {
            lanes[lane] += (x[lane] - c[lane]) * (x[lane] - c[lane]);
        }
    }
    let rest: f64 = row_rest.iter().zip(center_rest).map(|(x, c)| (x - c) * (x - c)).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Conversion of real numbers to integers, because sums of integers are the same in any order.
#[derive(Clone, Copy, Debug)]
struct FixedPoint {
    /// The real number that the integer 1 represents, a power of two.
    unit: f64,
}

impl FixedPoint {
    /// Returns the conversion for numbers up to a magnitude. Numbers with the same exponent as
    /// `most` are converted exactly.
    fn holding(most: f64) -> Self {
        // The exponent of the next larger power of two, from the bits of IEEE 754. For the smallest
        // numbers the unit is coarser, because it must be a normal number.
        let exponent = ((most.to_bits() >> 52) & 0x7ff) as i32 - 1022;
        Self { unit: 2f64.powi(exponent.max(BITS - 1021) - BITS) }
    }

    fn integer(self, real: f64) -> i64 {
        (real / self.unit).round() as i64
    }

    fn real(self, integer: i128) -> f64 {
        integer as f64 * self.unit
    }
}

/// Splits a sum into a high and a low part. The parts of 2^28 sums can be added separately without
/// overflow.
fn parts(sum: i128) -> (i64, i64) {
    ((sum >> LOW_BITS) as i64, (sum & ((1 << LOW_BITS) - 1)) as i64)
}

/// Returns the sum, given the sums of its parts.
fn joined_sum(high: i64, low: i64) -> i128 {
    (i128::from(high) << LOW_BITS) + i128::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_of_fixed_numbers_are_exact_in_any_order(
            numbers in prop::collection::vec(-1e9f64..1e9, 1..60),
            cut in any::<prop::sample::Index>(),
        ) {
            let fixed = FixedPoint::holding(numbers.iter().fold(0.0f64, |most, x| most.max(x.abs())));
            let sum = |some: &[f64]| {
                some.iter().map(|x| parts(fixed.integer(*x).into())).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
            };
            let (one, other) = numbers.split_at(cut.index(numbers.len()));
            let (all, one, other) = (sum(&numbers), sum(one), sum(other));
            prop_assert_eq!(joined_sum(all.0, all.1), joined_sum(one.0 + other.0, one.1 + other.1));
            let plain: f64 = numbers.iter().sum();
            prop_assert!((fixed.real(joined_sum(all.0, all.1)) - plain).abs() <= 1e-5);
        }

        #[test]
        fn a_number_is_restored_from_its_integer(x in prop::num::f64::NORMAL) {
            // For smaller numbers the unit is coarser.
            prop_assume!(x.abs() > 1e-290);
            prop_assert_eq!(FixedPoint::holding(x.abs()).real(FixedPoint::holding(x.abs()).integer(x).into()), x);
        }

        #[test]
        fn squared_distances_are_those_of_the_definition(
            (row, center) in (1usize..40).prop_flat_map(|n| {
                (prop::collection::vec(-9.0f64..9.0, n), prop::collection::vec(-9.0f64..9.0, n))
            }),
        ) {
            let plain: f64 = row.iter().zip(&center).map(|(x, c)| (x - c).powi(2)).sum();
            prop_assert!((squared(&row, &center) - plain).abs() <= 1e-12 * plain);
        }
    }

    #[test]
    fn numbers_that_once_lost_their_last_bit_keep_it() {
        for x in [5.038_024_870_943_517e-17, 1f64.next_down(), 1.0, f64::MAX, 0.0] {
            assert_eq!(FixedPoint::holding(x).real(FixedPoint::holding(x).integer(x).into()), x);
        }
    }

    #[test]
    fn ties_go_to_the_first_center_on_any_threads() {
        let rows: Vec<f64> = (0..3000).map(f64::from).collect();
        let centers = [10.0, 1000.0, 10.0, 2500.0];
        let one = nearest(&rows, &centers, 1, 1);
        assert_eq!(one, nearest(&rows, &centers, 1, 5));
        assert_eq!(
            [one[0], one[505], one[506], one[2999]],
            [(0, 100.0), (0, 245_025.0), (1, 244_036.0), (3, 249_001.0)]
        );
    }
}
