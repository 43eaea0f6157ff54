//! Runs jobs on this node: starts their ranks through a supervisor, forwards their output, reports
//! how they ended, and signals or terminates them on request. The controller decides which ranks to
//! start ([`crate::control`]). The supervisor, which is another process ([`cool_launcher`]), starts
//! them as their user and terminates everything that they have started.

mod job;
mod line_splitter;
mod output;
mod supervisor;

use crate::agent::Agent;
use cool_proto::control::{Launch, agent_message::Body};
use job::{EndTimeouts, LaunchedJob};
use output::log_panic;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use supervisor::Supervisors;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Number of signals that may wait for a job.
const SIGNALS: usize = 16;

/// The processes of ranks. Their output and their ends are sent as events. While the events are not
/// received, ranks must wait before they print.
#[derive(Debug)]
pub struct JobLauncher {
    agent: Agent,
    socket: PathBuf,
    supervisors: Arc<Supervisors>,
    events: mpsc::Sender<Body>,
    /// For each job with processes, the channel of its signals. Dropping the channel terminates the
    /// job.
    jobs: BTreeMap<u64, broadcast::Sender<Signal>>,
    /// For each job whose output is being forwarded, whether it is held. A job that ends stays
    /// held, because its caller must still be able to read all that the ranks have written.
    held: BTreeMap<u64, HeldOutput>,
    running: JoinSet<()>,
}

/// Whether the output of a job's ranks is held.
#[derive(Debug, Default)]
struct HeldOutput {
    /// Whether the controller has requested it.
    requested: bool,
    /// Whether ranks must wait before they print.
    held: watch::Sender<bool>,
}

impl JobLauncher {
    /// Returns a launcher of ranks that find `agent`, the agent of their node, at `socket`.
    pub fn new(
        agent: &Agent,
        socket: &Path,
        supervisors: Supervisors,
        events: mpsc::Sender<Body>,
    ) -> JobLauncher {
        JobLauncher {
            agent: agent.clone(),
            socket: socket.to_path_buf(),
            supervisors: Arc::new(supervisors),
            events,
            jobs: BTreeMap::new(),
            held: BTreeMap::new(),
            running: JoinSet::new(),
        }
    }

    /// Starts ranks of a job. A rank that cannot be started is reported by the same event as one
    /// that has ended.
    pub fn launch(&mut self, launch: Launch) {
        // Remove jobs without running ranks.
        self.jobs.retain(|_, signals| signals.receiver_count() > 0);
        self.held.retain(|_, output| output.held.receiver_count() > 0);
        while let Some(ended) = self.running.try_join_next() {
            log_panic(ended);
        }
        let signals =
            self.jobs.entry(launch.job).or_insert_with(|| broadcast::channel(SIGNALS).0).subscribe();
        let job = LaunchedJob {
            held: self.held.entry(launch.job).or_default().held.subscribe(),
            launch,
            agent: self.agent.clone(),
            socket: self.socket.clone(),
            supervisors: self.supervisors.clone(),
            events: self.events.clone(),
            timeouts: EndTimeouts::default(),
        };
        self.running.spawn(job.run(signals));
    }

    /// Terminates all ranks of a job.
    pub fn kill(&mut self, job: u64) {
        if self.jobs.remove(&job).is_some() {
            info!(job, "ending its ranks");
        }
    }

    /// Makes the ranks of a job wait before they print, or lets them continue.
    pub fn hold(&mut self, job: u64, held: bool) {
        if let Some(output) = self.held.get_mut(&job) {
            info!(job, held, "its output");
            output.requested = held;
            output.held.send_replace(held);
        }
    }

    /// Lets the ranks of all jobs print while there is no connection to the controller, because no
    /// controller can then release a held job.
    pub fn suspend_holds(&self) {
        for output in self.held.values() {
            output.held.send_replace(false);
        }
    }

    /// Holds the output of jobs as before the interruption of the connection. The caller must use
    /// this when the session continues.
    pub fn resume_holds(&self) {
        for output in self.held.values() {
            output.held.send_replace(output.requested);
        }
    }

    /// Holds no job any more. The caller must use this when another session begins, because its
    /// controller does not know which jobs were held.
    pub fn release_holds(&mut self) {
        for output in self.held.values_mut() {
            output.requested = false;
            output.held.send_replace(false);
        }
    }

    /// Sends a signal to all ranks of a job.
    pub fn signal(&self, job: u64, number: i32) {
        match (Signal::from_named_raw(number), self.jobs.get(&job)) {
            (None, _) => warn!(job, number, "unknown signal; not sent"),
            // Sending fails if all ranks have ended.
            (Some(signal), Some(signals)) => drop(signals.send(signal)),
            (Some(_), None) => {}
        }
    }

    /// Terminates all ranks and waits for their ends. Their remaining events are dropped.
    pub async fn shutdown(mut self, mut events: mpsc::Receiver<Body>) {
        self.jobs.clear();
        self.held.clear();
        // A job that waits for room for its event must continue.
        events.close();
        while let Some(ended) = self.running.join_next().await {
            log_panic(ended);
        }
    }
}
