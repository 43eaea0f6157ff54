//! Tests of engines over real sockets on loopback, with chains only, because loopback has no trees.

mod parallel_streams;

use crate::engine::{
    EngineConfig, EngineHandle, GroupKey, GroupSpec, MappedCallRequest, MemberSpec, RankMemory,
    RefusalReason, SharedSlice, StartError,
};
use cool_cipher::AesGcm;
use cool_collective::CostModel;
use cool_engine::testing::{Buffer, ReferenceCollective};
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_transport::packet::PacketBody;
use cool_transport::tagged::{Protection, Tagger};
use cool_transport::unicast::handshake::{Ephemeral, Initiator, PeerKey};
use cool_transport::unicast::{self, AgentId, PeerStream};
use cool_transport::{Packet, StreamId};
use cool_types::Operation;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

const GROUP: u64 = 3;

/// The node of each rank.
const PLACES: [usize; 5] = [1, 0, 2, 0, 1];

/// A test's buffer as memory of a rank.
struct TestBuffer(Buffer);

impl RankMemory for TestBuffer {
    fn bytes(&self) -> u64 {
        self.0.with(|bytes| bytes.len()) as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = offset as usize;
        self.0.with(|bytes| into.copy_from_slice(&bytes[at..at + into.len()]));
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let at = offset as usize;
        self.0.with(|bytes| bytes[at..at + from.len()].copy_from_slice(from));
    }
}

fn slice(buffer: Buffer) -> SharedSlice {
    let shared = Arc::new(TestBuffer(buffer));
    let bytes = shared.bytes();
    SharedSlice::new(shared, 0, bytes).expect("all of it")
}

fn config(node: usize) -> EngineConfig {
    EngineConfig::on_loopback(&format!("h{node}"))
}

async fn engines() -> Vec<EngineHandle> {
    engines_with(Protection::Tagged, config).await
}

/// Returns three engines that have made a group of five ranks.
async fn engines_with(protection: Protection, config: impl Fn(usize) -> EngineConfig) -> Vec<EngineHandle> {
    let engines: Vec<EngineHandle> = (0..3).map(|node| EngineHandle::start(config(node)).unwrap()).collect();
    let keyed = Some(GroupKey { key: [9; 32].into(), protection });
    let mut spec = GroupSpec { keyed, ..spec(&engines, &PLACES) };
    let ip = config(0).ip;
    spec.members.iter_mut().for_each(|member| member.ip = ip);
    for engine in &engines {
        engine.make_group(spec.clone()).await.unwrap();
    }
    engines
}

/// Returns the group with ranks on these nodes.
fn spec(engines: &[EngineHandle], places: &[usize]) -> GroupSpec {
    let ip = Ipv4Addr::LOCALHOST.into();
    let member = |(rank, node): (u32, usize)| MemberSpec {
        rank,
        node: format!("h{node}"),
        incarnation: engines[node].incarnation(),
        rack: node as u32 / 2,
        ip,
        udp_port: engines[node].udp_port(),
        tcp_port: engines[node].tcp_port(),
        key: Some(engines[node].key().clone()),
    };
    GroupSpec {
        id: GROUP,
        epoch: 1,
        members: (0..).zip(places.iter().copied()).map(member).collect(),
        trees: Vec::new(),
        chunk_bytes: 8 * 1024,
        host_bytes_per_second: 0,
        cost_model: CostModel::default(),
        keyed: Some(GroupKey { key: [9; 32].into(), protection: Protection::Tagged }),
        on_demand: false,
        quick: false,
        probe_quick: false,
        quick_datagram_bytes: 0,
        connections_per_hop: 0,
    }
}

/// Makes the calls of all ranks that `calls` selects. Returns the replies in the order of the
/// ranks.
async fn call(
    engines: &[EngineHandle],
    collective: &ReferenceCollective,
    calls: impl Fn(u32) -> bool,
) -> Vec<Result<Stats, Failure>> {
    let requests = collective.requests.iter().filter(|request| calls(request.rank));
    let open: Vec<_> =
        requests.map(|r| engines[PLACES[r.rank as usize]].call(r.clone().map(slice))).collect();
    let mut done = Vec::new();
    for call in open {
        done.push(timeout(Duration::from_secs(120), call).await.expect("every call ends"));
    }
    done
}

