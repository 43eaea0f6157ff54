//! The clock of what drives a machine: its time, and waits until one of its deadlines.

use cool_machine::Time;
use tokio::time::Instant;

/// Time for machines, from a tokio instant.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock whose time zero is now.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the time since the clock was started.
    pub fn now(self) -> Time {
        Time::ZERO + self.0.elapsed()
    }

    /// The tokio instant of a time.
    pub fn instant(self, time: Time) -> Instant {
        self.0 + (time - Time::ZERO)
    }

    /// Waits until `deadline`, or for ever if there is none.
    pub async fn wait(self, deadline: Option<Time>) {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(self.0 + (deadline - Time::ZERO)).await,
            None => core::future::pending().await,
        }
    }
}
