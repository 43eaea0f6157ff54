//! How fast bytes go.

use std::time::{Duration, Instant};

/// Lets bytes go no faster than a rate over some time.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// Bytes in a second; without one they go at once.
    rate: Option<u64>,
    /// By which timers are late: as much is made good, and no longer pause.
    late: Duration,
    due: Option<Instant>,
}

impl Pacer {
    pub(crate) fn new(rate: Option<u64>, late: Duration) -> Pacer {
        Pacer { rate, late, due: None }
    }

    /// When the next bytes may go; at once, if it says nothing.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// As many bytes have gone at `now`.
    pub(crate) fn went(&mut self, now: Instant, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let since = now.checked_sub(self.late).unwrap_or(now);
        let from = self.due.map_or(now, |due| due.max(since));
        self.due = Some(from + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
    }
}
