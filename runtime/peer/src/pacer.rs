//! Limits the rate at which bytes are sent.

use std::time::{Duration, Instant};

/// Computes when the next bytes may be sent, so that a rate is not exceeded over time.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// Rate in bytes per second; `None` if it is unlimited.
    rate: Option<u64>,
    /// Maximum delay of timers. After a pause, bytes may exceed the rate only to make up for this
    /// much time.
    late: Duration,
    due: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(rate: Option<u64>, late: Duration) -> Pacer {
        Pacer { rate, late, due: None }
    }

    /// Returns when the next bytes may be sent, or `None` if they may be sent at once.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that this many bytes were sent at `now`.
    pub(crate) fn record_sent(&mut self, now: Instant, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let since = now.checked_sub(self.late).unwrap_or(now);
        let from = self.due.map_or(now, |due| due.max(since));
        self.due = Some(from + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
    }
}
