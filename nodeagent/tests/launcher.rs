//! Tests of jobs on a node without cool-launcher, so that the agent's own program supervises them.

use cool_nodeagent::Agent;
use cool_nodeagent::engine::{EngineConfig, EngineHandle};
use cool_nodeagent::launcher::{JobLauncher, Supervisors};
use cool_proto::control::{Exited, Launch, Output, agent_message::Body};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn launcher() -> (JobLauncher, mpsc::Receiver<Body>) {
    let (events, receiver) = mpsc::channel(16);
    let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
    let agent = Agent::new("h1", engine, events.clone());
    let supervisors = Supervisors::Own(env!("CARGO_BIN_EXE_cool-nodeagent").into());
    (JobLauncher::new(&agent, Path::new("/run/h1.sock"), supervisors, events), receiver)
}

fn shell(script: &str, ranks: &[u32]) -> Launch {
    Launch {
        job: 7,
        group: 9,
        ranks: ranks.to_vec(),
        size: 4,
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: [("GREETING".to_owned(), "hello".to_owned())].into(),
        ..Launch::default()
    }
}

async fn next(events: &mut mpsc::Receiver<Body>) -> Body {
    timeout(PATIENCE, events.recv()).await.expect("an event in time").expect("a launcher")
}

async fn line(events: &mut mpsc::Receiver<Body>) -> String {
    match next(events).await {
        Body::Output(output) => String::from_utf8(output.line).unwrap(),
        other => panic!("{other:?} instead of output"),
    }
}

async fn end(events: &mut mpsc::Receiver<Body>) -> Exited {
    loop {
        if let Body::Exited(exited) = next(events).await {
            return exited;
        }
    }
}

#[tokio::test]
async fn a_rank_has_its_environment_and_its_output_precedes_its_end() {
    let (mut launcher, mut events) = launcher();
    let script =
        "echo $COOL_SOCKET $COOL_JOB $COOL_GROUP $COOL_RANK $COOL_SIZE $GREETING on $COOL_NODE; exit 3";
    launcher.launch(shell(script, &[2]));
    assert_eq!(line(&mut events).await, "/run/h1.sock 7 9 2 4 hello on h1");
    let exited = Exited { job: 7, rank: 2, code: 3, stdout_lines: 1, ..Exited::default() };
    assert_eq!(next(&mut events).await, Body::Exited(exited));
}

#[tokio::test]
async fn standard_error_is_separate_and_may_be_binary() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell(r"printf 'a\377b\n' >&2", &[0]));
    let output =
        Output { job: 7, rank: 0, stderr: true, line: b"a\xffb".to_vec(), number: 1, unterminated: false };
    assert_eq!(next(&mut events).await, Body::Output(output));
}

#[tokio::test]
async fn bytes_of_a_long_line_arrive_without_newlines() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("head -c 40000 /dev/zero | tr '\\0' x", &[0]));
    let mut bytes = 0;
    loop {
        match next(&mut events).await {
            Body::Output(Output { line, unterminated: true, .. }) => bytes += line.len(),
            Body::Exited(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, 40_000);
}

#[tokio::test]
async fn a_prompt_arrives_before_its_line_ends_on_request() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(Launch { partial_lines: true, ..shell("printf 'Name? '; exec sleep 1000", &[0]) });
    let Body::Output(Output { line, unterminated: true, .. }) = next(&mut events).await else {
        panic!("no prompt")
    };
    assert_eq!(line, b"Name? ");
    launcher.kill(7);
    end(&mut events).await;
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(Launch { program: "/no/such/program".into(), ..shell("", &[0, 1]) });
    let mut ranks = Vec::new();
    for _ in 0..2 {
        let exited = end(&mut events).await;
        assert!(exited.error.contains("cannot start /no/such/program: "), "{}", exited.error);
        assert!(exited.error.contains("there is no such program") && exited.error.contains("--stage"));
        assert_eq!(exited.code, 127);
        ranks.push(exited.rank);
    }
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1]);
}

#[tokio::test]
async fn a_directory_that_does_not_exist_is_named() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(Launch { workdir: "/no/such/place".into(), ..shell("true", &[0]) });
    let error = end(&mut events).await.error;
    assert!(error.contains("cannot start /bin/sh in /no/such/place: "), "{error}");
    assert!(error.contains("the directory /no/such/place does not exist"), "{error}");
}

#[tokio::test]
async fn a_signal_that_ends_a_rank_is_reported() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("kill -9 $$", &[0]));
    let exited = end(&mut events).await;
    assert_eq!((exited.code, exited.signal), (-1, 9));
}

/// Returns the running process with the number that a rank printed.
fn process(pid: &str) -> OwnedFd {
    let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
    pidfd_open(pid, PidfdFlags::empty()).expect("a running process")
}

