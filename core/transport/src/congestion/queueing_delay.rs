//! How long chunks wait in queues on their way over the tree: what they took beyond the quickest.
//!
//! The source stamps what it multicasts with its clock. A receiver need not know by how much its own differs,
//! since only differences of differences count.

use cool_machine::{Duration, Time};

/// Nanoseconds of a unit, as a power of two: 16 microseconds, so that a stamp comes again after a second.
const UNIT_SHIFT: u32 = 14;
/// Rounds over which the shortest delay is remembered, and then once more: clocks drift apart.
const ROUNDS_REMEMBERED: u32 = 64;

/// Shorter queues are not told from the noise of machines.
pub(crate) const SHORTEST_QUEUE: Duration = Duration::from_micros(500);

/// What the source's clock shows, in units, as much as a packet holds.
pub(crate) fn stamp(now: Time) -> u16 {
    (now.as_nanos() >> UNIT_SHIFT) as u16
}

/// `count` units as a time.
pub(crate) fn units(count: u16) -> Duration {
    Duration::from_nanos(u64::from(count) << UNIT_SHIFT)
}

/// The delay of the chunks of one stream at one receiver.
#[derive(Debug, Default)]
pub(crate) struct QueueingDelay {
    /// The clocks' difference at the first chunk, which the others' are compared with.
    first: Option<u16>,
    /// The quickest of the open round, of these rounds, and of those before.
    round: Option<i16>,
    recent: i16,
    earlier: i16,
    rounds: u32,
}

impl QueueingDelay {
    /// A chunk came that was stamped so.
    pub(crate) fn on_chunk(&mut self, now: Time, stamp_then: u16) {
        let difference = stamp(now).wrapping_sub(stamp_then);
        let beyond = difference.wrapping_sub(*self.first.get_or_insert(difference)) as i16;
        self.round = Some(self.round.map_or(beyond, |quickest| quickest.min(beyond)));
        self.recent = self.recent.min(beyond);
    }

    /// A round has ended: what even its quickest chunk waited, in units.
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

    /// What the rounds of these delays, in units, are told to have waited by a clock that is ahead.
    fn waited(rounds: &[&[u64]]) -> Vec<u16> {
        let mut delay = QueueingDelay::default();
        let mut sent = 0;
        let round = |round: &&[u64]| {
            for took in *round {
                sent += 1000 * UNITS;
                let came = Time::from_nanos(sent + 77_777_777_777 + took * UNITS);
                delay.on_chunk(came, stamp(Time::from_nanos(sent)));
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
