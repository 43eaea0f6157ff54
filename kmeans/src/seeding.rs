//! The first centroids: k-means++ (Arthur and Vassilvitskii, SODA 2007) over a sample of the points.
//!
//! The sample is drawn from the global point numbers by the seed, so it is the same whatever ranks hold the
//! points; with a sample of `k` points this is a plain random choice. Weights are exact integers.

use crate::grid::{Centroids, Points};
use crate::partition::draw;

/// Picks `k` of the sample's points, each with a chance that grows with its squared distance from those picked.
/// The sample must hold `k` points at least.
pub fn choose(sample: &Points, k: usize, seed: u64) -> Centroids {
    let all = Centroids::at(sample);
    if k == sample.len() {
        return all;
    }
    let mut left: Vec<u64> = vec![u64::MAX; sample.len()];
    let mut chosen = Vec::with_capacity(k * sample.dims);
    let mut pick = (draw(seed, 0) % sample.len() as u64) as usize;
    for i in 1..=k as u64 {
        chosen.extend_from_slice(all.row(pick));
        for (j, nearest) in left.iter_mut().enumerate() {
            *nearest = (*nearest).min(sample.squared(j, all.row(pick)).unsigned_abs());
        }
        pick = weighted(&left, draw(seed, 2 * i), draw(seed, 2 * i + 1));
    }
    Centroids { precision: sample.precision(), dims: sample.dims, values: chosen }
}

/// An index drawn by weight. If no weight is left, the sample has fewer than `k` different points: the first is
/// taken again, and its twin will own no points.
fn weighted(weights: &[u64], high: u64, low: u64) -> usize {
    let total: u128 = weights.iter().map(|&w| u128::from(w)).sum();
    if total == 0 {
        return 0;
    }
    // A 128-bit draw: what the remainder favours is below 2^-40 of a chance.
    let mut mark = (u128::from(high) << 64 | u128::from(low)) % total;
    for (i, &w) in weights.iter().enumerate() {
        match mark.checked_sub(u128::from(w)) {
            Some(rest) => mark = rest,
            None => return i,
        }
    }
    weights.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Precision;

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
    fn a_sample_of_k_points_is_taken_whole() {
        assert_eq!(choose(&points(vec![4, 9, 2]), 3, 1).values, [4 << 7, 9 << 7, 2 << 7]);
    }

    #[test]
    fn equal_points_give_equal_centroids() {
        assert_eq!(choose(&points(vec![6; 9]), 3, 1).values, [6 << 7; 3]);
    }
}
