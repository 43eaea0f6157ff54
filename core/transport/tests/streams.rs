//! Tests the two ends of a stream, input by input. Lossy networks are tested in the simulator.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what packets hold")]

use cool_machine::{Duration, Machine, Poll, Time};
use cool_transport::packet::{PacketBody, Via};
use cool_transport::{
    Chain, Hop, Input, Output, PART_BYTES, Packet, PacketTarget, RateSpec, Receiver, Sender, SpecError,
    StreamError, StreamId, StreamSpec, StreamTimers,
};
use proptest::prelude::*;

const CHUNK: u32 = 1000;

fn spec(nodes: u16, len: u64) -> StreamSpec {
    let hops = (0..nodes).map(|node| Hop { node: 10 + node, rack: node / 3 }).collect();
    StreamSpec {
        id: StreamId { group: 1, epoch: 1, call: 1, transfer: 0, source: 10 },
        len,
        digest: 77,
        chunk_bytes: CHUNK,
        further_bytes: 0,
        chain: Chain::new(hops).expect("a chain"),
        multicast: true,
        rack_tree: true,
        rate: RateSpec { ceiling: Some(1_000_000), verified: true, found: None, background: false },
        eager: 10_000,
        on_hold: false,
        in_parts: false,
        timers: StreamTimers::default(),
    }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn drain(machine: &mut impl Machine<Output = Output>, now: Time) -> (Vec<Output>, Option<Time>) {
    let mut outputs = Vec::new();
    for _ in 0..100_000 {
        match machine.poll(now) {
            Poll::Output(output) => outputs.push(output),
            Poll::Idle(next) => return (outputs, next),
        }
    }
    panic!("a machine that never becomes idle: {:?}", &outputs[..5]);
}

/// Returns all outputs of a machine that receives no further packets, until it has closed or
/// `until` is reached.
fn alone(machine: &mut impl Machine<Output = Output>, until: Time) -> Vec<(Time, Output)> {
    let (mut now, mut all) = (Time::ZERO, Vec::new());
    loop {
        let (outputs, next) = drain(machine, now);
        all.extend(outputs.into_iter().map(|output| (now, output)));
        match next {
            Some(next) if next <= until => now = next,
            _ => return all,
        }
    }
}

fn from(node: u16, body: PacketBody) -> Packet {
    Packet { id: spec(2, 0).id, from: node, digest: 77, body }
}

fn data(chunk: u32) -> Packet {
    from(10, PacketBody::Data { chunk, echo: 0, via: Via::Tree, part: 0 })
}

fn give<M>(machine: &mut M, now: Time, packet: &Packet, payload: usize) -> Vec<Output>
where
    M: for<'a> Machine<Input<'a> = Input<'a>, Output = Output>,
{
    machine.handle(now, Input::Packet { packet, payload });
    drain(machine, now).0
}

fn report(node: u16, position: u16, complete: bool) -> Packet {
    let me = vec![position..position + 1];
    let complete = if complete { me.clone() } else { Vec::new() };
    from(
        node,
        PacketBody::Report { rounds: 0, loss: u16::MAX, spacing: 0, delay: 0, echo: 0, alive: me, complete },
    )
}

fn is_data(output: &Output) -> bool {
    matches!(output, Output::Transmit { packet: Packet { body: PacketBody::Data { .. }, .. }, .. })
}

#[test]
fn small_messages_start_at_once_and_long_ones_when_ready() {
    let mut small = Sender::new(at(0), spec(3, 700)).unwrap();
    let (sent, _) = drain(&mut small, at(0));
    assert_eq!(sent.iter().filter(|output| is_data(output)).count(), 1);

    let mut long = Sender::new(at(0), spec(3, 50_000)).unwrap();
    assert!(!drain(&mut long, at(0)).0.iter().any(is_data));
    assert!(!give(&mut long, at(1), &report(11, 1, false), 0).iter().any(is_data));
    assert!(give(&mut long, at(2), &report(12, 2, false), 0).iter().any(is_data));
}

#[test]
fn a_long_message_starts_without_a_late_receiver() {
    let mut sender = Sender::new(at(0), spec(3, 50_000)).unwrap();
    let sent = alone(&mut sender, at(20_000));
    let first = sent.iter().find(|(_, output)| is_data(output)).expect("it must be sent");
    assert_eq!(first.0, at(0) + StreamTimers::default().ready);
}

#[test]
fn a_message_of_no_bytes_is_sent_and_delivered() {
    let mut sender = Sender::new(at(0), spec(2, 0)).unwrap();
    assert_eq!(drain(&mut sender, at(0)).0.iter().filter(|output| is_data(output)).count(), 1);
    let mut receiver = Receiver::new(at(0), spec(2, 0), 1).unwrap();
    let outputs = give(&mut receiver, at(1), &data(0), 0);
    assert!(outputs.contains(&Output::Delivered));
    let outputs = give(&mut sender, at(1), &report(11, 1, true), 0);
    assert!(outputs.contains(&Output::Released));
}

#[test]
fn a_closed_source_still_settles_late_reports() {
    let mut sender = Sender::new(at(0), spec(2, 700)).unwrap();
    drain(&mut sender, at(0));
    let mut receiver = Receiver::new(at(0), spec(2, 700), 1).unwrap();
    assert!(give(&mut receiver, at(0), &data(0), 700).contains(&Output::Delivered));
    assert!(give(&mut sender, at(1), &report(11, 1, true), 0).contains(&Output::Closed));
    // The settled packet is lost, and so are many more.
    let reports = alone(&mut receiver, at(10_000));
    let Some((now, Output::Transmit { packet, .. })) = reports.last() else { panic!("{reports:?}") };
    assert!(*now > at(9_000));
    let answer = Sender::settled_reply(packet).expect("an answer");
    assert!(give(&mut receiver, *now, &answer, 0).contains(&Output::Released));
    assert_eq!(Sender::settled_reply(&answer), None);
}

#[test]
fn a_source_without_receivers_is_done_at_once() {
    let mut sender = Sender::new(at(0), spec(1, 1 << 30)).unwrap();
    assert_eq!(drain(&mut sender, at(0)), (vec![Output::Released, Output::Closed], None));
}

#[test]
fn chunks_are_stored_where_they_belong_in_any_order_and_once() {
    let mut receiver = Receiver::new(at(0), spec(2, 2500), 1).unwrap();
    let stored = |outputs: Vec<Output>| -> Vec<_> {
        outputs.into_iter().filter(|output| matches!(output, Output::Store(_) | Output::Delivered)).collect()
    };
    assert_eq!(stored(give(&mut receiver, at(0), &data(2), 500)), [Output::Store(2000..2500)]);
    assert_eq!(stored(give(&mut receiver, at(0), &data(2), 500)), []);
    assert_eq!(stored(give(&mut receiver, at(0), &data(0), 1000)), [Output::Store(0..1000)]);
    // A chunk of another length, or beyond the end, does not belong to this message.
    assert_eq!(stored(give(&mut receiver, at(0), &data(1), 999)), []);
    assert_eq!(stored(give(&mut receiver, at(0), &data(3), 1000)), []);
    assert_eq!(receiver.stats().refused, 2);
    let last = stored(give(&mut receiver, at(0), &data(1), 1000));
    assert_eq!(last, [Output::Store(1000..2000), Output::Delivered]);
}

#[test]
fn a_gap_is_nakked_after_the_reordering_window() {
    let mut receiver = Receiver::new(at(0), spec(3, 9000), 2).unwrap();
    give(&mut receiver, at(0), &data(0), 1000);
    let outputs = give(&mut receiver, at(1), &data(3), 1000);
    assert_eq!(outputs, [Output::Store(3000..4000)]);
    let (_, next) = drain(&mut receiver, at(1));
    let (outputs, _) = drain(&mut receiver, next.expect("a NAK must be scheduled"));
    let [Output::Transmit { to: PacketTarget::Node(11), packet, .. }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    let PacketBody::Nak { chunks, forward_live, .. } = &packet.body else { panic!("{packet:?}") };
    assert_eq!((&chunks[..], *forward_live), (&[1..3][..], false));
}

#[test]
fn a_missing_chunk_is_confirmed_and_forwarded_later() {
    let mut receiver = Receiver::new(at(0), spec(4, 3000), 1).unwrap();
    give(&mut receiver, at(0), &data(0), 1000);
    let ask =
        from(12, PacketBody::Nak { serial: 4, forward_live: true, in_parts: false, chunks: vec![0..2] });
    let to = |output: &Output| match output {
        Output::Transmit { to: PacketTarget::Node(12), packet, payload } => {
            Some((packet.body.clone(), payload.clone()))
        }
        _ => None,
    };
    let answers: Vec<_> = give(&mut receiver, at(0), &ask, 0).iter().filter_map(to).collect();
    assert_eq!(answers[0].0, PacketBody::NakConfirm { echo: 4, chunks: vec![1..2] });
    assert_eq!(answers[1], (PacketBody::Data { chunk: 0, echo: 4, via: Via::Answer, part: 0 }, 0..1000));
    let forwarded: Vec<_> = give(&mut receiver, at(0), &data(1), 1000).iter().filter_map(to).collect();
    assert_eq!(
        forwarded,
        [(PacketBody::Data { chunk: 1, echo: 0, via: Via::Forwarded, part: 0 }, 1000..2000)]
    );
}

#[test]
fn chunks_missing_in_a_rack_are_multicast_there() {
    let mut head = Receiver::new(at(0), spec(9, 4000), 3).unwrap();
    let mut last = Receiver::new(at(0), spec(9, 4000), 5).unwrap();
    let lost = |machine: &mut Receiver| {
        give(machine, at(0), &data(0), 1000);
        give(machine, at(0), &data(3), 1000);
    };
    lost(&mut head);
    lost(&mut last);
    let ask = |node| {
        from(node, PacketBody::Nak { serial: 4, forward_live: false, in_parts: false, chunks: vec![1..3] })
    };
    give(&mut head, at(0), &ask(14), 0);
    let mended = from(12, PacketBody::Data { chunk: 1, echo: 0, via: Via::Answer, part: 0 });
    let outputs = give(&mut head, at(1), &mended, 1000);
    let [Output::Store(_), Output::Transmit { to: PacketTarget::Rack, packet, payload }] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(
        (&packet.body, payload),
        (&PacketBody::Data { chunk: 1, echo: 0, via: Via::Rack, part: 0 }, &(1000..2000))
    );

    // The node behind the last one is in another rack, so it receives the chunk that was multicast
    // here.
    give(&mut last, at(0), &ask(16), 0);
    let outputs = give(&mut last, at(1), packet, 1000);
    let [Output::Store(range), Output::Transmit { to: PacketTarget::Node(16), packet, .. }] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*range, 1000..2000);
    assert_eq!(packet.body, PacketBody::Data { chunk: 1, echo: 0, via: Via::Forwarded, part: 0 });
}

#[test]
fn a_multicast_of_another_rack_is_refused() {
    let mut receiver = Receiver::new(at(0), spec(9, 4000), 7).unwrap();
    let packet = from(13, PacketBody::Data { chunk: 1, echo: 0, via: Via::Rack, part: 0 });
    assert!(!give(&mut receiver, at(0), &packet, 1000).contains(&Output::Store(1000..2000)));
    assert_eq!(receiver.stats().refused, 1);
}

#[test]
fn a_receiver_keeps_the_message_until_its_successor_has_it() {
    let mut receiver = Receiver::new(at(0), spec(3, 1000), 1).unwrap();
    assert!(give(&mut receiver, at(0), &data(0), 1000).contains(&Output::Delivered));
    let settled = |positions| from(10, PacketBody::Settled { positions: vec![positions] });
    assert!(!give(&mut receiver, at(1), &settled(1..2), 0).contains(&Output::Released));
    assert!(give(&mut receiver, at(2), &settled(1..3), 0).contains(&Output::Released));
}

#[test]
fn a_digest_mismatch_is_reported_to_both_ends_once() {
    let mut receiver = Receiver::new(at(0), spec(2, 1000), 1).unwrap();
    let other = Packet { digest: 78, ..data(0) };
    let outputs = give(&mut receiver, at(0), &other, 1000);
    let [Output::Mismatch { node: 10, digest: 78 }, Output::Transmit { to, packet, .. }] = &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*to, PacketTarget::Node(10));
    assert!(give(&mut receiver, at(0), &other, 1000).is_empty());

    let mut sender = Sender::new(at(0), StreamSpec { digest: 78, ..spec(2, 1000) }).unwrap();
    drain(&mut sender, at(0));
    let outputs = give(&mut sender, at(1), packet, 0);
    assert_eq!(outputs[0], Output::Mismatch { node: 11, digest: 77 });
}

