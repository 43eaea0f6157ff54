//! Estimates of the rates of members' links, each made by the member itself.

use cool_machine::Duration;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Maximum and minimum number of recent blocks from which a link's rate is estimated.
const BLOCKS: usize = 32;
const BLOCKS_MIN: usize = 8;
/// Number of blocks from faster members after which their transfer times show whether this member
/// is as fast.
const FROM_FASTER: usize = 2;

/// Microseconds that a block takes over a member's link, or none while that is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockTime(pub Option<u32>);

impl BlockTime {
    /// Returns whether the two rates differ by a factor of 1.5 at most, or one of them is unknown.
    pub(crate) fn is_like(self, other: BlockTime) -> bool {
        let (Some(one), Some(other)) = (self.0, other.0) else { return true };
        let (one, other) = (u64::from(one), u64::from(other));
        2 * one.max(other) <= 3 * one.min(other)
    }

    /// Returns whether this rate is known to be more than 1.5 times the other one.
    pub(crate) fn is_faster(self, than: BlockTime) -> bool {
        self < than && !self.is_like(than)
    }
}

/// Measures the transfer times of arriving blocks, in microseconds, the most recent first.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkRateEstimator {
    took: VecDeque<u32>,
    block_time: BlockTime,
    /// Transfer times of blocks from faster members. A member that has received only from slow
    /// members counts itself among them; these times show whether it is really slow.
    from_faster: Vec<u32>,
    /// Whether the blocks from faster members have been evaluated.
    tried: bool,
}

impl LinkRateEstimator {
    /// Records the transfer time of a block from a member of the given rate.
    pub(crate) fn record(&mut self, took: Duration, from: BlockTime) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1);
        self.took.truncate(BLOCKS - 1);
        self.took.push_front(took);
        if from.is_faster(self.block_time) {
            self.from_faster.push(took);
        }
        if self.from_faster.len() == FROM_FASTER {
            self.tried = true;
            let took = core::mem::take(&mut self.from_faster);
            let found = BlockTime(took.iter().copied().max());
            if found.is_faster(self.block_time) {
                self.took = took.into();
                self.block_time = found;
            }
        } else if self.took.len() >= BLOCKS_MIN {
            self.block_time = quartile(self.took.iter().copied().collect());
        }
    }

    /// Returns whether this member should request blocks from faster members, to find out whether
    /// it is as fast.
    pub(crate) fn should_try_faster(&self) -> bool {
        self.block_time.0.is_some() && !self.tried
    }

    pub(crate) fn block_time(&self) -> BlockTime {
        self.block_time
    }
}

/// Returns the lower quartile. Many of the longer times belong to blocks that shared a link or had
/// a slow sender; a few very short ones to blocks that were queued somewhere and arrived at once.
fn quartile(mut took: Vec<u32>) -> BlockTime {
    let at = took.len() / 4;
    let (_, quartile, _) = took.select_nth_unstable(at);
    BlockTime(Some(*quartile))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: BlockTime = BlockTime(Some(1000));
    const SLOW: BlockTime = BlockTime(Some(2000));

    fn record_blocks(link_rates: &mut LinkRateEstimator, blocks: usize, micros: u64, from: BlockTime) {
        (0..blocks).for_each(|_| link_rates.record(Duration::from_micros(micros), from));
    }

    #[test]
    fn a_link_rate_is_the_lower_quartile_of_transfer_times() {
        let mut link_rates = LinkRateEstimator::default();
        record_blocks(&mut link_rates, 7, 1000, FAST);
        assert_eq!(link_rates.block_time(), BlockTime::default(), "too few");
        record_blocks(&mut link_rates, 1, 5, FAST);
        assert_eq!(link_rates.block_time(), FAST, "a block that arrived at once is not counted");
        record_blocks(&mut link_rates, 20, 2000, FAST);
        assert_eq!(link_rates.block_time(), FAST, "most shared the link");
        record_blocks(&mut link_rates, BLOCKS, 2000, FAST);
        assert_eq!(link_rates.block_time(), SLOW);
    }

    #[test]
    fn blocks_of_faster_members_show_whether_a_member_is_slow() {
        for (micros, block_time) in [(1000, FAST), (2000, SLOW)] {
            let mut link_rates = LinkRateEstimator::default();
            assert!(!link_rates.should_try_faster());
            record_blocks(&mut link_rates, BLOCKS, 2000, SLOW);
            assert!(link_rates.should_try_faster());
            record_blocks(&mut link_rates, FROM_FASTER, micros, FAST);
            assert!(!link_rates.should_try_faster());
            assert_eq!(link_rates.block_time(), block_time);
        }
    }

    #[test]
    fn an_unknown_rate_is_like_all_and_faster_than_none() {
        assert!(FAST.is_faster(SLOW) && !SLOW.is_faster(FAST) && !FAST.is_like(SLOW));
        assert!(FAST.is_like(BlockTime(Some(1500))) && BlockTime(Some(1500)).is_like(FAST));
        assert!(
            BlockTime::default().is_like(SLOW)
                && !BlockTime::default().is_faster(SLOW)
                && !SLOW.is_faster(BlockTime::default())
        );
    }
}
