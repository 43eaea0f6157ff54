//! Forwards the output of a rank as events, line by line.

use super::line_splitter::{LinePiece, LineSplitter, MAX_LINE};
use cool_proto::control::{Exited, Launch, Output, agent_message::Body};
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

/// How long the beginning of a line waits for its end before it is forwarded, if the caller accepts
/// that. It may be a prompt.
const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(100);

/// How long a held job holds the remaining output of a rank that has ended. A caller that reads
/// nothing for so long does not delay the end of its job any more, and may lose lines.
const HELD_AFTER_END: Duration = Duration::from_secs(30);

/// Forwards the output of one rank until it is dropped.
#[derive(Debug)]
pub(super) struct OutputForwarder {
    tasks: JoinSet<()>,
    /// The number of lines on standard output and standard error.
    lines: [Arc<AtomicU64>; 2],
    rank_has_ended: watch::Sender<bool>,
    /// Closed once all that the rank itself has written has been forwarded.
    own_output: mpsc::Receiver<Infallible>,
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
    /// How long the output of a rank that has ended is held; [`HELD_AFTER_END`] except in tests.
    held_after_end: Duration,
    /// Dropped once all that the rank itself has written has been forwarded.
    own_output: Option<mpsc::Sender<Infallible>>,
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
        OutputForwarder::with_hold_limit(launch, rank, events, held, HELD_AFTER_END)
    }

    fn with_hold_limit(
        launch: &Launch,
        rank: u32,
        events: &mpsc::Sender<Body>,
        held: &watch::Receiver<bool>,
        held_after_end: Duration,
    ) -> io::Result<(OutputForwarder, [OwnedFd; 2])> {
        let (mut tasks, lines) = (JoinSet::new(), <[Arc<AtomicU64>; 2]>::default());
        let rank_has_ended = watch::Sender::new(false);
        let (own_output, own_output_forwarded) = mpsc::channel(1);
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
                held_after_end,
                own_output: Some(own_output.clone()),
            };
            tasks.spawn(source.forward(read, stderr));
            Ok::<OwnedFd, io::Error>(write.into())
        };
        let ends = [open(false)?, open(true)?];
        Ok((OutputForwarder { tasks, lines, rank_has_ended, own_output: own_output_forwarded }, ends))
    }

    /// Waits until all that the rank has written before its end has been forwarded. The rank must
    /// have ended. The wait is bounded, because the pipes contain little, and because output is not
    /// held for longer than [`HELD_AFTER_END`] at a time.
    pub(super) async fn forward_own_output(&mut self) {
        self.rank_has_ended.send_replace(true);
        // No value is ever sent, so this returns once all senders have been dropped.
        self.own_output.recv().await;
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
    async fn forward(mut self, mut pipe: pipe::Receiver, stderr: bool) {
        let mut lines = LineSplitter::default();
        let mut buffer = vec![0; MAX_LINE];
        // The number of bytes that the pipe contained when the rank had ended, and that have not
        // been read since. Other processes may continue to write.
        let mut unread: Option<usize> = None;
        loop {
            let own_is_read = unread == Some(0);
            if own_is_read && !lines.has_rest() {
                self.own_output = None;
            }
            let takes_part = lines.has_rest() && (self.partial_lines || own_is_read);
            let read = tokio::select! {
                biased;
                () = is(&mut self.rank_has_ended, true), if unread.is_none() => {
                    unread = Some(available_bytes(&pipe));
                    continue;
                }
                read = pipe.read(&mut buffer) => Some(read),
                () = sleep(PARTIAL_LINE_DELAY), if takes_part => None,
            };
            let ended = match &read {
                Some(Ok(0)) => true,
                Some(Ok(n)) => {
                    lines.push(&buffer[..*n]);
                    unread = unread.map(|unread| unread.saturating_sub(*n));
                    false
                }
                Some(Err(e)) => {
                    warn!(job = self.job, rank = self.rank, "cannot read its output: {e}");
                    true
                }
                None => false,
            };
            let all = ended || read.is_none();
            while let Some(piece) = lines.take(all) {
                self.forward_piece(piece, stderr).await;
            }
            if ended {
                return;
            }
        }
    }

    /// Forwards a line or a piece of one, as soon as the job is not held.
    async fn forward_piece(&mut self, LinePiece { bytes, is_terminated }: LinePiece, stderr: bool) {
        let OutputStream { held, rank_has_ended, held_after_end, .. } = self;
        let held_too_long = async {
            is(rank_has_ended, true).await;
            sleep(*held_after_end).await;
        };
        tokio::select! {
            biased;
            () = is(held, false) => {}
            () = held_too_long => {
                warn!(job = self.job, rank = self.rank, "its caller does not read its last output");
                // All further lines are forwarded at once.
                self.held = watch::channel(false).1;
            }
        }
        let (job, rank, line) = (self.job, self.rank, bytes);
        let number = self.lines.fetch_add(1, Ordering::Relaxed) + 1;
        let output = Output { job, rank, stderr, line, number, unterminated: !is_terminated };
        // Sending fails only while the agent ends.
        let _ = self.events.send(Body::Output(output)).await;
    }
}

/// Returns the number of bytes that can be read from a pipe now.
fn available_bytes(pipe: &pipe::Receiver) -> usize {
    // The call does not fail for a pipe.
    rustix::io::ioctl_fionread(pipe).map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    /// Returns the output of a rank that has written a line and a part of one. The other end of the
    /// pipe is returned, because a process that the rank left behind may keep it open.
    fn ended_rank(
        held_after_end: Duration,
    ) -> (OutputForwarder, mpsc::Receiver<Body>, watch::Sender<bool>, std::fs::File) {
        let ((events, received), (hold, held)) = (mpsc::channel(16), watch::channel(true));
        let launch = Launch { job: 7, ..Launch::default() };
        let (output, [out, _err]) =
            OutputForwarder::with_hold_limit(&launch, 3, &events, &held, held_after_end).unwrap();
        let mut out = std::fs::File::from(out);
        out.write_all(b"last\nand a part").unwrap();
        (output, received, hold, out)
    }

    async fn next_line(received: &mut mpsc::Receiver<Body>) -> (String, bool) {
        let Some(Body::Output(output)) = received.recv().await else { panic!("no line") };
        (String::from_utf8(output.line).unwrap(), output.unterminated)
    }

    fn is_pending(future: &mut Pin<&mut impl Future<Output = ()>>) -> bool {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[tokio::test]
    async fn the_last_lines_of_a_rank_are_held_until_its_caller_reads() {
        let (mut output, mut received, hold, out) = ended_rank(Duration::MAX);
        {
            let mut forwarded = pin!(output.forward_own_output());
            assert!(is_pending(&mut forwarded));
            // The tasks run until they wait for the caller.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(is_pending(&mut forwarded) && received.try_recv().is_err());
            hold.send_replace(false);
            forwarded.await;
        }
        assert_eq!(next_line(&mut received).await, ("last".to_owned(), false));
        assert_eq!(next_line(&mut received).await, ("and a part".to_owned(), true));
        drop(out);
        output.drained().await;
        assert_eq!(output.counted(Exited::default()).stdout_lines, 2);
    }

    #[tokio::test]
    async fn the_end_of_a_rank_waits_only_briefly_for_its_caller() {
        let (mut output, mut received, _hold, _out) = ended_rank(Duration::from_millis(1));
        output.forward_own_output().await;
        assert_eq!(next_line(&mut received).await.0, "last");
    }
}
