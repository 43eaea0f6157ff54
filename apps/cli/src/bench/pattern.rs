//! The data that ranks send: of each case, repetition and rank another, so that bytes which are stale,
//! of somebody else or in the wrong place are found.

use std::iter::Sum;

/// A sequence of words, `start + i * step` with wrap-around. The elementwise sum of such sequences is one again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pattern {
    start: u32,
    step: u32,
}

impl Pattern {
    /// What `rank` sends in a repetition of a case.
    pub(crate) fn of(case: usize, repetition: u32, rank: usize) -> Pattern {
        let seed = [case as u64, repetition.into(), rank as u64].iter().fold(0, |seed, n| mix(seed ^ n));
        // An odd step: no word comes twice in 2^32.
        Pattern { start: seed as u32, step: (seed >> 32) as u32 | 1 }
    }

    /// The sequence from its word `i` on.
    pub(crate) fn skip(self, i: usize) -> Pattern {
        Pattern { start: self.word(i), ..self }
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

    /// The first byte that is not the sequence's: its index, what it is and what it should be.
    pub(crate) fn first_wrong(self, bytes: &[u8]) -> Option<(usize, u8, u8)> {
        bytes.chunks(4).enumerate().find_map(|(i, part)| {
            let expected = self.word(i).to_ne_bytes();
            let wrong = part.iter().zip(expected).position(|(found, expected)| *found != expected)?;
            Some((4 * i + wrong, part[wrong], expected[wrong]))
        })
    }
}

impl Sum for Pattern {
    fn sum<I: Iterator<Item = Pattern>>(patterns: I) -> Pattern {
        patterns.fold(Pattern::default(), |a, b| Pattern {
            start: a.start.wrapping_add(b.start),
            step: a.step.wrapping_add(b.step),
        })
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): each bit of the input changes half of the output's.
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
    fn no_two_ranks_repetitions_or_cases_send_the_same() {
        let of = |c, k, r| Pattern::of(c, k, r);
        let all: Vec<_> =
            (0..4).flat_map(|c| (0..4).flat_map(move |k| (0..4).map(move |r| of(c, k, r)))).collect();
        assert!(all.iter().enumerate().all(|(i, p)| !all[..i].contains(p)));
    }

    proptest! {
        #[test]
        fn any_wrong_byte_is_found(len in 1usize..50, at in any::<prop::sample::Index>(), flip in 1u8..) {
            let pattern = Pattern::of(1, 2, 3);
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
                Pattern::of(0, 0, rank).fill(bytemuck::cast_slice_mut(&mut words));
                sum.iter_mut().zip(words).for_each(|(s, w)| *s = s.wrapping_add(w));
            }
            let total: Pattern = (0..ranks).map(|rank| Pattern::of(0, 0, rank)).sum();
            prop_assert_eq!(total.first_wrong(bytemuck::cast_slice(&sum)), None);
        }
    }
}
