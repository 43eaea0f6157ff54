//! Packets of streams that are not open yet, within bounds. What does not fit is lost, like any packet.

use cool_transport::{Packet, StreamId};
use std::collections::BTreeMap;

/// The most bytes that a group keeps, and the most streams that it knows of.
const BYTES_MAX: usize = 4 * 1024 * 1024;
const STREAMS_MAX: usize = 4096;

/// What keeping a packet costs besides its payload.
const PACKET_COST: usize = 128;

/// What came of one stream.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) packets: Vec<(Packet, Vec<u8>)>,
    /// Some packets were not kept.
    pub(super) lossy: bool,
}

#[derive(Debug, Default)]
pub(super) struct Early {
    streams: BTreeMap<StreamId, Kept>,
    bytes: usize,
}

impl Early {
    pub(super) fn keep(&mut self, packet: Packet, payload: &[u8]) {
        if !self.streams.contains_key(&packet.id) && self.streams.len() >= STREAMS_MAX {
            return;
        }
        let kept = self.streams.entry(packet.id).or_default();
        let cost = payload.len() + PACKET_COST;
        if self.bytes + cost > BYTES_MAX {
            kept.lossy = true;
            return;
        }
        self.bytes += cost;
        kept.packets.push((packet, payload.to_vec()));
    }

    /// Takes what came of a stream that opens now.
    pub(super) fn take(&mut self, id: &StreamId) -> Kept {
        let kept = self.streams.remove(id).unwrap_or_default();
        self.bytes -= cost(&kept);
        kept
    }

    /// Forgets the streams of a call that is over.
    pub(super) fn forget(&mut self, call: u64) {
        let bytes = &mut self.bytes;
        self.streams.retain(|id, kept| {
            let stays = id.call != call;
            if !stays {
                *bytes -= cost(kept);
            }
            stays
        });
    }

    /// For each node that sent packets of a call: the digest it holds.
    pub(super) fn digests(&self, call: u64) -> BTreeMap<u16, u64> {
        let of_call = self.streams.iter().filter(|(id, _)| id.call == call);
        of_call.flat_map(|(_, kept)| &kept.packets).map(|(packet, _)| (packet.from, packet.digest)).collect()
    }
}

fn cost(kept: &Kept) -> usize {
    kept.packets.iter().map(|(_, payload)| payload.len() + PACKET_COST).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_transport::packet::Body;

    fn packet(call: u64, from: u16) -> Packet {
        let id = StreamId { group: 1, epoch: 1, call, transfer: 0, source: 0 };
        Packet { id, from, digest: call, body: Body::DigestMismatch }
    }

    #[test]
    fn a_flood_is_kept_within_bounds_and_room_comes_back() {
        let mut early = Early::default();
        for _ in 0..100 {
            early.keep(packet(1, 0), &vec![0; 64 * 1024]);
        }
        assert!(early.bytes <= BYTES_MAX);
        let kept = early.take(&packet(1, 0).id);
        assert!(kept.lossy && !kept.packets.is_empty());
        assert_eq!(early.bytes, 0);
        for call in 0..10_000 {
            early.keep(packet(call, 0), &[]);
        }
        assert_eq!(early.streams.len(), STREAMS_MAX);
        early.forget(3);
        assert_eq!(early.streams.len(), STREAMS_MAX - 1);
        assert_eq!(early.digests(4), BTreeMap::from([(0, 4)]));
    }
}
