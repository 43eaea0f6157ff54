//! The two lanes of a member: blocks within its rack, and blocks from and to other racks. Neither waits for the other. An uplink is
//! shared by all in the rack, so what goes over it goes at part of a host's rate; in the other lane goes what that leaves of the
//! host's link.

use crate::rings::Member;
use cool_machine::{Duration, Time};

/// Blocks that a member sends, and receives, at a time in the lane beyond its rack (`far`) or within it. Within it there are several: one
/// alone takes as long as the busier of its two hosts allows, and leaves the other's link idle meanwhile. What goes beyond it shares
/// an uplink with what others of the rack send: of one each there are enough to keep that busy.
pub const fn blocks_at_a_time(far: bool) -> usize {
    if far { 2 } else { 3 }
}

/// When a member offers in a lane, and whom it calls back.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Offers that were refused since the last block.
    refusals: u32,
    /// Nothing is offered before, and how long the next pause is, at first and now.
    pause_ends: Time,
    pause_min: Duration,
    pause: Duration,
    /// When the last block went.
    went_at: Time,
    /// Who was refused last, because this node was busy.
    pub(crate) turned_away: Option<Member>,
}

impl Lane {
    pub(crate) fn new(now: Time, block: Duration) -> Lane {
        let pause = (block / 8).max(Duration::from_micros(10));
        Lane { refusals: 0, pause_ends: now, pause_min: pause, pause, went_at: now, turned_away: None }
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

    /// Makes a pause, each twice as long as the one before, up to eight times the first.
    pub(crate) fn rest(&mut self, now: Time) {
        self.refusals = 0;
        self.pause_ends = now + self.pause;
        self.pause = (self.pause * 2).min(self.pause_min * 8);
    }

    /// When the last block went, or the lane began.
    pub(crate) fn went_at(&self) -> Time {
        self.went_at
    }

    /// A block goes.
    pub(crate) fn went(&mut self, now: Time) {
        self.went_at = now;
        (self.refusals, self.pause) = (0, self.pause_min);
    }

    /// There is room, or somebody who may want something.
    pub(crate) fn open(&mut self, now: Time) {
        (self.pause_ends, self.pause) = (now, self.pause_min);
    }
}
