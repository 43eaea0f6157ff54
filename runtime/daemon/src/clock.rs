//! Clock for the driver of a state machine ([`cool_machine::Machine`]): returns the current time,
//! and waits for deadlines.

use cool_machine::Time;
use tokio::time::Instant;

/// Converts between the time of a state machine, which starts at zero, and tokio's instants.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Returns a clock that is zero now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the time since the clock was started.
    pub fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }

    /// Returns the tokio instant of a machine's time.
    pub fn instant(self, time: Time) -> Instant {
        self.0 + (time - Time::ZERO)
    }

    /// Waits until `deadline`, or forever if there is none.
    pub async fn wait(self, deadline: Option<Time>) {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(self.0 + (deadline - Time::ZERO)).await,
            None => core::future::pending().await,
        }
    }
}
