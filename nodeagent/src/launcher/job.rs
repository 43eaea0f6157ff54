//! The ranks of one job on this node, from their start to the end of everything that they have
//! started.

use super::output::OutputForwarder;
use super::supervisor::{Supervisor, Supervisors};
use crate::agent::Agent;
use cool_launcher::LAUNCHER_VERSION;
use cool_proto::control::{self, Exited, Launch};
use cool_proto::launcher::{self, Begin, Begun, End, NotStarted, Start, Started, Sweep, reply, request};
use rustix::process::Signal;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

/// How long the remaining processes of a rank may keep its output open after it has ended.
const LINGER: Duration = Duration::from_secs(1);

/// Maximum time for a supervisor to answer that a job begins. It is long, because the supervisor
/// looks up the job's user, for which some systems query a directory service.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// The reason for which ranks that a job cannot end are given up, because the agent ends.
const NOT_ENDED: &str =
    "its processes on this node have not ended within 10 s after SIGKILL; see ps(1) there";

/// Ensures that missing cgroups are logged only once.
static WITHOUT_CGROUPS: Once = Once::new();

/// How long a job waits for its processes to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndTimeouts {
    /// Time between SIGTERM and SIGKILL.
    pub(super) term: Duration,
    /// Time after SIGKILL. A process that waits for a device or a file system may take longer, and
    /// must not hold up the end of the agent.
    pub(super) kill: Duration,
}

impl Default for EndTimeouts {
    fn default() -> EndTimeouts {
        EndTimeouts { term: Duration::from_secs(3), kill: Duration::from_secs(10) }
    }
}

/// The ranks of a job that one command of the controller starts, and the parts of the agent that
/// they need.
#[derive(Debug)]
pub(super) struct LaunchedJob {
    pub(super) launch: Launch,
    pub(super) agent: Agent,
    /// The path at which the ranks find the agent.
    pub(super) socket: PathBuf,
    pub(super) supervisors: Arc<Supervisors>,
    pub(super) events: mpsc::Sender<control::agent_message::Body>,
    /// Whether the ranks must wait before they print, because the reader of their output is slow.
    pub(super) held: watch::Receiver<bool>,
    pub(super) timeouts: EndTimeouts,
}

/// The state of a job while its ranks run.
struct JobProgress {
    supervisor: Arc<Supervisor>,
    /// The output of running ranks.
    running: BTreeMap<u32, OutputForwarder>,
    /// Ranks that have ended, and whose remaining output is being read.
    ending: JoinSet<Exited>,
    /// When ranks that have received SIGTERM must be killed, or when killed ranks must have ended.
    deadline: Option<Instant>,
    /// Whether the supervisor has been requested to terminate all processes.
    ended: bool,
    over: bool,
}

impl LaunchedJob {
    /// Runs the ranks until they have ended, or until the channel of signals is closed. The end of
    /// the last rank is reported once nothing of the job is left on this node.
    pub(super) async fn run(self, mut signals: broadcast::Receiver<Signal>) {
        let supervisor = match self.open_supervisor().await {
            Ok(supervisor) => Arc::new(supervisor),
            Err(reason) => {
                let error = self.start_error(&reason);
                warn!(job = self.launch.job, "{error}");
                for rank in &self.launch.ranks {
                    self.report_exit(self.exited(*rank, -1, 0, error.clone())).await;
                }
                return;
            }
        };
        let (running, ending) = (BTreeMap::new(), JoinSet::new());
        let mut progress =
            JobProgress { supervisor, running, ending, deadline: None, ended: false, over: false };
        for rank in &self.launch.ranks {
            if let Err(e) = self.start_rank(*rank, &mut progress).await {
                self.on_start_failed(*rank, -1, &e.to_string(), &mut progress);
            }
        }
        let last = self.follow_ranks(&mut progress, &mut signals).await;
        if !progress.ended {
            progress.end().await;
        }
        let within = self.timeouts.kill;
        if !progress.over && timeout(within, self.drain_supervisor(&mut progress)).await.is_err() {
            warn!(job = self.launch.job, "{NOT_ENDED}");
        }
        if let Some(last) = last {
            self.report_exit(last).await;
        }
        if let Some(supervisor) = Arc::into_inner(progress.supervisor)
            && let Ok(Err(e)) = timeout(within, supervisor.close()).await
        {
            warn!(job = self.launch.job, "cannot wait for its supervisor: {e}");
        }
    }

