//! Detects dead switches (OpenFlow 1.3.5, 6.4): a silent switch is sent an echo request, and counts
//! as dead after a longer silence.

use cool_machine::{Duration, Time};

/// Maximum silence before an echo request is sent.
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// Silence after which a switch counts as dead.
pub(crate) const DEAD_AFTER: Duration = Duration::from_secs(15);

/// The silence of one switch.
#[derive(Debug)]
pub(crate) struct Keepalive {
    probe_after: Duration,
    last: Time,
    /// Whether an echo request is unanswered.
    probed: bool,
}

impl Keepalive {
    /// Starts at `now`. Echo requests make the switch send something at least every `interval`.
    pub(crate) fn new(interval: Duration, now: Time) -> Keepalive {
        Keepalive { probe_after: interval.min(PROBE_AFTER), last: now, probed: false }
    }

    /// Records a message of the switch.
    pub(crate) fn on_message(&mut self, now: Time) {
        (self.last, self.probed) = (now, false);
    }

    /// Returns when the last message was received.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    pub(crate) fn is_dead(&self, now: Time) -> bool {
        self.last + DEAD_AFTER <= now
    }

    /// Returns whether an echo request must be sent now.
    pub(crate) fn is_probe_due(&mut self, now: Time) -> bool {
        let due = !self.probed && self.last + self.probe_after <= now;
        self.probed |= due;
        due
    }

    pub(crate) fn deadline(&self) -> Time {
        self.last + if self.probed { DEAD_AFTER } else { self.probe_after }
    }
}
