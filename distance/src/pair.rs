//! Distances of single points from single centroids, for those who know already which few they need.

use crate::level::Level;
use crate::rows::{Rows, Values};
use crate::simd::{self, Dots};

/// Centroids whose distances from single points are asked for.
pub struct Pairs<'a> {
    dots: &'static Dots,
    centroids: &'a [i16],
    dims: usize,
    norms: Vec<i64>,
}

impl<'a> Pairs<'a> {
    /// Of centroids as rows of `dims` numbers.
    ///
    /// # Panics
    /// If this processor does not have the level.
    pub fn new(level: Level, centroids: &'a [i16], dims: usize) -> Self {
        let norm = |row: &[i16]| row.iter().map(|&c| i64::from(i32::from(c) * i32::from(c))).sum();
        let norms = centroids.chunks_exact(dims).map(norm).collect();
        Self { dots: simd::dots(level), centroids, dims, norms }
    }

    /// The squared distance of the `i`th point, whose length squared is `norm` ([`Rows::norm`]), from a centroid.
    pub fn squared(&self, rows: Rows<'_>, i: usize, norm: i64, centroid: usize) -> i64 {
        let point = i * self.dims..(i + 1) * self.dims;
        let c = &self.centroids[centroid * self.dims..][..self.dims];
        let dot = match rows.values {
            Values::Byte(values) => (self.dots.bytes)(&values[point], c),
            Values::Wide(values) => (self.dots.wide)(&values[point], c),
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
            for rows in [Rows::bytes(&bytes, x.len()), Rows::wide(&x, x.len())] {
                let expected = scalar::squared(rows, 0, &c);
                for level in Level::available() {
                    let found = Pairs::new(level, &c, x.len()).squared(rows, 0, rows.norm(0), 0);
                    prop_assert_eq!(found, expected, "{}", level);
                }
            }
        }
    }
}
