//! Runs jobs on this node: lets their ranks be started, forwards what they print, tells how they ended, and signals or ends them
//! when asked. Which ranks to start is the controller's to say ([`crate::control`]); as whom, and what ends with them, is the
//! supervisor's, which is another process ([`cool_launcher`]).

mod job;
mod line_splitter;
mod output;
mod supervisor;

use crate::agent::Agent;
use cool_proto::control::{Launch, agent_message::Body};
use job::LaunchedJob;
use output::log_panic;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
pub use supervisor::Supervisors;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

/// Signals that wait to be passed on to a job.
const SIGNALS: usize = 16;

/// The ranks' processes. What they print and how they end goes out as events; while nobody takes those,
/// the ranks wait when they print.
#[derive(Debug)]
pub struct JobLauncher {
    agent: Agent,
    socket: PathBuf,
    supervisors: Arc<Supervisors>,
    events: mpsc::Sender<Body>,
    /// For each job with processes, what gives them signals; its end tells them to end.
    jobs: BTreeMap<u64, broadcast::Sender<Signal>>,
    /// For the same jobs, whether ranks are to wait when they print.
    held: BTreeMap<u64, watch::Sender<bool>>,
    running: JoinSet<()>,
}

impl JobLauncher {
    /// A launcher of ranks that find `agent`, their node's, at `socket`.
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

    /// Starts ranks. One that cannot be started is told of by an event, as one that ended.
    pub fn launch(&mut self, launch: Launch) {
        // Reaps jobs whose ranks have all ended.
        self.jobs.retain(|_, signals| signals.receiver_count() > 0);
        self.held.retain(|job, _| self.jobs.contains_key(job));
        while let Some(ended) = self.running.try_join_next() {
            log_panic(ended);
        }
        let signals =
            self.jobs.entry(launch.job).or_insert_with(|| broadcast::channel(SIGNALS).0).subscribe();
        let job = LaunchedJob {
            held: self.held.entry(launch.job).or_default().subscribe(),
            launch,
            agent: self.agent.clone(),
            socket: self.socket.clone(),
            supervisors: self.supervisors.clone(),
            events: self.events.clone(),
        };
        self.running.spawn(job.run(signals));
    }

    /// Ends all ranks of a job.
    pub fn kill(&mut self, job: u64) {
        self.held.remove(&job);
        if self.jobs.remove(&job).is_some() {
            info!(job, "ending its ranks");
        }
    }

    /// Lets the ranks of a job wait when they print, or no more.
    pub fn hold(&self, job: u64, held: bool) {
        if let Some(flag) = self.held.get(&job) {
            info!(job, held, "its output");
            flag.send_replace(held);
        }
    }

    /// Nobody says any more when ranks are to go on: none waits.
    pub fn hold_none(&self) {
        for flag in self.held.values() {
            flag.send_replace(false);
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
        self.held.clear();
        // A job may be waiting for room for its event.
        events.close();
        while let Some(ended) = self.running.join_next().await {
            log_panic(ended);
        }
    }
}
