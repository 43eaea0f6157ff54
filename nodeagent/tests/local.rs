//! Tests of processes at the agent's Unix socket that follow the protocol, and of those that do
//! not.
use cool_nodeagent::Agent;
use cool_nodeagent::engine::{EngineConfig, EngineHandle, GroupSpec, MemberSpec};
use cool_nodeagent::local::{LocalServer, ServeError, UserLimits};
use cool_proto::VERSION;
use cool_proto::frame::{Decoder, MAX_TO_AGENT, MAX_TO_RANK, encode};
use cool_proto::local::{
    Attach, Attached, Call, Done, Dtype, Failure, Leave, Map, Operation, Recover, ReduceOp, Revoke, Slice,
    Unmap, Watched,
    failure::Kind,
    frame::Body,
    watched::{Differs, Overdue, Through, What},
};
use cool_proto::socket::{self, LocalFrameReceiver, LocalFrameSender, SocketError};
use cool_shm::region::Region;
use cool_shm::segment::{Segment, SegmentRing};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(30);

/// Both directions of a rank's connection.
struct Connection {
    sender: LocalFrameSender,
    receiver: LocalFrameReceiver,
}

impl Connection {
    fn send(&mut self, body: Body, descriptor: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        self.sender.send(body, descriptor)
    }

    fn receive(&mut self, patience: Duration) -> Result<Body, SocketError> {
        self.receiver.receive(patience)
    }
}

