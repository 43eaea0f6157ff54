//! The command as its user meets it, before a controller that says what the test wants.

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
struct Script {
    /// Of a job; a refusal if empty. The job ends when they have been sent.
    events: Vec<Body>,
    /// Whether the job goes on after its last event, until the caller goes.
    endless: bool,
    /// Hears what jobs are submitted, and then, of an endless one, that its caller has gone.
    heard: mpsc::UnboundedSender<Option<JobSpec>>,
    /// Hears what is asked of jobs; the endless one ends when it is cancelled.
    orders: broadcast::Sender<String>,
}

#[tonic::async_trait]
impl Controller for Script {
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
        self.orders.send(format!("{:?}", request.into_inner())).unwrap();
        Ok(Response::new(Drained {}))
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
        self.orders.send(format!("cancel {job} by {user}")).unwrap();
        Ok(Response::new(Cancelled {}))
    }

    async fn signal(&self, request: Request<SignalRequest>) -> Result<Response<Signalled>, Status> {
        let SignalRequest { job, signal } = request.into_inner();
        self.orders.send(format!("signal {signal} to {job}")).unwrap();
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
        self.heard.send(Some(request.into_inner())).unwrap();
        if self.events.is_empty() {
            return Err(Status::resource_exhausted("16 ranks asked, 12 slots on 12 nodes"));
        }
        let (caller, events) = mpsc::channel(self.events.len());
        for body in &self.events {
            caller.try_send(Ok(JobEvent { body: Some(body.clone()) })).unwrap();
        }
        if self.endless {
            let (heard, mut orders) = (self.heard.clone(), self.orders.subscribe());
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        () = caller.closed() => break,
                        order = orders.recv() => if order.unwrap().starts_with("cancel") {
                            let end = JobEvent { body: Some(finished(143, "cancelled")) };
                            caller.send(Ok(end)).await.unwrap();
                        },
                    }
                }
                heard.send(None).unwrap();
            });
        }
        Ok(Response::new(ReceiverStream::new(events)))
    }
}

/// A controller with a script, and the command before it.
struct Stage {
    url: String,
    heard: mpsc::UnboundedReceiver<Option<JobSpec>>,
    orders: broadcast::Receiver<String>,
}

impl Stage {
    async fn set(events: Vec<Body>, endless: bool) -> Stage {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, heard) = mpsc::unbounded_channel();
        let (orders, ordered) = broadcast::channel(16);
        let script = Script { events, endless, heard: sender, orders };
        let service = ControllerServer::from_arc(Arc::new(script));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        Stage { url, heard, orders: ordered }
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

    /// Runs the command to its end: its status, standard output and standard error.
    async fn cool(&self, arguments: &str) -> (i32, String, String) {
        let mut command = self.command(arguments);
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    }
}

