//! Tests unicast messages between two agents: credit, order, streams that end, and hostile frames.

use super::api::VERSION;
use super::frame::{ControlFrame, DataFrame};
use super::*;
use cool_types::limits::MESSAGE_CREDIT_BYTES;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NOW: Time = Time::ZERO;

fn name(call: u64, transfer: u32) -> MessageName {
    MessageName { group: 7, epoch: 1, call, transfer, from: 0, to: 1 }
}

fn agent(node: &str) -> AgentId {
    AgentId { node: node.to_owned(), incarnation: 3 }
}

fn drain(peer: &mut PeerStream) -> Vec<Output> {
    let mut out = Vec::new();
    while let Poll::Output(o) = peer.poll(NOW) {
        if let Output::Write { head, payload } = &o {
            let bytes = head.len() as u64 + payload.map_or(0, |p| u64::from(p.len));
            peer.handle(NOW, Input::Written(bytes));
        }
        out.push(o);
    }
    out
}

/// Returns the byte of a message at an offset.
fn byte(message: MessageName, offset: u64) -> u8 {
    (message.call * 31 + u64::from(message.transfer) * 7 + offset) as u8
}

/// Two agents and the bytes between them.
struct Pair {
    peers: [PeerStream; 2],
    /// The data of the messages that have begun to arrive at each side.
    got: [BTreeMap<MessageName, Vec<u8>>; 2],
    complete: [Vec<MessageName>; 2],
    sent: [Vec<MessageName>; 2],
    /// The messages of the data frames, in the order in which each side wrote them; `None` for
    /// control frames.
    wrote: [Vec<Option<MessageName>>; 2],
}

impl Pair {
    fn new() -> Pair {
        let mut pair = Pair {
            peers: [PeerStream::new(&agent("a"), "10.0.0.2"), PeerStream::new(&agent("b"), "10.0.0.1")],
            got: Default::default(),
            complete: Default::default(),
            sent: Default::default(),
            wrote: Default::default(),
        };
        for peer in &mut pair.peers {
            peer.handle(NOW, Input::Open { group: 7, epoch: 1 });
        }
        pair.run(1000);
        pair
    }

    fn send(&mut self, message: MessageName, bytes: u64) {
        self.peers[0].handle(NOW, Input::Send { message, digest: 5, bytes, announce: false });
    }

    fn expect(&mut self, message: MessageName) {
        self.peers[1].handle(NOW, Input::Accept(message));
    }