#[test]
fn a_receiver_without_packets_fails_and_closes() {
    let mut receiver = Receiver::new(at(0), spec(2, 1000), 1).unwrap();
    let outputs = alone(&mut receiver, at(1_000_000));
    let start = StreamTimers::default().start;
    let error = StreamError::NotStarted { source_node: 10, waited: start };
    assert_eq!(outputs, [(at(0) + start, Output::Failed(error)), (at(0) + start, Output::Closed)]);
}

#[test]
fn a_source_without_reports_names_the_silent_nodes() {
    let mut sender = Sender::new(at(0), spec(3, 1000)).unwrap();
    let outputs = alone(&mut sender, at(1_000_000));
    let waited = StreamTimers::default().stall;
    let error = StreamError::Incomplete { nodes: vec![11, 12], waited };
    assert!(outputs.contains(&(at(0) + waited, Output::Failed(error))));
    assert_eq!(outputs.last().map(|(_, output)| output), Some(&Output::Closed));
}

#[test]
fn specifications_that_contradict_themselves_are_refused() {
    let named = StreamSpec { id: StreamId { source: 11, ..spec(2, 0).id }, ..spec(2, 0) };
    let error = Sender::new(at(0), named).unwrap_err();
    assert_eq!(error, SpecError::OtherSource { named: 11, first: 10 });
    let error = Receiver::new(at(0), spec(2, 0), 2).unwrap_err();
    assert_eq!(error, SpecError::NoReceiver { position: 2, nodes: 2 });
    let error = Sender::new(at(0), spec(2, u64::MAX)).unwrap_err();
    assert!(matches!(error, SpecError::TooLong { .. }));
    let error = Sender::new(at(0), StreamSpec { chunk_bytes: 0, ..spec(2, 1) }).unwrap_err();
    assert_eq!(error, SpecError::NoChunk);
}

