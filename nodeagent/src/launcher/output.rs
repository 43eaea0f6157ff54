//! Forwards the output of a rank as events, line by line.

use super::line_splitter::{LinePiece, LineSplitter, MAX_LINE};
use cool_proto::control::{Exited, Launch, Output, agent_message::Body};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

/// How long the beginning of a line waits for its end before it is forwarded, if the caller accepts
/// that. It may be a prompt.
const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(100);

/// Forwards the output of one rank until it is dropped.
#[derive(Debug)]
pub(super) struct OutputForwarder {
    tasks: JoinSet<()>,
    /// The number of lines on standard output and standard error.
    lines: [Arc<AtomicU64>; 2],
    rank_has_ended: watch::Sender<bool>,
}

/// One output stream of a rank, and where to send its lines.
#[derive(Clone, Debug)]
struct OutputStream {
    job: u64,
    rank: u32,
    events: mpsc::Sender<Body>,
    lines: Arc<AtomicU64>,
    /// Whether the beginning of a line may be forwarded before its end.
    partial_lines: bool,
    /// Whether the job must wait before it prints.
    held: watch::Receiver<bool>,
    rank_has_ended: watch::Receiver<bool>,
}

impl OutputForwarder {
    /// Starts to forward the output of two new pipes. Returns their write ends, which become the
    /// rank's standard output and standard error. While the job is held, a rank that prints waits
    /// when its pipe is full.
    pub(super) fn new(
        launch: &Launch,
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
                job: launch.job,
                rank,
                partial_lines: launch.partial_lines,
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

    /// Forwards the remaining output even if the job is held, because it is no more than the pipes
    /// contain.
    pub(super) fn rank_has_ended(&self) {
        self.rank_has_ended.send_replace(true);
    }

    /// Returns the end of the rank, with the number of lines that it printed.
    pub(super) fn counted(&self, exited: Exited) -> Exited {
        let [stdout_lines, stderr_lines] = self.lines.each_ref().map(|lines| lines.load(Ordering::Relaxed));
        Exited { stdout_lines, stderr_lines, ..exited }
    }

    /// Waits until all output has been forwarded and all processes that could print have ended. The
    /// future may be dropped and created again.
    pub(super) async fn drained(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            log_panic(ended);
        }
    }
}

impl OutputStream {
    /// Forwards a stream line by line until its end.
    async fn forward(mut self, mut stream: impl AsyncRead + Unpin, stderr: bool) {
        let (job, rank) = (self.job, self.rank);
        let mut lines = LineSplitter::default();
        let mut buffer = vec![0; MAX_LINE];
        loop {
            let read = stream.read(&mut buffer);
            let read = match self.partial_lines && lines.has_rest() {
                true => timeout(PARTIAL_LINE_DELAY, read).await.ok(),
                false => Some(read.await),
            };
            let ended = match &read {
                Some(Ok(0)) => true,
                Some(Ok(n)) => {
                    lines.push(&buffer[..*n]);
                    false
                }
                Some(Err(e)) => {
                    warn!(job, rank, "cannot read its output: {e}");
                    true
                }
                None => false,
            };
            let all = ended || read.is_none();
            while let Some(LinePiece { bytes: line, is_terminated }) = lines.take(all) {
                tokio::select! {
                    () = is(&mut self.held, false) => {}
                    () = is(&mut self.rank_has_ended, true) => {}
                }
                let number = self.lines.fetch_add(1, Ordering::Relaxed) + 1;
                // Sending fails only while the agent ends.
                let unterminated = !is_terminated;
                let output = Output { job, rank, stderr, line, number, unterminated };
                let _ = self.events.send(Body::Output(output)).await;
            }
            if ended {
                return;
            }
        }
    }
}

/// Waits until a flag has a value, or until it can no longer change.
async fn is(flag: &mut watch::Receiver<bool>, wanted: bool) {
    // An error means that the sender was dropped.
    let _ = flag.wait_for(|flag| *flag == wanted).await;
}

/// Logs that a task of a job has panicked.
pub(super) fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended {
        warn!("a task of a job failed: {e}");
    }
}