#[tokio::test]
async fn every_operation_works_over_sockets() {
    every_operation_works(&engines().await, &[0, 10, 40_000, 200_000]).await;
}

#[tokio::test]
async fn every_operation_works_where_datagrams_are_thrown_away() {
    let lossy = |node| EngineConfig { losses: Some(format!("0.1:{node}").parse().unwrap()), ..config(node) };
    every_operation_works(&engines_with(Protection::Tagged, lossy).await, &[10, 40_000]).await;
}

#[tokio::test]
async fn every_operation_works_over_ipv6_with_tags_and_encrypted() {
    let by_ipv6 = |node| EngineConfig { ip: Ipv6Addr::LOCALHOST.into(), ..config(node) };
    every_operation_works(&engines_with(Protection::Tagged, by_ipv6).await, &[10, 200_000]).await;
    let encrypting = |node| EngineConfig { encrypt: true, ..by_ipv6(node) };
    every_operation_works(&engines_with(Protection::Encrypted, encrypting).await, &[10, 200_000]).await;
}

fn encrypting(node: usize) -> EngineConfig {
    EngineConfig { encrypt: true, ..config(node) }
}

#[tokio::test]
async fn every_operation_works_where_all_is_encrypted() {
    let engines = engines_with(Protection::Encrypted, encrypting).await;
    every_operation_works(&engines, &[0, 10, 40_000, 200_000]).await;
}

#[tokio::test]
async fn every_operation_works_on_demand_with_group_keys() {
    for (protection, config) in
        [(Protection::Tagged, config as fn(usize) -> EngineConfig), (Protection::Encrypted, encrypting)]
    {
        let engines: Vec<EngineHandle> =
            (0..3).map(|node| EngineHandle::start(config(node)).unwrap()).collect();
        let keyed = Some(GroupKey { key: [9; 32].into(), protection });
        let mut spec = GroupSpec { keyed, on_demand: true, ..spec(&engines, &PLACES) };
        spec.members.iter_mut().for_each(|member| member.key = None);
        for engine in &engines {
            engine.make_group(spec.clone()).await.unwrap();
        }
        every_operation_works(&engines, &[10, 40_000]).await;
    }
}

async fn every_operation_works(engines: &[EngineHandle], counts: &[u64]) {
    for &count in counts {
        for operation in Operation::ALL {
            let collective = ReferenceCollective::new(GROUP, 5, operation, 3, count, 1);
            for result in call(engines, &collective, |_| true).await {
                assert!(result.is_ok(), "{operation:?} of {count}: {result:?}");
            }
            collective.check();
        }
    }
}

/// Connects to an engine, sends the first bytes, and checks that it ends the connection without a
/// reply.
async fn is_refused(engine: &EngineHandle, first: &[u8]) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, engine.tcp_port())).await.unwrap();
    stream.write_all(first).await.unwrap();
    let mut response = Vec::new();
    // Unread data makes the end of the connection a reset.
    let end = timeout(Duration::from_secs(60), stream.read_to_end(&mut response)).await.unwrap();
    assert!(response.is_empty(), "{end:?} after {response:?}");
}

#[tokio::test]
async fn an_agent_that_encrypts_refuses_plain_connections() {
    let engine = EngineHandle::start(encrypting(0)).unwrap();
    let me = AgentId { node: "h1".to_owned(), incarnation: 1 };
    let plain = Ephemeral { nonce: [4; 32], public_key: None };
    let key = PeerKey { key: engine.key().clone(), group: None };
    let hello = Initiator::new(&me, key, &plain, None).hello().to_vec();
    // One peer that knows the key, and one without keys.
    for first in [hello, vec![0; 40]] {
        is_refused(&engine, &first).await;
    }
    assert_eq!(engine.refusals().get(RefusalReason::Handshake), 2);
}

