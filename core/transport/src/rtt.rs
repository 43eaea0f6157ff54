//! The retransmission timeout (RTO), computed from measured round trips as in RFC 6298, section 2.
//! The RFC's minimum of one second does not apply, because a round trip in a data center takes
//! microseconds to milliseconds.

use crate::timeouts::{BACKOFF_DOUBLINGS_MAX, RTO_MAX, RTO_MIN};
use cool_machine::{Duration, Time};
use std::collections::VecDeque;

/// Most packets for which an answer is still measured.
const PROBES_MAX: usize = 64;

/// The round-trip estimate to a peer, and the retransmission timeout that follows from it.
#[derive(Debug)]
pub(crate) struct Rtt {
    /// Smoothed round trip and its variation, once a sample exists.
    estimate: Option<(Duration, Duration)>,
    shortest: Duration,
    rto: Duration,
    /// The serial of the latest packet that expects an answer.
    serial: u16,
    sent: VecDeque<(u16, Time)>,
}

impl Rtt {
    /// Returns an estimate without samples.
    pub(crate) fn new(initial_rto: Duration) -> Rtt {
        let rto = initial_rto.clamp(RTO_MIN, RTO_MAX);
        Rtt { estimate: None, shortest: rto, rto, serial: 0, sent: VecDeque::new() }
    }

    /// Returns the serial of a packet that is sent now and expects an answer. It is never zero.
    /// Serials are not reused soon, so unlike in TCP (Karn's algorithm) every answer identifies its
    /// packet.
    pub(crate) fn next_serial(&mut self, now: Time) -> u16 {
        self.serial = self.serial.checked_add(1).unwrap_or(1);
        self.sent.truncate(PROBES_MAX - 1);
        self.sent.push_front((self.serial, now));
        self.serial
    }

    /// Records an answer with this serial. A serial may have several answers, and the timeout must
    /// cover the last of them.
    pub(crate) fn on_echo(&mut self, now: Time, serial: u16) {
        if let Some((_, at)) = self.sent.iter().find(|(sent, _)| *sent == serial) {
            self.sample(now - *at);
        }
    }

    /// Records a round trip.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        // Unlike in the RFC, the first estimate is the first sample alone.
        let (srtt, var) = match self.estimate {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => (srtt * 7 / 8 + rtt / 8, var * 3 / 4 + srtt.abs_diff(rtt) / 4),
        };
        self.shortest = if self.estimate.is_none() { rtt } else { self.shortest.min(rtt) };
        self.estimate = Some((srtt, var));
        self.rto = (srtt + 4 * var).clamp(RTO_MIN, RTO_MAX);
    }

    /// Returns the number of packets for which an answer is still measured.
    pub(crate) fn entries(&self) -> usize {
        self.sent.len()
    }

    /// Returns the retransmission timeout: how long to wait for an answer before a retry.
    pub(crate) fn rto(&self) -> Duration {
        self.rto
    }

    /// Returns the smoothed round trip, or the initial timeout before the first sample.
    pub(crate) fn smoothed(&self) -> Duration {
        self.estimate.map_or(self.rto, |(srtt, _)| srtt)
    }

    /// Returns the shortest round trip, or the initial timeout before the first sample.
    pub(crate) fn shortest(&self) -> Duration {
        self.shortest
    }
}

/// Returns `base` doubled `times` times, up to a bound (RFC 6298, section 5.5).
pub(crate) fn backoff(base: Duration, times: u32) -> Duration {
    (base * (1 << times.min(BACKOFF_DOUBLINGS_MAX))).min(base.max(RTO_MAX))
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
        assert_eq!((rtt.rto(), rtt.shortest()), (RTO_MIN, MS));
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
        assert_eq!(backoff(MS, 1), 2 * MS);
        assert_eq!(backoff(MS, 99), 4 * MS);
        assert_eq!(backoff(100 * MS, 99), RTO_MAX);
    }

    #[test]
    fn every_answer_measures_the_round_trip_of_its_packet() {
        let mut rtt = Rtt::new(20 * MS);
        let at = |ms| Time::ZERO + ms * MS;
        let first = rtt.next_serial(at(0));
        let second = rtt.next_serial(at(100));
        rtt.on_echo(at(130), second);
        assert_eq!(rtt.smoothed(), 30 * MS);
        rtt.on_echo(at(190), first);
        assert_eq!(rtt.smoothed(), 50 * MS);
        // There is no packet 0, and old packets are no longer measured.
        rtt.on_echo(at(500), 0);
        for _ in 0..PROBES_MAX {
            rtt.next_serial(at(200));
        }
        rtt.on_echo(at(500), first);
        assert_eq!(rtt.smoothed(), 50 * MS);
    }
}
