//! Starts ranks as processes of this node, forwards what they print, tells how they ended, and signals or ends
//! them when asked. Which ranks to start is the controller's to say ([`crate::control`]).

mod lines;
mod process;

use cool_proto::control::{Launch, agent_message::Body};
use process::Rank;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Signals that wait to be passed on to a rank.
const SIGNALS: usize = 16;

/// The ranks' processes. What they print and how they end goes out as events; while nobody takes those,
/// the ranks wait when they print.
#[derive(Debug)]
pub struct Launcher {
    node: String,
    socket: PathBuf,
    events: mpsc::Sender<Body>,
    /// For each job with processes, what gives them signals; its end tells them to end.
    jobs: BTreeMap<u64, broadcast::Sender<Signal>>,
    ranks: JoinSet<()>,
}

impl Launcher {
    /// A launcher of ranks that find their agent at `socket`.
    pub fn new(node: &str, socket: &Path, events: mpsc::Sender<Body>) -> Launcher {
        Launcher {
            node: node.to_owned(),
            socket: socket.to_path_buf(),
            events,
            jobs: BTreeMap::new(),
            ranks: JoinSet::new(),
        }
    }

    /// Starts ranks. One that cannot be started is told of by an event, as one that ended.
    pub fn launch(&mut self, launch: &Launch) {
        // Reaps jobs whose ranks have all ended.
        self.jobs.retain(|_, signals| signals.receiver_count() > 0);
        while let Some(ended) = self.ranks.try_join_next() {
            log_panic(ended);
        }
        let signals = self.jobs.entry(launch.job).or_insert_with(|| broadcast::channel(SIGNALS).0).clone();
        for number in &launch.ranks {
            let rank = Rank::new(launch.job, *number, self.events.clone());
            match self.command(launch, *number).spawn() {
                Ok(child) => {
                    info!(
                        job = launch.job,
                        rank = number,
                        pid = child.id(),
                        program = launch.program,
                        "started"
                    );
                    self.ranks.spawn(rank.attend(child, signals.subscribe()));
                }
                Err(e) => {
                    let error = format!("cannot start {} on node {}: {e}", describe(launch), self.node);
                    warn!(job = launch.job, rank = number, "{error}");
                    self.ranks.spawn(async move { rank.exited(-1, 0, error).await });
                }
            }
        }
    }

    /// Ends all ranks of a job.
    pub fn kill(&mut self, job: u64) {
        if self.jobs.remove(&job).is_some() {
            info!(job, "ending its ranks");
        }
    }

    /// Passes a signal on to all ranks of a job.
    pub fn signal(&self, job: u64, number: i32) {
        match (Signal::from_named_raw(number), self.jobs.get(&job)) {
            (None, _) => warn!(job, number, "no signal of this system; not passed on"),
            // Nobody takes it when all have ended.
            (Some(signal), Some(signals)) => drop(signals.send(signal)),
            (Some(_), None) => {}
        }
    }

    /// Ends all ranks and waits until they are gone. Events are no longer needed.
    pub async fn shutdown(mut self, mut events: mpsc::Receiver<Body>) {
        self.jobs.clear();
        // A rank's task may be waiting for room for its event.
        events.close();
        while let Some(ended) = self.ranks.join_next().await {
            log_panic(ended);
        }
    }

    fn command(&self, launch: &Launch, rank: u32) -> Command {
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.args)
            .envs(&launch.env)
            .env("COOL_SOCKET", &self.socket)
            .env("COOL_JOB", launch.job.to_string())
            .env("COOL_GROUP", launch.group.to_string())
            .env("COOL_RANK", rank.to_string())
            .env("COOL_SIZE", launch.size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Its own group, so that what it starts ends with it.
            .process_group(0)
            .kill_on_drop(true);
        if !launch.workdir.is_empty() {
            command.current_dir(&launch.workdir);
        }
        command
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        warn!("a rank was not attended to its end: {e}");
    }
}

