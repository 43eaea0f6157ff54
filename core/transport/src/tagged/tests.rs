//! Tests tags with a fake cipher: its tag is an HMAC over all bytes, and it inverts the bits of the
//! payload.

use super::*;
use crate::packet::{Packet, PacketBody, Via};
use crate::spec::StreamId;
use proptest::prelude::*;
use std::net::Ipv4Addr;

struct Hmac(Key);

impl Cipher for Hmac {
    fn new(key: &Key) -> Hmac {
        Hmac(key.clone())
    }

    fn tag(&self, nonce: [u8; 12], clear: &[u8]) -> [u8; 16] {
        let tag = self.0.tag(&[&nonce, clear].concat());
        std::array::from_fn(|at| tag[at])
    }

    fn encrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> [u8; 16] {
        payload.iter_mut().for_each(|byte| *byte = !*byte);
        self.tag(nonce, &[clear, payload].concat())
    }

    fn decrypt(&self, nonce: [u8; 12], clear: &[u8], payload: &mut [u8]) -> bool {
        let (payload, tag) = payload.split_at_mut(payload.len() - 16);
        let right = self.tag(nonce, &[clear, payload].concat()) == tag;
        payload.iter_mut().for_each(|byte| *byte = !*byte);
        right
    }
}

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const GROUP: u64 = 7;

/// Returns the agent of a node in a group of two nodes.
fn agent(protection: Protection, key: u8) -> Tagger<Hmac> {
    let mut tagger = Tagger::default();
    tagger.insert((GROUP, 3), GroupKey { key: [key; 32].into(), protection }, (0, 2));
    tagger
}

/// Returns packets of the first node: a chunk, or pings.
fn packets(chunk: bool, len: usize) -> Vec<u8> {
    let id = StreamId { group: GROUP, epoch: 3, call: 0, transfer: 0, source: 0 };
    let body = if chunk {
        PacketBody::Data { chunk: 1, echo: 0, via: Via::Tree, part: 0 }
    } else {
        PacketBody::Ping
    };
    let packet = Packet { id, from: 0, digest: 5, body };
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    match chunk {
        true => bytes.extend((0..len).map(|at| at as u8)),
        false => (0..len % 4).for_each(|_| packet.encode(&mut bytes)),
    }
    bytes
}

fn sealed(sender: &mut Tagger<Hmac>, packets: &[u8]) -> Vec<u8> {
    let mut bytes = packets.to_vec();
    sender.seal((GROUP, HERE), &mut bytes, 0);
    bytes
}

fn protection() -> impl Strategy<Value = Protection> {
    prop_oneof![Just(Protection::Tagged), Just(Protection::Encrypted)]
}

proptest! {
    #[test]
    fn a_tagged_datagram_is_accepted_once(protection in protection(), chunk: bool, len in 0usize..2000) {
        let (mut sender, mut receiver) = (agent(protection, 1), agent(protection, 1));
        let packets = packets(chunk, len);
        let mut bytes = sealed(&mut sender, &packets);
        prop_assert_eq!(bytes.len(), packets.len() + sender.tag_bytes(GROUP));
        let mut again = bytes.clone();
        prop_assert_eq!(receiver.open(&mut bytes, HERE), Ok((packets.len(), Some(GROUP))));
        prop_assert_eq!(&bytes[..packets.len()], &packets);
        prop_assert_eq!(receiver.open(&mut again, HERE), Err(TagError::Replayed));
        let mut next = sealed(&mut sender, &packets);
        prop_assert!(receiver.open(&mut next, HERE).is_ok());
    }

    #[test]
    fn a_changed_datagram_is_refused_and_changes_nothing(protection in protection(), chunk: bool, len in 0usize..300, at: prop::sample::Index, flip in 1u8..=255) {
        let (mut sender, mut receiver) = (agent(protection, 1), agent(protection, 1));
        let bytes = sealed(&mut sender, &packets(chunk, len));
        let mut changed = bytes.clone();
        changed[at.index(bytes.len())] ^= flip;
        // Without its magic the datagram does not claim to be tagged.
        prop_assert!(!matches!(receiver.open(&mut changed, HERE), Ok((_, Some(_)))));
        prop_assert!(receiver.open(&mut bytes.clone(), HERE).is_ok());
    }
}

#[test]
fn another_key_or_destination_is_refused() {
    let mut receiver = agent(Protection::Tagged, 1);
    let mut forged = sealed(&mut agent(Protection::Tagged, 2), &packets(true, 100));
    assert_eq!(receiver.open(&mut forged, HERE), Err(TagError::Forged));
    let mut elsewhere = sealed(&mut agent(Protection::Tagged, 1), &packets(true, 100));
    assert_eq!(receiver.open(&mut elsewhere, [10, 0, 0, 3].into()), Err(TagError::Forged));
    let places = [1, 2].map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]));
    let mut by_ipv6 = packets(true, 100);
    agent(Protection::Tagged, 1).seal((GROUP, places[0]), &mut by_ipv6, 0);
    for elsewhere in [places[1], HERE] {
        assert_eq!(receiver.open(&mut by_ipv6.clone(), elsewhere), Err(TagError::Forged));
    }
    assert!(receiver.open(&mut by_ipv6.clone(), places[0]).is_ok());
    assert_eq!(receiver.open(&mut by_ipv6, places[0]), Err(TagError::Replayed));
    receiver.remove(GROUP);
    let mut late = sealed(&mut agent(Protection::Tagged, 1), &packets(true, 100));
    assert_eq!(receiver.open(&mut late, HERE), Err(TagError::Unknown));
}

#[test]
fn a_group_without_a_key_sends_packets_as_they_are() {
    let mut agent = Tagger::<Hmac>::default();
    let plain = packets(true, 100);
    let mut bytes = sealed(&mut agent, &plain);
    assert_eq!(bytes, plain);
    assert_eq!(agent.open(&mut bytes, HERE), Ok((plain.len(), None)));
}
