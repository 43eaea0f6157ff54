//! The points that are clustered, and their distribution over ranks. These are pure functions, so
//! that all ranks agree without communication.

use std::ops::Range;

/// Returns the points of one rank. They are contiguous, so that a rank opens only the files that
/// contain its points.
pub fn rank_range(points: u64, ranks: usize, rank: usize) -> Range<u64> {
    let start = |r: usize| (u128::from(points) * r as u128 / ranks as u128) as u64;
    start(rank)..start(rank + 1)
}

/// A selection of `chosen` out of `total` rows, evenly spread: `total` is divided into `chosen`
/// runs of nearly equal length, and the seed draws one row from each.
#[derive(Clone, Copy, Debug)]
pub struct Subsample {
    total: u64,
    chosen: u64,
    seed: u64,
}

impl Subsample {
    /// Selects at most `most` of `total` rows.
    pub fn new(total: u64, most: u64, seed: u64) -> Self {
        Self { total, chosen: total.min(most), seed }
    }

    /// Returns the number of selected rows.
    pub fn len(&self) -> u64 {
        self.chosen
    }

    /// Returns whether no row is selected.
    pub fn is_empty(&self) -> bool {
        self.chosen == 0
    }

    /// Returns the row of the `i`th selected one. Rows ascend with `i`.
    pub fn row(&self, i: u64) -> u64 {
        let start = |i: u64| (u128::from(i) * u128::from(self.total) / u128::from(self.chosen)) as u64;
        let (first, end) = (start(i), start(i + 1));
        first + draw(self.seed, i) % (end - first)
    }
}

/// Returns the `i`th number of a seed's stream: SplitMix64's output function (Steele, Lea and
/// Flood, OOPSLA 2014). It needs no state, so every rank gets the same number.
pub fn draw(seed: u64, i: u64) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let golden = 0x9e37_79b9_7f4a_7c15u64;
    mix(mix(seed.wrapping_add(golden)).wrapping_add(i.wrapping_mul(golden)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_all_points_once_and_evenly(points in 0u64..10_000, ranks in 1usize..40) {
            let mut next = 0;
            for r in 0..ranks {
                let mine = rank_range(points, ranks, r);
                prop_assert_eq!(mine.start, next);
                let size = mine.end - mine.start;
                prop_assert!(size == points / ranks as u64 || size == points.div_ceil(ranks as u64));
                next = mine.end;
            }
            prop_assert_eq!(next, points);
        }

        #[test]
        fn subsampled_rows_rise_and_stay_inside(total in 0u64..5000, most in 0u64..6000, seed: u64) {
            let thinned = Subsample::new(total, most, seed);
            prop_assert_eq!(thinned.len(), total.min(most));
            let rows: Vec<_> = (0..thinned.len()).map(|i| thinned.row(i)).collect();
            prop_assert!(rows.windows(2).all(|w| w[0] < w[1]));
            prop_assert!(rows.last().is_none_or(|&r| r < total));
        }
    }

    #[test]
    fn a_full_subsample_keeps_every_row() {
        let thinned = Subsample::new(7, 100, 3);
        assert_eq!((0..7).map(|i| thinned.row(i)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6]);
    }
}