/// Waits for the end of a process that the launcher must have terminated.
fn ends(process: &OwnedFd) {
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "an end in time");
}

#[tokio::test]
async fn killing_a_job_ends_the_children_of_its_ranks_too() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("sleep 1000 & echo $!; wait", &[0]));
    let child = process(&line(&mut events).await);
    launcher.kill(7);
    assert_eq!(end(&mut events).await.signal, 15);
    ends(&child);
}

#[tokio::test]
async fn signals_are_passed_on_to_all_ranks_of_their_job() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.1; done", &[0, 1]));
    assert_eq!([line(&mut events).await, line(&mut events).await], ["ready", "ready"]);
    launcher.signal(8, 10);
    launcher.signal(7, 1000);
    launcher.signal(7, 10);
    assert_eq!([end(&mut events).await.code, end(&mut events).await.code], [5, 5]);
}

#[tokio::test]
async fn a_rank_that_ignores_the_request_to_end_is_ended() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("trap '' TERM; echo deaf; while :; do sleep 0.1; done", &[0]));
    assert_eq!(line(&mut events).await, "deaf");
    launcher.kill(7);
    assert_eq!(end(&mut events).await.signal, 9);
}

#[tokio::test]
async fn a_rank_has_ended_even_if_its_child_holds_its_output() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("sleep 1000 & echo $!; exit 0", &[0]));
    let child = process(&line(&mut events).await);
    assert_eq!(end(&mut events).await.code, 0);
    ends(&child);
}

#[tokio::test]
async fn shutdown_ends_ranks_with_unread_output() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("echo $$; while :; do echo noise; done", &[0]));
    let rank = process(&line(&mut events).await);
    timeout(PATIENCE, launcher.shutdown(events)).await.expect("an end");
    ends(&rank);
}

#[tokio::test]
async fn a_rank_has_no_variables_but_those_of_its_account_and_its_job() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell(
        "env | cut -d= -f1 | grep -v '^_$\\|^PWD$\\|^SHLVL$\\|^OLDPWD$' | sort | tr '\\n' ' '",
        &[0],
    ));
    let names = "COOL_GROUP COOL_JOB COOL_NODE COOL_RANK COOL_SIZE COOL_SOCKET GREETING HOME LOGNAME PATH SHELL USER ";
    assert_eq!(line(&mut events).await, names);
    assert_eq!(end(&mut events).await.code, 0);
}

#[tokio::test]
async fn ranks_lead_process_groups_of_one_session_that_is_their_jobs() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("cut -d' ' -f1,5,6 /proc/$$/stat; exec sleep 1000", &[0, 1]));
    let [one, other] = [line(&mut events).await, line(&mut events).await].map(|line| {
        let numbers: Vec<i32> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        <[i32; 3]>::try_from(numbers).unwrap()
    });
    for [process, group, session] in [one, other] {
        assert!(group == process && session != process, "{process} is in group {group} of session {session}");
    }
    let own = nix::unistd::getsid(None).unwrap().as_raw();
    assert!(one[2] == other[2] && one[2] != own, "sessions {} and {}, the agent's {own}", one[2], other[2]);
}

#[tokio::test]
async fn a_job_of_another_user_is_refused_with_a_remedy() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(Launch { user: "cool-test-other".into(), ..shell("exit 0", &[1]) });
    let exited = end(&mut events).await;
    assert_eq!((exited.rank, exited.code), (1, -1));
    assert!(exited.error.contains("not of cool-test-other; start cool-launcher"), "{}", exited.error);
}

#[tokio::test]
async fn nothing_of_a_job_is_left_when_its_last_rank_is_reported() {
    let (mut launcher, mut events) = launcher();
    let script = "setsid sh -c 'sleep 1000 >/dev/null 2>&1 & echo $!'; exit 5";
    launcher.launch(shell(script, &[0]));
    let child = process(&line(&mut events).await);
    assert_eq!(end(&mut events).await.code, 5);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&now)).unwrap();
    assert_eq!(ended, 1, "ended before that");
}

#[tokio::test]
async fn ranks_of_a_held_job_wait_when_they_print_and_no_line_is_lost() {
    let (mut launcher, mut events) = launcher();
    launcher.launch(shell("echo 0; for i in $(seq 1 100000); do echo $i; done", &[0]));
    assert_eq!(line(&mut events).await, "0");
    launcher.hold(7, true);
    // Lines that were read before may still arrive. The rank cannot end, because its pipe is full.
    let mut next = 1;
    while let Ok(text) = timeout(Duration::from_millis(500), line(&mut events)).await {
        assert_eq!(text, next.to_string());
        next += 1;
    }
    assert!(next < 100_000, "{next}");
    launcher.hold(7, false);
    for i in next..=100_000 {
        assert_eq!(line(&mut events).await, i.to_string());
    }
    assert_eq!(end(&mut events).await.stdout_lines, 100_001);
}
