//! Listening to the multicast: how far it is, what it passed over, whether it still speaks, what it loses.

use crate::rate::Loss;
use crate::rounds::{Heard, Rounds};
use cool_machine::{Duration, Time};
use core::ops::Range;

/// Chunk times and retry timers without a packet after which the tree counts as silent. Ample, since asking for
/// everything because a busy machine paused costs more than finding out late: the end of a stream is announced.
const SILENT_CHUNKS: u32 = 64;
const SILENT_TIMERS: u32 = 4;

/// What a receiver knows of the multicast.
#[derive(Debug)]
pub(crate) struct Tree {
    rounds: Rounds,
    chunks: u32,
    /// One past the last chunk that is known to have been multicast.
    horizon: u32,
    /// When the latest news came.
    last: Time,
    /// Smoothed time between chunks.
    spacing: Duration,
    /// Chunks from here on are counted for the loss of the open round.
    counted: u32,
    /// Chunks heard in the open round.
    came: u32,
    /// The first chunk heard in the open round, and when.
    first: (u32, Time),
}

impl Tree {
    pub(crate) fn new(rounds: Rounds, chunks: u32) -> Tree {
        Tree {
            rounds,
            chunks,
            horizon: 0,
            last: Time::ZERO,
            spacing: Duration::ZERO,
            counted: u32::MAX,
            came: 0,
            first: (0, Time::ZERO),
        }
    }

    /// The stream is under way from now on.
    pub(crate) fn began(&mut self, now: Time) {
        self.last = now;
    }

    /// One past the last chunk that is known to have been multicast.
    pub(crate) fn horizon(&self) -> u32 {
        self.horizon
    }

    /// Whether so many rounds can have passed.
    pub(crate) fn has_rounds(&self, rounds: u32) -> bool {
        rounds <= self.rounds.of(self.chunks)
    }

    /// A chunk came. Returns the chunks passed over and, if rounds ended, how many have by now and how they
    /// were heard.
    pub(crate) fn heard(&mut self, now: Time, chunk: u32) -> (Range<u32>, Option<(u32, Heard)>) {
        if chunk < self.horizon {
            self.came += u32::from(chunk >= self.counted);
            self.last = now;
            return (0..0, None);
        }
        if self.horizon > 0 {
            let each = (now - self.last) / (chunk + 1 - self.horizon);
            self.spacing = if self.spacing.is_zero() { each } else { self.spacing * 7 / 8 + each / 8 };
        }
        let ended = self.end_rounds(now, chunk);
        self.came += 1;
        (self.advance(now, chunk), ended)
    }

    /// The source says that so many chunks have been multicast. Returns those passed over.
    pub(crate) fn announced(&mut self, now: Time, sent: u32) -> Range<u32> {
        match sent.min(self.chunks).checked_sub(1) {
            Some(last) if last >= self.horizon => {
                let gap = self.advance(now, last);
                gap.start..last + 1
            }
            _ => 0..0,
        }
    }

    /// When the tree counts as silent, if more is to come over it.
    pub(crate) fn silent_at(&self, rto: Duration) -> Option<Time> {
        let patience = (rto * SILENT_TIMERS).max(self.spacing * SILENT_CHUNKS);
        (self.horizon < self.chunks).then(|| self.last + patience)
    }

    fn advance(&mut self, now: Time, chunk: u32) -> Range<u32> {
        let gap = self.horizon..chunk;
        self.horizon = chunk + 1;
        self.last = now;
        gap
    }

    /// Ends the rounds before the one of `chunk`, if one is open.
    fn end_rounds(&mut self, now: Time, chunk: u32) -> Option<(u32, Heard)> {
        if self.counted == u32::MAX {
            // Who comes late has not lost what was before.
            self.counted = chunk;
            self.first = (chunk, now);
            return None;
        }
        let first = self.rounds.chunks(self.rounds.of(chunk)).start;
        if first <= self.counted {
            return None;
        }
        let expected = first - self.counted;
        let lost = expected.saturating_sub(self.came);
        let loss = u64::from(lost) * u64::from(Loss::MAX - 1) / u64::from(expected);
        let (before, began) = core::mem::replace(&mut self.first, (chunk, now));
        let spacing = (now - began).as_nanos() / u128::from(chunk - before);
        (self.counted, self.came) = (first, 0);
        let spacing = u32::try_from(spacing).unwrap_or(u32::MAX);
        Some((self.rounds.of(chunk), Heard { loss: loss as Loss, spacing }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Chain, Hop};

    const MS: Duration = Duration::from_millis(1);

    fn tree(chunks: u32) -> Tree {
        let chain = Chain::new((0..3).map(|node| Hop { node, rack: 0 }).collect()).unwrap();
        Tree::new(Rounds::new(&chain), chunks)
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn passed_over_chunks_are_named_once() {
        let mut t = tree(100);
        assert_eq!(t.heard(at(1), 0).0, 0..0);
        assert_eq!(t.heard(at(2), 5).0, 1..5);
        assert!(t.heard(at(3), 2).0.is_empty());
        assert_eq!(t.announced(at(4), 9), 6..9);
        assert!(t.announced(at(4), 9).is_empty());
        assert_eq!(t.announced(at(5), u32::MAX), 9..100);
    }

    #[test]
    fn loss_is_told_for_each_round_that_ends() {
        let mut t = tree(1000);
        let quarter = Heard { loss: (Loss::MAX - 1) / 4, spacing: 1_000_000 };
        let told: Vec<_> =
            (0..112).filter(|c| c % 4 != 1).filter_map(|c| t.heard(at(u64::from(c)), c).1).collect();
        assert_eq!(told, [(1, quarter), (2, quarter)]);
    }

    #[test]
    fn who_comes_late_counts_only_what_came_since() {
        let mut t = tree(1000);
        let told: Vec<_> = (40..49).filter_map(|c| t.heard(at(u64::from(c)), c).1).collect();
        assert_eq!(told, [(2, Heard { loss: 0, spacing: 1_000_000 })]);
    }

    #[test]
    fn a_slow_tree_is_not_a_silent_one() {
        let mut t = tree(10);
        t.heard(at(0), 0);
        t.heard(at(50), 1);
        assert_eq!(t.silent_at(2 * MS), Some(at(50 + 64 * 50)));
        for chunk in 2..10 {
            t.heard(at(51), chunk);
        }
        assert_eq!(t.silent_at(2 * MS), None);
    }
}
