//! The contract of every protocol in COOL: a state machine without I/O.
//!
//! Whoever can read one machine can read all: a driver gives it one input with the time
//! ([`Machine::handle`]), then polls it ([`Machine::poll`]) until it answers [`Poll::Idle`], which
//! carries the instant at which to poll again even if no input comes. Machines hold no socket, read
//! no clock and draw no chance: time and seeds are arguments, so each runs as well under a simulator
//! as in a daemon.

use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// An instant: nanoseconds since an origin that the driver chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The driver's origin.
    pub const ZERO: Time = Time(0);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The first multiple of `step` after the origin that is not before this; this, if the step is zero.
    pub fn round_up(self, step: Duration) -> Time {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        if step == 0 { self } else { Time(self.0.div_ceil(step).saturating_mul(step)) }
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl AddAssign<Duration> for Time {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}

/// What a machine answers when polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll<T> {
    /// Do this, then poll again.
    Output(T),
    /// Nothing to do until the next input, or until this instant if there is one.
    Idle(Option<Time>),
}

/// A protocol as a state machine without I/O.
pub trait Machine {
    /// What may happen to it.
    type Input<'a>;
    /// What it asks its driver to do.
    type Output;

    /// Takes one input that happened at `now`. Follow it with [`Machine::poll`] until idle.
    fn handle(&mut self, now: Time, input: Self::Input<'_>);

    /// The next thing to do at `now`. Time never runs backwards between calls.
    fn poll(&mut self, now: Time) -> Poll<Self::Output>;
}

/// The earlier of two optional deadlines.
pub fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_saturates_instead_of_wrapping() {
        let t = Time::from_nanos(5);
        assert_eq!(t - Time::from_nanos(9), Duration::ZERO);
        assert_eq!(t + Duration::MAX, Time::from_nanos(u64::MAX));
    }

    #[test]
    fn the_earliest_deadline_wins_and_none_means_never() {
        let (a, b) = (Some(Time::from_nanos(1)), Some(Time::from_nanos(2)));
        assert_eq!(earliest(a, b), a);
        assert_eq!(earliest(None, b), b);
        assert_eq!(earliest(None, None), None);
    }
}
