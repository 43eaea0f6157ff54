//! The two lanes of a member: one for blocks within its rack, one for blocks from and to other
//! racks. Neither lane waits for the other. All members of a rack share its uplink, so a block
//! crosses it at part of a host's rate; the other lane uses the remainder of the host's link.

use crate::rings::Member;
use cool_machine::{Duration, Time};

/// Returns the number of blocks that a member sends, and receives, at a time in the lane beyond its
/// rack (`far`) or within it. The lane within the rack carries several, because a single block is
/// limited by the busier of its two hosts and leaves the other host's link idle. Blocks beyond the
/// rack share the uplink with those of the rack's other members, so fewer are enough to keep it
/// busy.
pub const fn blocks_at_a_time(far: bool) -> usize {
    if far { 2 } else { 3 }
}

/// The refusals and pauses of one lane, and the member to call back.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Offers that were refused since the last block was sent.
    refusals: u32,
    /// End of the current pause, before which no block is offered; the length of the first pause
    /// after a block; and the length of the next pause.
    pause_ends: Time,
    pause_min: Duration,
    pause: Duration,
    /// When the last block was sent, or when the lane was created.
    last_sent_at: Time,
    /// The sender of the last offer that was refused because this node was busy.
    pub(crate) turned_away: Option<Member>,
}

impl Lane {
    pub(crate) fn new(now: Time, block_time: Duration) -> Lane {
        let pause = (block_time / 8).max(Duration::from_micros(10));
        Lane { refusals: 0, pause_ends: now, pause_min: pause, pause, last_sent_at: now, turned_away: None }
    }

    pub(crate) fn refusals(&self) -> u32 {
        self.refusals
    }

    pub(crate) fn pause_ends(&self) -> Time {
        self.pause_ends
    }

    pub(crate) fn refused(&mut self) {
        self.refusals += 1;
    }

    /// Starts a pause. Each pause is twice as long as the previous one, up to eight times the
    /// first.
    pub(crate) fn rest(&mut self, now: Time) {
        self.refusals = 0;
        self.pause_ends = now + self.pause;
        self.pause = (self.pause * 2).min(self.pause_min * 8);
    }

    /// Returns when the last block was sent, or when the lane was created.
    pub(crate) fn last_sent(&self) -> Time {
        self.last_sent_at
    }

    /// Records that a block is being sent.
    pub(crate) fn record_sent(&mut self, now: Time) {
        self.last_sent_at = now;
        (self.refusals, self.pause) = (0, self.pause_min);
    }

    /// Ends the pause, because there is room or because a receiver may have become available.
    pub(crate) fn end_pause(&mut self, now: Time) {
        (self.pause_ends, self.pause) = (now, self.pause_min);
    }
}
