//! Packets of reliable multicast from any host: an accepted packet must be encoded to the same
//! bytes.

use cool_transport::Packet;

pub(crate) fn check(bytes: &[u8]) {
    let mut again = Vec::new();
    for decoded in Packet::decode_all(bytes) {
        let Ok((packet, payload)) = decoded else { return };
        packet.encode(&mut again);
        again.extend_from_slice(payload);
    }
    if !bytes.is_empty() {
        assert_eq!(again, bytes);
    }
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_transport::StreamId;
    use cool_transport::packet::{PacketBody, SourceReply, Via};

    let id = StreamId { group: 1, epoch: 2, call: 3, transfer: 4, source: 5 };
    let bodies = [
        PacketBody::Data { chunk: 9, echo: 1, via: Via::Tree, part: 0 },
        PacketBody::Data { chunk: 9, echo: 1, via: Via::Forwarded, part: 0 },
        PacketBody::Announce { sent: 1000, serial: 3, begun: true, answer: false },
        PacketBody::Nak { serial: 2, forward_live: true, in_parts: false, chunks: vec![1..4, 7..8] },
        PacketBody::NakConfirm { echo: 2, chunks: vec![0..100, 200..300, 400..401] },
        PacketBody::Report {
            rounds: 5,
            spacing: 1200,
            delay: 12,
            loss: 600,
            echo: 3,
            alive: vec![0..2, 5..9],
            complete: vec![1..2, 3..4],
        },
        PacketBody::Settled { positions: vec![0..3, 5..16] },
        PacketBody::DigestMismatch,
        PacketBody::Ping,
        PacketBody::PingAnswer { incarnation: 8 },
        PacketBody::SourceActive { ends: true },
        PacketBody::SourceReply(SourceReply::Silent),
    ];
    bodies
        .into_iter()
        .map(|body| {
            let mut bytes = Vec::new();
            Packet { id, from: 6, digest: 7, body }.encode(&mut bytes);
            bytes
        })
        .collect()
}

target!();
