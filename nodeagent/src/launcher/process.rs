//! One rank's process: its output as events, the signals that it is passed, and its end.

use super::lines::{Lines, MAX_LINE};
use super::log_panic;
use cool_proto::control::{Exited, Output, agent_message::Body};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Child;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

/// Time between the signals that ask a rank to end and that make it end.
const GRACE: Duration = Duration::from_secs(3);

/// Time that what a rank left behind may keep its output open after it has ended.
const LINGER: Duration = Duration::from_secs(1);

/// One rank's process as events tell of it.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    job: u64,
    rank: u32,
    events: mpsc::Sender<Body>,
}

impl Rank {
    pub(super) fn new(job: u64, rank: u32, events: mpsc::Sender<Body>) -> Rank {
        Rank { job, rank, events }
    }

    /// Forwards the output of a process until it has ended, by itself or because there are no more signals.
    pub(super) async fn attend(self, mut child: Child, mut signals: broadcast::Receiver<Signal>) {
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let mut output = JoinSet::new();
        if let Some(stdout) = child.stdout.take() {
            output.spawn(self.clone().forward(stdout, false));
        }
        if let Some(stderr) = child.stderr.take() {
            output.spawn(self.clone().forward(stderr, true));
        }
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                passed = signals.recv() => match passed {
                    Ok(number) => signal(group, number),
                    Err(RecvError::Lagged(lost)) => warn!(job = self.job, rank = self.rank, lost, "signals lost"),
                    // Told to end, or the launcher is gone.
                    Err(RecvError::Closed) => break terminate(&mut child, group).await,
                },
            }
        };
        // Whoever still holds the output open was left behind by the rank, in its group.
        if timeout(LINGER, drain(&mut output)).await.is_err() {
            signal(group, Signal::KILL);
            // Unless it made a group of its own: then its output is lost.
            if timeout(LINGER, drain(&mut output)).await.is_err() {
                output.shutdown().await;
            }
        }
        match status {
            Ok(status) => {
                let (code, signal) = outcome(status);
                info!(job = self.job, rank = self.rank, code, signal, "ended");
                self.exited(code, signal, String::new()).await;
            }
            Err(e) => self.exited(-1, 0, format!("cannot learn how it ended: {e}")).await,
        }
    }

    pub(super) async fn exited(&self, code: i32, signal: i32, error: String) {
        let exited = Exited { job: self.job, rank: self.rank, code, signal, error };
        self.tell(Body::Exited(exited)).await;
    }

    /// Forwards a stream line by line to its end.
    async fn forward(self, mut stream: impl AsyncRead + Unpin, stderr: bool) {
        let mut lines = Lines::default();
        let mut buffer = vec![0; MAX_LINE];
        loop {
            let ended = match stream.read(&mut buffer).await {
                Ok(0) => true,
                Ok(n) => {
                    lines.push(&buffer[..n]);
                    false
                }
                Err(e) => {
                    warn!(job = self.job, rank = self.rank, "cannot read its output: {e}");
                    true
                }
            };
            while let Some(line) = lines.take(ended) {
                self.tell(Body::Output(Output { job: self.job, rank: self.rank, stderr, line })).await;
            }
            if ended {
                return;
            }
        }
    }

    /// Nobody listens any more only when the agent ends; then nobody misses it.
    async fn tell(&self, event: Body) {
        let _ = self.events.send(event).await;
    }
}

async fn drain(output: &mut JoinSet<()>) {
    while let Some(ended) = output.join_next().await {
        log_panic(ended);
    }
}

/// Ends a process and its group: asks first.
async fn terminate(child: &mut Child, group: Option<Pid>) -> std::io::Result<ExitStatus> {
    signal(group, Signal::TERM);
    let asked = timeout(GRACE, child.wait()).await;
    // Also for what outlives the rank in its group.
    signal(group, Signal::KILL);
    match asked {
        Ok(status) => status,
        Err(_) => child.wait().await,
    }
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group
        && let Err(e) = kill_process_group(group, signal)
        && e != rustix::io::Errno::SRCH
    {
        warn!(group = group.as_raw_nonzero(), "cannot signal a rank's processes: {e}");
    }
}

/// Exit code, or -1 and the signal.
fn outcome(status: ExitStatus) -> (i32, i32) {
    match status.code() {
        Some(code) => (code, 0),
        None => (-1, status.signal().unwrap_or(0)),
    }
}
