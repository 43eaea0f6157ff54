//! The first centroids: k-means++ (Arthur and Vassilvitskii, SODA 2007) over a sample of the
//! points.
//!
//! The seed draws the numbers of the sampled points from those of all points, so the sample does
//! not depend on the distribution of the points over ranks. With a sample of `k` points this is a
//! plain random choice. Weights are exact integers.

use crate::data::grid::{Centroids, Grid, Points};
use crate::data::inputs::array::ArrayFile;
use crate::data::partition::draw;
use crate::error::Error;
use std::path::Path;

/// Returns `k` of the sample's points, each chosen with a probability proportional to its weight
/// and its squared distance from those chosen before. The sample must hold at least `k` points.
pub fn choose(sample: &Points, k: usize, seed: u64) -> Centroids {
    let all = Centroids::at(sample);
    if k == sample.len() {
        return all;
    }
    let mut left = vec![u128::MAX >> 40; sample.len()];
    let mut chosen = Vec::with_capacity(k * sample.width());
    let chances = |left: &[u128]| -> Vec<u128> {
        left.iter().enumerate().map(|(i, left)| left * sample.weight(i) as u128).collect()
    };
    let mut pick = match sample.weights {
        None => (draw(seed, 0) % sample.len() as u64) as usize,
        Some(_) => weighted(&chances(&left), draw(seed, 0), draw(seed, 1)).unwrap_or(0),
    };
    for i in 1..=k as u64 {
        chosen.extend_from_slice(all.row(pick));
        for (j, nearest) in left.iter_mut().enumerate() {
            *nearest = (*nearest).min(sample.squared(j, all.row(pick)) as u128);
        }
        // If there are fewer than `k` different points, the first is chosen again; its duplicate
        // will own no points.
        pick = weighted(&chances(&left), draw(seed, 2 * i), draw(seed, 2 * i + 1)).unwrap_or(0);
    }
    Centroids { precision: sample.precision(), dims: sample.dims, values: chosen }
}

/// Returns an index drawn by weight from 128 random bits, or `None` if all weights are 0.
pub(crate) fn weighted(weights: &[u128], high: u64, low: u64) -> Option<usize> {
    let total: u128 = weights.iter().sum();
    // The bias of the remainder is far below 2^-20 of a probability.
    let mut mark = (u128::from(high) << 64 | u128::from(low)).checked_rem(total)?;
    weights.iter().position(|&weight| match mark.checked_sub(weight) {
        Some(rest) => {
            mark = rest;
            false
        }
        None => true,
    })
}

/// Reads the first centroids from an `.npy` file and rounds them to the grid.
pub(crate) fn read(path: &Path, grid: &Grid, k: usize) -> Result<Centroids, Error> {
    let array = ArrayFile::open(path)?;
    let dims = grid.origin.len();
    if (array.rows, array.dims) != (k as u64, dims) {
        let problem = format!(
            "has {} rows of {} numbers; expected {k} (-k) rows of {dims} coordinates",
            array.rows, array.dims
        );
        return Err(Error::Content { path: path.to_owned(), problem });
    }
    let mut real = Vec::with_capacity(k * dims);
    array.read(0..array.rows, |_, row| {
        array.kind.decode(row, &mut real);
        Ok(())
    })?;
    if real.iter().any(|v| !v.is_finite()) {
        return Err(Error::Content {
            path: path.to_owned(),
            problem: "has a number that is not finite".into(),
        });
    }
    Ok(grid.centroids(&real))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::grid::Precision;

    fn points(values: Vec<i16>) -> Points {
        Points::new(Precision::Byte, 1, values)
    }

    #[test]
    fn far_groups_each_get_a_centroid() {
        let sample = points((0..40).map(|i| (i % 4) * 80 + i / 20).collect());
        for seed in 0..50 {
            let mut groups: Vec<_> = choose(&sample, 4, seed).values.iter().map(|c| (c >> 7) / 80).collect();
            groups.sort_unstable();
            assert_eq!(groups, [0, 1, 2, 3], "seed {seed}");
        }
    }

    #[test]
    fn a_sample_of_k_points_is_used_whole() {
        assert_eq!(choose(&points(vec![4, 9, 2]), 3, 1).values, [4 << 7, 9 << 7, 2 << 7]);
    }

    #[test]
    fn equal_points_give_equal_centroids() {
        assert_eq!(choose(&points(vec![6; 9]), 3, 1).values, [6 << 7; 3]);
    }
}
