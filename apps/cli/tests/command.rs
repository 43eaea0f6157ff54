//! Tests of the program `cool` against a controller that follows a script.

use cool_proto::control::controller_server::{Controller, ControllerServer};
use cool_proto::control::{
    AgentMessage, AttendRequest, CallRecord, CancelRequest, Cancelled, ControllerMessage, DiagnoseRequest,
    Diagnosis, DrainRequest, Drained, Finding, Finished, Group, Groups, GroupsRequest, JobEvent, JobList,
    JobSpec, JobView, JobsRequest, Member, Node, Output as Line, RankTimes, SignalRequest, Signalled,
    Started, Topology, TopologyRequest, TraceEvent, TraceRequest, job_event::Body,
};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Answers every request from a script.
struct ScriptedController {
    /// Events that a job reports before it ends. If there are none, the job is refused.
    events: Vec<Body>,
    /// Whether the job continues after its last event, until the caller disconnects.
    endless: bool,
    /// Channel to the test: every submitted job, and `None` once an endless job's caller has
    /// disconnected.
    jobs: mpsc::UnboundedSender<Option<JobSpec>>,
    /// Channel to the test: all requests about jobs. An endless job ends when it is canceled.
    requests: broadcast::Sender<String>,
}

#[tonic::async_trait]
impl Controller for ScriptedController {
    type JoinStream = ReceiverStream<Result<ControllerMessage, Status>>;
    type RunStream = ReceiverStream<Result<JobEvent, Status>>;

    type AttendStream = ReceiverStream<Result<JobEvent, Status>>;

