//! Distances between single points and single centroids, for callers that need only a few of them.

use crate::point_rows::{PointRows, Precision, RowValues};
use crate::simd::{self, DotProducts};
use crate::simd_level::SimdLevel;

/// Centroids prepared for distances from single points.
pub struct PairDistances<'a> {
    dots: &'static DotProducts,
    centroids: &'a [i16],
    /// Number of `i16` words per centroid.
    width: usize,
    norms: Vec<i64>,
}

impl<'a> PairDistances<'a> {
    /// Prepares centroids, given as rows of `dims` coordinates on the grid of `precision`.
    ///
    /// # Panics
    /// If this CPU does not support the level.
    pub fn new(level: SimdLevel, precision: Precision, centroids: &'a [i16], dims: usize) -> Self {
        let width = dims * precision.words();
        let norm = |row: &[i16]| precision.coordinates(row).map(|c| c * c).sum();
        let norms = centroids.chunks_exact(width).map(norm).collect();
        Self { dots: simd::dots(level), centroids, width, norms }
    }

    /// Returns the squared distance between the `i`th point and a centroid. `norm` must be the
    /// point's squared length, as [`PointRows::norm`] returns it: callers measure several distances
    /// of a point, so they compute it once.
    pub fn squared(&self, rows: PointRows<'_>, i: usize, norm: i64, centroid: usize) -> i64 {
        let c = &self.centroids[centroid * self.width..][..self.width];
        let dot = match rows.values {
            RowValues::Byte(values) => (self.dots.bytes)(&values[rows.at(i)], c),
            RowValues::Wide(values) => (self.dots.wide)(&values[rows.at(i)], c),
            RowValues::Fine(values) => (self.dots.fine)(&values[rows.at(i)], c),
        };
        let fraction = rows.precision().fraction();
        (norm << (2 * fraction)) + self.norms[centroid] - (dot << (fraction + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn every_level_equals_the_definition(
            (x, c) in (1usize..1500).prop_flat_map(|dims| (
                prop::collection::vec(any::<i16>(), dims),
                prop::collection::vec(prop_oneof![any::<i16>(), Just(i16::MIN), Just(i16::MAX)], dims),
            )),
        ) {
            let bytes: Vec<u8> = x.iter().map(|&x| x as u8).collect();
            let dims = x.len();
            let fine = |words: &[i16]| {
                let (least, largest) = Precision::Fine.range();
                let coordinates = words.iter().map(|&word| (i64::from(word) * 257).clamp(least, largest));
                Precision::Fine.to_words(coordinates)
            };
            let (fine_x, fine_c) = (fine(&x), fine(&c));
            let all = [(PointRows::bytes(&bytes, dims), &c), (PointRows::wide(&x, dims), &c), (PointRows::fine(&fine_x, dims), &fine_c)];
            for (rows, c) in all {
                let expected = scalar::squared(rows, 0, c);
                for level in SimdLevel::available() {
                    let pairs = PairDistances::new(level, rows.precision(), c, dims);
                    prop_assert_eq!(pairs.squared(rows, 0, rows.norm(0), 0), expected, "{}", level);
                }
            }
        }
    }
}
