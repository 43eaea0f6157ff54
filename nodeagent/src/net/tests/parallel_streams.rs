//! Tests of connections that consist of several TCP streams.

use super::*;
use crate::engine::{RefusalCounters, zeros};
use crate::net::agent_connection::{AgentConnection, READ};
use crate::net::division::PART_BYTES;
use crate::net::handshake::{LinkSecurity, RecordCiphers};
use crate::net::keyring::Keyring;
use crate::net::tcp::{self, ConnectParams};
use crate::net::{DriverEvent, EVENTS};
use cool_engine::{AgentConnectionId, NodeId};
use cool_tcp::LinkEstimate;
use cool_transport::unicast::handshake::{STREAMS_MAX, StreamPlace};
use cool_transport::unicast::records::{Opener, Sealer};
use cool_types::Key;
use socket2::SockRef;
use std::io::ErrorKind;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const ID: AgentConnectionId = AgentConnectionId(1);

/// One side of a connection, and its events.
struct Side {
    connection: AgentConnection,
    events: mpsc::Receiver<DriverEvent>,
    /// The bytes of frames that have been written.
    written: u64,
}

impl Side {
    fn new(streams: Vec<TcpStream>, records: Option<RecordCiphers>) -> Side {
        let (sender, events) = mpsc::channel(EVENTS);
        let link = LinkEstimate::new(true);
        Side { connection: AgentConnection::new(ID, (streams, records), &link, &sender), events, written: 0 }
    }

    /// Waits for an event other than the report of written bytes.
    async fn event(&mut self) -> DriverEvent {
        loop {
            match timeout(Duration::from_secs(60), self.events.recv()).await.expect("an event").unwrap() {
                DriverEvent::Written { stream, bytes, .. } => {
                    self.connection.wrote_rest(stream, bytes);
                    self.written += bytes;
                }
                event => return event,
            }
        }
    }

    /// Reads the next `bytes` bytes, to mapped memory if they are `direct`.
    async fn receive(&mut self, bytes: u64, direct: bool) -> Vec<u8> {
        let memory = zeros(bytes.max(1 << 20)).unwrap();
        let (mut placed, mut buffer, mut received) = (0, vec![0; READ], Vec::new());
        while placed + (received.len() as u64) < bytes {
            let left = bytes - placed - received.len() as u64;
            let place = direct.then(|| memory.part(placed, left));
            self.connection.awaited = (left, None);
            // What follows is left for the next call.
            let end = if direct { READ } else { READ.min(left as usize) };
            match self.connection.read((left, place), &mut buffer[..end]) {
                Ok(outcome) => {
                    assert!(outcome.placed + outcome.tail > 0, "the connection has ended");
                    placed += outcome.placed as u64;
                    received.extend_from_slice(&buffer[..outcome.tail]);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    self.connection.await_more();
                    let event = self.event().await;
                    assert!(matches!(event, DriverEvent::Readable(ID)), "the connection has failed");
                }
            }
        }
        let mut all = vec![0; placed as usize];
        memory.read(0, &mut all);
        all.extend(received);
        all
    }
}

/// Returns the two ends of some TCP connections.
async fn pairs(count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..count {
        ours.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        theirs.push(listener.accept().await.unwrap().0);
    }
    (ours, theirs)
}

async fn sides(count: usize, encrypted: bool) -> [Side; 2] {
    let (ours, theirs) = pairs(count).await;
    let records = |[sends, gets]: [u8; 2]| {
        let [sends, gets]: [Key; 2] = [[sends; 32].into(), [gets; 32].into()];
        encrypted.then(|| RecordCiphers { sealer: Sealer::new(&sends), opener: Opener::new(&gets) })
    };
    [Side::new(ours, records([1, 2])), Side::new(theirs, records([2, 1]))]
}

