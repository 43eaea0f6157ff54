//! Points that a program has in memory, and their clustering in its own numbers: centres that are the means of the points as they
//! were given, and each point at the nearest of them.
//!
//! The iterations work on the grid. What is rounded there is not rounded here: sums are taken of the given numbers, as
//! integers of 53 bits, so that they, too, are the same bits on any ranks and threads.

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

/// Bits of the integers that stand for real numbers, but for the sign.
const BITS: i32 = 53;

/// Bits of the lower of the two parts in which sums are kept.
const LOW_BITS: u32 = 34;

/// Rows that a thread takes at a time.
const PIECE: usize = 1024;

/// Numbers of a row whose squares are added up side by side.
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

    /// Hands each row to `take`.
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

/// A clustering in the numbers of the points.
#[derive(Clone, Debug, PartialEq)]
pub struct Clustering {
    /// The coordinates of the centres; all ranks have them.
    pub centers: Vec<f64>,
    /// For each of this rank's points, the nearest centre; of equally near ones the first.
    pub labels: Vec<u32>,
    /// Sum of squared distances of all ranks' points from their centres.
    pub inertia: f64,
}

impl PointShare {
    /// The rows that each rank gives, in the order of ranks, and how many times each counts: finite numbers of at least 0, or
    /// once. A rank may have none. Numbers that are no bytes are held as `reals` says.
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
            Err(Error::Input(format!("points of {dims} coordinates; they have 1 to {most}")))
        };
        peers.agree(checked)?;
        let kind = u64::from(matches!(rows, InputRows::Bytes(_))) + 2 * u64::from(weights.is_some());
        let all = peers.all_gather(vec![(rows.len() / dims) as u64, dims as u64, kind])?;
        let each: Vec<&[u64]> = all.chunks_exact(3).collect();
        if let Some(other) = each.iter().position(|one| one[1..] != each[0][1..]) {
            return Err(Error::Input(format!(
                "rank {other} gives points of {} coordinates, or of another type than rank 0, which gives {}, or only one of them weights",
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

    /// The clustering of these points in the numbers that were given. All ranks call it.
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

    /// The mean of the points of each cluster; a cluster without points has its centroid.
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
        // Of each coordinate the high and the low part, and the points' weights.
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

/// The grid that spans all ranks' rows.
fn spanning(peers: &PeerRanks<'_>, reals: Reals, rows: InputRows<'_>, dims: usize) -> Result<Grid, Error> {
    let mut bounds = (vec![f64::MAX; dims], vec![f64::MIN; dims]);
    rows.each(dims, |_, row| {
        bounds.0.iter_mut().zip(row).for_each(|(low, x)| *low = low.min(*x));
        bounds.1.iter_mut().zip(row).for_each(|(high, x)| *high = high.max(*x));
    });
    grid_between(peers, reals, bounds.0, bounds.1)
}

/// The nearest centre of each row, of equally near ones the first, and the squared distance from it.
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

/// A squared distance, added up in an order that vector instructions can keep.
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

/// Real numbers as integers, whose sums are the same in any order.
#[derive(Clone, Copy, Debug)]
struct FixedPoint {
    /// What the integer 1 stands for: a power of two.
    unit: f64,
}

impl FixedPoint {
    /// For numbers up to a magnitude, of which the largest lose nothing.
    fn holding(most: f64) -> Self {
        // The power of two above it, by the exponent of IEEE 754; the smallest numbers have a coarser unit.
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

/// A sum's high and low part: parts of 2^28 sums can be added up, each by itself.
fn parts(sum: i128) -> (i64, i64) {
    ((sum >> LOW_BITS) as i64, (sum & ((1 << LOW_BITS) - 1)) as i64)
}

/// The sum whose parts were added up.
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
            // Below, the unit is coarser.
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
