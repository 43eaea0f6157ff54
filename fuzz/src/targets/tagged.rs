//! Tagged datagrams, the hello of agents and encrypted records, from any host: headers must be
//! parsed and decrypted without a panic, and data with an invalid tag must be refused.

use cool_transport::tagged::{Cipher, GroupKey, Protection, Tagger};
use cool_transport::unicast::handshake::{Ephemeral, Responder, STREAMS_MAX, StreamPlace};
use cool_transport::unicast::records::Opener;
use cool_types::Key;
use std::net::Ipv4Addr;

/// Accepts no tag.
struct RejectAll;

impl Cipher for RejectAll {
    fn new(_: &Key) -> RejectAll {
        RejectAll
    }

    fn tag(&self, _: [u8; 12], clear: &[u8]) -> [u8; 16] {
        // A tag that a datagram of a few bytes cannot contain by chance.
        Key::from([7; 32]).tag(clear)[..16].try_into().expect("16 of 32 bytes")
    }

    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], _: &mut [u8]) -> [u8; 16] {
        self.tag(nonce, clear)
    }

    fn decrypt(&self, _: [u8; 12], _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}

pub(crate) fn check(bytes: &[u8]) {
    for protection in [Protection::Tagged, Protection::Encrypted] {
        let mut tagger = Tagger::<RejectAll>::default();
        tagger.insert((1, 2), GroupKey { key: [3; 32].into(), protection }, (0, u16::MAX));
        let mut datagram = bytes.to_vec();
        if let Ok((len, proven)) = tagger.open(&mut datagram, Ipv4Addr::LOCALHOST.into()) {
            assert_eq!((len, proven), (bytes.len(), None), "bytes without a tag stay as they are");
            assert_eq!(datagram, bytes);
        }
    }
    if let Some(responder) = Responder::new([1; 32].into(), bytes) {
        let ephemeral = Ephemeral { nonce: [2; 32], public_key: responder.encrypts().then_some([4; 32]) };
        if let Some(StreamPlace { index, count, .. }) = responder.place() {
            assert!(index < count && (2..=STREAMS_MAX).contains(&count), "stream {index} of {count}");
        }
        assert_eq!(responder.verify(&ephemeral, &[0; 32]), None);
    }
    records(bytes);
}

/// Processes the data of an encrypted connection, none of which is valid.
fn records(mut bytes: &[u8]) {
    let mut opener = Opener::<RejectAll>::new(&[5; 32].into());
    while opener.plain().is_ok_and(<[u8]>::is_empty) && !bytes.is_empty() {
        let room = opener.room();
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
        opener.received(length);
        bytes = &bytes[length..];
    }
    assert!(opener.plain().map_or(true, <[u8]>::is_empty));
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    use cool_transport::packet::PacketBody;
    use cool_transport::unicast::AgentId;
    use cool_transport::unicast::handshake::{Initiator, PeerKey};
    use cool_transport::unicast::records::Sealer;
    use cool_transport::{Packet, StreamId};

    let id = StreamId { group: 1, epoch: 2, call: 3, transfer: 4, source: 5 };
    let mut ping = Vec::new();
    Packet { id, from: 6, digest: 7, body: PacketBody::Ping }.encode(&mut ping);
    ping.extend([0; 16]);
    let tagged = |magic: u8| {
        let mut bytes = ping.clone();
        bytes.copy_within(4..12, 8);
        (bytes[0], bytes[1]) = (magic, 8);
        bytes
    };
    let me = AgentId { node: "h1".to_owned(), incarnation: 1 };
    let hello = |public_key, group, place| {
        let ephemeral = Ephemeral { nonce: [2; 32], public_key };
        Initiator::new(&me, PeerKey { key: [1; 32].into(), group }, &ephemeral, place).hello().to_vec()
    };
    let place = Some(StreamPlace { token: [3; 16], index: 1, count: 8 });
    let record = Sealer::<RejectAll>::new(&[5; 32].into()).seal(b"frame");
    let hellos = [
        hello(None, None, None),
        hello(Some([4; 32]), None, None),
        hello(None, Some((5, 6)), None),
        hello(Some([4; 32]), Some((5, 6)), None),
        hello(None, None, place),
        hello(Some([4; 32]), Some((5, 6)), place),
    ];
    [vec![tagged(0xC2), tagged(0xC3)], hellos.to_vec(), vec![record]].concat()
}

target!();