/// Returns bytes in which every position differs from those a part away.
fn pattern(from: u64, bytes: u64) -> Vec<u8> {
    (from..from + bytes).map(|at| (at ^ at >> 8 ^ at >> 13) as u8).collect()
}

/// Sends frames with payloads of these lengths, and checks that the other side receives them.
async fn transfer([from, to]: &mut [Side; 2], lengths: &[u64], direct: bool) {
    let mut sent = 0;
    for &bytes in lengths {
        let payload = zeros(bytes.max(1 << 20)).unwrap();
        payload.write(0, &pattern(sent, bytes));
        let before = from.written;
        from.written += from.connection.write(vec![7; 9], Some(payload.part(0, bytes)));
        let receives = async {
            assert_eq!(to.receive(9, false).await, [7; 9]);
            assert!(to.receive(bytes, direct).await == pattern(sent, bytes), "{bytes} bytes arrive");
        };
        let writes = async {
            loop {
                let event = from.event().await;
                assert!(matches!(event, DriverEvent::Readable(ID)), "the connection has failed");
            }
        };
        tokio::select! {
            () = receives => {}
            () = writes => {}
        }
        // All bytes have arrived, so the reports that all are written follow.
        while from.written < before + 9 + bytes {
            let report =
                timeout(Duration::from_secs(60), from.events.recv()).await.expect("a report").unwrap();
            let DriverEvent::Written { stream, bytes, .. } = report else { continue };
            from.connection.wrote_rest(stream, bytes);
            from.written += bytes;
        }
        sent += bytes;
    }
}

#[tokio::test]
async fn frames_of_all_lengths_arrive_in_order_over_streams() {
    let part = PART_BYTES;
    let near = |border: u64| (border - 12..border + 3).step_by(3);
    let mut lengths: Vec<u64> = [0, 1, 100].into_iter().chain(near(part)).chain(near(2 * part)).collect();
    lengths.extend(near(5 * part).chain([8 * part, 40 * part + 1, 3 << 20, 17]));
    for count in [1, 2, 3, usize::from(STREAMS_MAX)] {
        for (encrypted, direct) in [(false, false), (false, true), (true, false), (true, true)] {
            let [ours, theirs] = sides(count, encrypted).await;
            let mut there = [ours, theirs];
            transfer(&mut there, &lengths, direct).await;
            there.reverse();
            transfer(&mut there, &lengths, direct).await;
        }
    }
}

#[tokio::test]
async fn all_streams_send_although_one_accepts_nothing() {
    let (ours, mut theirs) = pairs(4).await;
    let mut side = Side::new(ours, None);
    let payload = zeros(32 << 20).unwrap();
    let accepted = side.connection.write(vec![7; 9], Some(payload));
    // The receiver reads none of the first stream.
    for stream in &mut theirs[1..] {
        let mut part = vec![1; PART_BYTES as usize];
        timeout(Duration::from_secs(60), stream.read_exact(&mut part)).await.expect("a part").unwrap();
        assert!(part.iter().all(|byte| *byte == 0));
    }
    assert!(accepted < 32 << 20, "the system has accepted {accepted} bytes");
}

#[tokio::test]
async fn a_connection_fails_if_one_of_its_streams_fails() {
    for lost in 0..3 {
        let (ours, mut theirs) = pairs(3).await;
        let mut side = Side::new(ours, None);
        let stream = theirs.remove(lost);
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        drop(stream);
        loop {
            match side.event().await {
                DriverEvent::Readable(ID) => side.connection.await_more(),
                DriverEvent::StreamFailed { connection: ID, why } => {
                    assert!(why.contains("the connection to its agent failed"), "{why}");
                    break;
                }
                _ => panic!("another event"),
            }
        }
    }
}

/// Returns the security of an agent that accepts connections.
fn security(encrypt: bool) -> LinkSecurity {
    let me = AgentId { node: "h1".to_owned(), incarnation: 5 };
    LinkSecurity { me, key: [4; 32].into(), groups: Keyring::default(), encrypt }
}