/// Numbers near all limits, and far from them.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..70, 0u32..6, Just(u32::MAX - 1), any::<u32>()]
}

fn ranges() -> impl Strategy<Value = Vec<core::ops::Range<u32>>> {
    prop::collection::btree_set(number(), 0..8).prop_map(|ends| {
        let ends: Vec<u32> = ends.into_iter().collect();
        ends.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
    })
}

fn positions() -> impl Strategy<Value = Vec<core::ops::Range<u16>>> {
    ranges().prop_map(|ranges| {
        ranges.into_iter().map(|r| r.start as u16..r.end as u16).filter(|r| r.start < r.end).collect()
    })
}

fn body() -> impl Strategy<Value = PacketBody> {
    let via = prop_oneof![Just(Via::Tree), Just(Via::Answer), Just(Via::Forwarded)];
    prop_oneof![
        (number(), 0u16..5, via).prop_map(|(chunk, echo, via)| PacketBody::Data {
            chunk,
            echo,
            via,
            part: 0
        }),
        (number(), 0u16..5, any::<bool>(), any::<bool>())
            .prop_map(|(sent, serial, begun, answer)| PacketBody::Announce { sent, serial, begun, answer }),
        (any::<u16>(), any::<bool>(), ranges()).prop_map(|(serial, forward_live, chunks)| PacketBody::Nak {
            serial,
            forward_live,
            in_parts: false,
            chunks
        }),
        (0u16..5, ranges()).prop_map(|(echo, chunks)| PacketBody::NakConfirm { echo, chunks }),
        (number(), any::<u16>(), number(), any::<u16>(), 0u16..5, positions(), positions()).prop_map(
            |(rounds, loss, spacing, delay, echo, alive, complete)| PacketBody::Report {
                rounds,
                loss,
                spacing,
                delay,
                echo,
                alive,
                complete
            }
        ),
        positions().prop_map(|positions| PacketBody::Settled { positions }),
        Just(PacketBody::DigestMismatch),
        Just(PacketBody::Ping),
        any::<u64>().prop_map(|incarnation| PacketBody::PingAnswer { incarnation }),
    ]
}

