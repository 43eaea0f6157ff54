//! Tests of the agent's program with a controller that the test provides.

use cool_proto::control::controller_server::{Controller, ControllerServer};
use cool_proto::control::{
    AgentMessage, AttendRequest, CancelRequest, Cancelled, ControllerMessage, DiagnoseRequest, Diagnosis,
    DrainRequest, Drained, Exited, Group, Groups, GroupsRequest, Held, JobEvent, JobList, JobSpec,
    JobsRequest, Kill, Launch, Member, Output, Probe, Register, Registered, ReleaseGroup, SignalRequest,
    Signalled, StopProbe, Topology, TopologyRequest, TraceEvent, TraceRequest, agent_message,
    controller_message::Body,
};
use cool_proto::features;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Output as ProcessOutput, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

const PATIENCE: Duration = Duration::from_secs(30);

/// An agent's session. Dropping it ends the session.
struct Session {
    from: Streaming<AgentMessage>,
    to: mpsc::Sender<Result<ControllerMessage, Status>>,
}

impl Session {
    /// Returns the next message of the agent, except for acknowledgements.
    async fn receive(&mut self) -> agent_message::Body {
        loop {
            let message = timeout(PATIENCE, self.from.message()).await.expect("a message in time");
            match message.unwrap().expect("an open session").body.unwrap() {
                agent_message::Body::Acknowledged(_) => {}
                body => return body,
            }
        }
    }

    async fn send(&self, body: Body) {
        self.to.send(Ok(ControllerMessage { body: Some(body) })).await.unwrap();
    }

    /// Accepts the agent. Returns its registration.
    async fn admit(&mut self) -> Register {
        self.admit_as(77).await
    }

    /// Accepts the agent as a controller with this incarnation.
    async fn admit_as(&mut self, controller: u64) -> Register {
        self.answer(cool_proto::VERSION, controller).await
    }

    /// Accepts the agent as a controller with this version of the protocol and this incarnation.
    async fn answer(&mut self, version: u32, controller: u64) -> Register {
        self.answer_with(version, controller, 0).await
    }

    /// Accepts the agent as a controller that also has these features.
    async fn answer_with(&mut self, version: u32, controller: u64, features: u64) -> Register {
        let agent_message::Body::Register(register) = self.receive().await else { panic!("no registration") };
        let registered = Registered {
            features,
            version,
            node: 1,
            lldp_interval_ms: 600_000,
            lldp_key: vec![7; 32],
            controller,
            resumed: None,
        };
        self.send(Body::Registered(registered)).await;
        register
    }
}

/// A controller that refuses all agents with a status, or passes their sessions to the test.
struct Fake {
    refusal: Option<Status>,
    sessions: mpsc::Sender<Session>,
}

#[tonic::async_trait]
impl Controller for Fake {
    type JoinStream = ReceiverStream<Result<ControllerMessage, Status>>;
    type RunStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn join(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        if let Some(status) = &self.refusal {
            return Err(status.clone());
        }
        let (to, messages) = mpsc::channel(16);
        self.sessions.send(Session { from: request.into_inner(), to }).await.unwrap();
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn get_topology(&self, _: Request<TopologyRequest>) -> Result<Response<Topology>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Result<Response<Diagnosis>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn list_groups(&self, _: Request<GroupsRequest>) -> Result<Response<Groups>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn list_jobs(&self, _: Request<JobsRequest>) -> Result<Response<JobList>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<Drained>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    type TraceStream = ReceiverStream<Result<TraceEvent, Status>>;

    async fn trace(&self, _: Request<TraceRequest>) -> Result<Response<Self::TraceStream>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn cancel(&self, _: Request<CancelRequest>) -> Result<Response<Cancelled>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn signal(&self, _: Request<SignalRequest>) -> Result<Response<Signalled>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn run(&self, _: Request<JobSpec>) -> Result<Response<Self::RunStream>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    type AttendStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn attend(&self, _: Request<AttendRequest>) -> Result<Response<Self::AttendStream>, Status> {
        Err(Status::unimplemented("no test asks"))
    }
}

fn serve(listener: TcpListener, refusal: Option<Status>) -> mpsc::Receiver<Session> {
    let (sessions, receiver) = mpsc::channel(4);
    let service = ControllerServer::new(Fake { refusal, sessions });
    let service = service.max_decoding_message_size(cool_proto::CONTROL_MESSAGE_BYTES_MAX);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    receiver
}

async fn controller(refusal: Option<Status>) -> (SocketAddr, mpsc::Receiver<Session>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), serve(listener, refusal))
}

