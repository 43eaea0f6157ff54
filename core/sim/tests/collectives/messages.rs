//! Messages between ranks, concurrently with collectives and with packet loss. Each must arrive
//! once, completely and in order.

use super::support::{SIZE, World, send, settings};
use cool_engine::testing::{Buffer, ReferenceCollective};
use cool_engine::{CallFailureKind, TransferKind, TransferRequest};
use cool_machine::Duration;
use cool_sim::collectives::ClusterSettings;
use cool_types::Operation;

const MESSAGES: u64 = 300;

/// A sent message, and the buffer that receives it.
struct SentMessage {
    sent: Vec<u8>,
    room: Buffer,
    token: u64,
}

/// Sends random messages at random times and posts their receives at other times. Those of the same
/// ranks and tag are in order.
fn exchange(seed: u64, loss: f64, bounce_bytes: u64) {
    const LENGTHS: [u64; 5] = [0, 8, 5_000, 70_000, 400_000];
    let settings = ClusterSettings { bounce_bytes, ..settings(seed) };
    let mut world = World::lossy(settings, loss);
    world.make(1);
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for token in 0..MESSAGES {
        let mut below = |bound: u64| world.random() % bound;
        let (from, to) = (below(SIZE.into()) as u32, below(SIZE.into()) as u32);
        let (tag, bytes) = (below(2) as u32, LENGTHS[below(5) as usize]);
        let sent: Vec<u8> = (0..bytes).map(|i| (i * 7 + token) as u8).collect();
        let send = send(from, to, tag, sent.clone());
        let room = Buffer::new(vec![0; bytes as usize]);
        let receive = TransferRequest {
            rank: to,
            kind: TransferKind::Receive,
            peer: Some(from),
            data: Some(room.clone()),
            ..send.clone()
        };
        sends.push((token, send));
        receives.push((receive, SentMessage { sent, room, token: MESSAGES + token }));
    }
    // The sends and the receives are each in the order of time, but interleaved at random.
    let mut time = 0;
    for (token, send) in sends {
        time += world.random() % 3_000;
        world.transfer(token, send, Duration::from_micros(time));
    }
    time = 0;
    let mut messages = Vec::new();
    for (receive, message) in receives {
        time += world.random() % 3_000;
        world.transfer(message.token, receive, Duration::from_micros(time));
        messages.push(message);
    }
    let mut collectives = Vec::new();
    let mut token = 2 * MESSAGES;
    for (i, operation) in (0..).zip(Operation::ALL) {
        let collective = ReferenceCollective::new(1, SIZE, operation, 3, 2_000, i);
        for request in &collective.requests {
            let late = Duration::from_millis(30 * i + world.random() % 20);
            world.call(token, request.clone(), late);
            token += 1;
        }
        collectives.push(collective);
    }
    world.run(token as usize);
    for (token, answer) in world.answers() {
        assert!(answer.result.is_ok(), "seed {seed}: {token}: {answer:?}");
    }
    for SentMessage { sent, room, token } in messages {
        assert!(room.bytes() == sent, "seed {seed}: message {token} is another one");
        let arrived = world.answers()[&token].result.as_ref().unwrap().arrived.as_ref().unwrap();
        assert_eq!(arrived.bytes, sent.len() as u64, "seed {seed}: message {token}");
    }
    collectives.iter().for_each(ReferenceCollective::check);
}

#[test]
fn messages_arrive_once_whole_and_in_order_despite_losses() {
    for seed in 0..8 {
        exchange(seed, [0.0, 0.05, 0.2][seed as usize % 3], if seed.is_multiple_of(2) { 1 << 24 } else { 0 });
    }
}

