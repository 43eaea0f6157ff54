//! How often each word occurs in a picture: in the whole picture, or in each cell of a spatial
//! pyramid (Lazebnik, Schmid and Ponce, "Beyond Bags of Features", CVPR 2006).

use crate::SparseRow;
use std::collections::BTreeMap;

/// The cells into which a picture is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SpatialPyramid {
    /// Number of levels. Level `l` has `2^l x 2^l` cells; with 1 level, the only cell is the whole
    /// picture.
    pub levels: u32,
}

/// Maximum number of levels. The cells of further levels would contain hardly a patch.
pub const MAX_LEVELS: u32 = 4;

/// A patch of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WordOccurrence {
    /// Number of its word.
    pub word: u32,
    /// Horizontal center, as a share of the picture's width, from 0 to less than 1.
    pub x: f32,
    /// Vertical center, as a share of the picture's height.
    pub y: f32,
}

impl SpatialPyramid {
    /// Returns the number of cells of all levels.
    pub fn cells(self) -> usize {
        (0..self.levels).map(|level| 1 << (2 * level)).sum()
    }

    /// Returns the length of a histogram over a vocabulary of `words` words.
    pub fn len(self, words: usize) -> usize {
        self.cells() * words
    }

    /// Returns the weight of a level: half of the next finer level's, and the same for the two
    /// coarsest (Lazebnik et al., equation 3). All weights sum to 1.
    fn weight(self, level: u32) -> f64 {
        let halvings = self.levels - level.max(1);
        if self.levels == 1 { 1.0 } else { 1.0 / f64::from(1u32 << halvings) }
    }

    /// Returns the weighted histograms of all cells. The numbers of each level sum to its weight; a
    /// picture without patches has none. Entry `cell * words + word` belongs to a word in a cell,
    /// with cells ordered level by level and row by row.
    pub fn histogram(self, occurrences: &[WordOccurrence], words: usize) -> SparseRow {
        let mut counts = BTreeMap::<u32, u32>::new();
        for occurrence in occurrences {
            for place in self.places(occurrence, words) {
                *counts.entry(place).or_default() += 1;
            }
        }
        let share = |(place, count): (u32, u32)| {
            let weight = self.weight(self.level_of(place as usize / words));
            (place, (weight * f64::from(count) / occurrences.len() as f64) as f32)
        };
        SparseRow { entries: counts.into_iter().map(share).collect() }
    }

    /// Returns the entries in which a patch counts: one per level.
    fn places(self, patch: &WordOccurrence, words: usize) -> impl Iterator<Item = u32> {
        let (word, x, y) = (patch.word as usize, patch.x, patch.y);
        (0..self.levels).map(move |level| {
            let side = 1usize << level;
            let along = |share: f32| ((share * side as f32) as usize).min(side - 1);
            let cell = SpatialPyramid { levels: level }.cells() + along(y) * side + along(x);
            (cell * words + word) as u32
        })
    }

    fn level_of(self, cell: usize) -> u32 {
        (0..self.levels).rfind(|&level| cell >= SpatialPyramid { levels: level }.cells()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn occurrence(word: u32, x: f32, y: f32) -> WordOccurrence {
        WordOccurrence { word, x, y }
    }

    #[test]
    fn one_level_counts_words_in_all_of_the_picture() {
        let patches = [
            occurrence(2, 0.1, 0.9),
            occurrence(0, 0.5, 0.5),
            occurrence(2, 0.9, 0.1),
            occurrence(2, 0.2, 0.2),
        ];
        let row = SpatialPyramid { levels: 1 }.histogram(&patches, 3);
        assert_eq!(row.entries, [(0, 0.25), (2, 0.75)]);
    }

    #[test]
    fn finer_levels_count_by_quarter() {
        let patches = [occurrence(0, 0.1, 0.1), occurrence(1, 0.9, 0.6)];
        let row = SpatialPyramid { levels: 2 }.histogram(&patches, 2);
        // The whole picture, then word 0 in the upper left quarter and word 1 in the lower right
        // quarter.
        assert_eq!(row.entries, [(0, 0.25), (1, 0.25), (2, 0.25), (9, 0.25)]);
    }

    proptest! {
        #[test]
        fn shares_sum_to_one_over_all_levels(
            levels in 1..=MAX_LEVELS,
            patches in prop::collection::vec((0u32..7, 0f32..1.0, 0f32..1.0), 1..50),
        ) {
            let patches: Vec<_> = patches.into_iter().map(|(word, x, y)| occurrence(word, x, y)).collect();
            let pyramid = SpatialPyramid { levels };
            let row = pyramid.histogram(&patches, 7);
            let sum: f64 = row.entries.iter().map(|&(_, share)| f64::from(share)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{}", sum);
            prop_assert!(row.entries.iter().all(|&(place, _)| (place as usize) < pyramid.len(7)));
        }
    }
}
