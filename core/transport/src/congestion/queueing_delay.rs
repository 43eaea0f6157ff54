//! The queueing delay of chunks on their way over the tree: their transit time minus the shortest
//! one.
//!
//! The source stamps each multicast chunk with its clock. The clocks need not be synchronized,
//! because only differences of differences matter.

use cool_machine::{Duration, Time};

/// Nanoseconds per unit, as a power of two: 16 microseconds, so that stamps repeat after one
/// second.
const UNIT_SHIFT: u32 = 14;
/// Rounds after which the shortest delay so far becomes the earlier one, and a new one is sought.
/// Delays are measured against the shorter of both. The shortest delay must expire, because clocks
/// drift apart.
const ROUNDS_REMEMBERED: u32 = 64;

/// Shortest queue that can be distinguished from the noise of the machines.
pub(crate) const SHORTEST_QUEUE: Duration = Duration::from_micros(500);

/// Returns the source's clock in units, cut to the bits that a packet holds.
pub(crate) fn stamp(now: Time) -> u16 {
    (now.as_nanos() >> UNIT_SHIFT) as u16
}

/// Returns `count` units as a duration.
pub(crate) fn units(count: u16) -> Duration {
    Duration::from_nanos(u64::from(count) << UNIT_SHIFT)
}

/// The queueing delay of one stream's chunks at one receiver.
#[derive(Debug, Default)]
pub(crate) struct QueueingDelay {
    /// The difference of the clocks at the first chunk. Later differences are relative to it.
    first: Option<u16>,
    /// The shortest delay of the open round, of the current [`ROUNDS_REMEMBERED`] rounds, and of
    /// those before.
    round: Option<i16>,
    recent: i16,
    earlier: i16,
    rounds: u32,
}

impl QueueingDelay {
    /// Records a chunk that arrived with this stamp.
    pub(crate) fn on_chunk(&mut self, now: Time, stamp_then: u16) {
        let difference = stamp(now).wrapping_sub(stamp_then);
        let beyond = difference.wrapping_sub(*self.first.get_or_insert(difference)) as i16;
        self.round = Some(self.round.map_or(beyond, |quickest| quickest.min(beyond)));
        self.recent = self.recent.min(beyond);
    }

    /// Ends a round. Returns the queueing delay of its quickest chunk, in units.
    pub(crate) fn end_round(&mut self) -> u16 {
        let waited = self.round.take().map_or(0, |round| round.abs_diff(self.recent.min(self.earlier)));
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_REMEMBERED) {
            (self.earlier, self.recent) = (self.recent, i16::MAX);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u64 = 1 << UNIT_SHIFT;

    /// Returns the delays that are reported for rounds with these delays in units, measured by a
    /// clock that is ahead.
    fn waited(rounds: &[&[u64]]) -> Vec<u16> {
        let mut delay = QueueingDelay::default();
        let mut sent = 0;
        let round = |round: &&[u64]| {
            for took in *round {
                sent += 1000 * UNITS;
                let arrival = Time::from_nanos(sent + 77_777_777_777 + took * UNITS);
                delay.on_chunk(arrival, stamp(Time::from_nanos(sent)));
            }
            delay.end_round()
        };
        rounds.iter().map(round).collect()
    }

    #[test]
    fn delay_is_that_of_the_quickest_chunk_of_a_round() {
        assert_eq!(waited(&[&[7, 9], &[12, 30], &[40, 7], &[5], &[9, 8]]), [0, 5, 0, 0, 3]);
    }

    #[test]
    fn clock_drift_is_not_taken_for_a_queue_forever() {
        let rounds: Vec<[u64; 1]> = (0..1000).map(|round| [round / 10]).collect();
        let reported = waited(&rounds.iter().map(|round| &round[..]).collect::<Vec<_>>());
        assert!(reported.iter().all(|units| *units <= 2 * ROUNDS_REMEMBERED as u16 / 10 + 1), "{reported:?}");
    }

    #[test]
    fn a_round_without_chunks_has_no_delay() {
        assert_eq!(waited(&[&[3], &[], &[5]]), [0, 0, 2]);
    }
}
