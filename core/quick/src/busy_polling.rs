//! Decides when a rank that waits for a datagram polls before it sleeps.

use cool_machine::Duration;

/// How long a rank polls before it sleeps. It takes a CPU some tens of microseconds to wake up a
/// thread, in a virtual machine often more, which is longer than a short message is on its way.
const POLLING_TIME: Duration = Duration::from_micros(100);

/// A wait of this time would probably have been shorter than [`POLLING_TIME`] without the sleep.
const SHORT_WAIT: Duration = Duration::from_micros(200);

/// Decides from the previous wait of a rank whether it polls before it sleeps. After a long wait
/// it does not, so that a rank wastes at most the polling time when messages stop arriving, and
/// nothing while they arrive seldom.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyPolling {
    is_polling: bool,
}

impl BusyPolling {
    /// Returns for how long the rank must poll now, before it sleeps. While it polls, it must let
    /// other processes run.
    pub fn polling_time(&self) -> Duration {
        if self.is_polling { POLLING_TIME } else { Duration::ZERO }
    }

    /// Records how long the rank has waited, polling and sleeping.
    pub fn record(&mut self, waited: Duration) {
        self.is_polling = waited <= SHORT_WAIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_polls_only_while_its_waits_are_short() {
        let mut polling = BusyPolling::default();
        assert_eq!(polling.polling_time(), Duration::ZERO);
        let times = [150, 10, 200, 201, 20].map(|micros| {
            polling.record(Duration::from_micros(micros));
            polling.polling_time()
        });
        let (polls, sleeps) = (POLLING_TIME, Duration::ZERO);
        assert_eq!(times, [polls, polls, polls, sleeps, polls]);
    }
}
