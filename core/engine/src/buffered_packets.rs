//! Packets of streams that are not open yet. The buffer is bounded: packets that do not fit are
//! dropped, as any packet may be.

use crate::engine_outbox::{EngineOutbox, ReceivedBytes};
use crate::memory::MemoryRange;
use cool_transport::{Packet, StreamId};
use std::collections::BTreeMap;

/// Limits on the packets that a group buffers: their total bytes, and the number of their streams.
const BYTES_MAX: usize = 4 * 1024 * 1024;
const STREAMS_MAX: usize = 4096;

/// The memory that a buffered packet takes in addition to its payload, in bytes.
const PACKET_COST: usize = 128;

/// The buffered packets of one stream.
#[derive(Debug, Default)]
pub(crate) struct BufferedStream {
    /// The packets with their payload. The caller that takes them must free the memory of the
    /// payload.
    pub(crate) packets: Vec<(Packet, MemoryRange)>,
    /// Whether packets of the stream were dropped because the buffer was full.
    pub(crate) lossy: bool,
}

#[derive(Debug, Default)]
pub(crate) struct BufferedPackets {
    streams: BTreeMap<StreamId, BufferedStream>,
    bytes: usize,
}

impl BufferedPackets {
    pub(crate) fn buffer(&mut self, packet: Packet, payload: &ReceivedBytes, out: &mut EngineOutbox) {
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
        let buffer = out.allocate(packet.id.group, payload.len() as u64);
        out.store(payload, buffer);
        kept.packets.push((packet, buffer));
    }

    /// Removes and returns the packets of a stream that is being opened.
    pub(crate) fn take(&mut self, id: &StreamId) -> BufferedStream {
        let kept = self.streams.remove(id).unwrap_or_default();
        self.bytes -= cost(&kept);
        kept
    }

    /// Drops the packets of a call that has ended.
    pub(crate) fn forget(&mut self, call: u64, out: &mut EngineOutbox) {
        let bytes = &mut self.bytes;
        self.streams.retain(|id, kept| {
            let stays = id.call != call;
            if !stays {
                *bytes -= cost(kept);
                kept.packets.iter().for_each(|(_, payload)| out.free(*payload));
            }
            stays
        });
    }

    /// Drops all packets.
    pub(crate) fn clear(&mut self, out: &mut EngineOutbox) {
        let kept = std::mem::take(self).streams.into_values();
        kept.flat_map(|kept| kept.packets).for_each(|(_, payload)| out.free(payload));
    }

    /// Returns the nodes that have sent packets of a call, each with the digest of the call in its
    /// packets.
    pub(crate) fn digests(&self, call: u64) -> BTreeMap<u16, u64> {
        let of_call = self.streams.iter().filter(|(id, _)| id.call == call);
        of_call.flat_map(|(_, kept)| &kept.packets).map(|(packet, _)| (packet.from, packet.digest)).collect()
    }
}

fn cost(kept: &BufferedStream) -> usize {
    kept.packets.iter().map(|(_, payload)| payload.len as usize + PACKET_COST).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_transport::packet::PacketBody;

    fn packet(call: u64, from: u16) -> Packet {
        let id = StreamId { group: 1, epoch: 1, call, transfer: 0, source: 0 };
        Packet { id, from, digest: call, body: PacketBody::DigestMismatch }
    }

    #[test]
    fn a_flood_is_bounded_and_its_room_is_freed() {
        let (mut buffered, mut out) = (BufferedPackets::default(), EngineOutbox::default());
        for _ in 0..100 {
            buffered.buffer(packet(1, 0), &ReceivedBytes::Input(0..64 * 1024), &mut out);
        }
        assert!(buffered.bytes <= BYTES_MAX);
        let kept = buffered.take(&packet(1, 0).id);
        assert!(kept.lossy && !kept.packets.is_empty());
        assert_eq!(buffered.bytes, 0);
        for call in 0..10_000 {
            buffered.buffer(packet(call, 0), &ReceivedBytes::NONE, &mut out);
        }
        assert_eq!(buffered.streams.len(), STREAMS_MAX);
        buffered.forget(3, &mut out);
        assert_eq!(buffered.streams.len(), STREAMS_MAX - 1);
        assert_eq!(buffered.digests(4), BTreeMap::from([(0, 4)]));
    }
}
