//! What a rank prints, line by line, as events.

use super::line_splitter::{LineSplitter, MAX_LINE};
use cool_proto::control::{Exited, Output, agent_message::Body};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::warn;

/// The output of one rank, forwarded while this is there.
#[derive(Debug)]
pub(super) struct OutputForwarder {
    tasks: JoinSet<()>,
    /// Lines printed to standard output and error.
    lines: [Arc<AtomicU64>; 2],
    rank_has_ended: watch::Sender<bool>,
}

/// Whose lines they are, and where they go.
#[derive(Clone, Debug)]
struct OutputStream {
    job: u64,
    rank: u32,
    events: mpsc::Sender<Body>,
    lines: Arc<AtomicU64>,
    /// Whether the job is to wait when it prints.
    held: watch::Receiver<bool>,
    rank_has_ended: watch::Receiver<bool>,
}

impl OutputForwarder {
    /// Forwards what comes out of two pipes; returns the ends that the rank gets as standard output and error. While the job is
    /// held the rank waits when its pipe is full.
    pub(super) fn new(
        job: u64,
        rank: u32,
        events: &mpsc::Sender<Body>,
        held: &watch::Receiver<bool>,
    ) -> io::Result<(OutputForwarder, [OwnedFd; 2])> {
        let (mut tasks, lines) = (JoinSet::new(), <[Arc<AtomicU64>; 2]>::default());
        let rank_has_ended = watch::Sender::new(false);
        let mut open = |stderr| {
            let (read, write) = io::pipe()?;
            let read = pipe::Receiver::from_owned_fd(read.into())?;
            let source = OutputStream {
                job,
                rank,
                events: events.clone(),
                lines: lines[usize::from(stderr)].clone(),
                held: held.clone(),
                rank_has_ended: rank_has_ended.subscribe(),
            };
            tasks.spawn(source.forward(read, stderr));
            Ok::<OwnedFd, io::Error>(write.into())
        };
        let ends = [open(false)?, open(true)?];
        Ok((OutputForwarder { tasks, lines, rank_has_ended }, ends))
    }

    /// What it has left in the pipes is little: it is forwarded though the job is held.
    pub(super) fn rank_has_ended(&self) {
        self.rank_has_ended.send_replace(true);
    }

    /// The end of the rank, with how much it has printed.
    pub(super) fn counted(&self, exited: Exited) -> Exited {
        let [stdout_lines, stderr_lines] = self.lines.each_ref().map(|lines| lines.load(Ordering::Relaxed));
        Exited { stdout_lines, stderr_lines, ..exited }
    }

    /// Waits until all is forwarded: whoever could print more has ended. May be dropped and called again.
    pub(super) async fn drained(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            log_panic(ended);
        }
    }
}

impl OutputStream {
    /// Forwards a stream line by line to its end.
    async fn forward(mut self, mut stream: impl AsyncRead + Unpin, stderr: bool) {
        let (job, rank) = (self.job, self.rank);
        let mut lines = LineSplitter::default();
        let mut buffer = vec![0; MAX_LINE];
        loop {
            let ended = match stream.read(&mut buffer).await {
                Ok(0) => true,
                Ok(n) => {
                    lines.push(&buffer[..n]);
                    false
                }
                Err(e) => {
                    warn!(job, rank, "cannot read its output: {e}");
                    true
                }
            };
            while let Some(line) = lines.take(ended) {
                tokio::select! {
                    () = is(&mut self.held, false) => {}
                    () = is(&mut self.rank_has_ended, true) => {}
                }
                let number = self.lines.fetch_add(1, Ordering::Relaxed) + 1;
                // Nobody listens any more only when the agent ends; then nobody misses it.
                let _ = self.events.send(Body::Output(Output { job, rank, stderr, line, number })).await;
            }
            if ended {
                return;
            }
        }
    }
}

/// Waits until a flag is so; when nobody can set it any more, that it is.
async fn is(flag: &mut watch::Receiver<bool>, wanted: bool) {
    // Whoever held the job is gone.
    let _ = flag.wait_for(|flag| *flag == wanted).await;
}

/// Logs that a task of a job has panicked.
pub(super) fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        warn!("a job was not attended to its end: {e}");
    }
}
