//! Messages from rank to rank, beside collectives and while packets are lost: each comes once, whole and in order.

use super::network::Network;
use super::{Collective, RACKS, RANKS};
use crate::testing::Buffer;
use crate::{ElementType, TransferRequest};
use cool_machine::Duration;
use cool_types::Operation;

const SIZE: u32 = RANKS.len() as u32;
const MESSAGES: u64 = 300;
const PATIENCE: Duration = Duration::from_secs(60);

/// Rank `from` of group 1 sends bytes.
pub(super) fn send(from: u32, to: u32, tag: u32, bytes: Vec<u8>) -> TransferRequest<Buffer> {
    TransferRequest {
        group: 1,
        rank: from,
        sending: true,
        peer: Some(to),
        tag: Some(tag),
        element: ElementType::U8,
        data: Buffer::new(bytes),
        timeout: PATIENCE,
    }
}

/// A message as it is sent, and where it is received.
struct Message {
    sent: Vec<u8>,
    room: Buffer,
    token: u64,
}

/// Sends random messages at random times, and posts their receives at others: of a pair of ranks and a tag, in order.
fn exchange(seed: u64, loss: u64, copies: u64) {
    const LENGTHS: [u64; 5] = [0, 8, 5_000, 70_000, 400_000];
    let mut network = Network::new(RACKS.len(), seed, loss, copies);
    network.make_group(&Network::spec(1, &RANKS, &RACKS, true));
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for token in 0..MESSAGES {
        let mut below = |bound: u64| network.random() % bound;
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
        time += network.random() % 3_000;
        network.transfer(RANKS[send.rank as usize], token, send, Duration::from_micros(time));
    }
    time = 0;
    let mut messages = Vec::new();
    for (receive, message) in receives {
        time += network.random() % 3_000;
        network.transfer(RANKS[receive.rank as usize], message.token, receive, Duration::from_micros(time));
        messages.push(message);
    }
    let mut collectives = Vec::new();
    let mut token = 2 * MESSAGES;
    for (i, operation) in (0..).zip(Operation::ALL) {
        let collective = Collective::new(1, SIZE, operation, 3, 2_000, i);
        for request in &collective.requests {
            let late = Duration::from_millis(30 * i + network.random() % 20);
            network.call(RANKS[request.rank as usize], token, request.clone(), late);
            token += 1;
        }
        collectives.push(collective);
    }
    network.run(token as usize);
    for (token, result) in &network.done {
        assert!(result.is_ok(), "seed {seed}: {token}: {result:?}");
    }
    for Message { sent, room, token } in messages {
        assert!(room.bytes() == sent, "seed {seed}: message {token} is another one");
        let arrived = network.done[&token].as_ref().unwrap().arrived.as_ref().unwrap();
        assert_eq!(arrived.bytes, sent.len() as u64, "seed {seed}: message {token}");
    }
    collectives.iter().for_each(Collective::check);
}

#[test]
fn messages_come_once_whole_and_in_order_beside_collectives_whatever_is_lost() {
    for seed in 0..8 {
        exchange(seed, [0, 50, 200][seed as usize % 3], if seed.is_multiple_of(2) { 1 << 24 } else { 0 });
    }
}
