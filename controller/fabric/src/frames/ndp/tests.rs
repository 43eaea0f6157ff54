//! Neighbor discovery: reading, forwarding and answering messages, and refusing invalid ones.
use super::*;
use proptest::prelude::*;

const HOST: MacAddr = MacAddr(2, 0, 0, 0, 0, 1);
const OTHER: MacAddr = MacAddr(2, 0xc0, 0, 0, 0, 9);

/// A request for fe80::2 from fe80::1, as a Linux host sends it.
const FRAME: [u8; 86] = [
    0x33, 0x33, 0xff, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255, 0xfe, 0x80, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 2, 135, 0, 0x7a,
    0x97, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 2, 0, 0, 0, 0, 1,
];

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// Returns a message with a correct checksum.
fn announced(kind: u8, flags: u8, source: Ipv6Addr, to: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    super::valid_message(kind, HOST, (source, to), flags, rest)
}

#[test]
fn a_solicitation_is_read_encoded_and_answered_to_its_sender() {
    let question = NeighborMessage::read(&FRAME).unwrap();
    assert_eq!(
        (question.sender, question.claimed_address(), question.requested_address()),
        (HOST, Some(ip("fe80::1")), Some(ip("fe80::2")))
    );
    assert_eq!((question.router(), question.is_shared()), (None, false));
    assert_eq!(question.forwarded(HOST, question.to), FRAME);
    let frame = question.reply(OTHER, true);
    let answer = NeighborMessage::read(&frame).unwrap();
    assert_eq!((answer.to, answer.sender, answer.destination), (HOST, OTHER, ip("fe80::1")));
    assert_eq!(
        (answer.claimed_address(), answer.requested_address(), answer.router()),
        (Some(ip("fe80::2")), None, Some(true))
    );
    assert_eq!(frame[58], ROUTER | SOLICITED | OVERRIDE);
    assert_eq!(frame[78..], [&[TARGET_ADDRESS, 1][..], &OTHER.octets()].concat());
}

#[test]
fn a_probe_for_duplicates_claims_nothing_and_is_answered_to_all() {
    let frame =
        announced(SOLICITATION, 0, Ipv6Addr::UNSPECIFIED, ip("ff02::1:ff00:2"), &ip("fe80::2").octets());
    let question = NeighborMessage::read(&frame).unwrap();
    assert_eq!((question.claimed_address(), question.requested_address()), (None, Some(ip("fe80::2"))));
    let frame = question.reply(OTHER, false);
    let answer = NeighborMessage::read(&frame).unwrap();
    assert_eq!((answer.to, answer.destination, frame[58]), (ALL_NODES_MAC, ALL_NODES, OVERRIDE));
}

#[test]
fn forwarding_replaces_the_senders_address_everywhere() {
    let own = [&[SOURCE_ADDRESS, 1][..], &HOST.octets()].concat();
    let prefix = [&[3, 4][..], &[7; 30]].concat();
    let other = [&[SOURCE_ADDRESS, 1][..], &[2, 0, 0, 0, 0, 7]].concat();
    let life = [0; 8];
    let router = announced(
        ROUTER_ADVERTISEMENT,
        64,
        ip("fe80::1"),
        ALL_NODES,
        &[&life[..], &prefix, &own, &other].concat(),
    );
    for (frame, router) in [
        (router, Some(true)),
        (announced(ROUTER_SOLICITATION, 0, ip("fe80::1"), ip("ff02::2"), &own), None),
        (announcement(ip("fe80::1"), HOST, false), Some(false)),
        // Hop-by-hop options precede the message.
        (extended(&FRAME), None),
    ] {
        let message = NeighborMessage::read(&frame).unwrap();
        assert_eq!((message.claimed_address(), message.router()), (Some(ip("fe80::1")), router));
        let shown = message.forwarded(OTHER, HOST);
        let again = NeighborMessage::read(&shown).unwrap();
        assert_eq!(
            (again.to, again.sender, again.claimed_address()),
            (HOST, OTHER, message.claimed_address())
        );
        assert_eq!(again.addresses().next().map(|(_, at)| mac(&shown, at)), Some(Some(OTHER)));
        let back = again.forwarded(HOST, message.to);
        assert_eq!(back, frame);
    }
}

/// Returns the frame with an option for routers, as MLD sends it.
fn extended(frame: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..PAYLOAD], &[ICMPV6, 0, 5, 2, 0, 0, 1, 0], &frame[PAYLOAD..]].concat();
    frame[IP + 5] += 8;
    frame[IP + 6] = 0;
    frame
}

