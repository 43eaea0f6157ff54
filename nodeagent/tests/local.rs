//! What a process may do to the agent's unix socket, and what it hears when it does something else.

use cool_collective::CostModel;
use cool_nodeagent::Agent;
use cool_nodeagent::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec};
use cool_nodeagent::local::{LocalServer, ServeError, UserLimits};
use cool_proto::VERSION;
use cool_proto::local::{
    Attach, Attached, Call, Done, Dtype, Map, Operation, Recover, ReduceOp, Slice, Unmap, frame::Body,
};
use cool_proto::region::Region;
use cool_proto::socket::{self, Receiver, Sender, SocketError};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(30);

/// Both halves of a rank's connection.
struct Connection {
    sender: Sender,
    receiver: Receiver,
}

impl Connection {
    fn send(&mut self, body: Body, descriptor: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        self.sender.send(body, descriptor)
    }

    fn receive(&mut self, patience: Duration) -> Result<Body, SocketError> {
        self.receiver.receive(patience)
    }
}

/// An agent on loopback that serves its ranks, alone in its network.
struct Node {
    agent: Agent,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Node {
    async fn start() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run").join("h1.sock");
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let server = LocalServer::bind(&socket, UserLimits::NONE).unwrap();
        tokio::spawn(server.serve(agent.clone()));
        Node { agent, socket, _directory: directory }
    }

    /// Makes a group of one rank here, and one elsewhere if it is to have two.
    async fn group(&self, id: u64, ranks: u32) {
        let (udp_port, tcp_port) = self.agent.ports();
        let member = |rank: u32| MemberSpec {
            rank,
            node: format!("h{}", rank + 1),
            incarnation: self.agent.incarnation(),
            rack: 0,
            ip: Ipv4Addr::LOCALHOST,
            udp_port,
            tcp_port: if rank == 0 { tcp_port } else { 1 },
            key: None,
        };
        let spec = GroupSpec {
            id,
            epoch: 1,
            members: (0..ranks).map(member).collect(),
            trees: Vec::new(),
            chunk_bytes: 1400,
            host_bytes_per_second: 0,
            cost_model: CostModel::default(),
            keyed: None,
            on_demand: false,
        };
        self.agent.make_group(spec).await.unwrap();
        self.agent.set_owner(id, rustix::process::geteuid().as_raw());
    }

    fn connect(&self) -> Connection {
        let (sender, receiver) = socket::open(&self.socket, PATIENCE).unwrap();
        Connection { sender, receiver }
    }

    /// A rank that has attached.
    fn attach(&self, group: u64) -> Connection {
        let mut rank = self.connect();
        rank.send(attach(group, 0), None).unwrap();
        match rank.receive(PATIENCE).unwrap() {
            Body::Attached(Attached { size, places, .. }) => assert_eq!(size as usize, places.len()),
            other => panic!("{other:?} instead of Attached"),
        }
        rank
    }

    /// A rank that keeps to the protocol is served.
    fn works(&self, group: u64) {
        let mut rank = self.attach(group);
        let region = Region::create(4096).unwrap();
        region.copy_in(0, &5u32.to_ne_bytes()).unwrap();
        rank.send(Body::Map(Map { region: 1, bytes: 4096 }), Some(region.descriptor())).unwrap();
        rank.send(Body::Call(allreduce(group, 1, 0, 64)), None).unwrap();
        match rank.receive(PATIENCE).unwrap() {
            Body::Done(Done { id: 3, failure: None, .. }) => {}
            other => panic!("{other:?} instead of Done"),
        }
        let mut sum = [0; 4];
        region.copy_out(64, &mut sum).unwrap();
        assert_eq!(u32::from_ne_bytes(sum), 5);
    }
}

fn attach(group: u64, rank: u32) -> Body {
    Body::Attach(Attach { version: cool_proto::VERSION, group, rank, segment: false })
}

