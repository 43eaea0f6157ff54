//! Tests of the amount of work that an engine does in one turn, of proofs of trees, and of the
//! calls that ranks execute themselves.

mod tree_proofs;
mod watched_calls;

use super::*;
use crate::inputs_outputs::Work;
use crate::{CallRequest, ElementType, MemberSpec, MemoryRange};
use cool_collective::CostModel;
use cool_transport::StreamId;
use std::net::Ipv4Addr;

const RANKS: u32 = 48;

/// The number of bytes that a rank sends to each other rank.
const BLOCK: u64 = 128 * 1024;

/// Returns a group with all ranks on this node.
fn spec(ranks: u32) -> GroupSpec {
    let member = |rank| MemberSpec {
        rank,
        node: "h0".to_owned(),
        incarnation: 0,
        rack: 0,
        ip: Ipv4Addr::LOCALHOST.into(),
        udp_port: 7420,
        tcp_port: 7420,
        key: None,
    };
    GroupSpec {
        id: 1,
        epoch: 1,
        members: (0..ranks).map(member).collect(),
        trees: Vec::new(),
        chunk_bytes: 1424,
        host_bytes_per_second: 0,
        cost_model: CostModel::default(),
        keyed: None,
        on_demand: false,
        quick: false,
        probe_quick: false,
        quick_datagram_bytes: 0,
        connections_per_hop: 0,
    }
}

fn alltoall(rank: u32) -> CallRequest {
    let len = BLOCK * u64::from(RANKS);
    let buffer =
        |number: u32| Some(MemoryRange { memory: MemoryId::Registered(u64::from(number)), offset: 0, len });
    CallRequest {
        group: 1,
        rank,
        operation: Operation::Alltoall,
        root: 0,
        element: ElementType::U8,
        reduce: None,
        count: BLOCK,
        counts: None,
        plan: "cool-p-p".to_owned(),
        input: buffer(2 * rank),
        output: buffer(2 * rank + 1),
        timeout: None,
        call_number: None,
        watch: false,
        background: false,
    }
}

/// Polls until the engine is idle. Returns its outputs, and whether it must be polled again
/// immediately.
fn turn(engine: &mut Engine, now: Time) -> (Vec<Output>, bool) {
    let mut outputs = Vec::new();
    loop {
        match engine.poll(now) {
            Poll::Output(output) => outputs.push(output),
            Poll::Idle(next) => {
                return (outputs, next.is_some_and(|at| at <= now + Duration::from_micros(1)));
            }
        }
    }
}

#[test]
fn a_call_of_thousands_of_actions_takes_short_turns() {
    let me = AgentId { node: "h0".to_owned(), incarnation: 0 };
    let (mut engine, mut now) = (Engine::new(me, 0, Duration::from_secs(2)), Time::ZERO);
    engine.handle(now, Input::MakeGroup(&spec(RANKS)));
    for rank in 0..RANKS {
        engine.handle(now, Input::Request { token: u64::from(rank), request: alltoall(rank).into() });
    }
    let (mut work_tracker, mut answered, mut turns) = (0, 0, 0);
    while answered < RANKS {
        let (outputs, again) = turn(&mut engine, now);
        assert!(again || !outputs.is_empty(), "nothing is left to wait for");
        let started = outputs.iter().filter(|output| matches!(output, Output::Work { .. })).count();
        assert!(started <= 256, "{started} in one turn");
        work_tracker += started;
        turns += 1;
        now += Duration::from_micros(1);
        for output in outputs {
            match output {
                Output::Work { id, work: Work::Prepare(preparation) } => {
                    engine.handle(now, Input::Prepared(id, preparation.run()));
                }
                Output::Work { id, .. } => engine.handle(now, Input::WorkDone(id)),
                Output::Done { result, .. } => {
                    assert!(result.is_ok(), "{result:?}");
                    answered += 1;
                }
                _ => {}
            }
        }
    }
    // One item of work for each pair of ranks, and one for the preparation.
    assert_eq!(work_tracker, (RANKS * RANKS + 1) as usize);
    assert!(turns > work_tracker / 256, "{turns}");
}

/// An agent must reply to a ping under its own number in the group. If it used that of the node
/// that sent the ping, the reply would use up that node's sequence numbers, so an agent that was
/// started later would be rejected as a replay.
#[test]
fn a_ping_is_answered_in_the_name_of_the_answering_node() {
    let me = AgentId { node: "h0".to_owned(), incarnation: 0 };
    let (mut engine, now) = (Engine::new(me, 0, Duration::from_secs(2)), Time::ZERO);
    let mut spec = spec(2);
    spec.members[0].node = "h1".to_owned();
    engine.handle(now, Input::MakeGroup(&spec));
    let id = StreamId { group: 1, epoch: 1, call: 0, transfer: 0, source: 0 };
    let mut ping = Vec::new();
    Packet { id, from: 0, digest: 0, body: PacketBody::Ping }.encode(&mut ping);
    let from = SocketAddr::new([10, 0, 0, 2].into(), 7420);
    engine.handle(now, Input::Datagram { from, bytes: &ping, proven: None });
    let answers = turn(&mut engine, now).0.into_iter().filter_map(|output| match output {
        Output::Control { to, bytes, .. } => Some((to, Packet::decode(&bytes).unwrap().0)),
        _ => None,
    });
    let answer = Packet { id, from: 1, digest: 0, body: PacketBody::PingAnswer { incarnation: 0 } };
    assert_eq!(answers.collect::<Vec<_>>(), [(from, answer)]);
}