async fn session(sessions: &mut mpsc::Receiver<Session>) -> Session {
    timeout(PATIENCE, sessions.recv()).await.expect("an agent in time").unwrap()
}

/// A running agent.
struct Agent {
    child: Child,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

fn command(controller: &str, interface: &str, socket: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cool-nodeagent"));
    command.args(["--name", "h1", "--interface", interface, "--controller", controller, "--slots", "3"]);
    command.args(["--udp-port", "0", "--tcp-port", "0", "--probe-port", "0", "--socket"]).arg(socket);
    command.env("COOL_INSECURE_PLAINTEXT", "1").env("COOL_ALLOW_ROOT", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

fn start(controller: SocketAddr) -> Agent {
    start_with(&format!("http://{controller}"))
}

fn start_with(controllers: &str) -> Agent {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("h1.sock");
    let child = command(controllers, "lo", &socket).spawn().unwrap();
    Agent { child, socket, _directory: directory }
}

/// Runs an agent that must end without a signal, and returns its last line.
async fn fails(controller: &str, interface: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let child = command(controller, interface, &directory.path().join("h1.sock")).spawn().unwrap();
    last_words(timeout(PATIENCE, child.wait_with_output()).await.expect("an end in time").unwrap())
}

/// Returns the last line of a program that failed.
fn last_words(output: ProcessOutput) -> String {
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text.lines().last().unwrap_or_default().to_owned()
}

fn shell(script: &str, ranks: &[u32]) -> Body {
    Body::Launch(Launch {
        job: 4,
        group: 6,
        ranks: ranks.to_vec(),
        size: 2,
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        ..Launch::default()
    })
}

#[tokio::test]
async fn an_agent_registers_its_node_and_runs_jobs() {
    let (address, mut sessions) = controller(None).await;
    let agent = start(address);
    let mut session = session(&mut sessions).await;
    let register = session.admit().await;
    assert_eq!((register.name.as_str(), register.ip.as_str(), register.slots), ("h1", "127.0.0.1", 3));
    assert!(register.udp_port > 0 && register.tcp_port > 0 && register.mtu > 0, "{register:?}");

    session.send(shell("echo $COOL_SOCKET", &[1])).await;
    let line = agent.socket.to_str().unwrap().as_bytes().to_vec();
    let output = Output { job: 4, rank: 1, stderr: false, line, number: 1, ..Output::default() };
    assert_eq!(session.receive().await, agent_message::Body::Output(output));
    let exited = Exited { job: 4, rank: 1, stdout_lines: 1, ..Exited::default() };
    assert_eq!(session.receive().await, agent_message::Body::Exited(exited));

    session.send(shell("sleep 1000", &[0])).await;
    session.send(Body::Kill(Kill { job: 4 })).await;
    let exited = Exited { job: 4, rank: 0, code: -1, signal: 15, ..Exited::default() };
    assert_eq!(session.receive().await, agent_message::Body::Exited(exited));
}

#[tokio::test]
async fn an_agent_measures_a_path_and_stops_on_request() {
    let (address, mut sessions) = controller(None).await;
    let _agent = start(address);
    let mut session = session(&mut sessions).await;
    // The agent responds to its own measurements as well as to those of others.
    let port = session.admit().await.probe_port;
    let probe = |id, port| Body::Probe(Probe { id, ip: "127.0.0.1".into(), port });
    session.send(probe(5, port)).await;
    let agent_message::Body::Probed(probed) = session.receive().await else { panic!("not a result") };
    assert!((probed.id, probed.failure.as_str()) == (5, "") && probed.bytes_per_second > 0, "{probed:?}");

    // This port accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    session.send(probe(6, silent.local_addr().unwrap().port().into())).await;
    session.send(Body::StopProbe(StopProbe {})).await;
    session.send(probe(7, port)).await;
    let agent_message::Body::Probed(probed) = session.receive().await else { panic!("not a result") };
    assert_eq!((probed.id, probed.failure.as_str()), (7, ""));
    session.send(probe(8, 70_000)).await;
    let agent_message::Body::Probed(probed) = session.receive().await else { panic!("not a result") };
    assert!(probed.failure.contains("is not an address"), "{probed:?}");
}

#[tokio::test]
async fn a_group_that_makes_no_sense_is_answered_with_the_reason() {
    let (address, mut sessions) = controller(None).await;
    let _agent = start(address);
    let mut session = session(&mut sessions).await;
    session.admit().await;
    let member = Member { node: "h1".into(), ip: "10.0.0.256".into(), ..Member::default() };
    session.send(Body::Group(Group { id: 8, epoch: 1, members: vec![member], ..Group::default() })).await;
    let agent_message::Body::GroupFailed(failed) = session.receive().await else { panic!("not a failure") };
    assert_eq!((failed.group, failed.reason.as_str()), (8, "\"10.0.0.256\" is not an IP address"));
}

#[tokio::test]
async fn an_agent_waits_for_its_controller_and_reconnects() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut agent = start(address);
    let mut sessions = serve(TcpListener::bind(address).await.unwrap(), None);
    for _ in 0..3 {
        let mut session = session(&mut sessions).await;
        session.admit().await;
        // Dropping the session breaks the connection.
    }
    assert!(agent.child.try_wait().unwrap().is_none(), "the agent runs on");
}

#[tokio::test]
async fn ranks_outlive_a_controller_and_the_next_one_learns_of_them() {
    let (address, mut sessions) = controller(None).await;
    let agent = start(address);
    let mut first = session(&mut sessions).await;
    let register = first.admit().await;
    let member = |rank| Member {
        rank,
        node: "h1".into(),
        ip: "127.0.0.1".into(),
        udp_port: register.udp_port,
        tcp_port: register.tcp_port,
        incarnation: register.incarnation,
        ..Member::default()
    };
    let members = vec![member(0), member(1)];
    let cost_model = serde_json::json!(cool_collective::CostModel::default()).to_string();
    let group = Group { id: 6, epoch: 1, job: 4, members, chunk_bytes: 1000, cost_model, ..Group::default() };
    first.send(Body::Group(group.clone())).await;
    assert!(matches!(first.receive().await, agent_message::Body::GroupReady(_)));
    let go = agent.socket.with_extension("go");
    let script = format!(
        "if test $COOL_RANK = 0; then sleep 1000; fi; until test -e {}; do sleep 0.1; done; echo late; exit 5",
        go.display()
    );
    first.send(shell(&script, &[0, 1])).await;
    first.send(Body::Kill(Kill { job: 99 })).await;
    drop(first);
    let mut second = session(&mut sessions).await;
    let held = second.admit().await.held;
    assert_eq!(held[0].group, Some(group));
    assert_eq!((held[0].controller, &held[0].ranks[..], held[0].exited.len()), (77, &[0, 1][..], 0));
    std::fs::write(&go, "").unwrap();
    let agent_message::Body::Output(late) = second.receive().await else { panic!("no output") };
    assert_eq!(late.line, b"late");
    assert!(matches!(second.receive().await, agent_message::Body::Exited(e) if e.code == 5));
    drop(second);
    let mut third = session(&mut sessions).await;
    let held = third.admit().await.held;
    // The second controller has not acknowledged these lines. They may be reported twice, because
    // lines are numbered.
    assert_eq!((&held[0].ranks[..], held[0].exited.len()), (&[0, 1][..], 0));
    assert!(matches!(third.receive().await, agent_message::Body::Output(late) if late.number == 1));
    assert!(matches!(third.receive().await, agent_message::Body::Exited(e) if e.code == 5));
    third.send(Body::Kill(Kill { job: 4 })).await;
    assert!(matches!(third.receive().await, agent_message::Body::Exited(e) if e.signal == 15));
    third.send(Body::Release(ReleaseGroup { group: 6 })).await;
    drop(third);
    assert_eq!(session(&mut sessions).await.admit().await.held, []);
}

/// Returns a group of h1 alone, with a description of this many bytes.
fn group_of(bytes: usize, id: u64, register: &Register) -> Group {
    let member = Member {
        node: "h1".into(),
        ip: "127.0.0.1".into(),
        udp_port: register.udp_port,
        tcp_port: register.tcp_port,
        incarnation: register.incarnation,
        ..Member::default()
    };
    let cost_model = serde_json::json!(cool_collective::CostModel::default()).to_string();
    let cost_model = " ".repeat(bytes) + &cost_model;
    Group { id, epoch: 1, job: id, members: vec![member], chunk_bytes: 1000, cost_model, ..Group::default() }
}

#[tokio::test]
async fn a_large_inventory_follows_the_registration_in_parts() {
    let (address, mut sessions) = controller(None).await;
    let _agent = start(address);
    let mut first = session(&mut sessions).await;
    let register = first.admit().await;
    let ids: Vec<u64> = (1..=5).collect();
    for id in &ids {
        let most = cool_proto::CONTROL_MESSAGE_BYTES_MAX / 4;
        first.send(Body::Group(group_of(most, *id, &register))).await;
        assert!(matches!(first.receive().await, agent_message::Body::GroupReady(_)));
    }
    // A controller of an earlier release receives as much as fits into a message.
    drop(first);
    let mut earlier = session(&mut sessions).await;
    let ids_of = |held: &[Held]| held.iter().map(|held| held.group.as_ref().unwrap().id).collect::<Vec<_>>();
    assert_eq!(ids_of(&earlier.admit().await.held), ids[..3]);
    drop(earlier);
    let mut second = session(&mut sessions).await;
    let register = second.answer_with(cool_proto::VERSION, 78, features::HELD_GROUPS).await;
    assert_eq!(ids_of(&register.held), ids[..3]);
    let agent_message::Body::Held(further) = second.receive().await else { panic!("nothing further") };
    assert_eq!(ids_of(&further.held), ids[3..]);
}

#[tokio::test]
async fn an_agent_finds_the_leader_and_refuses_an_earlier_one() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);
    let (address, mut sessions) = controller(None).await;
    let _agent = start_with(&format!("http://{closed},http://{address}"));
    let mut first = session(&mut sessions).await;
    first.admit_as(78).await;
    // The agent responds only after it has been accepted.
    first.send(Body::Group(Group { id: 8, members: vec![Member::default()], ..Group::default() })).await;
    assert!(matches!(first.receive().await, agent_message::Body::GroupFailed(_)));
    drop(first);
    let mut former = session(&mut sessions).await;
    former.admit_as(77).await;
    let ended = timeout(PATIENCE, former.from.message()).await.expect("an end in time");
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    let register = session(&mut sessions).await.admit_as(79).await;
    assert_eq!(
        register.session.map(|session| session.controller),
        Some(78),
        "it did not join the former one"
    );
}