/// Milliseconds to wait, the sending node, the body, and the length of the payload.
fn hostile() -> impl Strategy<Value = Vec<(u64, u16, PacketBody, usize)>> {
    let payload = prop_oneof![Just(CHUNK as usize), Just(500), Just(0), 0usize..2000];
    prop::collection::vec((0u64..40, 9u16..18, body(), payload), 0..60)
}

/// Passes packets to a machine and checks that it stays within its message, becomes idle, and
/// closes.
fn endure<M>(
    mut machine: M,
    packets: Vec<(u64, u16, PacketBody, usize)>,
    len: u64,
) -> Result<(), TestCaseError>
where
    M: for<'a> Machine<Input<'a> = Input<'a>, Output = Output>,
{
    let (mut ms, mut delivered, mut closed) = (0, 0, false);
    for (wait, node, body, payload) in packets {
        ms += wait;
        let bytes = if matches!(body, PacketBody::Data { .. }) { payload } else { 0 };
        machine.handle(at(ms), Input::Packet { packet: &from(node, body), payload: bytes });
        let (outputs, next) = drain(&mut machine, at(ms));
        prop_assert!(next.is_none_or(|next| next > at(ms)));
        for output in outputs {
            match output {
                Output::Store(range) => {
                    prop_assert!(range.end <= len && range.end - range.start == bytes as u64);
                }
                Output::Transmit { payload, .. } => prop_assert!(payload.end <= len),
                Output::Delivered => delivered += 1,
                Output::Closed => closed = true,
                _ => {}
            }
        }
        prop_assert!(delivered <= 1);
    }
    let mut now = at(ms);
    for _ in 0..100_000 {
        let (outputs, next) = drain(&mut machine, now);
        closed |= outputs.contains(&Output::Closed);
        match next {
            Some(next) => now = next,
            None => break,
        }
    }
    prop_assert!(closed, "open after {:?}", now);
    prop_assert!(now - at(ms) <= Duration::from_secs(150), "{:?}", now);
    Ok(())
}

