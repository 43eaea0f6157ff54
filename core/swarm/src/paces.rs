//! How fast members' links are, as far as they find themselves.

use cool_machine::Duration;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A link's pace is found of the last blocks that came over it: of this many, and of no fewer than `BLOCKS_MIN`.
const BLOCKS: usize = 32;
const BLOCKS_MIN: usize = 8;
/// Blocks from faster members that show whether this one is as fast.
const FROM_FASTER: usize = 2;

/// Microseconds that a block takes over a member's link; none while that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pace(pub Option<u32>);

impl Pace {
    /// Whether two go about as fast, one and a half times at most, as far as is known.
    pub(crate) fn is_like(self, other: Pace) -> bool {
        let (Some(one), Some(other)) = (self.0, other.0) else { return true };
        let (one, other) = (u64::from(one), u64::from(other));
        2 * one.max(other) <= 3 * one.min(other)
    }

    /// Whether it is known to be faster than another one, and not like it.
    pub(crate) fn is_faster(self, than: Pace) -> bool {
        self < than && !self.is_like(than)
    }
}

/// What blocks that came have taken, in microseconds, the last first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paces {
    took: VecDeque<u32>,
    pace: Pace,
    /// Those from members that go faster: who counted itself among slow ones, for it had heard only slow ones, finds it out by them.
    from_faster: Vec<u32>,
    /// Whether that was tried.
    tried: bool,
}

impl Paces {
    /// A block has come from a member of that pace.
    pub(crate) fn came(&mut self, took: Duration, from: Pace) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        self.took.truncate(BLOCKS - 1);
        self.took.push_front(took);
        if from.is_faster(self.pace) {
            self.from_faster.push(took);
        }
        if self.from_faster.len() == FROM_FASTER {
            self.tried = true;
            let took = core::mem::take(&mut self.from_faster);
            let found = Pace(took.iter().copied().max());
            if found.is_faster(self.pace) {
                self.took = took.into();
                self.pace = found;
            }
        } else if self.took.len() >= BLOCKS_MIN {
            self.pace = quartile(self.took.iter().copied().collect());
        }
    }

    /// Whether faster members are to be asked for blocks, to find out whether this one is as fast.
    pub(crate) fn tries_faster(&self) -> bool {
        self.pace.0.is_some() && !self.tried
    }

    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }
}

/// The lower quartile: of the others many shared a link or had a slow sender, and some may have waited somewhere, and then come at
/// once.
fn quartile(mut took: Vec<u32>) -> Pace {
    let at = took.len() / 4;
    let (_, quartile, _) = took.select_nth_unstable(at);
    Pace(Some(*quartile))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Pace = Pace(Some(1000));
    const SLOW: Pace = Pace(Some(2000));

    fn came(paces: &mut Paces, blocks: usize, micros: u64, from: Pace) {
        (0..blocks).for_each(|_| paces.came(Duration::from_micros(micros), from));
    }

    #[test]
    fn a_link_is_as_fast_as_a_quarter_of_what_comes_over_it() {
        let mut paces = Paces::default();
        came(&mut paces, 7, 1000, FAST);
        assert_eq!(paces.pace(), Pace::default(), "too few");
        came(&mut paces, 1, 5, FAST);
        assert_eq!(paces.pace(), FAST, "one that came at once is not counted");
        came(&mut paces, 20, 2000, FAST);
        assert_eq!(paces.pace(), FAST, "most shared the link");
        came(&mut paces, BLOCKS, 2000, FAST);
        assert_eq!(paces.pace(), SLOW);
    }

    #[test]
    fn who_has_heard_slow_ones_only_finds_by_faster_ones_whether_it_is_one_of_them() {
        for (micros, pace) in [(1000, FAST), (2000, SLOW)] {
            let mut paces = Paces::default();
            assert!(!paces.tries_faster());
            came(&mut paces, BLOCKS, 2000, SLOW);
            assert!(paces.tries_faster());
            came(&mut paces, FROM_FASTER, micros, FAST);
            assert!(!paces.tries_faster());
            assert_eq!(paces.pace(), pace);
        }
    }

    #[test]
    fn what_is_not_known_is_like_all_and_faster_than_none() {
        assert!(FAST.is_faster(SLOW) && !SLOW.is_faster(FAST) && !FAST.is_like(SLOW));
        assert!(FAST.is_like(Pace(Some(1500))) && Pace(Some(1500)).is_like(FAST));
        assert!(
            Pace::default().is_like(SLOW)
                && !Pace::default().is_faster(SLOW)
                && !SLOW.is_faster(Pace::default())
        );
    }
}
