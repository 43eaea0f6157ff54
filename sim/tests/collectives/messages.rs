//! Messages from rank to rank, beside collectives and while packets are lost: each comes once, whole and in order.

use super::support::{SIZE, World, send, settings};
use cool_engine::TransferRequest;
use cool_engine::testing::{Buffer, Collective};
use cool_machine::Duration;
use cool_sim::collectives::ClusterSettings;
use cool_types::Operation;

const MESSAGES: u64 = 300;

/// A message as it is sent, and where it is received.
struct Message {
    sent: Vec<u8>,
    room: Buffer,
    token: u64,
}

/// Sends random messages at random times, and posts their receives at others: of a pair of ranks and a tag, in order.
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
            sending: false,
            peer: Some(from),
            data: room.clone(),
            ..send.clone()
        };
        sends.push((token, send));
        receives.push((receive, Message { sent, room, token: MESSAGES + token }));
    }
    // What a rank sends and what it receives are in order of time, and else mixed.
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
        let collective = Collective::new(1, SIZE, operation, 3, 2_000, i);
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
    for Message { sent, room, token } in messages {
        assert!(room.bytes() == sent, "seed {seed}: message {token} is another one");
        let arrived = world.answers()[&token].result.as_ref().unwrap().arrived.as_ref().unwrap();
        assert_eq!(arrived.bytes, sent.len() as u64, "seed {seed}: message {token}");
    }
    collectives.iter().for_each(Collective::check);
}

#[test]
fn messages_come_once_whole_and_in_order_beside_collectives_whatever_is_lost() {
    for seed in 0..8 {
        exchange(seed, [0.0, 0.05, 0.2][seed as usize % 3], if seed.is_multiple_of(2) { 1 << 24 } else { 0 });
    }
}
