//! The data that ranks send. It differs by case, repetition and rank, so that stale, misdirected
//! and misplaced bytes are found.

use std::iter::Sum;

/// The sequence of words `start + i * step`, with wrap-around. Elementwise sums of such sequences
/// have the same form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataPattern {
    start: u32,
    step: u32,
}

impl DataPattern {
    /// Returns the data that `rank` sends in a repetition of a case.
    pub(crate) fn of_rank(case: usize, repetition: u32, rank: usize) -> DataPattern {
        let seed = [case as u64, repetition.into(), rank as u64].iter().fold(0, |seed, n| mix(seed ^ n));
        // With an odd step, no word repeats within 2^32.
        DataPattern { start: seed as u32, step: (seed >> 32) as u32 | 1 }
    }

    /// Returns the sequence from its word `i` on.
    pub(crate) fn skip(self, i: usize) -> DataPattern {
        DataPattern { start: self.word(i), ..self }
    }

    fn word(self, i: usize) -> u32 {
        self.start.wrapping_add((i as u32).wrapping_mul(self.step))
    }

    /// Writes the sequence's bytes.
    pub(crate) fn fill(self, bytes: &mut [u8]) {
        for (i, part) in bytes.chunks_mut(4).enumerate() {
            part.copy_from_slice(&self.word(i).to_ne_bytes()[..part.len()]);
        }
    }

    /// Returns the first wrong byte: its index, its value, and the value that it should have.
    pub(crate) fn first_wrong(self, bytes: &[u8]) -> Option<(usize, u8, u8)> {
        bytes.chunks(4).enumerate().find_map(|(i, part)| {
            let expected = self.word(i).to_ne_bytes();
            let wrong = part.iter().zip(expected).position(|(found, expected)| *found != expected)?;
            Some((4 * i + wrong, part[wrong], expected[wrong]))
        })
    }
}

impl Sum for DataPattern {
    fn sum<I: Iterator<Item = DataPattern>>(patterns: I) -> DataPattern {
        patterns.fold(DataPattern::default(), |a, b| DataPattern {
            start: a.start.wrapping_add(b.start),
            step: a.step.wrapping_add(b.step),
        })
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): each bit of the input changes half of the
/// output's bits on average.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_repetitions_and_cases_all_send_different_data() {
        let of_rank = |c, k, r| DataPattern::of_rank(c, k, r);
        let all: Vec<_> =
            (0..4).flat_map(|c| (0..4).flat_map(move |k| (0..4).map(move |r| of_rank(c, k, r)))).collect();
        assert!(all.iter().enumerate().all(|(i, p)| !all[..i].contains(p)));
    }

    proptest! {
        #[test]
        fn any_wrong_byte_is_found(len in 1usize..50, at in any::<prop::sample::Index>(), flip in 1u8..) {
            let pattern = DataPattern::of_rank(1, 2, 3);
            let mut bytes = vec![0; len];
            pattern.fill(&mut bytes);
            prop_assert_eq!(pattern.first_wrong(&bytes), None);
            let at = at.index(len);
            let right = bytes[at];
            bytes[at] ^= flip;
            prop_assert_eq!(pattern.first_wrong(&bytes), Some((at, right ^ flip, right)));
        }

        #[test]
        fn the_sum_of_patterns_is_the_pattern_of_their_sums(ranks in 1usize..20, len in 0usize..20) {
            let mut sum = vec![0u32; len];
            for rank in 0..ranks {
                let mut words = vec![0u32; len];
                DataPattern::of_rank(0, 0, rank).fill(bytemuck::cast_slice_mut(&mut words));
                sum.iter_mut().zip(words).for_each(|(s, w)| *s = s.wrapping_add(w));
            }
            let total: DataPattern = (0..ranks).map(|rank| DataPattern::of_rank(0, 0, rank)).sum();
            prop_assert_eq!(total.first_wrong(bytemuck::cast_slice(&sum)), None);
        }
    }
}