/// An agent on loopback that serves its ranks, without other agents.
struct Node {
    agent: Agent,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Node {
    async fn start() -> Node {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("h1.sock");
        let config = EngineConfig::on_loopback("h1");
        let agent = Agent::new("h1", EngineHandle::start(config).unwrap(), mpsc::channel(1).0);
        let server = LocalServer::bind(&socket, UserLimits::NONE).unwrap();
        tokio::spawn(server.serve(agent.clone()));
        Node { agent, socket, _directory: directory }
    }

    /// Makes a group with one rank on this node, and one elsewhere if `ranks` is 2.
    async fn group(&self, id: u64, ranks: usize) {
        self.group_of(id, &["h1", "h2"][..ranks]).await;
    }

    /// Makes a group of ranks on these nodes. This node is h1.
    async fn group_of(&self, id: u64, nodes: &[&str]) {
        let (udp_port, tcp_port) = self.agent.ports();
        let member = |(rank, node): (u32, &&str)| MemberSpec {
            rank,
            node: (*node).to_owned(),
            incarnation: self.agent.incarnation(),
            rack: 0,
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port,
            tcp_port: if *node == "h1" { tcp_port } else { 1 },
            key: None,
        };
        let spec = GroupSpec {
            id,
            epoch: 1,
            members: (0..).zip(nodes).map(member).collect(),
            chunk_bytes: 1400,
            ..GroupSpec::default()
        };
        self.agent.make_group(spec).await.unwrap();
        self.agent.set_owner(id, rustix::process::geteuid().as_raw());
    }

    fn connect(&self) -> Connection {
        let (sender, receiver) = socket::open(&self.socket, PATIENCE).unwrap();
        Connection { sender, receiver }
    }

    /// Attaches rank 0 of a group.
    fn attach(&self, group: u64) -> Connection {
        let mut rank = self.connect();
        rank.send(attach(group, 0), None).unwrap();
        match rank.receive(PATIENCE).unwrap() {
            Body::Attached(Attached { size, places, .. }) => assert_eq!(size as usize, places.len()),
            other => panic!("{other:?} instead of Attached"),
        }
        rank
    }

    /// Checks that a rank that follows the protocol is served.
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
    Body::Attach(Attach {
        version: cool_proto::VERSION,
        group,
        rank,
        segment: false,
        quick: false,
        long_quick: false,
    })
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

/// Returns the reason with which the agent refuses a rank before it disconnects.
fn refusal(rank: &mut Connection) -> String {
    let message = match rank.receive(PATIENCE).unwrap() {
        Body::Refused(refused) => refused.message,
        other => panic!("{other:?} instead of Refused"),
    };
    assert!(matches!(rank.receive(PATIENCE), Err(SocketError::Closed)));
    message
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_does_not_attach_properly_gets_the_reason() {
    let node = Node::start().await;
    node.group(1, 2).await;
    let recover = |group, version| Recover { version, group, timeout_ms: 1, ..Recover::default() };
    let first: [(Body, &str); 7] = [
        (attach(9, 0), "node h1 knows no group 9"),
        (attach(1, 1), "rank 1 of group 1 is not on node h1, which has rank 0"),
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
    // A process that stops in the middle of a frame must not hold up others.
    let mut half = UnixStream::connect(&node.socket).unwrap();
    half.write_all(&[0, 0]).unwrap();
    node.works(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_breaks_the_protocol_gets_the_reason() {
    let node = Node::start().await;
    let out_of_bounds = |offset, bytes| {
        let output = Some(Slice { region: 1, offset, bytes });
        Body::Call(Call { output, ..allreduce(0, 1, 0, 0) })
    };
    let bad: [(Body, &str); 9] = [
        (attach(1, 0), "a second Attach"),
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
    node.group_of(5, &["h1", "h1"]).await;
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
async fn only_the_socket_of_a_dead_agent_is_replaced() {
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

/// A rank that can execute calls with others in a segment, and has the segment if its group has
/// one.
struct SharingRank {
    stream: UnixStream,
    decoder: Decoder,
    descriptors: VecDeque<OwnedFd>,
    rank: u32,
    segment: Option<Segment>,
}

impl SharingRank {
    fn attach(node: &Node, group: u64, rank: u32) -> SharingRank {
        let stream = UnixStream::connect(&node.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (decoder, descriptors) = (Decoder::new(MAX_TO_RANK), VecDeque::new());
        let mut this = SharingRank { stream, decoder, descriptors, rank, segment: None };
        this.send(Body::Attach(Attach {
            version: VERSION,
            group,
            rank,
            segment: true,
            quick: false,
            long_quick: false,
        }));
        let Body::Attached(Attached { size, segment, .. }) = this.receive() else { panic!("not attached") };
        let descriptor = this.descriptors.pop_front();
        assert_eq!(descriptor.is_some(), segment > 0);
        this.segment = descriptor.map(|file| Segment::open(file, segment, size as usize).unwrap());
        this
    }

    fn send(&mut self, body: Body) {
        self.stream.write_all(&encode(body, MAX_TO_AGENT).unwrap()).unwrap();
    }

    /// Returns the next frame, except for Running.
    fn receive(&mut self) -> Body {
        loop {
            match self.decoder.take().unwrap() {
                Some(Body::Running(_)) => {}
                Some(body) => return body,
                None => {
                    let mut buffer = [0; 4096];
                    let n = socket::receive(&self.stream, &mut buffer, &mut self.descriptors).unwrap();
                    assert_ne!(n, 0, "the agent hung up");
                    self.decoder.push(&buffer[..n]);
                }
            }
        }
    }

    fn segment(&self) -> &Segment {
        self.segment.as_ref().expect("its group has a segment")
    }

    /// Sleeps in the segment like a rank that waits for others.
    fn sleep_until(&self, is_there: impl Fn(&Segment) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(self.segment()) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nobody has woken it");
            self.segment().rank(self.rank as usize).sleep(|| is_there(self.segment()), left);
        }
    }

    fn watch(&mut self, call: Call) {
        self.send(Body::Call(Call { watch: true, ..call }));
    }

    /// Waits until the rank is woken, and returns the reply to its watched call.
    fn answer(&mut self, id: u64) -> Done {
        let rank = self.rank as usize;
        self.sleep_until(|segment| segment.rank(rank).last_reply() == id + 1);
        self.done(id)
    }

    fn done(&mut self, id: u64) -> Done {
        match self.receive() {
            Body::Done(done) if done.id == id => done,
            other => panic!("{other:?} instead of Done"),
        }
    }
}

/// Returns a watched barrier of group 1.
fn barrier(id: u64, number: u64) -> Call {
    let operation = Operation::Barrier.into();
    Call { id, group: 1, operation, number: Some(number), ..Call::default() }
}

fn completed(id: u64) -> Body {
    Body::Watched(Watched { id, what: Some(What::Through(Through {})) })
}

fn kind(done: &Done) -> Option<Kind> {
    done.failure.as_ref().map(Failure::kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_ranks_of_a_single_node_group_share_a_segment() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 3]).await;
    let ranks: Vec<SharingRank> = (0..3).map(|rank| SharingRank::attach(&node, 1, rank)).collect();
    ranks[0].segment().rank(0).write((SegmentRing::Inputs, 0), 0, b"hello").unwrap();
    ranks[0].segment().rank(0).publish((SegmentRing::Inputs, 0), 0);
    let mut bytes = [0; 5];
    ranks[2].segment().rank(0).read((SegmentRing::Inputs, 0), 0, &mut bytes).unwrap();
    assert_eq!((&bytes, ranks[2].segment().rank(0).published(SegmentRing::Inputs)), (b"hello", 1));
    assert!(!ranks[0].segment().is_declined() && !ranks[0].segment().has_failed());

    node.group_of(2, &["h1"]).await;
    node.group_of(3, &["h1", "h1", "h2"]).await;
    assert!(SharingRank::attach(&node, 2, 0).segment.is_none());
    assert!(SharingRank::attach(&node, 3, 1).segment.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_cannot_use_a_segment_keeps_all_from_it() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 3]).await;
    let first = SharingRank::attach(&node, 1, 0);
    let mut other = node.connect();
    other.send(attach(1, 1), None).unwrap();
    let Body::Attached(attached) = other.receive(PATIENCE).unwrap() else { panic!("not attached") };
    assert_eq!(attached.segment, 0);
    first.sleep_until(Segment::is_declined);
    assert!(SharingRank::attach(&node, 1, 2).segment.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_call_ends_by_report_or_by_a_call_to_the_agent() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 2]).await;
    let [mut a, mut b] = [0, 1].map(|rank| SharingRank::attach(&node, 1, rank));
    a.watch(barrier(5, 7));
    a.send(completed(5));
    let done = a.answer(5);
    assert!(done.failure.is_none() && !done.by_agent, "{done:?}");
    // A report on a call that has been answered is ignored.
    a.send(completed(5));
    a.watch(barrier(6, 8));
    b.send(Body::Call(barrier(1, 8)));
    let done = a.answer(6);
    assert!(done.failure.is_none() && done.by_agent, "{done:?}");
    a.send(Body::Call(barrier(7, 8)));
    for done in [a.done(7), b.done(1)] {
        assert!(done.failure.is_none() && !done.by_agent, "{done:?}");
    }
    assert!(!a.segment().has_failed());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_ranks_process_wakes_waiting_ranks() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 3]).await;
    let [mut a, b, mut c] = [0, 1, 2].map(|rank| SharingRank::attach(&node, 1, rank));
    // The rank has completed two calls and is in the third.
    b.segment().rank(1).enter(2, 7, "barrier").unwrap();
    b.segment().rank(1).complete(2);
    a.watch(barrier(5, 2));
    drop(b);
    let done = a.answer(5);
    assert_eq!((kind(&done), &done.failure.unwrap().ranks[..]), (Some(Kind::Lost), &[1][..]));
    // The agent has no watched call of this rank.
    c.sleep_until(Segment::has_failed);
    c.send(Body::Call(barrier(1, 1)));
    assert_eq!(kind(&c.done(1)), Some(Kind::Lost));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_left_is_missed_only_in_later_calls() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 3]).await;
    let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| SharingRank::attach(&node, 1, rank));
    b.segment().rank(1).complete(2);
    b.send(Body::Leave(Leave {}));
    let mut rest = Vec::new();
    b.stream.read_to_end(&mut rest).unwrap();
    a.watch(barrier(5, 1));
    a.send(completed(5));
    assert_eq!(kind(&a.answer(5)), None);
    c.watch(barrier(6, 2));
    assert_eq!(kind(&c.answer(6)), Some(Kind::Lost));
    a.sleep_until(Segment::has_failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn revoking_or_releasing_a_group_wakes_waiting_ranks() {
    for revoked in [true, false] {
        let node = Node::start().await;
        node.group_of(1, &["h1"; 3]).await;
        let [mut a, mut b, mut c] = [0, 1, 2].map(|rank| SharingRank::attach(&node, 1, rank));
        if revoked {
            let cause = format!("its barrier failed:\x1b[2J {}", "long ".repeat(400));
            b.send(Body::Revoke(Revoke { cause }));
        } else {
            node.agent.release_group(1);
        }
        a.sleep_until(Segment::has_failed);
        c.watch(barrier(5, 0));
        let expected = if revoked { Kind::Revoked } else { Kind::Invalid };
        let answer = c.answer(5);
        assert_eq!(kind(&answer), Some(expected));
        let text = answer.failure.unwrap().message;
        assert_eq!(text.contains("has revoked group 1, because its barrier failed: [2J long"), revoked);
        assert!(text.len() < 1000 && !text.contains('\x1b'), "{text}");
        a.send(Body::Call(barrier(6, 0)));
        assert_eq!(kind(&a.done(6)), Some(expected));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_or_different_rank_is_named() {
    let differs = What::Differs(Differs { rank: 2, text: "bcast of 3 u8 from rank 1".into() });
    let overdue = What::Overdue(Overdue { ranks: vec![1, 2], timeout_ms: 1500 });
    for (what, expected, ranks, words) in [
        (overdue, Kind::Timeout, &[2][..], "barrier (call 4 of group 1) made no progress for 1.5s"),
        (differs, Kind::Mismatch, &[0, 2][..], "rank 0 called barrier, but rank 2 called bcast of 3 u8"),
    ] {
        let node = Node::start().await;
        node.group_of(1, &["h1"; 3]).await;
        let [mut a, mut b, c] = [0, 1, 2].map(|rank| SharingRank::attach(&node, 1, rank));
        b.watch(barrier(1, 3));
        // The reply to an invalid call shows that the agent has received the frames before it.
        b.send(Body::Call(Call { root: 9, operation: Operation::Bcast.into(), dtype: 1, ..barrier(2, 2) }));
        assert_eq!(kind(&b.done(2)), Some(Kind::Invalid));
        a.watch(barrier(5, 4));
        a.send(Body::Watched(Watched { id: 5, what: Some(what) }));
        for done in [a.answer(5), b.answer(1)] {
            let failure = done.failure.unwrap();
            assert_eq!((failure.kind(), &failure.ranks[..]), (expected, ranks), "{}", failure.message);
            assert!(failure.message.contains(words), "{}", failure.message);
        }
        c.sleep_until(Segment::has_failed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_reports_on_watched_calls_are_refused() {
    let node = Node::start().await;
    let watched = |what| Body::Watched(Watched { id: 3, what });
    let overdue = |ranks| watched(Some(What::Overdue(Overdue { ranks, timeout_ms: 0 })));
    let differs = |rank| watched(Some(What::Differs(Differs { rank, text: String::new() })));
    let watch = |number| Body::Call(Call { number, watch: true, ..barrier(3, 0) });
    let bad = [
        (watch(None), "without segment or number"),
        (watch(Some(4)), "call 3 is watched already"),
        (overdue(vec![1, 2]), "rank 2 of a group of 2"),
        (differs(u32::MAX), "rank 4294967295 of a group of 2"),
        (watched(None), "an empty report of a watched call"),
    ];
    for (group, (body, reason)) in (1..).zip(bad) {
        node.group_of(group, &["h1"; 2]).await;
        let mut rank = SharingRank::attach(&node, group, 0);
        rank.watch(Call { group, ..barrier(3, 4) });
        rank.send(match body {
            Body::Call(call) => Body::Call(Call { group, ..call }),
            body => body,
        });
        let Body::Refused(refused) = rank.receive() else { panic!("not refused") };
        assert!(refused.message.contains(reason), "{}", refused.message);
    }
    node.group(100, 1).await;
    let mut alone = node.attach(100);
    alone.send(Body::Call(Call { group: 100, watch: true, ..barrier(3, 0) }), None).unwrap();
    let message = refusal(&mut alone);
    assert!(message.contains("without segment or number"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_may_leave_while_it_waits_in_a_watched_call() {
    let node = Node::start().await;
    node.group_of(1, &["h1"; 2]).await;
    let [mut a, mut b] = [0, 1].map(|rank| SharingRank::attach(&node, 1, rank));
    a.watch(barrier(3, 0));
    a.send(Body::Leave(Leave {}));
    let mut rest = Vec::new();
    a.stream.read_to_end(&mut rest).unwrap();
    b.watch(barrier(4, 0));
    assert_eq!(kind(&b.answer(4)), Some(Kind::Lost));
}