/// Sends messages with different tags, some synchronously, of all lengths. They are first probed
/// and then received, some by receives that are too short. Only those receives fail, and the group
/// continues.
fn probe_then_receive(seed: u64, loss: f64, bounce_bytes: u64) {
    const LENGTHS: [u64; 5] = [0, 8, 5_000, 70_000, 400_000];
    const COUNT: u64 = 60;
    let settings = ClusterSettings { bounce_bytes, ..settings(seed) };
    let mut world = World::lossy(settings, loss);
    world.make(1);
    let [probed, received, none] = [1, 2, 3].map(|times| times * COUNT);
    let mut sends = Vec::new();
    for token in 0..COUNT {
        let mut below = |bound: u64| world.random() % bound;
        let (from, to) = (below(SIZE.into()) as u32, below(SIZE.into()) as u32);
        let bytes: Vec<u8> = (0..LENGTHS[below(5) as usize]).map(|i| (i * 7 + token) as u8).collect();
        let kind = if below(2) == 0 { TransferKind::SynchronousSend } else { TransferKind::Send };
        let at = [below(50_000), below(50_000)].map(Duration::from_micros);
        let send = TransferRequest { kind, ..send(from, to, token as u32, bytes) };
        let probe = TransferRequest {
            rank: to,
            kind: TransferKind::Probe,
            peer: (token % 2 == 0).then_some(from),
            data: None,
            ..send.clone()
        };
        world.transfer(token, send.clone(), at[0]);
        world.transfer(probed + token, probe, at[1]);
        sends.push(send);
    }
    // No rank sends messages for these requests.
    for token in 0..4u64 {
        let kind = [TransferKind::ProbeNow, TransferKind::Receive][token as usize % 2];
        let tag = 1000 + token as u32;
        let request = TransferRequest { kind, id: token, ..send(token as u32, 8, tag, vec![0; 8]) };
        world.transfer(none + token, request, Duration::ZERO);
    }
    let is_probed = |world: &World| (probed..received).all(|token| world.answers().contains_key(&token));
    while !is_probed(&world) {
        world.run_for(Duration::from_millis(10));
    }
    world.run_for(Duration::from_millis(100));
    for (token, send) in (0..).zip(&sends) {
        let arrived = world.answers()[&(probed + token)].result.as_ref().unwrap().arrived.unwrap();
        let bytes = send.data.as_ref().unwrap().bytes().len() as u64;
        assert_eq!((arrived.source, arrived.tag, arrived.bytes), (send.rank, token as u32, bytes));
        let taken = world.answers().contains_key(&token);
        assert!(
            !taken || send.kind == TransferKind::Send,
            "seed {seed}: send {token} is done before its receive"
        );
    }
    for token in [0, 2] {
        assert_eq!(world.answers()[&(none + token)].result.as_ref().unwrap().arrived, None);
    }
    for token in [1, 3] {
        world.cancel(1, token as u32, token);
    }
    let mut rooms = Vec::new();
    for (token, send) in (0..).zip(&sends) {
        let bytes = send.data.as_ref().unwrap().bytes().len();
        let room = Buffer::new(vec![0; if token % 3 == 0 { bytes / 2 } else { bytes + 8 }]);
        let (rank, peer) = (send.peer.unwrap_or_default(), Some(send.rank));
        let receive = TransferRequest {
            rank,
            peer,
            kind: TransferKind::Receive,
            data: Some(room.clone()),
            ..send.clone()
        };
        world.transfer(received + token, receive, Duration::from_micros(world_time(token)));
        rooms.push(room);
    }
    world.run((3 * COUNT + 4) as usize);
    for (token, (send, room)) in (0..).zip(sends.iter().zip(rooms)) {
        let sent = send.data.as_ref().unwrap().bytes();
        assert!(world.answers()[&token].result.is_ok(), "seed {seed}: send {token}");
        match &world.answers()[&(received + token)].result {
            Ok(_) => assert!(room.bytes().starts_with(&sent), "seed {seed}: message {token}"),
            Err(failed) => {
                assert_eq!(failed.kind, CallFailureKind::Truncated, "seed {seed}: {failed}");
                let lengths =
                    [format!("sent {} bytes", sent.len()), format!("most {} bytes", sent.len() / 2)];
                assert!(lengths.iter().all(|text| failed.message.contains(text)), "{failed}");
            }
        }
        assert_eq!(
            world.answers()[&(received + token)].result.is_err(),
            token % 3 == 0 && !sent.is_empty(),
            "seed {seed}: message {token}"
        );
    }
    for token in [1, 3] {
        assert_eq!(world.failure(none + token).kind, CallFailureKind::Cancelled);
    }
    let sum = ReferenceCollective::new(1, SIZE, Operation::Allreduce, 0, 2_000, 1);
    for request in &sum.requests {
        world.call(5 * COUNT + u64::from(request.rank), request.clone(), Duration::ZERO);
    }
    world.run((3 * COUNT + 4) as usize + SIZE as usize);
    sum.check();
}

/// Returns the time of a receive. Receives are posted in a different order from the sends.
fn world_time(token: u64) -> u64 {
    token * 7_919 % 20_000
}

#[test]
fn messages_are_probed_cancelled_and_truncated() {
    for seed in 0..6 {
        probe_then_receive(seed, [0.0, 0.1][seed as usize % 2], if seed % 3 == 0 { 0 } else { 1 << 24 });
    }
}