fn describe(launch: &Launch) -> String {
    match launch.workdir.as_str() {
        "" => launch.program.clone(),
        directory => format!("{} in {directory}", launch.program),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::{Exited, Output};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::fd::OwnedFd;
    use std::time::Duration;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn launcher() -> (Launcher, mpsc::Receiver<Body>) {
        let (events, receiver) = mpsc::channel(16);
        (Launcher::new("h1", Path::new("/run/h1.sock"), events), receiver)
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
            workdir: String::new(),
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
    async fn a_rank_runs_in_its_environment_and_its_output_comes_before_its_end() {
        let (mut launcher, mut events) = launcher();
        let script = "echo $COOL_SOCKET $COOL_JOB $COOL_GROUP $COOL_RANK $COOL_SIZE $GREETING; exit 3";
        launcher.launch(&shell(script, &[2]));
        assert_eq!(line(&mut events).await, "/run/h1.sock 7 9 2 4 hello");
        let exited = Exited { job: 7, rank: 2, code: 3, signal: 0, error: String::new() };
        assert_eq!(next(&mut events).await, Body::Exited(exited));
    }

    #[tokio::test]
    async fn standard_error_is_told_apart_and_bytes_need_not_be_text() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell(r"printf 'a\377b\n' >&2", &[0]));
        let output = Output { job: 7, rank: 0, stderr: true, line: b"a\xffb".to_vec() };
        assert_eq!(next(&mut events).await, Body::Output(output));
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_told_of_by_name() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&Launch { program: "/no/such/program".into(), ..shell("", &[0, 1]) });
        let mut ranks = Vec::new();
        for _ in 0..2 {
            let exited = end(&mut events).await;
            assert!(exited.error.contains("/no/such/program on node h1"), "{}", exited.error);
            assert_eq!(exited.code, -1);
            ranks.push(exited.rank);
        }
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1]);
    }

    #[tokio::test]
    async fn a_directory_that_does_not_exist_is_named() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&Launch { workdir: "/no/such/place".into(), ..shell("true", &[0]) });
        let error = end(&mut events).await.error;
        assert!(error.contains("/bin/sh in /no/such/place on node h1"), "{error}");
    }

    #[tokio::test]
    async fn a_signal_that_ends_a_rank_is_told() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell("kill -9 $$", &[0]));
        let exited = end(&mut events).await;
        assert_eq!((exited.code, exited.signal), (-1, 9));
    }

    /// A running process, by what it printed.
    fn process(pid: &str) -> OwnedFd {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).expect("a running process")
    }

    /// Waits for the end of a process that has been told to end.
    fn ends(process: &OwnedFd) {
        let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(ready, 1, "an end in time");
    }

    #[tokio::test]
    async fn killing_a_job_ends_also_what_its_ranks_started() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell("sleep 1000 & echo $!; wait", &[0]));
        let child = process(&line(&mut events).await);
        launcher.kill(7);
        assert_eq!(end(&mut events).await.signal, 15);
        ends(&child);
    }

    #[tokio::test]
    async fn signals_are_passed_on_to_all_ranks_of_their_job() {
        let (mut launcher, mut events) = launcher();
        launcher
            .launch(&shell("trap 'echo got; exit 5' USR1; echo ready; while :; do sleep 0.1; done", &[0, 1]));
        assert_eq!([line(&mut events).await, line(&mut events).await], ["ready", "ready"]);
        launcher.signal(8, 10);
        launcher.signal(7, 1000);
        launcher.signal(7, 10);
        assert_eq!([end(&mut events).await.code, end(&mut events).await.code], [5, 5]);
    }

    #[tokio::test]
    async fn a_rank_that_ignores_the_request_to_end_is_ended() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell("trap '' TERM; echo deaf; while :; do sleep 0.1; done", &[0]));
        assert_eq!(line(&mut events).await, "deaf");
        launcher.kill(7);
        assert_eq!(end(&mut events).await.signal, 9);
    }

    #[tokio::test]
    async fn a_rank_has_ended_though_what_it_left_behind_holds_its_output() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell("sleep 1000 & echo $!; exit 0", &[0]));
        let child = process(&line(&mut events).await);
        assert_eq!(end(&mut events).await.code, 0);
        ends(&child);
    }

    #[tokio::test]
    async fn shutdown_ends_ranks_that_nobody_listens_to() {
        let (mut launcher, mut events) = launcher();
        launcher.launch(&shell("echo $$; while :; do echo noise; done", &[0]));
        let rank = process(&line(&mut events).await);
        timeout(PATIENCE, launcher.shutdown(events)).await.expect("an end");
        ends(&rank);
    }
}