#[tokio::test]
async fn an_engine_that_stops_is_missed_by_the_others() {
    let mut engines = engines().await;
    let collective = ReferenceCollective::new(GROUP, 5, Operation::Barrier, 0, 0, 1);
    assert!(call(&engines, &collective, |_| true).await.iter().all(Result::is_ok));
    let last = engines.pop();
    let others = call(&engines, &collective, |rank| PLACES[rank as usize] != 2);
    let (others, ()) = tokio::join!(others, async { drop(last) });
    for result in others {
        let failed = result.unwrap_err();
        assert_eq!((failed.kind(), &failed.ranks[..]), (Kind::Lost, &[2][..]), "{}", failed.message);
        assert!(failed.message.contains("node h2"), "{}", failed.message);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let first = EngineHandle::start(config(0)).unwrap();
    let taken = EngineConfig { udp_port: first.udp_port(), ..config(1) };
    let error = EngineHandle::start(taken).unwrap_err();
    assert!(matches!(&error, StartError::Bind { protocol: "UDP", .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{}", first.udp_port())), "{error}");
}

/// A long array of zeros that takes no memory. The threads of the pool cannot access it while it is
/// closed.
struct Gated {
    open: Mutex<bool>,
    changed: Condvar,
    /// Released when a thread waits for access.
    reached: Semaphore,
}

impl Gated {
    fn closed() -> Gated {
        Gated { open: Mutex::new(false), changed: Condvar::new(), reached: Semaphore::new(0) }
    }

    fn pass(&self) {
        if std::thread::current().name() == Some("cool-work") {
            self.reached.add_permits(1);
            let open = self.open.lock().unwrap();
            drop(self.changed.wait_while(open, |open| !*open).unwrap());
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// An array that makes the threads of the pool panic when they access it.
struct Broken;

impl Broken {
    fn reach() {
        assert_ne!(std::thread::current().name(), Some("cool-work"), "a broken array");
    }
}

impl RankMemory for Broken {
    fn bytes(&self) -> u64 {
        LONG
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        Broken::reach();
        into.fill(0);
    }

    fn write(&self, _: u64, _: &[u8]) {
        Broken::reach();
    }
}

impl RankMemory for Gated {
    fn bytes(&self) -> u64 {
        LONG
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        self.pass();
        into.fill(0);
    }

    fn write(&self, _: u64, from: &[u8]) {
        self.pass();
        assert!(from.iter().all(|byte| *byte == 0));
    }
}

const LONG: u64 = 256 << 20;

/// Sends a ping to an engine, and returns the answer.
async fn ping(socket: &UdpSocket, port: u16) -> Packet {
    let id = StreamId { group: 1, epoch: 1, call: 0, transfer: 0, source: 0 };
    let mut bytes = Vec::new();
    Packet { id, from: 0, digest: 0, body: PacketBody::Ping }.encode(&mut bytes);
    socket.send_to(&bytes, (Ipv4Addr::LOCALHOST, port)).await.unwrap();
    bytes.resize(1500, 0);
    let len = timeout(Duration::from_secs(60), socket.recv(&mut bytes)).await.expect("an answer").unwrap();
    Packet::decode(&bytes[..len]).unwrap().0
}

/// Lets four ranks of one node combine an array with itself.
async fn allreduce(engine: &EngineHandle, array: Arc<dyn RankMemory>) -> JoinSet<Result<Stats, Failure>> {
    engine.make_group(spec(std::slice::from_ref(engine), &[0; 4])).await.unwrap();
    let slice = || Some(SharedSlice::new(Arc::clone(&array), 0, LONG).unwrap());
    let mut calls = JoinSet::new();
    for request in ReferenceCollective::new(GROUP, 4, Operation::Allreduce, 0, 0, 1).requests {
        let request = MappedCallRequest {
            count: LONG / 4,
            input: slice(),
            output: slice(),
            ..request.map(self::slice)
        };
        calls.spawn(engine.call(request));
    }
    calls
}

#[tokio::test]
async fn a_panic_in_the_pool_ends_the_engine_and_its_calls() {
    let engine = EngineHandle::start(config(0)).unwrap();
    let calls = allreduce(&engine, Arc::new(Broken)).await;
    for result in timeout(Duration::from_secs(120), calls.join_all()).await.expect("every call ends") {
        let failed = result.unwrap_err();
        assert!(failed.message.contains("has stopped; see the agent's log"), "{}", failed.message);
    }
    timeout(Duration::from_secs(60), engine.ended()).await.expect("the engine ends");
}

#[tokio::test]
async fn pings_are_answered_during_long_local_reductions() {
    let engine = EngineHandle::start(config(0)).unwrap();
    let array = Arc::new(Gated::closed());
    let mut calls = allreduce(&engine, array.clone()).await;
    timeout(Duration::from_secs(60), array.reached.acquire()).await.expect("there is work").unwrap().forget();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    for _ in 0..20 {
        let answer = ping(&socket, engine.udp_port()).await.body;
        assert_eq!(answer, PacketBody::PingAnswer { incarnation: engine.incarnation() });
    }
    assert!(calls.try_join_next().is_none(), "what has to pass the gate is not done");
    array.open();
    for result in timeout(Duration::from_secs(120), calls.join_all()).await.expect("every call ends") {
        assert!(result.is_ok(), "{result:?}");
    }
}

/// Executes every operation with 40,000 elements while `disturb` runs.
async fn disturbed(engines: &[EngineHandle], disturb: impl AsyncFn()) {
    let works = every_operation_works(engines, &[40_000]);
    let disturb = async {
        loop {
            disturb().await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = works => {}
        () = disturb => {}
    }
}

#[tokio::test]
async fn forged_and_replayed_datagrams_change_nothing() {
    let engines = engines().await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let id = StreamId { group: GROUP, epoch: 1, call: 0, transfer: 0, source: 1 };
    let mut plain = Vec::new();
    Packet { id, from: 1, digest: 0, body: PacketBody::PingAnswer { incarnation: u64::MAX } }
        .encode(&mut plain);
    let tagged = |key: u8| {
        let (mut bytes, mut tagger) = (plain.clone(), Tagger::<AesGcm>::default());
        tagger.insert((GROUP, 1), GroupKey { key: [key; 32].into(), protection: Protection::Tagged }, (1, 5));
        tagger.seal((GROUP, Ipv4Addr::LOCALHOST.into()), &mut bytes, 0);
        bytes
    };
    // The last datagram has a valid tag of the group, and is replayed again and again.
    let datagrams = [plain.clone(), tagged(1), tagged(9)];
    disturbed(&engines, async || {
        for (datagram, engine) in datagrams.iter().flat_map(|d| engines.iter().map(move |e| (d, e))) {
            socket.send_to(datagram, (Ipv4Addr::LOCALHOST, engine.udp_port())).await.unwrap();
        }
    })
    .await;
    let refusals = engines[0].refusals();
    for why in [RefusalReason::Unproven, RefusalReason::Forged, RefusalReason::Replayed] {
        assert!(refusals.get(why) > 0, "{why:?}");
    }
}

#[tokio::test]
async fn connections_with_a_false_identity_disturb_no_call() {
    let engines = engines().await;
    let ephemeral = Ephemeral { nonce: [4; 32], public_key: None };
    let names = [("h0", &engines[0]), ("h1", &engines[1]), ("h2", &engines[2])];
    let hellos = names.map(|(name, engine)| {
        let who = AgentId { node: name.to_owned(), incarnation: engine.incarnation() + 1 };
        let first = PeerStream::new(&who, "victim").poll(Time::ZERO);
        let Poll::Output(unicast::Output::Write { head, .. }) = first else { panic!("{first:?}") };
        let key = PeerKey { key: [3; 32].into(), group: None };
        let proof = Initiator::new(&who, key, &ephemeral, None).hello().to_vec();
        [head, proof, vec![b'C'; 40], Vec::new()]
    });
    disturbed(&engines, async || {
        for (hello, engine) in
            hellos.iter().flatten().flat_map(|hello| engines.iter().map(move |e| (hello, e)))
        {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, engine.tcp_port())).await;
            // The other side may have closed the connection.
            if let Ok(mut stream) = stream {
                let _ = stream.write_all(hello).await;
            }
        }
    })
    .await;
    let refusals = engines[0].refusals();
    for why in [RefusalReason::Unproven, RefusalReason::Handshake] {
        assert!(refusals.get(why) > 0, "{why:?}");
    }
}
