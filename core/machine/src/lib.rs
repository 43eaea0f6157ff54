//! The contract of every protocol in COOL: a state machine without I/O.
//!
//! All machines have the same shape, so reading one is enough to read all of them. A driver passes
//! in one input with the current time ([`Machine::handle`]), then calls [`Machine::poll`] until it
//! returns [`Poll::Idle`], which contains the instant at which the driver must poll again even if
//! no input arrives.
//!
//! A machine must not hold a socket, read a clock or draw random numbers. Time and seeds are
//! arguments, because the same code then runs in a daemon and under a seeded simulator.

use core::ops::{Add, AddAssign, Sub};
pub use core::time::Duration;

/// An instant, in nanoseconds since an origin that the driver chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The driver's origin.
    pub const ZERO: Time = Time(0);

    /// Returns the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this instant, or zero if this instant is not later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the first multiple of `step`, counted from the origin, that is not before this
    /// instant. Returns this instant if `step` is zero.
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

/// The result of polling a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll<T> {
    /// The driver must perform this output and then poll again.
    Output(T),
    /// Nothing is to be done until the next input, or until this instant if one is given.
    Idle(Option<Time>),
}

/// A protocol as a state machine without I/O.
pub trait Machine {
    /// An event or command that the driver passes to the machine.
    type Input<'a>;
    /// An action that the driver must perform.
    type Output;

    /// Handles one input that occurred at `now`. The driver must then call [`Machine::poll`] until
    /// it returns [`Poll::Idle`].
    fn handle(&mut self, now: Time, input: Self::Input<'_>);

    /// Returns the next output at `now`. `now` must not be earlier than in previous calls.
    fn poll(&mut self, now: Time) -> Poll<Self::Output>;
}

/// Returns the earlier of two optional deadlines. `None` means that there is no deadline.
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
