//! Whether packets of full length arrive at this node, for each source of streams.
//!
//! A router, tunnel or switch port with a smaller MTU drops long packets while short ones pass. But
//! a busy node or a tree that is still being installed can also cost a stream all its long packets.
//! Therefore several streams in a row must lose them, as path MTU discovery requires several lost
//! probes (RFC 8899, `MAX_PROBES`). They must also span some time, because short streams follow
//! each other faster than a busy switch recovers.

use cool_machine::{Duration, Time};
use std::collections::BTreeMap;

/// Number of streams of one source in a row without a long packet after which long packets are
/// considered lost.
const STREAMS_WITHOUT_LONG_PACKETS: u32 = 3;

/// Time between the first of these streams and the last, at least.
const TIME_WITHOUT_LONG_PACKETS: Duration = Duration::from_secs(2);

/// By source that has sent such streams: the latest streams in a row of which only short packets
/// have arrived.
#[derive(Debug, Default)]
pub(super) struct LongPacketLosses(BTreeMap<u16, LossSequence>);

#[derive(Debug)]
struct LossSequence {
    first: Time,
    streams: u32,
    are_lost: bool,
}

impl LongPacketLosses {
    /// Returns whether long packets of a source are lost, so that its next stream should request
    /// parts of chunks from the start.
    pub(super) fn are_lost(&self, source: u16) -> bool {
        self.0.get(&source).is_some_and(|sequence| sequence.are_lost)
    }

    /// Records a stream of which a long packet has arrived.
    pub(super) fn record_arrival(&mut self, source: u16) {
        self.0.remove(&source);
    }

    /// Records a stream of which only short packets have arrived although longer ones were sent.
    /// Returns whether long packets of the source are lost, the first time that this is known.
    pub(super) fn record_loss(&mut self, now: Time, source: u16) -> bool {
        let first = LossSequence { first: now, streams: 0, are_lost: false };
        let sequence = self.0.entry(source).or_insert(first);
        sequence.streams = sequence.streams.saturating_add(1);
        let are_lost = sequence.streams >= STREAMS_WITHOUT_LONG_PACKETS
            && now.since(sequence.first) >= TIME_WITHOUT_LONG_PACKETS;
        !std::mem::replace(&mut sequence.are_lost, are_lost) && are_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records the loss of one stream in each of these seconds, from these sources.
    fn record(losses: &mut LongPacketLosses, streams: &[(u64, u16)]) -> Vec<bool> {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        streams.iter().map(|(seconds, source)| losses.record_loss(at(*seconds), *source)).collect()
    }

    #[test]
    fn long_packets_are_lost_once_three_streams_in_a_row_lack_them() {
        let mut losses = LongPacketLosses::default();
        let streams = [(0, 1), (4, 1), (4, 2), (5, 1), (6, 1)];
        assert_eq!(record(&mut losses, &streams), [false, false, false, true, false]);
        assert!(losses.are_lost(1) && !losses.are_lost(2) && !losses.are_lost(3));
    }

    #[test]
    fn streams_that_fail_at_the_same_time_show_no_smaller_mtu() {
        let mut losses = LongPacketLosses::default();
        let streams = [(0, 1), (0, 1), (1, 1), (1, 1), (2, 1)];
        assert_eq!(record(&mut losses, &streams), [false, false, false, false, true]);
    }

    #[test]
    fn a_long_packet_shows_that_the_path_carries_them() {
        let mut losses = LongPacketLosses::default();
        assert_eq!(record(&mut losses, &[(0, 0), (1, 0), (2, 0)]), [false, false, true]);
        losses.record_arrival(0);
        assert!(!losses.are_lost(0));
        assert_eq!(record(&mut losses, &[(3, 0), (4, 0), (5, 0)]), [false, false, true]);
    }
}
