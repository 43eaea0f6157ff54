//! Whether a switch is still there (OpenFlow 1.3.5, 6.4): after a silence it is asked, after a longer one it is not.

use cool_machine::{Duration, Time};

/// The longest silence after which a switch is asked.
const ASK_AFTER: Duration = Duration::from_secs(5);
/// After this silence it is not there.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(15);

/// A switch's silence.
#[derive(Debug)]
pub(crate) struct Keepalive {
    ask_after: Duration,
    last: Time,
    /// An answer is due.
    asked: bool,
}

impl Keepalive {
    /// A switch that says something at least every `interval`, since it is asked for it.
    pub(crate) fn new(interval: Duration, now: Time) -> Keepalive {
        Keepalive { ask_after: interval.min(ASK_AFTER), last: now, asked: false }
    }

    /// It has said something.
    pub(crate) fn heard(&mut self, now: Time) {
        (self.last, self.asked) = (now, false);
    }

    /// When it was last heard.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    pub(crate) fn is_dead(&self, now: Time) -> bool {
        self.last + DEAD_AFTER <= now
    }

    /// Whether it is to be asked now.
    pub(crate) fn asks(&mut self, now: Time) -> bool {
        let asks = !self.asked && self.last + self.ask_after <= now;
        self.asked |= asks;
        asks
    }

    pub(crate) fn deadline(&self) -> Time {
        self.last + if self.asked { DEAD_AFTER } else { self.ask_after }
    }
}
