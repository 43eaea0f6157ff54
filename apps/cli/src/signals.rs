//! The signals that a command handles while it runs a job.

use std::future::poll_fn;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGUSR1 and SIGUSR2, which are forwarded to the ranks.
const FORWARDED: [i32; 2] = [10, 12];

/// Returns whether a signal is forwarded to the ranks. All others end the command.
pub(crate) fn is_forwarded(signal: i32) -> bool {
    FORWARDED.contains(&signal)
}

/// Listens for SIGINT, SIGTERM, SIGHUP and the forwarded signals.
pub(crate) struct Signals {
    listeners: Vec<(i32, Signal)>,
}

impl Signals {
    /// Starts to listen, within a Tokio runtime.
    pub(crate) fn new() -> std::io::Result<Signals> {
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let kinds = kinds.into_iter().chain(FORWARDED.map(SignalKind::from_raw));
        let listeners = kinds.map(|kind| Ok((kind.as_raw_value(), signal(kind)?)));
        Ok(Signals { listeners: listeners.collect::<std::io::Result<_>>()? })
    }

    /// Waits for a signal that ends the command, and returns it.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            let signal = self.next().await;
            if !is_forwarded(signal) {
                return signal;
            }
        }
    }

    /// Waits for the next signal, and returns it. The future may be dropped without losing a
    /// signal.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            for (number, listener) in &mut self.listeners {
                if listener.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}