proptest! {
    #[test]
    fn hostile_packets_neither_break_nor_hold_a_source(packets in hostile(), len in 0u64..70_000) {
        endure(Sender::new(Time::ZERO, spec(7, len)).unwrap(), packets, len)?;
    }

    #[test]
    fn hostile_packets_neither_break_nor_hold_a_receiver(
        packets in hostile(), len in 0u64..70_000, me in 1u16..7,
    ) {
        endure(Receiver::new(Time::ZERO, spec(7, len), me).unwrap(), packets, len)?;
    }
}

/// A node of a stream over a network of the test.
enum End {
    Source(Box<Sender>),
    Sink(Box<Receiver>),
}

/// Runs a stream over a network in which a packet takes 1 ms, or is lost unless `passes` returns
/// true for its sender and receiver (by position) and its payload in bytes. Returns the number of
/// bytes that each receiver has stored, and whether it needed parts.
fn run(spec: &StreamSpec, passes: impl Fn(u16, u16, u64) -> bool) -> Vec<(u64, bool)> {
    let nodes = spec.chain.len();
    let sink = |me| End::Sink(Box::new(Receiver::new(at(0), spec.clone(), me).unwrap()));
    let mut ends = vec![End::Source(Box::new(Sender::new(at(0), spec.clone()).unwrap()))];
    ends.extend((1..nodes).map(sink));
    let (mut stored, mut closed) = (vec![0; ends.len()], vec![false; ends.len()]);
    let mut flying: Vec<(Time, u16, Packet, u64)> = Vec::new();
    let mut now = at(0);
    while !closed.iter().all(|closed| *closed) {
        assert!(now < at(20_000), "the stream does not end: {stored:?} bytes are stored");
        let arrived: Vec<_> = flying.extract_if(.., |(when, ..)| *when <= now).collect();
        for (_, to, packet, payload) in arrived {
            let input = Input::Packet { packet: &packet, payload: payload as usize };
            match &mut ends[usize::from(to)] {
                End::Source(sender) => sender.handle(now, input),
                End::Sink(receiver) => receiver.handle(now, input),
            }
        }
        let mut next = None;
        for (me, end) in (0u16..).zip(&mut ends) {
            let (outputs, deadline) = match end {
                End::Source(sender) => drain(&mut **sender, now),
                End::Sink(receiver) => drain(&mut **receiver, now),
            };
            next = cool_machine::earliest(next, deadline);
            for output in outputs {
                match output {
                    Output::Transmit { to, packet, payload } => {
                        let bytes = payload.end - payload.start;
                        let receivers: Vec<u16> = match to {
                            PacketTarget::Node(node) => spec.chain.position(node).into_iter().collect(),
                            PacketTarget::Tree | PacketTarget::Rack => {
                                (0..nodes).filter(|p| *p != me).collect()
                            }
                        };
                        for to in receivers.into_iter().filter(|to| passes(me, *to, bytes)) {
                            flying.push((now + Duration::from_millis(1), to, packet.clone(), bytes));
                        }
                    }
                    Output::Store(bytes) => stored[usize::from(me)] += bytes.end - bytes.start,
                    Output::Closed => closed[usize::from(me)] = true,
                    Output::Failed(error) => panic!("position {me} at {now:?}: {error}"),
                    Output::Delivered | Output::Released | Output::Mismatch { .. } | Output::TreeSilent => {}
                }
            }
        }
        let arrival = flying.iter().map(|(when, ..)| *when).min();
        match cool_machine::earliest(next, arrival) {
            Some(next) => now = next.max(now),
            None => assert!(closed.iter().all(|closed| *closed), "a machine without a deadline"),
        }
    }
    let needs = |end: &End| matches!(end, End::Sink(receiver) if receiver.needs_parts());
    stored.into_iter().zip(ends.iter().map(needs)).skip(1).collect()
}