fn allreduce(group: u64, region: u32, input: u64, output: u64) -> Call {
    Call {
        id: 3,
        group,
        operation: Operation::Allreduce.into(),
        root: 0,
        dtype: Dtype::U32.into(),
        reduce: ReduceOp::Sum.into(),
        count: 1,
        input: Some(Slice { region, offset: input, bytes: 4 }),
        output: Some(Slice { region, offset: output, bytes: 4 }),
        ..Call::default()
    }
}

/// The words with which the agent refuses; it hangs up after them.
fn refusal(rank: &mut Connection) -> String {
    let message = match rank.receive(PATIENCE).unwrap() {
        Body::Refused(refused) => refused.message,
        other => panic!("{other:?} instead of Refused"),
    };
    assert!(matches!(rank.receive(PATIENCE), Err(SocketError::Closed)));
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_attach_properly_is_told_why() {
    let node = Node::start().await;
    node.group(1, 2).await;
    let recover = |group, version| Recover { version, group, timeout_ms: 1, ..Recover::default() };
    let first: [(Body, &str); 7] = [
        (attach(9, 0), "node h1 knows no group 9"),
        (attach(1, 1), "rank 1 of group 1 is not on node h1, which has ranks 0"),
        (attach(1, u32::MAX), "is not on node h1"),
        (Body::Attach(Attach { version: 99, group: 1, ..Attach::default() }), "version 99"),
        (Body::Call(allreduce(1, 0, 0, 0)), "the first frame must be Attach, Enlist or Recover"),
        (Body::Recover(recover(1, VERSION)), "rank 0 is not attached to group 1 on node h1"),
        (Body::Recover(recover(1, 99)), "version 99"),
    ];
    for (body, reason) in first {
        let mut rank = node.connect();
        rank.send(body, None).unwrap();
        let message = refusal(&mut rank);
        assert!(message.contains(reason), "{message}");
    }
    let _first = node.attach(1);
    let mut second = node.connect();
    second.send(attach(1, 0), None).unwrap();
    let message = refusal(&mut second);
    assert!(message.contains("rank 0 of group 1 has attached before"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_frames_end_only_their_own_connection() {
    let node = Node::start().await;
    node.group(1, 1).await;
    for bytes in [&[0xff; 64][..], &[0, 0, 0, 0], &[0, 0, 0, 3, 1, 2, 3], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = UnixStream::connect(&node.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.len() > 4, "a refusal to {bytes:?}");
    }
    // One that stops in the middle of a frame keeps nobody waiting.
    let mut half = UnixStream::connect(&node.socket).unwrap();
    half.write_all(&[0, 0]).unwrap();
    node.works(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_rank_that_breaks_the_protocol_is_told_why_and_the_others_go_on() {
    let node = Node::start().await;
    let out_of_bounds = |offset, bytes| {
        let output = Some(Slice { region: 1, offset, bytes });
        Body::Call(Call { output, ..allreduce(0, 1, 0, 0) })
    };
    let bad: [(Body, &str); 9] = [
        (attach(1, 0), "Attach came twice"),
        (Body::Done(Done::default()), "only agents send"),
        (Body::Unmap(Unmap { region: 4 }), "region 4 is not mapped"),
        (Body::Map(Map { region: 2, bytes: 4096 }), "without its descriptor"),
        (Body::Call(allreduce(0, 7, 0, 0)), "region 7 is not mapped"),
        (out_of_bounds(4093, 4), "region of 4096 bytes"),
        (out_of_bounds(u64::MAX, 4), "region of 4096 bytes"),
        (Body::Call(Call { operation: 99, ..allreduce(0, 1, 0, 0) }), "operation 99 is unknown"),
        (Body::Call(Call { group: 4711, ..allreduce(0, 1, 0, 0) }), "a call on group 4711"),
    ];
    for (group, (body, reason)) in (1..).zip(bad) {
        node.group(group, 1).await;
        let mut rank = node.attach(group);
        let region = Region::create(4096).unwrap();
        rank.send(Body::Map(Map { region: 1, bytes: 4096 }), Some(region.descriptor())).unwrap();
        let body = match body {
            Body::Call(call) if call.group == 0 => Body::Call(Call { group, ..call }),
            body => body,
        };
        rank.send(body, None).unwrap();
        let message = refusal(&mut rank);
        assert!(message.contains(reason), "{message}");
    }
    node.group(100, 1).await;
    node.works(100);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_could_make_the_agent_fault_is_refused() {
    let node = Node::start().await;
    let region = Region::create(4096).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let (null, _other) = UnixStream::pair().unwrap();
    let bad = [
        (region.descriptor(), 8192, "4096 bytes"),
        (file.as_fd(), 4096, "sealed"),
        (null.as_fd(), 4096, "sealed"),
    ];
    for (group, (descriptor, bytes, reason)) in (1..).zip(bad) {
        node.group(group, 1).await;
        let mut rank = node.attach(group);
        rank.send(Body::Map(Map { region: 1, bytes }), Some(descriptor)).unwrap();
        let message = refusal(&mut rank);
        assert!(message.contains(reason), "{message}");
    }
    node.group(100, 1).await;
    node.works(100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_shares_and_shares_is_stopped() {
    let node = Node::start().await;
    node.group(1, 1).await;
    let mut rank = node.attach(1);
    let region = Region::create(4096).unwrap();
    let mut sent = Ok(());
    for number in 0..1000 {
        sent = rank.send(Body::Map(Map { region: number, bytes: 4096 }), Some(region.descriptor()));
        if sent.is_err() {
            break;
        }
    }
    assert!(matches!(sent, Ok(()) | Err(SocketError::Closed)), "{sent:?}");
    let message = refusal(&mut rank);
    assert!(message.contains("more than 64 regions"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_leaves_in_a_call_is_lost_to_the_others() {
    let node = Node::start().await;
    // Both ranks on this node.
    let (udp_port, tcp_port) = node.agent.ports();
    let member = |rank| MemberSpec {
        rank,
        node: "h1".into(),
        incarnation: node.agent.incarnation(),
        rack: 0,
        ip: Ipv4Addr::LOCALHOST,
        udp_port,
        tcp_port,
        key: None,
    };
    let spec = GroupSpec {
        id: 5,
        epoch: 1,
        members: vec![member(0), member(1)],
        trees: Vec::new(),
        chunk_bytes: 1400,
        host_bytes_per_second: 0,
        cost_model: CostModel::default(),
        keyed: None,
        on_demand: false,
    };
    node.agent.make_group(spec).await.unwrap();
    node.agent.set_owner(5, rustix::process::geteuid().as_raw());
    let mut stays = node.attach(5);
    let mut leaves = node.connect();
    leaves.send(attach(5, 1), None).unwrap();
    leaves.receive(PATIENCE).unwrap();
    let barrier =
        |id| Body::Call(Call { id, group: 5, operation: Operation::Barrier.into(), ..Call::default() });
    stays.send(barrier(0), None).unwrap();
    drop(leaves);
    match stays.receive(PATIENCE).unwrap() {
        Body::Done(Done { failure: Some(failure), .. }) => {
            assert_eq!(failure.ranks, [1], "{}", failure.message);
        }
        other => panic!("{other:?} instead of a failure"),
    }
}

#[tokio::test]
async fn a_socket_of_a_dead_agent_is_replaced_and_one_of_a_living_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("h1.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a dead agent leaves its socket");
    let server = LocalServer::bind(&path, UserLimits::NONE).unwrap();
    let e = LocalServer::bind(&path, UserLimits::NONE).unwrap_err();
    assert!(matches!(&e, ServeError::InUse(p) if *p == path), "{e}");
    drop(server);
    assert!(!path.exists());
    let e = LocalServer::bind(Path::new("/proc/none/h1.sock"), UserLimits::NONE).unwrap_err();
    assert!(e.to_string().contains("--socket"), "{e}");
}