#[tokio::test]
async fn a_refused_agent_prints_the_reason_and_ends() {
    let (address, _sessions) =
        controller(Some(Status::already_exists("an agent named \"h1\" is here"))).await;
    let words = fails(&format!("http://{address}"), "lo").await;
    assert!(words.starts_with("cool-nodeagent: the controller at http://127.0.0.1:"), "{words}");
    assert!(words.ends_with("refused this agent: an agent named \"h1\" is here"), "{words}");
}

#[tokio::test]
async fn an_agent_that_was_accepted_once_waits_if_it_is_refused() {
    let (address, mut sessions) = controller(None).await;
    let mut agent = start(address);
    let mut before = session(&mut sessions).await;
    before.admit().await;
    before.send(shell("exec sleep 1000", &[0])).await;
    drop(before);
    for _ in 0..2 {
        session(&mut sessions).await.answer(cool_proto::VERSION + 1, 77).await;
    }
    let mut upgraded = session(&mut sessions).await;
    upgraded.admit().await;
    assert!(agent.child.try_wait().unwrap().is_none());
    upgraded.send(Body::Kill(Kill { job: 4 })).await;
    assert!(matches!(upgraded.receive().await, agent_message::Body::Exited(e) if e.signal == 15));
}

#[tokio::test]
async fn wrong_options_are_reported_in_one_line() {
    let words = fails("http://127.0.0.1:7400", "nope0").await;
    assert!(words.contains("there is no interface nope0"), "{words}");
    let words = fails("127.0.0.1", "lo").await;
    assert!(words.contains("https://HOST:7400"), "{words}");
}

#[tokio::test]
async fn a_terminated_agent_ends_its_ranks_and_removes_its_socket() {
    let (address, mut sessions) = controller(None).await;
    let mut agent = start(address);
    let mut session = session(&mut sessions).await;
    session.admit().await;
    session.send(shell("echo $$; sleep 1000", &[0])).await;
    let agent_message::Body::Output(output) = session.receive().await else { panic!("no output") };
    let rank: i32 = String::from_utf8(output.line).unwrap().parse().unwrap();
    assert!(agent.socket.exists());

    let pid = Pid::from_raw(agent.child.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = timeout(PATIENCE, agent.child.wait()).await.expect("an end in time").unwrap();
    assert!(status.success(), "{status}");
    assert!(!agent.socket.exists());
    let ended = rustix::process::test_kill_process(Pid::from_raw(rank).unwrap());
    assert_eq!(ended, Err(rustix::io::Errno::SRCH));
}
