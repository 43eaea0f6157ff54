//! Tests of an agent's reports on calls that its ranks executed themselves, in traces and on its
//! page for Prometheus.
use cool_daemon::web;
use cool_nodeagent::Agent;
use cool_nodeagent::embedded::EmbeddedCluster;
use cool_nodeagent::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec};
use cool_nodeagent::local::{LocalServer, UserLimits};
use cool_proto::VERSION;
use cool_proto::local::watched::{StillWaits, What};
use cool_proto::local::{self, Attach, Attached, Revoke, Watched, frame::Body};
use cool_proto::socket::{self, LocalFrameReceiver, LocalFrameSender, SocketError};
use cool_shm::segment::Segment;
use cool_shm::segment::records::{self, ARRIVALS, RankPlan, RankRecord, RankTraffic};
use cool_types::{ElementType, Operation};
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(30);

/// An attached rank.
struct Rank {
    sender: LocalFrameSender,
    receiver: LocalFrameReceiver,
    segment: Segment,
    rank: usize,
}

impl Rank {
    /// Attaches a rank of a group of two ranks.
    fn attach(socket: &Path, group: u64, rank: u32) -> Rank {
        let (mut sender, mut receiver) = socket::open(socket, PATIENCE).unwrap();
        let attach = Attach { version: VERSION, group, rank, segment: true, quick: false, long_quick: false };
        sender.send(Body::Attach(attach), None).unwrap();
        let Body::Attached(Attached { segment, .. }) = receiver.receive(PATIENCE).unwrap() else {
            panic!("not attached")
        };
        let segment = Segment::open(receiver.descriptor().unwrap(), segment, 2).unwrap();
        Rank { sender, receiver, segment, rank: rank as usize }
    }

    /// Records a call that begins and ends now.
    fn record_call(&self, number: u64, failed: bool) {
        self.segment.rank(self.rank).record(&RankRecord {
            number,
            operation: Operation::Allreduce,
            element: Some(ElementType::F64),
            reduce: Some(cool_types::ReduceOp::Sum),
            root: 0,
            bytes: 16,
            unequal: false,
            plan: RankPlan::Segment,
            failed,
            begun: records::now(),
            took: 0,
            traffic: RankTraffic::default(),
            arrivals: [None; ARRIVALS],
        });
    }
}

#[test]
fn a_trace_has_the_calls_of_ranks_with_their_failures() {
    let cluster = EmbeddedCluster::start(&[0, 0], &[0]).unwrap();
    let [mut first, second] = attach_both(&cluster);
    [&first, &second].into_iter().for_each(|rank| rank.record_call(0, false));
    // The second call is watched, and the group is revoked.
    first.sender.send(Body::Call(watched_call(1)), None).unwrap();
    first.sender.send(Body::Revoke(Revoke::default()), None).unwrap();
    let failure = loop {
        match first.receiver.receive(PATIENCE).unwrap() {
            Body::Done(done) => break done.failure.unwrap(),
            Body::Running(_) => {}
            other => panic!("{other:?} instead of Done"),
        }
    };
    first.record_call(1, true);
    let [event] = <[_; 1]>::try_from(cluster.trace()).unwrap();
    let calls: Vec<_> = event
        .records
        .iter()
        .map(|call| (call.call, &*call.words, &*call.plan, call.ranks.len(), &*call.failure))
        .collect();
    let words = "allreduce of 2 f64 by sum";
    assert_eq!(calls, [(0, words, "segment", 2, ""), (1, words, "segment", 1, &*failure.message)]);
}

/// Attaches the two ranks of a cluster.
fn attach_both(cluster: &EmbeddedCluster) -> [Rank; 2] {
    let attach = |(rank, socket)| Rank::attach(socket, EmbeddedCluster::GROUP, rank);
    let ranks: Vec<Rank> = (0..).zip(cluster.sockets()).map(attach).collect();
    <[Rank; 2]>::try_from(ranks).ok().unwrap()
}

/// Returns a barrier that the rank executes together with the others.
fn watched_call(number: u64) -> local::Call {
    local::Call {
        id: 1,
        group: EmbeddedCluster::GROUP,
        operation: local::Operation::Barrier.into(),
        number: Some(number),
        watch: true,
        ..local::Call::default()
    }
}

#[test]
fn a_rank_that_reports_often_still_gets_running_frames() {
    let cluster = EmbeddedCluster::start(&[0, 0], &[0]).unwrap();
    let [mut waits, _other] = attach_both(&cluster);
    waits.sender.send(Body::Call(watched_call(0)), None).unwrap();
    let until = Instant::now() + PATIENCE;
    let frame = loop {
        assert!(Instant::now() < until, "its agent sends nothing");
        match waits.receiver.receive(Duration::from_millis(100)) {
            Ok(frame) => break frame,
            Err(SocketError::TimedOut(_)) => {
                let what = Some(What::StillWaits(StillWaits {}));
                waits.sender.send(Body::Watched(Watched { id: 1, what }), None).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    };
    assert!(matches!(frame, Body::Running(_)), "{frame:?}");
}

/// Returns an agent on loopback and the address of its page.
async fn agent(socket: &Path) -> (Agent, std::net::SocketAddr) {
    let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
    let agent = Agent::new("h1", engine, mpsc::channel(1).0);
    tokio::spawn(LocalServer::bind(socket, UserLimits::NONE).unwrap().serve(agent.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(web::serve(listener, agent.metrics().router()));
    (agent, address)
}

/// Makes a group with two local ranks.
async fn make_group(agent: &Agent, id: u64) {
    let (udp_port, tcp_port) = agent.ports();
    let member = |rank| MemberSpec {
        rank,
        node: "h1".to_owned(),
        incarnation: agent.incarnation(),
        rack: 0,
        ip: Ipv4Addr::LOCALHOST.into(),
        udp_port,
        tcp_port,
        key: None,
    };
    let spec = GroupSpec {
        id,
        epoch: 1,
        members: vec![member(0), member(1)],
        chunk_bytes: 1400,
        ..GroupSpec::default()
    };
    agent.make_group(spec).await.unwrap();
    agent.set_owner(id, rustix::process::geteuid().as_raw());
}

async fn page(address: std::net::SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn all_calls_of_ranks_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("h1.sock");
    let (agent, address) = agent(&socket).await;
    make_group(&agent, 5).await;
    let ranks = [0, 1].map(|rank| Rank::attach(&socket, 5, rank));
    let counted = |text: &str, calls: u64| {
        for line in [
            format!("cool_agent_calls_total{{operation=\"allreduce\"}} {calls}"),
            format!("cool_agent_call_seconds_count{{operation=\"allreduce\"}} {calls}"),
            format!("cool_agent_rank_calls_total{{operation=\"allreduce\",plan=\"segment\"}} {calls}"),
            format!(
                "cool_agent_rank_call_bytes_total{{operation=\"allreduce\",plan=\"segment\"}} {}",
                16 * calls
            ),
            "cool_agent_datagrams_asked_total 0".to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    };
    counted(&page(address).await, 0);
    let many = 2 * records::RECORDS;
    (0..many).for_each(|number| ranks[0].record_call(number, false));
    counted(&page(address).await, many);
    ranks[1].record_call(0, false);
    ranks[1].record_call(1, true);
    agent.release_group(5);
    counted(&page(address).await, many + 1);
}
