//! The receiving side of the multicast: its progress, the chunks that were skipped, its loss, and
//! whether it has fallen silent.

use crate::congestion::queueing_delay::QueueingDelay;
use crate::congestion::rate_control::Loss;
use crate::feedback::rounds::{FeedbackRounds, RoundFeedback};
use crate::timeouts::{SILENT_CHUNKS, SILENT_RTOS};
use cool_machine::{Duration, Time};
use core::ops::Range;

/// The state of the multicast at a receiver.
#[derive(Debug)]
pub(crate) struct MulticastRx {
    rounds: FeedbackRounds,
    chunks: u32,
    /// One past the last chunk that is known to have been multicast.
    horizon: u32,
    /// When the latest packet arrived.
    last: Time,
    /// Smoothed time between chunks.
    spacing: Duration,
    /// First chunk that counts for the loss of the open round; `u32::MAX` before the first chunk
    /// arrived.
    counted: u32,
    /// Chunks that arrived in the open round.
    arrived: u32,
    /// The first and the latest chunk that arrived in the open round, with their times.
    span: Option<[(u32, Time); 2]>,
    delay: QueueingDelay,
}

impl MulticastRx {
    pub(crate) fn new(rounds: FeedbackRounds, chunks: u32) -> MulticastRx {
        MulticastRx {
            rounds,
            chunks,
            horizon: 0,
            last: Time::ZERO,
            spacing: Duration::ZERO,
            counted: u32::MAX,
            arrived: 0,
            span: None,
            delay: QueueingDelay::default(),
        }
    }

    /// Records that the stream has begun.
    pub(crate) fn on_begin(&mut self, now: Time) {
        self.last = now;
    }

    /// Returns one past the last chunk that is known to have been multicast.
    pub(crate) fn horizon(&self) -> u32 {
        self.horizon
    }

    /// Returns whether `rounds` rounds can have passed.
    pub(crate) fn has_rounds(&self, rounds: u32) -> bool {
        rounds <= self.rounds.round_of(self.chunks)
    }

    /// Records a chunk with its stamp. Returns the chunks that were skipped and, if rounds ended,
    /// the number of rounds that have ended so far and the feedback on them.
    pub(crate) fn on_chunk(
        &mut self,
        now: Time,
        chunk: u32,
        stamp: u16,
    ) -> (Range<u32>, Option<(u32, RoundFeedback)>) {
        if chunk < self.horizon {
            self.arrived += u32::from(chunk >= self.counted);
            self.last = now;
            return (0..0, None);
        }
        if self.horizon > 0 {
            let each = (now - self.last) / (chunk + 1 - self.horizon);
            self.spacing = if self.spacing.is_zero() { each } else { self.spacing * 7 / 8 + each / 8 };
        }
        let round = self.rounds.chunks(self.rounds.round_of(chunk));
        let before = self.end_rounds(round.start);
        // A late receiver has not lost the chunks before its first one.
        self.counted = self.counted.min(chunk);
        self.arrived += 1;
        self.delay.on_chunk(now, stamp);
        self.span.get_or_insert([(chunk, now); 2])[1] = (chunk, now);
        let gap = self.advance(now, chunk);
        let ended = if chunk + 1 == round.end { self.end_rounds(round.end) } else { None };
        (gap, ended.or(before))
    }

    /// Records an announcement that the first `sent` chunks have been multicast. Returns those that
    /// were skipped.
    pub(crate) fn on_announce(&mut self, now: Time, sent: u32) -> Range<u32> {
        match sent.min(self.chunks).checked_sub(1) {
            Some(last) if last >= self.horizon => {
                let gap = self.advance(now, last);
                gap.start..last + 1
            }
            _ => 0..0,
        }
    }

    /// Returns when the tree counts as silent, or `None` if all chunks have been multicast.
    pub(crate) fn silent_at(&self, rto: Duration) -> Option<Time> {
        let timeout = (rto * SILENT_RTOS).max(self.spacing * SILENT_CHUNKS);
        (self.horizon < self.chunks).then(|| self.last + timeout)
    }

    fn advance(&mut self, now: Time, chunk: u32) -> Range<u32> {
        let gap = self.horizon..chunk;
        self.horizon = chunk + 1;
        self.last = now;
        gap
    }