/// Starts to accept connections, and returns the address and the events.
async fn accepting(encrypt: bool) -> (SocketAddr, Arc<RefusalCounters>, mpsc::Receiver<DriverEvent>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (events, queue) = mpsc::channel(EVENTS);
    let refusals = Arc::<RefusalCounters>::default();
    tokio::spawn(tcp::accept(listener, security(encrypt), Arc::clone(&refusals), events));
    (address, refusals, queue)
}

#[tokio::test]
async fn both_sides_get_the_streams_in_the_same_order() {
    for (streams, expected, encrypt) in [(0, 1, false), (1, 1, true), (5, 5, false), (STREAMS_MAX, 16, true)]
    {
        let (to, refusals, mut accepted) = accepting(encrypt).await;
        let (events, mut connected) = mpsc::channel(EVENTS);
        let me = AgentId { node: "h2".to_owned(), incarnation: 6 };
        let key = Some(PeerKey { key: [4; 32].into(), group: None });
        let approach =
            ConnectParams { me: me.clone(), key, encrypt, streams, peer_timeout: Duration::from_secs(60) };
        tcp::connect(NodeId(1), (Ipv4Addr::LOCALHOST.into(), to), approach, events).await;
        let Some(DriverEvent::Connected { streams: ours, records: sends, .. }) = connected.recv().await
        else {
            panic!("not connected")
        };
        let event = timeout(Duration::from_secs(60), accepted.recv()).await.expect("a connection");
        let Some(DriverEvent::Accepted { streams: theirs, records: gets, proven, .. }) = event else {
            panic!("not accepted")
        };
        assert_eq!((proven, ours.len()), (Some(me), expected));
        assert_eq!((sends.is_some(), gets.is_some()), (encrypt, encrypt));
        let ports = |streams: &[TcpStream], of: fn(&TcpStream) -> std::io::Result<SocketAddr>| {
            streams.iter().map(|stream| of(stream).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(ports(&ours, TcpStream::local_addr), ports(&theirs, TcpStream::peer_addr));
        assert_eq!(refusals.get(RefusalReason::Handshake), 0);
        let mut there = [Side::new(ours, sends), Side::new(theirs, gets)];
        transfer(&mut there, &[10, 100_000], true).await;
    }
}

#[tokio::test]
async fn a_stream_at_an_impossible_place_is_refused() {
    let engine = EngineHandle::start(config(0)).unwrap();
    let me = AgentId { node: "h1".to_owned(), incarnation: 1 };
    for (index, count) in [(0, 17), (2, 2), (0, 1)] {
        let ephemeral = Ephemeral { nonce: [4; 32], public_key: None };
        let place = Some(StreamPlace { token: [1; 16], index, count });
        let key = PeerKey { key: engine.key().clone(), group: None };
        is_refused(&engine, Initiator::new(&me, key, &ephemeral, place).hello()).await;
    }
    assert_eq!(engine.refusals().get(RefusalReason::Handshake), 3);
}

#[tokio::test]
async fn every_operation_works_over_several_streams() {
    for (protection, config, on_demand) in [
        (Protection::Tagged, config as fn(usize) -> EngineConfig, false),
        (Protection::Encrypted, encrypting, false),
        (Protection::Tagged, config, true),
    ] {
        let engines: Vec<EngineHandle> =
            (0..3).map(|node| EngineHandle::start(config(node)).unwrap()).collect();
        let keyed = Some(GroupKey { key: [9; 32].into(), protection });
        let mut spec = GroupSpec { keyed, on_demand, connections_per_hop: 4, ..spec(&engines, &PLACES) };
        if on_demand {
            spec.members.iter_mut().for_each(|member| member.key = None);
        }
        for engine in &engines {
            engine.make_group(spec.clone()).await.unwrap();
        }
        every_operation_works(&engines, &[0, 10, 40_000, 200_000]).await;
    }
}
