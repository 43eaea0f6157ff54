//! Datagrams of quick calls from any host: a datagram without the group's key must be refused, and
//! one with the key must do no harm.

use cool_cipher::AesGcm;
use cool_collective::{Layout, RankPlace};
use cool_machine::{Machine, Poll, Time};
use cool_quick::{
    BeginCall, CallData, CallKey, CallLimits, Datagram, DatagramHeader, DatagramKind, Input, QuickCalls,
    QuickSchedule,
};
use cool_types::{Call, Key, Operation, Rank};
use std::sync::Arc;

const GROUP: (u64, u32) = (1, 2);

/// Starts a call, then processes a datagram.
pub(crate) fn check(bytes: &[u8]) {
    let key = CallKey::new::<AesGcm>(Key::from([3; 32]));
    let layout = Layout::new(&[0, 1, 2].map(|node| RankPlace { rack: 0, node })).expect("three nodes");
    let schedule = QuickSchedule::for_call(
        &Call::new(Operation::Allgather, Rank(0), 4, 4),
        &layout,
        Rank(0),
        CallLimits::LONG,
    );
    let schedule = Arc::new(schedule.expect("it is short"));
    let mut calls = QuickCalls::new(key.clone(), GROUP, Rank(0), layout, CallLimits::LONG)
        .expect("ranks on several nodes");
    let begin = BeginCall { number: 5, digest: 7, schedule, combining: None };
    let mut output = [0; 12];
    calls.handle(Time::ZERO, Input::Begin(begin, CallData { input: b"abcd", output: &mut output }));
    let mut arrive = |bytes: &[u8]| {
        calls.handle(Time::ZERO, Input::Datagram(bytes, CallData { input: b"abcd", output: &mut output }));
    };
    arrive(bytes);
    // The same bytes as a payload that is authenticated with the key.
    for kind in [DatagramKind::Message, DatagramKind::Nak, DatagramKind::Mismatch, DatagramKind::Probe] {
        let number = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let (call, transfer, from) = (number(0).into(), number(1).into(), number(2).into());
        let (group, epoch) = GROUP;
        let digest = 7 + u64::from(number(3) & 1);
        let header = DatagramHeader { kind, group, epoch, call, transfer, from, requested: 0, digest };
        let payload = bytes.get(4..).unwrap_or_default();
        arrive(&Datagram { header, payload }.encode(&key));
    }
    // The same bytes after the header of a part of a message.
    let name = [&[0, 0, 0, 2][..], &[0; 7], &[1], &[0; 7], &[5], &[0; 7], &[1]].concat();
    arrive(&[&[0xC4, 5, 0, 0], &name[..], bytes].concat());
    while let Poll::Output(_) = calls.poll(Time::ZERO) {}
}

#[cfg(test)]
fn seeds() -> Vec<Vec<u8>> {
    vec![
        [&[5, 0, 1, 0][..], b"efgh"].concat(),
        [&[5, 1, 2, 0][..], b"efgh"].concat(),
        vec![5, 0, 1, 1],
        vec![6, 0, 2, 0],
    ]
}

target!();