#[test]
fn a_probe_is_for_one_host_and_names_its_sender() {
    let frame = probe(HOST, ip("fd00::1"), OTHER);
    let requested = NeighborMessage::read(&frame).unwrap();
    assert_eq!(
        (requested.to, requested.sender, requested.requested_address()),
        (HOST, OTHER, Some(ip("fd00::1")))
    );
    assert_eq!(requested.claimed_address(), Some(ip("fe80::c0:ff:fe00:9")));
    assert_eq!(requested.claimed_address(), Some(link_local(OTHER)));
}

#[test]
fn an_anycast_reply_takes_the_address_from_no_node() {
    let mut frame = announcement(ip("fe80::1"), HOST, false);
    frame[58] = 0;
    seal(ip("fe80::1"), ALL_NODES, &mut frame[PAYLOAD..]);
    assert!(NeighborMessage::read(&frame).unwrap().is_shared());
}

#[test]
fn invalid_neighbor_discovery_is_recognized_but_not_read() {
    for end in 0..FRAME.len() {
        assert_eq!(NeighborMessage::read(&FRAME[..end]), None);
    }
    // Hop limit, code, checksum, target, length of the option.
    for at in [21, 55, 56, 64, 79] {
        let mut frame = FRAME;
        frame[at] ^= 1;
        assert_eq!((kind(&frame), NeighborMessage::read(&frame)), (Some(SOLICITATION), None), "byte {at}");
    }
    let own = [&[SOURCE_ADDRESS, 1][..], &HOST.octets()].concat();
    let (nobody, somebody, target) = (Ipv6Addr::UNSPECIFIED, ip("fe80::1"), ip("fe80::2").octets());
    for frame in [
        announced(SOLICITATION, 0, nobody, ip("ff02::1:ff00:2"), &[&target[..], &own].concat()),
        announced(SOLICITATION, 0, nobody, somebody, &target),
        announced(SOLICITATION, 0, somebody, ALL_NODES, &ALL_NODES.octets()),
        announced(SOLICITATION, 0, ip("ff02::5"), ALL_NODES, &target),
        announced(SOLICITATION, 0, somebody, ALL_NODES, &[&target[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat()),
        announced(SOLICITATION, 0, somebody, ALL_NODES, &[&target[..], &[1, 2, 0, 0, 0, 0, 0, 0]].concat()),
        announced(ROUTER_ADVERTISEMENT, 0, ip("fd00::1"), ALL_NODES, &[0; 8]),
        announced(ADVERTISEMENT, SOLICITED, somebody, ALL_NODES, &target),
        announced(ADVERTISEMENT, 0, somebody, ALL_NODES, &nobody.octets()),
    ] {
        assert!(kind(&frame).is_some());
        assert_eq!(NeighborMessage::read(&frame), None, "{frame:x?}");
    }
    // These are the addresses of no interface, so a reply could not be sent.
    for sender in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let mut frame = FRAME;
        frame[6..12].copy_from_slice(&sender);
        assert_eq!(NeighborMessage::read(&frame), None, "{sender:x?}");
    }
    // An echo request, and TCP.
    for (at, value) in [(54, 128), (20, 6), (12, 8), (14, 0x45)] {
        let mut frame = FRAME;
        frame[at] = value;
        assert_eq!(kind(&frame), None, "byte {at}");
    }
}

proptest! {
    #[test]
    fn every_message_that_is_read_can_be_encoded(
        changes in prop::collection::vec((14..94usize, any::<u8>()), 0..4),
        end in 0..=94usize,
        which in 0..3usize,
    ) {
        let frames = [FRAME.to_vec(), announcement(ip("fd00::7"), HOST, true), extended(&FRAME)];
        let mut frame = frames[which].clone();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(end);
        // Without this, most frames would fail the checksum.
        if let Some(at) = icmpv6(&frame)
            && frame.len() >= at + 4
            && let (Some(source), Some(to)) = (ip_at(&frame, IP + 8), ip_at(&frame, IP + 24))
        {
            seal(source, to, &mut frame[at..]);
        }
        if let Some(message) = NeighborMessage::read(&frame) {
            let shown = message.forwarded(OTHER, HOST);
            let again = NeighborMessage::read(&shown);
            prop_assert_eq!(again.map(|again| (again.sender, again.claimed_address(), again.requested_address())), Some((OTHER, message.claimed_address(), message.requested_address())));
            if message.requested_address().is_some() {
                let answer = message.reply(OTHER, false);
                prop_assert_eq!(NeighborMessage::read(&answer).and_then(|answer| answer.claimed_address()), message.requested_address());
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_not(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(kind(&bytes).is_some() || NeighborMessage::read(&bytes).is_none());
    }
}

fn ip_at(frame: &[u8], at: usize) -> Option<Ipv6Addr> {
    super::ip(frame, at)
}