    /// Runs until nothing moves. The stream delivers `step` bytes at a time.
    fn run(&mut self, step: usize) {
        loop {
            let mut moved = false;
            for side in 0..2 {
                let mut stream = Vec::new();
                for output in drain(&mut self.peers[side]) {
                    self.take(side, &output, &[]);
                    if let Output::Write { head, payload } = output {
                        self.wrote[side].push(payload.map(|p| p.message));
                        stream.extend(head);
                        if let Some(p) = payload {
                            stream.extend((0..u64::from(p.len)).map(|i| byte(p.message, p.offset + i)));
                        }
                    }
                }
                moved |= !stream.is_empty();
                for piece in stream.chunks(step) {
                    self.peers[1 - side].handle(NOW, Input::Bytes(piece));
                    // Events are returned before anything to write, so no write is lost here.
                    while self.peers[1 - side].events.front().is_some() {
                        let Poll::Output(o) = self.peers[1 - side].poll(NOW) else { unreachable!() };
                        self.take(1 - side, &o, piece);
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn take(&mut self, side: usize, output: &Output, input: &[u8]) {
        match output {
            Output::Begin { message, .. } => {
                assert!(self.got[side].insert(*message, Vec::new()).is_none(), "{message:?} begins twice");
            }
            Output::Data { message, offset, within } => {
                let got = self.got[side].get_mut(message).expect("data of a message that has begun");
                assert_eq!(got.len() as u64, *offset);
                got.extend(&input[within.clone()]);
            }
            Output::Received(message) => self.complete[side].push(*message),
            Output::Sent(message) => self.sent[side].push(*message),
            Output::Failed(e) => panic!("{e}"),
            Output::Write { .. }
            | Output::Hello(_)
            | Output::GroupOpen { .. }
            | Output::Notice(_)
            | Output::UnknownGroup(_) => {}
        }
    }
}

#[test]
fn a_data_frame_has_the_header_that_the_planner_counts() {
    let head = DataFrame { message: name(0, 0), digest: 5, bytes: 9, offset: 0, len: 9 };
    assert_eq!(head.encode().len() as u64, cool_types::wire::MESSAGE_DATA_HEADER);
}

#[test]
fn a_small_message_goes_without_waiting_for_its_receive() {
    let mut pair = Pair::new();
    pair.send(name(0, 0), 100);
    pair.run(13);
    assert_eq!(pair.sent[0], [name(0, 0)]);
    assert_eq!(pair.got[1][&name(0, 0)].len(), 100);
    assert!(pair.complete[1].is_empty());
    pair.expect(name(0, 0));
    pair.run(13);
    assert_eq!(pair.complete[1], [name(0, 0)]);
}

#[test]
fn nothing_is_sent_before_the_other_side_opened_the_group() {
    for side in [0, 1] {
        let mut pair = Pair::new();
        let message = MessageName { group: 8, ..name(0, 0) };
        let open = Input::Open { group: 8, epoch: 1 };
        pair.peers[side].handle(NOW, open);
        pair.run(13);
        if side == 0 {
            pair.send(message, 100);
            pair.peers[0].handle(NOW, Input::Notify(Notice::WaitingQuery { group: 8, epoch: 1 }));
            pair.run(13);
            assert!(pair.sent[0].is_empty() && pair.got[1].is_empty());
        }
        pair.peers[1 - side].handle(NOW, Input::Open { group: 8, epoch: 1 });
        pair.run(13);
        if side == 1 {
            pair.send(message, 100);
        }
        pair.expect(message);
        pair.run(13);
        assert_eq!((&pair.sent[0][..], &pair.complete[1][..]), (&[message][..], &[message][..]));
        assert!(pair.peers.iter().all(|peer| peer.unconfirmed().next().is_none()));
    }
}

#[test]
fn a_sender_reports_that_it_waits_for_the_group() {
    let mut pair = Pair::new();
    pair.peers[0].handle(NOW, Input::Open { group: 8, epoch: 1 });
    pair.send(MessageName { group: 8, ..name(0, 0) }, 100);
    let mut received = Vec::new();
    for output in drain(&mut pair.peers[0]) {
        let Output::Write { head, payload: None } = output else { panic!("{output:?}") };
        pair.peers[1].handle(NOW, Input::Bytes(&head));
        received.extend(drain(&mut pair.peers[1]));
    }
    let here = |waits| Output::GroupOpen { group: 8, epoch: 1, waits };
    assert_eq!(received, [here(false), here(true)]);
}

#[test]
fn a_new_stream_takes_over_only_unconfirmed_groups() {
    let mut pair = Pair::new();
    let message = |group, to| MessageName { group, to, ..name(0, 0) };
    for side in [0, 1] {
        // No frame of the group crosses this stream.
        pair.peers[side].handle(NOW, Input::Open { group: 8, epoch: 1 });
    }
    pair.send(message(8, 1), 100);
    pair.send(message(8, 2), EAGER_BYTES + 1);
    pair.expect(message(8, 1));
    pair.expect(message(8, 2));
    let mut next = Pair::new();
    for (side, ended) in pair.peers.into_iter().enumerate() {
        assert_eq!(ended.unconfirmed().collect::<Vec<_>>(), [(8, 1)]);
        next.peers[side].resume_from(ended);
    }
    next.run(1000);
    assert_eq!((next.sent[0].len(), next.complete[1].len()), (2, 2));
    assert_eq!(next.got[1].len(), 2);
}

#[test]
fn a_large_message_waits_until_its_receive_is_posted() {
    let mut pair = Pair::new();
    pair.send(name(0, 0), EAGER_BYTES + 1);
    pair.run(1000);
    assert!(pair.sent[0].is_empty());
    assert!(pair.got[1][&name(0, 0)].is_empty());
    pair.expect(name(0, 0));
    pair.run(1000);
    assert_eq!((pair.complete[1].len(), pair.sent[0].len()), (1, 1));
}

#[test]
fn beyond_the_credit_messages_wait_and_none_is_held_back() {
    let mut pair = Pair::new();
    let count = CREDIT_BYTES / 1024 + 10;
    for call in 0..count {
        pair.send(name(call, 0), 1024);
    }
    pair.run(10_000);
    let sent = pair.sent[0].len() as u64;
    assert!(sent < count && sent >= CREDIT_BYTES / (1024 + MESSAGE_CREDIT_BYTES), "{sent}");
    // The last message is received first, although all credit is used.
    pair.expect(name(count - 1, 0));
    pair.run(10_000);
    assert_eq!(pair.complete[1], [name(count - 1, 0)]);
    for call in 0..count - 1 {
        pair.expect(name(call, 0));
    }
    pair.run(10_000);
    assert_eq!(pair.complete[1].len() as u64, count);
    // All credit has been returned.
    pair.send(name(count, 0), 1024);
    pair.run(10_000);
    assert_eq!(pair.sent[0].len() as u64, count + 1);
}

#[test]
fn messages_beyond_the_limit_are_announced_again() {
    let mut pair = Pair::new();
    let within_credit = CREDIT_BYTES / MESSAGE_CREDIT_BYTES;
    let count = within_credit + inbound::ANNOUNCED_MAX as u64 + 1000;
    (0..count).for_each(|call| pair.send(name(call, 0), 0));
    pair.run(1 << 20);
    assert_eq!(pair.got[1].len() as u64, count - 1000, "what is beyond is dropped, and the stream goes on");
    // Receives need not be posted in order: the last message is among those dropped.
    pair.expect(name(count - 1, 0));
    pair.run(1 << 20);
    assert_eq!(pair.complete[1], [name(count - 1, 0)]);
    (0..count - 1).for_each(|call| pair.expect(name(call, 0)));
    pair.run(1 << 20);
    assert_eq!(pair.complete[1].len() as u64, count);
}

#[test]
fn dropped_announcements_are_repeated_once_there_is_room() {
    let mut pair = Pair::new();
    let within_credit = CREDIT_BYTES / MESSAGE_CREDIT_BYTES;
    let count = within_credit + inbound::ANNOUNCED_MAX as u64 + 1000;
    (0..count).for_each(|call| pair.send(name(call, 0), 0));
    pair.run(1 << 20);
    (0..within_credit + inbound::ANNOUNCED_MAX as u64 / 2).for_each(|call| pair.expect(name(call, 0)));
    pair.run(1 << 20);
    assert_eq!(pair.got[1].len() as u64, count);
}

fn order(peer: &mut PeerStream) -> Vec<MessageName> {
    let payload = |output| match output {
        Output::Write { payload, .. } => payload,
        _ => None,
    };
    drain(peer).into_iter().filter_map(payload).map(|payload| payload.message).take(4).collect()
}

/// Announces and grants a large message without writing any of it.
fn granted(pair: &mut Pair, large: MessageName) {
    pair.send(large, 10 * EAGER_BYTES);
    pair.expect(large);
    let announce = drain(&mut pair.peers[0]);
    assert_eq!(announce.len(), 1);
    let Output::Write { head, .. } = &announce[0] else { panic!("{announce:?}") };
    pair.peers[1].handle(NOW, Input::Bytes(head));
    let grant = drain(&mut pair.peers[1]);
    let Some(Output::Write { head, .. }) = grant.last() else { panic!("{grant:?}") };
    pair.peers[0].handle(NOW, Input::Bytes(head));
}

#[test]
fn a_small_message_of_another_group_overtakes_a_large_one() {
    let mut pair = Pair::new();
    granted(&mut pair, name(0, 0));
    let small = MessageName { group: 8, ..name(0, 0) };
    pair.send(small, 8);
    let order = order(&mut pair.peers[0]);
    assert!(order[..2].contains(&small), "{order:?}");
}

#[test]
fn within_a_group_the_earliest_message_goes_first() {
    let mut pair = Pair::new();
    granted(&mut pair, name(1, 3));
    pair.send(name(1, 4), 8);
    pair.send(name(1, 2), 8);
    pair.send(name(0, 9), 8);
    let order = order(&mut pair.peers[0]);
    assert_eq!(order[..3], [name(0, 9), name(1, 2), name(1, 3)]);
    assert!(!order.contains(&name(1, 4)), "{order:?}");
}

#[test]
fn messages_of_a_group_that_is_not_open_are_dropped_by_name() {
    let mut pair = Pair::new();
    pair.peers[1].handle(NOW, Input::Close { group: 7, epoch: 1 });
    pair.send(name(0, 0), 10);
    let writes = drain(&mut pair.peers[0]);
    let Output::Write { head, .. } = &writes[0] else { panic!("{writes:?}") };
    pair.peers[1].handle(NOW, Input::Bytes(&[&head[..], &[0; 10]].concat()));
    assert_eq!(drain(&mut pair.peers[1]), [Output::UnknownGroup(name(0, 0))]);
}

#[test]
fn a_peer_of_another_version_is_refused_by_name() {
    let mut peer = PeerStream::new(&agent("a"), "10.0.0.9:7420");
    let mut hello = ControlFrame::Hello(agent("b")).encode();
    hello[8] += 1;
    peer.handle(NOW, Input::Bytes(&hello));
    let Some(Output::Failed(e)) = drain(&mut peer).into_iter().find(|o| matches!(o, Output::Failed(_)))
    else {
        panic!("not refused");
    };
    assert_eq!(e.violation, Violation::Version(VERSION + 1));
    assert!(e.to_string().contains("10.0.0.9:7420"), "{e}");
}

fn violation(frames: &[Vec<u8>]) -> Option<Violation> {
    let mut peer = PeerStream::new(&agent("a"), "x");
    peer.handle(NOW, Input::Open { group: 7, epoch: 1 });
    let hello = ControlFrame::Hello(agent("b")).encode();
    peer.handle(NOW, Input::Bytes(&hello));
    for frame in frames {
        peer.handle(NOW, Input::Bytes(frame));
    }
    drain(&mut peer).into_iter().find_map(|o| match o {
        Output::Failed(e) => Some(e.violation),
        _ => None,
    })
}

#[test]
fn frames_that_break_the_protocol_are_refused() {
    let data = |transfer, bytes, offset, len: u32| {
        let head = DataFrame { message: name(0, transfer), digest: 5, bytes, offset, len };
        [head.encode(), vec![0; len as usize]].concat()
    };
    let announce = |bytes| ControlFrame::Announce { message: name(0, 0), digest: 5, bytes }.encode();
    assert_eq!(violation(&[data(0, 10, 0, 10)]), None);
    assert_eq!(violation(&[data(0, 10, 5, 5)]), Some(Violation::OutOfOrder(name(0, 0))));
    assert_eq!(violation(&[data(0, 10, 0, 11)]), Some(Violation::OutOfMessage(name(0, 0))));
    assert_eq!(violation(&[data(0, EAGER_BYTES + 1, 0, 9)]), Some(Violation::Unrequested(name(0, 0))));
    assert_eq!(violation(&[announce(1), data(0, 1, 0, 1)]), Some(Violation::Unrequested(name(0, 0))));
    assert_eq!(violation(&[announce(1), announce(1)]), None, "it may be announced again");
    assert_eq!(violation(&[announce(1), announce(2)]), Some(Violation::OutOfOrder(name(0, 0))));
    let grant = ControlFrame::Grant { message: name(0, 0) }.encode();
    assert_eq!(violation(&[grant]), Some(Violation::Unrequested(name(0, 0))));
    let credit = ControlFrame::Credit { group: 7, epoch: 1, bytes: 1 }.encode();
    assert_eq!(violation(&[credit]), Some(Violation::Credit(7)));
    let flood: Vec<Vec<u8>> = (0..17).map(|t| data(t, EAGER_BYTES, 0, EAGER_BYTES as u32)).collect();
    assert_eq!(violation(&flood), Some(Violation::Credit(7)));
    assert_eq!(violation(&[vec![0xff; 8]]), Some(Violation::TooLong { len: 0xffff_ffff }));
    assert_eq!(violation(&[vec![0, 0, 0, 1, 99]]), Some(Violation::UnknownKind(99)));
    assert_eq!(violation(&[vec![0, 0, 0, 0, 1]]), Some(Violation::Truncated));
}

#[test]
fn a_control_frame_cut_short_or_with_bytes_left_over_is_refused() {
    let frames = [
        ControlFrame::Announce { message: name(1, 2), digest: 3, bytes: 4 }.encode(),
        ControlFrame::Grant { message: name(1, 2) }.encode(),
        ControlFrame::Credit { group: 7, epoch: 1, bytes: 4 }.encode(),
    ];
    for frame in frames {
        for len in 1..frame.len() - 4 {
            let cut = [&(len as u32).to_be_bytes()[..], &frame[4..4 + len]].concat();
            assert_eq!(violation(&[cut]), Some(Violation::Truncated));
        }
        let len = frame.len() - 4 + 1;
        let longer = [&(len as u32).to_be_bytes()[..], &frame[4..], &[0]].concat();
        assert!(matches!(violation(&[longer]), Some(Violation::Excess { len: 1, .. })));
    }
}

#[test]
fn notices_arrive_as_they_were_sent() {
    let notices = [
        Notice::Abort { group: 7, epoch: 1, kind: 2, ranks: vec![1, 5], text: "rank 1 called é".to_owned() },
        Notice::RanksArrived {
            group: 7,
            epoch: 1,
            call: 9,
            digest: 8,
            ranks: vec![3],
            text: "barrier".to_owned(),
        },
        Notice::RankLost { group: 7, epoch: 1, call: 9, rank: 3, text: "exited".to_owned() },
        Notice::WaitingQuery { group: 7, epoch: 1 },
        Notice::WaitingRanks { group: 7, epoch: 1, ranks: vec![3], messages: vec![(4, 1), (4, 9)] },
        Notice::QuickCapability { group: 7, epoch: 1, able: true },
        Notice::QuickProbed { group: 7, epoch: 1, passed: false },
    ];
    let mut pair = Pair::new();
    for notice in &notices {
        pair.peers[0].handle(NOW, Input::Notify(notice.clone()));
    }
    for output in drain(&mut pair.peers[0]) {
        let Output::Write { head, .. } = output else { continue };
        pair.peers[1].handle(NOW, Input::Bytes(&head));
    }
    assert_eq!(drain(&mut pair.peers[1]), notices.map(Output::Notice));
}

/// Feeds pieces of a stream from a hostile peer after a valid greeting, like the fuzz target.
///
/// # Panics
/// Panics if the machine returns bytes outside the input or the message, or continues after a
/// failure.
fn survive<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let mut peer = PeerStream::new(&agent("self"), "hostile");
    peer.handle(NOW, Input::Open { group: 0, epoch: 0 });
    let Poll::Output(Output::Write { head, .. }) = PeerStream::new(&agent("hostile"), "").poll(NOW) else {
        panic!("no greeting")
    };
    peer.handle(NOW, Input::Bytes(&head));
    let mut lengths = BTreeMap::new();
    let mut failed = false;
    for piece in std::iter::once(&[][..]).chain(pieces) {
        peer.handle(NOW, Input::Bytes(piece));
        while let Poll::Output(output) = peer.poll(NOW) {
            assert!(!failed, "continues after a failure: {output:?}");
            match output {
                Output::Begin { message, bytes, .. } => {
                    lengths.insert(message, bytes);
                    peer.handle(NOW, Input::Accept(message));
                }
                Output::Data { message, offset, within } => {
                    assert!(within.end <= piece.len());
                    assert!(offset + within.len() as u64 <= lengths[&message]);
                }
                Output::Failed(_) => failed = true,
                _ => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn every_message_arrives_whole_however_the_stream_is_cut(
        sizes in prop::collection::vec(0u64..200_000, 1..20),
        step in 1usize..100_000,
        late in any::<u32>(),
    ) {
        let mut pair = Pair::new();
        let messages: Vec<MessageName> = (0..sizes.len()).map(|i| name(0, i as u32)).collect();
        for (i, (message, bytes)) in messages.iter().zip(&sizes).enumerate() {
            if late >> i & 1 == 0 {
                pair.expect(*message);
            }
            pair.send(*message, *bytes);
        }
        pair.run(step);
        for (i, message) in messages.iter().enumerate() {
            if late >> i & 1 == 1 {
                pair.expect(*message);
            }
        }
        pair.run(step);
        prop_assert_eq!(pair.complete[1].len(), messages.len());
        prop_assert_eq!(pair.sent[0].len(), messages.len());
        for (message, bytes) in messages.iter().zip(&sizes) {
            let want: Vec<u8> = (0..*bytes).map(|o| byte(*message, o)).collect();
            prop_assert_eq!(&pair.got[1][message], &want);
        }
    }

    #[test]
    fn hostile_bytes_never_panic_and_data_lies_within_its_message(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..16),
        small in any::<bool>(),
    ) {
        let pieces: Vec<Vec<u8>> = pieces.into_iter().map(|mut p| {
            if small && p.len() > 4 {
                p[..4].copy_from_slice(&[0, 0, 0, 20]);
                p[4] %= 10;
            }
            p
        }).collect();
        survive(pieces.iter().map(Vec::as_slice));
    }
}

proptest! {
    /// The driver stores payload itself, for some number of bytes at a time.
    #[test]
    fn payload_may_be_placed_by_the_driver(
        bytes in 1u64..400_000, steps in prop::collection::vec(1usize..100_000, 1..20),
    ) {
        let mut pair = Pair::new();
        pair.send(name(0, 0), bytes);
        pair.expect(name(0, 0));
        if bytes > EAGER_BYTES {
            for side in [0, 1] {
                for output in drain(&mut pair.peers[side]) {
                    let Output::Write { head, .. } = output else { continue };
                    pair.peers[1 - side].handle(NOW, Input::Bytes(&head));
                }
            }
        }
        let mut stream = Vec::new();
        for output in drain(&mut pair.peers[0]) {
            let Output::Write { head, payload } = output else { continue };
            stream.extend(head);
            stream.resize(stream.len() + payload.map_or(0, |p| p.len as usize), 0);
        }
        let (receiver, mut rest, mut placed) = (&mut pair.peers[1], &stream[..], 0);
        for step in steps.iter().cycle() {
            let now = rest.len().min(*step);
            let (mut piece, after) = rest.split_at(now);
            if let Some(Payload { message, offset, len }) = receiver.payload() {
                prop_assert_eq!((message, offset), (name(0, 0), placed));
                let len = now.min(len as usize);
                receiver.handle(NOW, Input::Placed(len as u32));
                placed += len as u64;
                piece = &piece[len..];
            }
            receiver.handle(NOW, Input::Bytes(piece));
            for output in drain(receiver) {
                match output {
                    Output::Data { message, offset, within } => {
                        prop_assert_eq!(message, name(0, 0));
                        prop_assert!(within.is_empty() || offset == placed);
                        placed += within.len() as u64;
                    }
                    Output::Received(message) => prop_assert_eq!((message, placed), (name(0, 0), bytes)),
                    Output::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(placed, bytes);
        prop_assert_eq!(receiver.payload(), None);
    }
}

#[test]
fn a_message_is_sent_when_all_of_it_has_left_the_driver() {
    let mut pair = Pair::new();
    pair.send(name(0, 0), 100);
    let sender = &mut pair.peers[0];
    let Poll::Output(Output::Write { head, payload: Some(payload) }) = sender.poll(NOW) else { panic!() };
    assert_eq!(sender.poll(NOW), Poll::Idle(None));
    let written = head.len() as u64 + u64::from(payload.len);
    sender.handle(NOW, Input::Written(written - 1));
    assert_eq!(sender.poll(NOW), Poll::Idle(None));
    sender.handle(NOW, Input::Written(1));
    assert_eq!(sender.poll(NOW), Poll::Output(Output::Sent(name(0, 0))));
}