#[test]
fn a_stream_passes_a_path_that_drops_long_packets() {
    let long = |nodes| StreamSpec { chunk_bytes: 4000, rack_tree: false, ..spec(nodes, 50_001) };
    let passes = |from: u16, to: u16, bytes| bytes <= PART_BYTES || (from < 2) == (to < 2);
    // Without such a path, no chunk is divided.
    assert_eq!(run(&long(4), |_, _, _| true), [(50_001, false); 3]);
    // Nothing long reaches any node, or only the first one.
    assert_eq!(run(&long(4), |_, _, bytes| bytes <= PART_BYTES), [(50_001, true); 3]);
    let behind = run(&long(4), passes);
    assert_eq!(behind.iter().map(|(bytes, _)| *bytes).collect::<Vec<_>>(), [50_001; 3]);
    assert_eq!((behind[0].1, behind[1].1), (false, true));
    // A short message, which no receiver expects, and one whose receivers know the path.
    let short = StreamSpec { len: 9_000, ..long(3) };
    assert_eq!(run(&short, |_, _, bytes| bytes <= PART_BYTES), [(9_000, true); 2]);
    let known = StreamSpec { in_parts: true, ..long(3) };
    assert_eq!(run(&known, |_, _, bytes| bytes <= PART_BYTES), [(50_001, true); 2]);
    let no_tree = StreamSpec { multicast: false, ..long(3) };
    assert_eq!(run(&no_tree, |_, _, bytes| bytes <= PART_BYTES), [(50_001, true); 2]);
}
