//! The retry timer from measured round trips, as RFC 6298 computes it, without its floor of a second: in a
//! data center a round trip takes microseconds to milliseconds.

use core::time::Duration;

/// Below this, timers of the machines that run us fire late anyway.
const FLOOR: Duration = Duration::from_millis(2);
/// Above this, a retry is worth its packet.
pub(crate) const CEILING: Duration = Duration::from_millis(500);

/// The estimate of the round trip to a peer.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    /// Smoothed round trip and its variation, once there is a sample.
    estimate: Option<(Duration, Duration)>,
    shortest: Duration,
    rto: Duration,
}

impl Rtt {
    /// No sample yet.
    pub(crate) fn new(initial_rto: Duration) -> Rtt {
        let rto = initial_rto.clamp(FLOOR, CEILING);
        Rtt { estimate: None, shortest: rto, rto }
    }

    /// A round trip took this long.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        // Unlike the RFC's, the estimate starts from the first sample alone.
        let (srtt, var) = match self.estimate {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => (srtt * 7 / 8 + rtt / 8, var * 3 / 4 + srtt.abs_diff(rtt) / 4),
        };
        self.shortest = if self.estimate.is_none() { rtt } else { self.shortest.min(rtt) };
        self.estimate = Some((srtt, var));
        self.rto = (srtt + 4 * var).clamp(FLOOR, CEILING);
    }

    /// How long to wait for an answer.
    pub(crate) fn rto(&self) -> Duration {
        self.rto
    }

    /// The smoothed round trip; before a sample, what the retry timer starts from.
    pub(crate) fn smoothed(&self) -> Duration {
        self.estimate.map_or(self.rto, |(srtt, _)| srtt)
    }

    /// The shortest round trip; before a sample, what the retry timer starts from.
    pub(crate) fn shortest(&self) -> Duration {
        self.shortest
    }
}

/// `base` doubled `times` times, at most 64-fold.
pub(crate) fn backoff(base: Duration, times: u32) -> Duration {
    base * (1 << times.min(6))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_timer_follows_steady_round_trips_down_to_its_floor() {
        let mut rtt = Rtt::new(20 * MS);
        assert_eq!(rtt.rto(), 20 * MS);
        rtt.sample(10 * MS);
        assert_eq!(rtt.rto(), 30 * MS);
        for _ in 0..60 {
            rtt.sample(MS);
        }
        assert_eq!((rtt.rto(), rtt.shortest()), (FLOOR, MS));
    }

    #[test]
    fn one_late_answer_widens_the_timer() {
        let mut rtt = Rtt::new(20 * MS);
        for _ in 0..30 {
            rtt.sample(4 * MS);
        }
        let steady = rtt.rto();
        rtt.sample(40 * MS);
        assert!(rtt.rto() > steady + 30 * MS, "{:?}", rtt.rto());
    }

    #[test]
    fn backoff_is_bounded() {
        assert_eq!(backoff(MS, 3), 8 * MS);
        assert_eq!(backoff(MS, 99), 64 * MS);
    }
}