fn line(rank: u32, stderr: bool, text: &str) -> Body {
    Body::Output(Line { job: 3, rank, stderr, line: text.into(), number: 0 })
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
async fn lines_go_where_the_rank_wrote_them_with_the_rank_in_front() {
    let events = vec![started(2), line(1, false, "out"), line(0, true, "err"), finished(0, "")];
    let mut stage = Stage::set(events, false).await;
    let ended = stage.cool("run -n 2 -- program -x").await;
    assert_eq!(ended, (0, "[1] out\n".into(), "[0] err\n".into()));
    let job = stage.heard.recv().await.unwrap().unwrap();
    assert_eq!(
        (job.ranks, job.program.as_str(), job.args.as_slice()),
        (2, "program", ["-x".to_owned()].as_slice())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_the_first_failure_is_the_commands() {
    let stage = Stage::set(vec![started(1), finished(7, "rank 0 on h1 exited with status 7")], false).await;
    let (status, _, errors) = stage.cool("run -- program").await;
    assert_eq!((status, errors.as_str()), (7, "cool: job 3 failed: rank 0 on h1 exited with status 7\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_errors_of_one_line() {
    let refusing = Stage::set(Vec::new(), false).await;
    let refused = "cool: the controller refuses: 16 ranks asked, 12 slots on 12 nodes\n";
    assert_eq!(refusing.cool("run -n 16 -- program").await, (1, String::new(), refused.into()));
    let (status, _, errors) = refusing.cool("--controller 127.0.0.1:1 groups").await;
    assert_eq!((status, errors.lines().count()), (1, 1));
    assert!(errors.starts_with("cool: no controller at http://127.0.0.1:1: Connection refused"), "{errors}");
}

/// As of a controller that leads no more, which drops all it had.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_which_no_more_is_said_is_asked_for_again() {
    let silent = Stage::set(vec![started(1)], false).await;
    let unfinished = "cool: the controller says no more of job 3, and not how it ended; job 3 goes on, waiting for a controller\n";
    assert_eq!(silent.cool("run -- program").await, (0, String::new(), unfinished.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_cancels_the_job_and_waits_for_its_end() {
    let mut stage = Stage::set(vec![started(1), line(0, false, "runs")], true).await;
    let mut program = stage.command("run -- program").spawn().unwrap();
    first_line(&mut program);
    kill(&program, Signal::USR1);
    assert_eq!(stage.orders.recv().await.unwrap(), "signal 10 to 3");
    kill(&program, Signal::INT);
    let order = stage.orders.recv().await.unwrap();
    assert!(order.starts_with("cancel 3 by ") && order.ends_with(", who started it"), "{order}");
    let ended = tokio::task::spawn_blocking(|| program.wait_with_output().unwrap()).await.unwrap();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(errors.ends_with("cool: interrupted; the job has ended\n"), "{errors}");
    assert_eq!(ended.status.code(), Some(130));
}

fn kill(program: &Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(program), signal).unwrap();
}

/// Waits until the command has printed a line: then it follows its job.
fn first_line(program: &mut Child) {
    let mut output = BufReader::new(program.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_and_is_the_commands_status() {
    let stage = Stage::set(Vec::new(), false).await;
    let told = "node h1: it is off\n    switch it on\n";
    assert_eq!(stage.cool("doctor").await, (1, told.into(), "cool: 1 thing is wrong\n".into()));
    let (status, json, _) = stage.cool("doctor --json").await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((status, &json["findings"][0]["remedy"]), (1, &"switch it on".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_cancelled_and_signalled() {
    let mut stage = Stage::set(Vec::new(), false).await;
    let (status, text, _) = stage.cool("jobs").await;
    assert!(status == 0 && text.contains("\n3    forming"), "{text}");
    let (_, text, _) = stage.cool("jobs --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["jobs"][0]["job"], 3);
    assert_eq!(stage.cool("cancel 3 4").await, (0, String::new(), String::new()));
    assert!(stage.orders.recv().await.unwrap().starts_with("cancel 3 by "));
    assert!(stage.orders.recv().await.unwrap().starts_with("cancel 4 by "));
    assert_eq!(stage.cool("cancel --all").await, (0, String::new(), String::new()));
    assert!(stage.orders.recv().await.unwrap().starts_with("cancel 3 by "));
    assert_eq!(stage.cool("drain --cancel-after 30s").await, (0, String::new(), String::new()));
    assert_eq!(stage.orders.recv().await.unwrap(), "DrainRequest { end: false, wait: true }");
    assert_eq!(stage.cool("cancel --signal SIGUSR2 3").await.0, 0);
    assert_eq!(stage.orders.recv().await.unwrap(), "signal 12 to 3");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_goes_to_files_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let events = vec![started(2), line(1, false, "out"), line(0, true, "err"), finished(0, "")];
    let stage = Stage::set(events, false).await;
    let command = format!("run --output {} -- program", folder.path().display());
    assert_eq!(stage.cool(&command).await, (0, String::new(), String::new()));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!((read("1.out"), read("0.err")), ("out\n".into(), "err\n".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_prints_what_rank_0_measures() {
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
    let mut stage = Stage::set(events, false).await;
    let (status, output, errors) = stage.cool("bench --ops bcast,barrier --bytes 8 --reps 2 --json").await;
    assert_eq!((status, errors.as_str()), (0, "[1] hello\n"));
    let document: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(document["results"][0]["median"], 0.375);
    assert_eq!(document["results"][1]["op"], "barrier");
    assert_eq!(document["results"][1]["plan"], "multicast");
    let job = stage.heard.recv().await.unwrap().unwrap();
    assert!(job.program.ends_with("/cool"), "{}", job.program);
    assert_eq!(job.args[0], "bench-rank");
    let (status, table, _) = stage.cool("bench --ops bcast,barrier --bytes 8 --reps 2").await;
    assert_eq!((status, table.lines().count()), (0, 4), "{table}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_that_reports_nonsense_or_too_little_fails() {
    let stage = Stage::set(vec![started(1), line(0, false, "hello"), finished(0, "")], false).await;
    let (status, _, errors) = stage.cool("bench").await;
    assert_eq!((status, errors.as_str()), (1, "cool: rank 0 reports something that is no result: hello\n"));
    let stage = Stage::set(vec![started(1), finished(0, "")], false).await;
    let (status, _, errors) = stage.cool("bench --ops bcast --bytes 1").await;
    assert_eq!((status, errors.as_str()), (1, "cool: the job ended with 0 of 1 results\n"));
    let (status, _, errors) = stage.cool("bench --root 1").await;
    assert_eq!(
        (status, errors.as_str()),
        (1, "cool: --root 1: there is no such rank; the ranks are 0 to 0\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benchmark_forces_plans_that_fit_and_no_others() {
    let mut stage = Stage::set(vec![started(1), finished(0, "")], false).await;
    stage.cool("bench --ops bcast,scan --bytes 1 --plan cool-p-p --plan bcast=flat:chain").await;
    let job = stage.heard.recv().await.unwrap().unwrap();
    assert!(
        job.args[1].contains(r#""forced":[["bcast","flat:chain"],["scan","cool-p-p"]]"#),
        "{:?}",
        job.args
    );
    let (status, _, errors) =
        stage.cool("bench --ops bcast,scan --plan bcast=flat:ring --plan multicast").await;
    assert_eq!(status, 1);
    assert!(
        errors.starts_with("cool: plan flat:ring cannot run bcast: ") && errors.contains("these can: "),
        "{errors}"
    );
    let (status, _, errors) = stage.cool("bench --ops bcastv").await;
    assert!(status == 2 && errors.contains("there is no operation \"bcastv\""), "{errors}");
    assert_eq!(stage.heard.try_recv(), Err(mpsc::error::TryRecvError::Empty), "nothing was submitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_of_a_benchmark_that_no_job_started_says_so() {
    let stage = Stage::set(Vec::new(), false).await;
    let (status, _, errors) =
        stage.cool(r#"bench-rank {"cases":[],"warmup":0,"reps":1,"root":0,"alloc":false,"forced":[]}"#).await;
    assert_eq!((status, errors.lines().count()), (1, 1));
    assert!(errors.contains("not a rank"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn topology_and_groups_are_shown_as_text_and_as_json() {
    let stage = Stage::set(Vec::new(), false).await;
    let (status, text, _) = stage.cool("topology").await;
    assert!(status == 0 && text.contains("not found by LLDP yet:\n  h1 (10.0.0.1)"), "{text}");
    let (_, text, _) = stage.cool("topology --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["nodes"][0]["located"], false);
    assert_eq!(stage.cool("groups").await, (0, "no groups\n".into(), String::new()));
    let (_, text, _) = stage.cool("groups --json").await;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["groups"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_are_shown_as_a_table_and_kept_as_a_timeline() {
    let stage = Stage::set(Vec::new(), false).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (status, text, errors) = stage.cool(&format!("trace --perfetto {}", file.display())).await;
    assert_eq!((status, errors.as_str()), (0, "cool: no answer from h2\n"));
    assert!(text.contains("barrier") && text.contains("1 on h1, 8.00 ms"), "{text}");
    let timeline: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert!(timeline["traceEvents"].as_array().unwrap().len() >= 4, "{timeline}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_run_in_one_process_is_shown_from_its_file_and_no_controller_is_asked() {
    let stage = Stage::set(Vec::new(), false).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.trace");
    let record = |group| CallRecord { group, words: format!("barrier of {group}"), ..CallRecord::default() };
    let event = TraceEvent { node: "n0".into(), records: vec![record(1), record(2)], silent: Vec::new() };
    std::fs::write(&file, cool_proto::trace_file::encode(&[event])).unwrap();
    let (status, text, errors) = stage.cool(&format!("trace --file {} --group 2", file.display())).await;
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(
        text.contains("barrier of 2") && !text.contains("barrier of 1") && !text.contains("h1"),
        "{text}"
    );
    std::fs::write(&file, "{}").unwrap();
    let (status, _, errors) = stage.cool(&format!("trace --file {}", file.display())).await;
    assert!(status == 1 && errors.contains("run.trace is not a COOL trace"), "{errors}");
}