    /// Ends the open rounds before this chunk, which must be the first of a round. Returns `None`
    /// if no round was open.
    fn end_rounds(&mut self, first: u32) -> Option<(u32, RoundFeedback)> {
        let expected = first.checked_sub(self.counted).filter(|expected| *expected > 0)?;
        let lost = expected.saturating_sub(self.arrived);
        let loss = u64::from(lost) * u64::from(Loss::MAX - 1) / u64::from(expected);
        let spacing = self.span.take().and_then(|[(first, began), (latest, ended)]| {
            (ended - began).as_nanos().checked_div(u128::from(latest - first))
        });
        (self.counted, self.arrived) = (first, 0);
        let spacing = u32::try_from(spacing.unwrap_or(0)).unwrap_or(u32::MAX);
        let feedback = RoundFeedback { loss: loss as Loss, spacing, delay: self.delay.end_round() };
        Some((self.rounds.round_of(first), feedback))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Chain, Hop};

    const MS: Duration = Duration::from_millis(1);

    fn tree(chunks: u32) -> MulticastRx {
        let chain = Chain::new((0..3).map(|node| Hop { node, rack: 0 }).collect()).unwrap();
        MulticastRx::new(FeedbackRounds::new(&chain), chunks)
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// Returns the stamp of a chunk that was sent at this time in milliseconds.
    fn stamp(ms: u32) -> u16 {
        crate::congestion::queueing_delay::stamp(at(u64::from(ms)))
    }

    #[test]
    fn missing_chunks_are_reported_once() {
        let mut t = tree(100);
        assert_eq!(t.on_chunk(at(1), 0, 0).0, 0..0);
        assert_eq!(t.on_chunk(at(2), 5, 0).0, 1..5);
        assert!(t.on_chunk(at(3), 2, 0).0.is_empty());
        assert_eq!(t.on_announce(at(4), 9), 6..9);
        assert!(t.on_announce(at(4), 9).is_empty());
        assert_eq!(t.on_announce(at(5), u32::MAX), 9..100);
    }

    #[test]
    fn loss_is_reported_for_each_round_that_ends() {
        let mut t = tree(1000);
        let quarter = RoundFeedback { loss: (Loss::MAX - 1) / 4, spacing: 1_000_000, delay: 0 };
        let reported: Vec<_> = (0..112)
            .filter(|c| c % 4 != 1)
            .filter_map(|c| t.on_chunk(at(u64::from(c)), c, stamp(c)).1)
            .collect();
        assert_eq!(reported, [(1, quarter), (2, quarter), (3, quarter)]);
    }

    #[test]
    fn a_round_ends_with_its_last_chunk_or_a_later_one() {
        let mut t = tree(1000);
        let ends = |t: &mut MulticastRx, chunks: Range<u32>| {
            chunks.map(|c| t.on_chunk(at(9), c, 0).1).collect::<Vec<_>>()
        };
        let reported = ends(&mut t, 0..16);
        assert!(reported[..15].iter().all(Option::is_none), "{reported:?}");
        assert_eq!(reported[15].map(|(rounds, feedback)| (rounds, feedback.loss)), Some((1, 0)));
        assert!(ends(&mut t, 16..47).iter().all(Option::is_none));
        assert!(ends(&mut t, 48..49)[0].is_some_and(|(rounds, feedback)| rounds == 2 && feedback.loss > 0));
        assert!(ends(&mut t, 49..50)[0].is_none());
    }

    #[test]
    fn a_late_receiver_counts_only_later_chunks() {
        let mut t = tree(1000);
        let reported: Vec<_> = (40..49).filter_map(|c| t.on_chunk(at(u64::from(c)), c, stamp(c)).1).collect();
        assert_eq!(reported, [(2, RoundFeedback { loss: 0, spacing: 1_000_000, delay: 0 })]);
    }

    #[test]
    fn a_slow_tree_is_not_a_silent_one() {
        let mut t = tree(10);
        t.on_chunk(at(0), 0, 0);
        t.on_chunk(at(50), 1, 0);
        assert_eq!(t.silent_at(2 * MS), Some(at(50 + 64 * 50)));
        for chunk in 2..10 {
            t.on_chunk(at(51), chunk, 0);
        }
        assert_eq!(t.silent_at(2 * MS), None);
    }
}
