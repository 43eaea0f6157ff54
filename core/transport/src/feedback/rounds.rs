//! The rounds in which the loss of a multicast is measured. A round is a range of chunks that
//! source and receivers compute alike, so packets need not name their round.
//!
//! Rounds start short, because a source that is looking for its rate needs early reports. They
//! double up to a length at which all reports together are a small part of the stream.

use crate::congestion::queueing_delay::{self, SHORTEST_QUEUE};
use crate::congestion::rate_control::{Loss, UNREPORTED};
use crate::spec::Chain;
use core::ops::Range;

/// Chunks in the first round.
const FIRST_ROUND_CHUNKS: u64 = 16;
/// Chunks in a full round for each report that arrives at one node: about 100 bytes against 16
/// packets.
const CHUNKS_PER_REPORT: u32 = 16;
/// Fewest chunks in a full round.
const FULL_ROUND_CHUNKS_MIN: u32 = 64;

/// The feedback of receivers on a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoundFeedback {
    pub(crate) loss: Loss,
    /// Nanoseconds between its chunks.
    pub(crate) spacing: u32,
    /// The queueing delay of the quickest chunk (see [`crate::congestion::queueing_delay`]).
    pub(crate) delay: u16,
}

impl RoundFeedback {
    /// No feedback on the round exists.
    pub(crate) const NONE: RoundFeedback = RoundFeedback { loss: UNREPORTED, spacing: 0, delay: 0 };

    /// Returns whether at least half of the round arrived, or the rest was lost in a queue that a
    /// slower rate would shorten.
    pub(crate) fn counts(self) -> bool {
        self.loss <= Loss::MAX / 2
            || self.loss != UNREPORTED && queueing_delay::units(self.delay) >= SHORTEST_QUEUE
    }

    /// Returns the worse of two feedbacks, among those that count. The chain serves the receivers
    /// that do not count.
    pub(crate) fn worst(self, other: RoundFeedback) -> RoundFeedback {
        match (self.counts(), other.counts()) {
            (true, true) => RoundFeedback {
                loss: self.loss.max(other.loss),
                spacing: self.spacing.max(other.spacing),
                delay: self.delay.max(other.delay),
            },
            (true, false) => self,
            (false, true) => other,
            (false, false) => RoundFeedback {
                loss: self.loss.min(other.loss),
                spacing: self.spacing.min(other.spacing),
                delay: self.delay.min(other.delay),
            },
        }
    }
}

/// The chunks of each round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedbackRounds {
    /// Rounds before the first full one.
    doublings: u32,
}

impl FeedbackRounds {
    /// Returns the rounds of a stream along this chain.
    pub(crate) fn new(chain: &Chain) -> FeedbackRounds {
        let full = (CHUNKS_PER_REPORT * chain.fan_in()).max(FULL_ROUND_CHUNKS_MIN).next_power_of_two();
        FeedbackRounds { doublings: full.ilog2() - FIRST_ROUND_CHUNKS.ilog2() }
    }

    /// Returns the number of chunks in a full round.
    pub(crate) fn full_chunks(self) -> u32 {
        (FIRST_ROUND_CHUNKS as u32) << self.doublings
    }

    fn start(self, round: u32) -> u64 {
        let short = round.min(self.doublings);
        FIRST_ROUND_CHUNKS * ((1 << short) - 1)
            + u64::from(round - short) * (FIRST_ROUND_CHUNKS << self.doublings)
    }

    /// Returns the chunks of a round, for a message of unbounded length.
    pub(crate) fn chunks(self, round: u32) -> Range<u32> {
        let clip = |chunk: u64| u32::try_from(chunk).unwrap_or(u32::MAX);
        clip(self.start(round))..clip(self.start(round.saturating_add(1)))
    }

    /// Returns the round of a chunk.
    pub(crate) fn round_of(self, chunk: u32) -> u32 {
        let chunk = u64::from(chunk);
        let full = self.start(self.doublings);
        if chunk < full {
            (chunk / FIRST_ROUND_CHUNKS + 1).ilog2()
        } else {
            self.doublings + ((chunk - full) / (FIRST_ROUND_CHUNKS << self.doublings)) as u32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Hop;

    fn rounds(nodes: u16) -> FeedbackRounds {
        FeedbackRounds::new(&Chain::new((0..nodes).map(|node| Hop { node, rack: 0 }).collect()).unwrap())
    }

    #[test]
    fn rounds_double_and_then_stay() {
        let r = rounds(2);
        let sizes: Vec<usize> = (0..5).map(|round| r.chunks(round).len()).collect();
        assert_eq!(sizes, [16, 32, 64, 64, 64]);
        assert_eq!(rounds(20).chunks(9).len(), 512);
    }

    #[test]
    fn feedback_of_receivers_below_half_does_not_count() {
        let good = RoundFeedback { loss: 9, spacing: 5, delay: 4 };
        let bad = RoundFeedback { loss: 50_000, spacing: 70, delay: 9 };
        assert_eq!(good.worst(bad), good);
        assert_eq!(bad.worst(RoundFeedback::NONE).loss, bad.loss);
        let other = RoundFeedback { loss: 3, spacing: 8, delay: 2 };
        assert_eq!(other.worst(good), RoundFeedback { loss: 9, spacing: 8, delay: 4 });
    }

    #[test]
    fn every_chunk_is_in_its_round() {
        for nodes in [1, 5, 40] {
            let r = rounds(nodes);
            for chunk in (0..5000).chain([1 << 31, u32::MAX - 1]) {
                assert!(r.chunks(r.round_of(chunk)).contains(&chunk), "{chunk} of {nodes}");
            }
        }
    }
}
