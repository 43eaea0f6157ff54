//! Whether packets of full length arrive at this node, for each source of streams.
//!
//! A router, tunnel or switch port with a smaller MTU drops long packets while short ones pass. But
//! a busy node or a tree that is still being installed can also cost a stream all its long packets.
//! Therefore several streams in a row must lose them, as path MTU discovery requires several lost
//! probes (RFC 8899, `MAX_PROBES`).

use std::collections::BTreeMap;

/// Number of streams of one source in a row without a long packet after which long packets are
/// considered lost.
const STREAMS_WITHOUT_LONG_PACKETS: u32 = 3;

/// By source that has sent such streams: the number of the latest streams in a row of which only
/// short packets have arrived.
#[derive(Debug, Default)]
pub(super) struct LongPacketLosses(BTreeMap<u16, u32>);

impl LongPacketLosses {
    /// Returns whether long packets of a source are lost, so that its next stream should request
    /// parts of chunks from the start.
    pub(super) fn are_lost(&self, source: u16) -> bool {
        self.0.get(&source).is_some_and(|streams| *streams >= STREAMS_WITHOUT_LONG_PACKETS)
    }

    /// Records a stream of which a long packet has arrived.
    pub(super) fn record_arrival(&mut self, source: u16) {
        self.0.remove(&source);
    }

    /// Records a stream of which only short packets have arrived although longer ones were sent.
    /// Returns whether long packets of the source are lost, the first time that this is known.
    pub(super) fn record_loss(&mut self, source: u16) -> bool {
        let streams = self.0.entry(source).or_default();
        *streams = streams.saturating_add(1);
        *streams == STREAMS_WITHOUT_LONG_PACKETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_packets_are_lost_once_three_streams_in_a_row_lack_them() {
        let mut losses = LongPacketLosses::default();
        assert_eq!(
            [1, 1, 2, 1, 1].map(|source| losses.record_loss(source)),
            [false, false, false, true, false]
        );
        assert!(losses.are_lost(1) && !losses.are_lost(2) && !losses.are_lost(3));
    }

    #[test]
    fn a_long_packet_shows_that_the_path_carries_them() {
        let mut losses = LongPacketLosses::default();
        assert_eq!([0; 4].map(|source| losses.record_loss(source)), [false, false, true, false]);
        losses.record_arrival(0);
        assert!(!losses.are_lost(0));
        assert_eq!([0; 3].map(|source| losses.record_loss(source)), [false, false, true]);
    }
}