    async fn attend(&self, _: Request<AttendRequest>) -> Result<Response<Self::AttendStream>, Status> {
        let (caller, events) = mpsc::channel(2);
        for body in [started(1), finished(0, "")] {
            caller.try_send(Ok(JobEvent { body: Some(body) })).unwrap();
        }
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn list_jobs(&self, _: Request<JobsRequest>) -> Result<Response<JobList>, Status> {
        Ok(Response::new(JobList { jobs: vec![JobView { job: 3, ..JobView::default() }] }))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Drained>, Status> {
        let request = request.into_inner();
        self.requests.send(format!("{request:?}")).unwrap();
        Ok(Response::new(Drained { nodes: request.nodes }))
    }

    type TraceStream = ReceiverStream<Result<TraceEvent, Status>>;

    async fn trace(&self, _: Request<TraceRequest>) -> Result<Response<Self::TraceStream>, Status> {
        let (caller, events) = mpsc::channel(2);
        let rank = |rank, came_ns| RankTimes { rank, came_ns, ended_ns: 9_000_000 };
        let record = CallRecord {
            words: "barrier".into(),
            plan: "flat:binomial".into(),
            begun_ns: 1_000_000_000,
            ranks: vec![rank(0, 0), rank(1, 8_000_000)],
            ..CallRecord::default()
        };
        let node = "h1".into();
        caller.try_send(Ok(TraceEvent { node, records: vec![record], ..TraceEvent::default() })).unwrap();
        caller.try_send(Ok(TraceEvent { silent: vec!["h2".into()], ..TraceEvent::default() })).unwrap();
        Ok(Response::new(ReceiverStream::new(events)))
    }

    async fn cancel(&self, request: Request<CancelRequest>) -> Result<Response<Cancelled>, Status> {
        let CancelRequest { job, user } = request.into_inner();
        self.requests.send(format!("cancel {job} by {user}")).unwrap();
        Ok(Response::new(Cancelled {}))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<Signalled>, Status> {
        let SignalRequest { job, signal } = request.into_inner();
        self.requests.send(format!("signal {signal} to {job}")).unwrap();
        Ok(Response::new(Signalled {}))
    }

    async fn join(&self, _: Request<Streaming<AgentMessage>>) -> Result<Response<Self::JoinStream>, Status> {
        Err(Status::unimplemented("no agents here"))
    }

    async fn get_topology(&self, _: Request<TopologyRequest>) -> Result<Response<Topology>, Status> {
        let node = Node { name: "h1".into(), ip: "10.0.0.1".into(), ..Node::default() };
        Ok(Response::new(Topology { nodes: vec![node], ..Topology::default() }))
    }

    async fn diagnose(&self, _: Request<DiagnoseRequest>) -> Result<Response<Diagnosis>, Status> {
        let finding = Finding {
            about: "node h1".into(),
            wrong: "it is off".into(),
            remedy: "switch it on".into(),
            note: false,
        };
        Ok(Response::new(Diagnosis { findings: vec![finding], switches: 1, nodes: 1 }))
    }

    async fn list_groups(&self, _: Request<GroupsRequest>) -> Result<Response<Groups>, Status> {
        Ok(Response::new(Groups::default()))
    }

    async fn run(&self, request: Request<JobSpec>) -> Result<Response<Self::RunStream>, Status> {
        self.jobs.send(Some(request.into_inner())).unwrap();
        if self.events.is_empty() {
            return Err(Status::resource_exhausted("16 ranks asked, 12 slots on 12 nodes"));
        }
        let (caller, events) = mpsc::channel(self.events.len());
        for body in &self.events {
            caller.try_send(Ok(JobEvent { body: Some(body.clone()) })).unwrap();
        }
        if self.endless {
            let (jobs, mut requests) = (self.jobs.clone(), self.requests.subscribe());
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = caller.closed() => break,
                        request = requests.recv() => if request.unwrap().starts_with("cancel") {
                            let end = JobEvent { body: Some(finished(143, "cancelled")) };
                            caller.send(Ok(end)).await.unwrap();
                        },
                    }
                }
                jobs.send(None).unwrap();
            });
        }
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

/// A scripted controller, and commands that connect to it.
struct TestBench {
    url: String,
    jobs: mpsc::UnboundedReceiver<Option<JobSpec>>,
    requests: broadcast::Receiver<String>,
}

impl TestBench {
    async fn start(events: Vec<Body>, endless: bool) -> TestBench {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (job_sender, jobs) = mpsc::unbounded_channel();
        let (request_sender, requests) = broadcast::channel(16);
        let script = ScriptedController { events, endless, jobs: job_sender, requests: request_sender };
        let service = ControllerServer::from_arc(Arc::new(script));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        TestBench { url, jobs, requests }
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cool"));
        command
            .args(arguments.split(' '))
            .env("COOL_CONTROLLER", &self.url)
            .env("COOL_INSECURE_PLAINTEXT", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end, and returns its status, standard output and standard error.
    async fn cool(&self, arguments: &str) -> (i32, String, String) {
        let mut command = self.command(arguments);
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

fn line(rank: u32, stderr: bool, text: &str) -> Body {
    Body::Output(Line { job: 3, rank, stderr, line: text.into(), number: 0, unterminated: false })
}

fn started(ranks: u32) -> Body {
    let member = |rank| Member { rank, node: format!("h{}", rank + 1), ..Member::default() };
    let group = Group { members: (0..ranks).map(member).collect(), ..Group::default() };
    Body::Started(Started { job: 3, group: Some(group) })
}

fn finished(code: i32, reason: &str) -> Body {
    Body::Finished(Finished { code, reason: reason.into(), rank: None })
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_printed_with_the_rank_on_the_same_stream() {
    let events = vec![started(2), line(1, false, "out"), line(0, true, "err"), finished(0, "")];
    let mut bench = TestBench::start(events, false).await;
    let ended = bench.cool("run -n 2 -- program -x").await;
    assert_eq!(ended, (0, "[1] out\n".into(), "[0] err\n".into()));
    let job = bench.jobs.recv().await.unwrap().unwrap();
    assert_eq!(
        (job.ranks, job.program.as_str(), job.args.as_slice()),
        (2, "program", ["-x".to_owned()].as_slice())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_exits_with_the_status_of_the_first_failure() {
    let bench =
        TestBench::start(vec![started(1), finished(7, "rank 0 on h1 exited with status 7")], false).await;
    let (status, _, errors) = bench.cool("run -- program").await;
    assert_eq!((status, errors.as_str()), (7, "cool: job 3 failed: rank 0 on h1 exited with status 7\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_errors_of_one_line() {
    let refusing = TestBench::start(Vec::new(), false).await;
    let refused = "cool: the controller refuses: 16 ranks asked, 12 slots on 12 nodes\n";
    assert_eq!(refusing.cool("run -n 16 -- program").await, (1, String::new(), refused.into()));
    let (status, _, errors) = refusing.cool("--controller 127.0.0.1:1 groups").await;
    assert_eq!((status, errors.lines().count()), (1, 1));
    assert!(errors.starts_with("cool: no controller at http://127.0.0.1:1: Connection refused"), "{errors}");
}

/// For example, a controller that is no longer the leader drops all streams.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_resumed_if_the_controller_stops_reporting() {
    let silent = TestBench::start(vec![started(1)], false).await;
    let unfinished = "cool: lost track of job 3: the controller stopped reporting before it finished; job 3 continues, waiting for a controller\n";
    assert_eq!(silent.cool("run -- program").await, (0, String::new(), unfinished.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_cancels_the_job_and_waits_for_its_end() {
    let mut bench = TestBench::start(vec![started(1), line(0, false, "runs")], true).await;
    let mut program = bench.command("run -- program").spawn().unwrap();
    first_line(&mut program);
    kill(&program, Signal::USR1);
    assert_eq!(bench.requests.recv().await.unwrap(), "signal 10 to 3");
    kill(&program, Signal::INT);
    let request = bench.requests.recv().await.unwrap();
    assert!(request.starts_with("cancel 3 by ") && request.ends_with(", who started it"), "{request}");
    let ended = tokio::task::spawn_blocking(|| program.wait_with_output().unwrap()).await.unwrap();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(errors.ends_with("cool: interrupted; the job has ended\n"), "{errors}");
    assert_eq!(ended.status.code(), Some(130));
}

fn kill(program: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(program), signal).unwrap();
}

/// Waits until the command has printed a line, which means that it follows its job.
fn first_line(program: &mut Child) {
    let mut output = BufReader::new(program.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn findings_are_shown_and_set_the_exit_status() {
    let bench = TestBench::start(Vec::new(), false).await;
    let text = "node h1: it is off\n    switch it on\n";
    assert_eq!(bench.cool("doctor").await, (1, text.into(), "cool: 1 thing is wrong\n".into()));
    let (status, json, _) = bench.cool("doctor --json").await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &json["findings"][0]["remedy"]), (1, &"switch it on".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_canceled_and_signaled() {
    let mut bench = TestBench::start(Vec::new(), false).await;
    let (status, text, _) = bench.cool("jobs").await;
    assert!(status == 0 && text.contains("\n3    forming"), "{text}");
    let (_, text, _) = bench.cool("jobs --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["jobs"][0]["job"], 3);
    assert_eq!(bench.cool("cancel 3 4").await, (0, String::new(), String::new()));
    assert!(bench.requests.recv().await.unwrap().starts_with("cancel 3 by "));
    assert!(bench.requests.recv().await.unwrap().starts_with("cancel 4 by "));
    assert_eq!(bench.cool("cancel --all").await, (0, String::new(), String::new()));
    assert!(bench.requests.recv().await.unwrap().starts_with("cancel 3 by "));
    let drained = "drained: no job is running, and none starts until `cool drain --end`\n";
    assert_eq!(bench.cool("drain --cancel-after 30s").await, (0, drained.into(), String::new()));
    assert_eq!(bench.requests.recv().await.unwrap(), "DrainRequest { end: false, wait: true, nodes: [] }");
    let ended = "accepting jobs again on h7 h8\n";
    assert_eq!(bench.cool("drain --end h7 h8").await, (0, ended.into(), String::new()));
    let request = bench.requests.recv().await.unwrap();
    assert_eq!(request, "DrainRequest { end: true, wait: false, nodes: [\"h7\", \"h8\"] }");
    assert_eq!(bench.cool("cancel --signal SIGUSR2 3").await.0, 0);
    assert_eq!(bench.requests.recv().await.unwrap(), "signal 12 to 3");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_written_to_files_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let events = vec![started(2), line(1, false, "out"), line(0, true, "err"), finished(0, "")];
    let bench = TestBench::start(events, false).await;
    let command = format!("run --output {} -- program", directory.path().display());
    assert_eq!(bench.cool(&command).await, (0, String::new(), String::new()));
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!((read("1.out"), read("0.err")), ("out\n".into(), "err\n".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_prints_the_measurements_of_rank_0() {
    let measured = |seconds: &str| {
        line(
            0,
            false,
            &format!(r#"{{"seconds":{seconds},"plan":"multicast","idle":0.5,"chunks_repaired":2}}"#),
        )
    };
    let events = vec![
        started(2),
        measured("[0.5,0.25]"),
        line(1, false, "hello"),
        measured("[1.0,1.0]"),
        finished(0, ""),
    ];
    let mut bench = TestBench::start(events, false).await;
    let (status, output, errors) = bench.cool("bench --ops bcast,barrier --bytes 8 --reps 2 --json").await;
    assert_eq!((status, errors.as_str()), (0, "[1] hello\n"));
    let document: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document["results"][0]["median"], 0.375);
    assert_eq!(document["results"][1]["op"], "barrier");
    assert_eq!(document["results"][1]["plan"], "multicast");
    let job = bench.jobs.recv().await.unwrap().unwrap();
    assert!(job.program.ends_with("/cool"), "{}", job.program);
    assert_eq!(job.args[0], "bench-rank");
    let (status, table, _) = bench.cool("bench --ops bcast,barrier --bytes 8 --reps 2").await;
    assert_eq!((status, table.lines().count()), (0, 4), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_that_reports_nonsense_or_too_little_fails() {
    let bench = TestBench::start(vec![started(1), line(0, false, "hello"), finished(0, "")], false).await;
    let (status, _, errors) = bench.cool("bench").await;
    assert_eq!((status, errors.as_str()), (1, "cool: rank 0 printed a line that is not a result: hello\n"));
    let bench = TestBench::start(vec![started(1), finished(0, "")], false).await;
    let (status, _, errors) = bench.cool("bench --ops bcast --bytes 1").await;
    assert_eq!((status, errors.as_str()), (1, "cool: the job ended with 0 of 1 results\n"));
    let (status, _, errors) = bench.cool("bench --root 1").await;
    assert_eq!(
        (status, errors.as_str()),
        (1, "cool: --root 1: there is no such rank; the ranks are 0 to 0\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_forces_only_suitable_plans() {
    let mut bench = TestBench::start(vec![started(1), finished(0, "")], false).await;
    bench.cool("bench --ops bcast,scan --bytes 1 --plan cool-p-p --plan bcast=flat:chain").await;
    let job = bench.jobs.recv().await.unwrap().unwrap();
    assert!(
        job.args[1].contains(r#""forced":[["bcast","flat:chain"],["scan","cool-p-p"]]"#),
        "{:?}",
        job.args
    );
    let (status, _, errors) =
        bench.cool("bench --ops bcast,scan --plan bcast=flat:ring --plan multicast").await;
    assert_eq!(status, 1);
    assert!(
        errors.starts_with("cool: plan flat:ring cannot run bcast: ") && errors.contains("these can: "),
        "{errors}"
    );
    let (status, _, errors) = bench.cool("bench --ops bcastv").await;
    assert!(status == 2 && errors.contains("there is no operation \"bcastv\""), "{errors}");
    assert_eq!(bench.jobs.try_recv(), Err(mpsc::error::TryRecvError::Empty), "nothing was submitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_no_job_started_reports_that() {
    let bench = TestBench::start(Vec::new(), false).await;
    let (status, _, errors) =
        bench.cool(r#"bench-rank {"cases":[],"warmup":0,"reps":1,"root":0,"alloc":false,"forced":[]}"#).await;
    assert_eq!((status, errors.lines().count()), (1, 1));
    assert!(errors.contains("not a rank"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn topology_and_groups_are_shown_as_text_and_as_json() {
    let bench = TestBench::start(Vec::new(), false).await;
    let (status, text, _) = bench.cool("topology").await;
    assert!(status == 0 && text.contains("not found by LLDP yet:\n  h1 (10.0.0.1)"), "{text}");
    let (_, text, _) = bench.cool("topology --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["nodes"][0]["located"], false);
    assert_eq!(bench.cool("groups").await, (0, "no groups\n".into(), String::new()));
    let (_, text, _) = bench.cool("groups --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["groups"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_are_shown_as_a_table_and_saved_as_a_timeline() {
    let bench = TestBench::start(Vec::new(), false).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.json");
    let (status, text, errors) = bench.cool(&format!("trace --perfetto {}", file.display())).await;
    assert_eq!((status, errors.as_str()), (0, "cool: no answer from h2\n"));
    assert!(text.contains("barrier") && text.contains("1 on h1, 8.00 ms"), "{text}");
    let timeline: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(timeline["traceEvents"].as_array().unwrap().len() >= 4, "{timeline}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_an_embedded_run_needs_no_controller() {
    let bench = TestBench::start(Vec::new(), false).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.trace");
    let record = |group| CallRecord { group, words: format!("barrier of {group}"), ..CallRecord::default() };
    let event = TraceEvent { node: "n0".into(), records: vec![record(1), record(2)], silent: Vec::new() };
    std::fs::write(&file, cool_proto::trace_file::encode(&[event])).unwrap();
    let (status, text, errors) = bench.cool(&format!("trace --file {} --group 2", file.display())).await;
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(
        text.contains("barrier of 2") && !text.contains("barrier of 1") && !text.contains("h1"),
        "{text}"
    );
    std::fs::write(&file, "{}").unwrap();
    let (status, _, errors) = bench.cool(&format!("trace --file {}", file.display())).await;
    assert!(status == 1 && errors.contains("run.trace is not a COOL trace"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_users_configuration_file_names_the_controller() {
    let mut bench = TestBench::start(vec![started(1), finished(0, "")], false).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cool/cool.toml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let run = async |text: String| {
        std::fs::write(&file, text).unwrap();
        let mut command = bench.command("run -np 1 ./program -x");
        command.env_remove("COOL_CONTROLLER").env_remove("COOL_INSECURE_PLAINTEXT");
        command.env("XDG_CONFIG_HOME", directory.path());
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    };
    let text = format!("[tool]\ncontroller = \"{}\"\ninsecure-plaintext = true\n", bench.url);
    let output = run(text).await;
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let output = run("[tool]\nspeed = 1\n".to_owned()).await;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("cool/cool.toml:2: unknown option speed"), "{errors}");
    let job = bench.jobs.recv().await.unwrap().unwrap();
    assert_eq!((job.ranks, job.program.as_str(), job.args), (1, "./program", vec!["-x".to_owned()]));
}