    /// Opens a supervisor that starts processes as the job's user. This user then owns the job's
    /// group. An error is the reason as text.
    async fn open_supervisor(&self) -> Result<Supervisor, String> {
        let supervisor = Supervisor::open(&self.supervisors).await.map_err(|e| e.to_string())?;
        let (job, user) = (self.launch.job, self.launch.user.clone());
        let begin = Begin { version: LAUNCHER_VERSION, job, user };
        supervisor.send(request::Body::Begin(begin), &[]).await.map_err(|e| e.to_string())?;
        let answer = timeout(BEGIN_WITHIN, supervisor.receive()).await;
        match answer.map_err(|_| format!("its supervisor has not answered within {BEGIN_WITHIN:?}"))? {
            Ok(Some(reply::Body::Begun(Begun { uid, cgroup, why_no_cgroup }))) => {
                if cgroup.is_empty() {
                    WITHOUT_CGROUPS.call_once(|| {
                        warn!(
                            why = why_no_cgroup,
                            "jobs have no cgroups on this node: their processes are found by their parents"
                        );
                    });
                }
                info!(job, user = self.launch.user, uid, cgroup, "job begins");
                self.agent.set_owner(self.launch.group, uid);
                Ok(supervisor)
            }
            Ok(Some(reply::Body::Refused(refused))) => Err(refused.message),
            Ok(Some(_)) => Err("its supervisor violates the protocol".to_owned()),
            Ok(None) => Err("its supervisor ended immediately".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    async fn start_rank(&self, rank: u32, progress: &mut JobProgress) -> std::io::Result<()> {
        let (forwarded, ends) = OutputForwarder::new(&self.launch, rank, &self.events, &self.held)?;
        let start = Start {
            rank,
            program: self.launch.program.clone(),
            args: self.launch.args.clone(),
            env: self.environment(rank),
            workdir: self.launch.workdir.clone(),
        };
        progress.running.insert(rank, forwarded);
        let (supervisor, ends) = (Arc::clone(&progress.supervisor), ends.each_ref().map(AsFd::as_fd));
        let mut sent = pin!(supervisor.send(request::Body::Start(start), &ends));
        loop {
            tokio::select! {
                sent = &mut sent => return match sent {
                    // The loss of the supervisor has been reported for this rank already.
                    Err(_) if !progress.running.contains_key(&rank) => Ok(()),
                    sent => sent,
                },
                // The supervisor stops reading while its replies are not received.
                reply = supervisor.receive(), if !progress.over => self.on_reply(reply, progress),
            }
        }
    }

    /// Returns the job's own variables, and those by which a rank finds its agent.
    fn environment(&self, rank: u32) -> HashMap<String, String> {
        let launch = &self.launch;
        let own = [
            ("COOL_SOCKET", self.socket.display().to_string()),
            ("COOL_JOB", launch.job.to_string()),
            ("COOL_GROUP", launch.group.to_string()),
            ("COOL_RANK", rank.to_string()),
            ("COOL_SIZE", launch.size.to_string()),
            ("COOL_NODE", self.agent.node().to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        launch.env.clone().into_iter().chain(own).collect()
    }

    /// Waits until all ranks have ended. Reports the end of each but the last, which it returns.
    async fn follow_ranks(
        &self,
        progress: &mut JobProgress,
        signals: &mut broadcast::Receiver<Signal>,
    ) -> Option<Exited> {
        let mut left = self.launch.ranks.len();
        let mut last = None;
        while left > 0 {
            let deadline = progress.deadline;
            tokio::select! {
                reply = progress.supervisor.receive(), if !progress.over => self.on_reply(reply, progress),
                passed = signals.recv(), if deadline.is_none() && !progress.ended => match passed {
                    Ok(signal) => progress.signal(signal).await,
                    Err(RecvError::Lagged(lost)) => warn!(job = self.launch.job, lost, "signals lost"),
                    // The job must end, or the launcher has been dropped.
                    Err(RecvError::Closed) => {
                        progress.signal(Signal::TERM).await;
                        progress.deadline = Some(Instant::now() + self.timeouts.term);
                    }
                },
                () = at(deadline), if !progress.over && !progress.ended => {
                    progress.end().await;
                    progress.deadline = Some(Instant::now() + self.timeouts.kill);
                }
                // The controller does not wait for ranks that have not ended, but their slots stay
                // in use until they are reported. Only an agent that ends gives them up.
                () = self.agent_ends_after(deadline), if !progress.over && progress.ended => {
                    self.on_supervisor_lost(NOT_ENDED, progress);
                }
                Some(ended) = progress.ending.join_next() => {
                    left -= 1;
                    match ended {
                        Ok(exited) if left == 0 => last = Some(exited),
                        Ok(exited) => self.report_exit(exited).await,
                        Err(e) => warn!(job = self.launch.job, "a task of a rank failed: {e}"),
                    }
                }
            }
        }
        last
    }

    /// Waits until this time has passed and the agent ends.
    async fn agent_ends_after(&self, deadline: Option<Instant>) {
        at(deadline).await;
        self.events.closed().await;
    }

    /// Handles the remaining replies of the supervisor, until the supervisor has ended the job.
    async fn drain_supervisor(&self, progress: &mut JobProgress) {
        while !progress.over {
            let reply = progress.supervisor.receive().await;
            self.on_reply(reply, progress);
        }
    }

    /// Handles a reply of the supervisor.
    fn on_reply(&self, reply: std::io::Result<Option<reply::Body>>, progress: &mut JobProgress) {
        let job = self.launch.job;
        match reply {
            Ok(Some(reply::Body::Started(Started { rank, pid }))) => {
                info!(job, rank, pid, program = self.launch.program, "started");
            }
            Ok(Some(reply::Body::NotStarted(NotStarted { rank, error, code }))) => {
                self.on_start_failed(rank, code, &error, progress);
            }
            Ok(Some(reply::Body::Exited(launcher::Exited { rank, code, signal }))) => {
                info!(job, rank, code, signal, "ended");
                let Some(output) = progress.running.remove(&rank) else { return };
                let exited = self.exited(rank, code, signal, String::new());
                progress.ending.spawn(drained(progress.supervisor.clone(), output, exited));
            }
            Ok(Some(reply::Body::Ended(_))) => {
                self.on_supervisor_lost("its supervisor has ended the job", progress)
            }
            Ok(Some(reply::Body::Begun(_) | reply::Body::Refused(_))) => {
                warn!(job, "its supervisor started again")
            }
            Ok(None) => self.on_supervisor_lost("its supervisor has ended", progress),
            Err(e) => self.on_supervisor_lost(&format!("cannot receive from its supervisor: {e}"), progress),
        }
    }

    /// Handles the loss of the supervisor. The kernel kills the ranks together with their
    /// supervisor, so they count as killed.
    fn on_supervisor_lost(&self, why: &str, progress: &mut JobProgress) {
        progress.over = true;
        let ranks: Vec<u32> = progress.running.keys().copied().collect();
        if !ranks.is_empty() {
            warn!(job = self.launch.job, "{why}");
        }
        for rank in ranks {
            let Some(mut output) = progress.running.remove(&rank) else { continue };
            let exited = self.exited(rank, -1, Signal::KILL.as_raw(), why.to_owned());
            progress.ending.spawn(async move {
                output.forward_own_output().await;
                output.counted(exited)
            });
        }
    }

    fn on_start_failed(&self, rank: u32, code: i32, why: &str, progress: &mut JobProgress) {
        let error = self.start_error(why);
        warn!(job = self.launch.job, rank, "{error}");
        progress.running.remove(&rank);
        let exited = self.exited(rank, code, 0, error);
        progress.ending.spawn(async move { exited });
    }

    fn exited(&self, rank: u32, code: i32, signal: i32, error: String) -> Exited {
        Exited { job: self.launch.job, rank, code, signal, error, ..Exited::default() }
    }

    /// Reports the end of a rank. Sending fails only while the agent ends.
    async fn report_exit(&self, exited: Exited) {
        let _ = self.events.send(control::agent_message::Body::Exited(exited)).await;
    }

    /// Returns the error of ranks that could not be started. It does not name the node, because the
    /// controller does.
    fn start_error(&self, why: &str) -> String {
        let Launch { program, workdir, .. } = &self.launch;
        match workdir.as_str() {
            "" => format!("cannot start {program}: {why}"),
            directory => format!("cannot start {program} in {directory}: {why}"),
        }
    }
}

impl JobProgress {
    /// Sends a signal to all ranks. If that fails, the supervisor has ended, which the next
    /// `receive` reports.
    async fn signal(&self, signal: Signal) {
        let message = request::Body::Signal(launcher::Signal { signal: signal.as_raw() });
        let _ = self.supervisor.send(message, &[]).await;
    }

    /// Terminates the remaining processes of the job.
    async fn end(&mut self) {
        self.ended = true;
        let _ = self.supervisor.send(request::Body::End(End {}), &[]).await;
    }
}

/// Waits for the rest of a rank's output. Returns the rank's end with the numbers of its lines. If
/// processes that the rank left behind keep its output open for too long, the supervisor kills
/// those in the rank's process group.
async fn drained(supervisor: Arc<Supervisor>, mut output: OutputForwarder, exited: Exited) -> Exited {
    output.forward_own_output().await;
    if timeout(LINGER, output.drained()).await.is_err() {
        let sweep = request::Body::Sweep(Sweep { rank: exited.rank });
        // If that fails, the supervisor has ended, which the next `receive` reports.
        let _ = supervisor.send(sweep, &[]).await;
        // The output of a process that has moved to another process group is lost.
        let _ = timeout(LINGER, output.drained()).await;
    }
    output.counted(exited)
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{EngineConfig, EngineHandle};
    use cool_proto::launcher::{Ended, Reply, Request};
    use cool_proto::seqpacket;
    use prost::Message as _;
    use rustix::net::SocketFlags;
    use std::os::fd::OwnedFd;
    use std::thread;

    /// Acts as the supervisor of a job with one rank, whose process the kernel ends late.
    fn supervise(listener: &OwnedFd) {
        let agent = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        let send = |body| seqpacket::send(&agent, &Reply { body: Some(body) }.encode_to_vec(), &[]).unwrap();
        loop {
            let packet = seqpacket::receive(&agent).unwrap().expect("an agent");
            match Request::decode(&*packet.bytes).unwrap().body.unwrap() {
                request::Body::Begin(_) => send(reply::Body::Begun(Begun::default())),
                request::Body::Start(Start { rank, .. }) => {
                    send(reply::Body::Started(Started { rank, pid: 1 }));
                }
                request::Body::Signal(_) | request::Body::Sweep(_) => {}
                request::Body::End(_) => break,
            }
        }
        thread::sleep(Duration::from_millis(50));
        send(reply::Body::Exited(launcher::Exited { rank: 3, code: -1, signal: 9 }));
        send(reply::Body::Ended(Ended {}));
    }

    #[tokio::test]
    async fn a_rank_that_takes_long_to_end_is_not_reported_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("launcher");
        let listener = seqpacket::listen(&path, 1).unwrap();
        let supervisor = thread::spawn(move || supervise(&listener));
        let (events, mut received) = mpsc::channel(16);
        let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
        let brief = Duration::from_millis(1);
        let job = LaunchedJob {
            launch: Launch { job: 7, group: 9, ranks: vec![3], size: 4, ..Launch::default() },
            agent: Agent::new("h1", engine, events.clone()),
            socket: PathBuf::new(),
            supervisors: Arc::new(Supervisors::Launcher(path)),
            events,
            held: watch::channel(false).1,
            timeouts: EndTimeouts { term: brief, kill: brief },
        };
        let (sender, signals) = broadcast::channel(1);
        // The job ends as soon as its rank has started.
        drop(sender);
        job.run(signals).await;
        supervisor.join().unwrap();
        let Some(control::agent_message::Body::Exited(exited)) = received.recv().await else {
            panic!("no exit")
        };
        assert_eq!((exited.rank, exited.signal, exited.error.as_str()), (3, 9, ""));
    }
}
