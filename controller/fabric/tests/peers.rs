//! The fabric over TCP against peers of all kinds: a switch made of the codec, old switches, and
//! peers that are no switches.

use cool_daemon::listen::ClientListener;
use cool_fabric::{Fabric, FabricConfig, FabricHandle};
use rs_openflow::{
    Body, Capabilities, ErrorMessage, ErrorType, Framer, Hello, Message, MultipartReply, MultipartRequest,
    Port, PortConfig, PortFeatures, PortNo, PortState, SwitchFeatures,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

async fn start() -> (FabricHandle, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (
        FabricHandle::start(FabricConfig::default(), [77; 32].into(), ClientListener::plaintext(listener)),
        address,
    )
}

/// Returns all messages until the fabric closes the connection.
async fn until_closed(mut peer: TcpStream) -> Vec<Message> {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, peer.read_to_end(&mut bytes)).await.expect("the fabric never hangs up");
    // Closing with unread bytes resets the connection.
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let mut framer = Framer::default();
    framer.push(&bytes);
    framer.map(Result::unwrap).collect()
}

fn port(number: u32, name: &str) -> Port {
    Port {
        port: PortNo(number),
        hw_addr: [2, 0, 0, 0, 0, number as u8].into(),
        name: rs_openflow::FixedText::new(name).unwrap(),
        config: PortConfig::NONE,
        state: PortState::NONE,
        current: PortFeatures::NONE,
        advertised: PortFeatures::NONE,
        supported: PortFeatures::NONE,
        peer: PortFeatures::NONE,
        current_kbps: 0,
        max_kbps: 0,
    }
}

/// Returns the reply of a switch with this datapath id to a message.
fn reply(datapath_id: u64, body: &Body) -> Option<Body> {
    Some(match body {
        Body::FeaturesRequest => Body::FeaturesReply(SwitchFeatures {
            datapath_id,
            buffers: 0,
            tables: 1,
            auxiliary_id: 0,
            capabilities: Capabilities::NONE,
            reserved: 0,
        }),
        Body::EchoRequest(data) => Body::EchoReply(data.clone()),
        Body::BarrierRequest => Body::BarrierReply,
        Body::MultipartRequest(request) => match &request.body {
            MultipartRequest::PortDesc => {
                let ports = vec![port(1, "eth1"), port(PortNo::LOCAL.0, &format!("switch{datapath_id}"))];
                Body::MultipartReply(MultipartReply::PortDesc(ports).into())
            }
            MultipartRequest::Flow(_) => Body::MultipartReply(MultipartReply::Flow(Vec::new()).into()),
            MultipartRequest::GroupDesc => Body::MultipartReply(MultipartReply::GroupDesc(Vec::new()).into()),
            // Not every switch supports everything.
            _ => Body::Error(ErrorMessage::new(ErrorType::BAD_REQUEST, 2, Vec::new())),
        },
        _ => return None,
    })
}

/// Plays a switch until the fabric closes the connection.
async fn play(address: SocketAddr, datapath_id: u64) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(&Message::new(1, Body::Hello(Hello::default())).encode().unwrap()).await.unwrap();
    let (mut framer, mut buffer) = (Framer::default(), [0; 4096]);
    while let Ok(read @ 1..) = socket.read(&mut buffer).await {
        framer.push(&buffer[..read]);
        for message in framer.by_ref() {
            let Message { xid, body } = message.unwrap();
            if let Some(answer) = reply(datapath_id, &body) {
                socket.write_all(&Message::new(xid, answer).encode().unwrap()).await.unwrap();
            }
        }
    }
}

async fn until_switches(fabric: &FabricHandle, names: &[&str]) {
    let mut watch = fabric.watch();
    let there = |t: &std::sync::Arc<cool_fabric::TopologySnapshot>| {
        t.switches.iter().map(|s| s.name.as_str()).eq(names.iter().copied())
    };
    let found = timeout(PATIENCE, watch.wait_for(there)).await;
    assert!(found.is_ok(), "{names:?}: {:?}", fabric.topology());
}

#[tokio::test]
async fn a_switch_of_version_1_0_gets_an_error_and_others_are_served() {
    let (fabric, address) = start().await;
    let mut old = TcpStream::connect(address).await.unwrap();
    old.write_all(&[1, 0, 0, 8, 0, 0, 0, 1]).await.unwrap();
    let announced = until_closed(old).await;
    let [Message { body: Body::Hello(_), .. }, Message { body: Body::Error(failure), .. }] = &announced[..]
    else {
        panic!("{announced:?}")
    };
    assert_eq!((failure.kind, failure.code), (ErrorType::HELLO_FAILED, 0));
    assert!(String::from_utf8_lossy(&failure.data).contains("1.3"));
    let switch = tokio::spawn(play(address, 5));
    until_switches(&fabric, &["switch5"]).await;
    switch.abort();
}

#[tokio::test]
async fn peers_that_are_no_switches_do_not_delay_switches() {
    let (fabric, address) = start().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut half = TcpStream::connect(address).await.unwrap();
    half.write_all(&[4, 0, 0xff, 0xff, 0]).await.unwrap();
    let mut garbage = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[4, 0, 0, 0, 0, 0, 0, 0], &[4, 6, 0, 32], &[0xff; 70_000]]
    {
        let mut peer = TcpStream::connect(address).await.unwrap();
        // The fabric may close the connection before it has read everything.
        let _ = peer.write_all(bytes).await;
        peer.shutdown()
            .await
            .or_else(|e| match e.kind() {
                std::io::ErrorKind::NotConnected => Ok(()),
                _ => Err(e),
            })
            .unwrap();
        garbage.push(peer);
    }
    let switches = [tokio::spawn(play(address, 1)), tokio::spawn(play(address, 2))];
    until_switches(&fabric, &["switch1", "switch2"]).await;
    for peer in garbage {
        let announced = until_closed(peer).await;
        assert!(announced.len() <= 2, "{announced:?}");
    }
    switches.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_switch_that_floods_and_never_reads_is_dropped() {
    let (fabric, address) = start().await;
    let mut flood = TcpStream::connect(address).await.unwrap();
    flood.write_all(&Message::new(1, Body::Hello(Hello::default())).encode().unwrap()).await.unwrap();
    // Every request demands a reply of the same length, which this peer never reads.
    let echo = Message::new(2, Body::EchoRequest(vec![0; 60_000])).encode().unwrap();
    let flooding = timeout(PATIENCE, async { while flood.write_all(&echo).await.is_ok() {} });
    flooding.await.expect("the fabric keeps for ever what nobody reads");
    let switch = tokio::spawn(play(address, 3));
    until_switches(&fabric, &["switch3"]).await;
    switch.abort();
}

#[tokio::test]
async fn the_same_switch_again_replaces_its_older_connection() {
    let (fabric, address) = start().await;
    let first = tokio::spawn(play(address, 1));
    until_switches(&fabric, &["switch1"]).await;
    let second = tokio::spawn(play(address, 1));
    timeout(PATIENCE, first).await.expect("the older connection stays").unwrap();
    until_switches(&fabric, &["switch1"]).await;
    second.abort();
}

#[tokio::test]
async fn without_handles_the_fabric_ends_and_hangs_up() {
    let (fabric, address) = start().await;
    let switch = tokio::spawn(play(address, 1));
    until_switches(&fabric, &["switch1"]).await;
    drop(fabric);
    timeout(PATIENCE, switch).await.expect("the fabric goes on without handles").unwrap();
}
