//! The frames over a rank's connection. The session interprets them and checks their order.

use super::session_end::SessionEnd;
use crate::async_socket::AsyncSocket;
use cool_proto::RUNNING_INTERVAL;
use cool_proto::frame::{Decoder, MAX_TO_AGENT, MAX_TO_RANK, encode};
use cool_proto::local::{Refused, Running, frame::Body};
use cool_proto::socket;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{interval, timeout};
use tracing::debug;

/// How long a process may take to attach after connecting, or to read a frame.
pub(super) const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection of a rank.
pub(super) struct RankConnection {
    stream: Arc<AsyncSocket>,
    decoder: Decoder,
    /// File descriptors that have arrived and that no Map frame has used yet.
    pub(super) descriptors: VecDeque<OwnedFd>,
}

impl RankConnection {
    pub(super) fn new(stream: &Arc<AsyncSocket>) -> RankConnection {
        let stream = Arc::clone(stream);
        RankConnection { stream, decoder: Decoder::new(MAX_TO_AGENT), descriptors: VecDeque::new() }
    }

    /// Returns the next frame. The future may be dropped and created again without losing data.
    pub(super) async fn receive(&mut self) -> Result<Body, SessionEnd> {
        loop {
            if let Some(body) = self.decoder.take()? {
                return Ok(body);
            }
            let mut buffer = [0; MAX_TO_AGENT];
            let descriptors = &mut self.descriptors;
            let received = self.stream.read(|stream| socket::receive(stream, &mut buffer, descriptors)).await;
            match received {
                Ok(0) => return Err(SessionEnd::Closed),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                    return Err(SessionEnd::Refused(e.to_string()));
                }
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(SessionEnd::Closed),
                Err(e) => return Err(e.into()),
            }
        }
    }

    pub(super) async fn send(&mut self, body: Body) -> Result<(), SessionEnd> {
        self.send_with(body, &[]).await
    }

    /// Sends a frame, and file descriptors that accompany it. Returns an error if the process reads
    /// nothing for `FRAME_TIMEOUT`.
    pub(super) async fn send_with(
        &mut self,
        body: Body,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), SessionEnd> {
        let bytes = encode(body, MAX_TO_RANK)?;
        let all = async {
            let mut sent = 0;
            while sent < bytes.len() {
                let now = if sent == 0 { descriptors } else { &[] };
                sent += self.stream.write(|stream| socket::send(stream, &bytes[sent..], now)).await?;
            }
            Ok(())
        };
        match timeout(FRAME_TIMEOUT, all).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => {
                let e: io::Error = e;
                Err(if e.kind() == io::ErrorKind::BrokenPipe { SessionEnd::Closed } else { e.into() })
            }
            Err(_) => Err(SessionEnd::Refused(format!("it read nothing for {} s", FRAME_TIMEOUT.as_secs()))),
        }
    }

    /// Waits for an event that depends on other processes, and regularly informs this process that
    /// the agent is still waiting. Returns an error if the process disconnects or sends another
    /// frame.
    pub(super) async fn meanwhile<T>(
        &mut self,
        awaited: &mut (impl Future<Output = T> + Unpin),
    ) -> Result<T, SessionEnd> {
        let mut alive = interval(RUNNING_INTERVAL);
        loop {
            tokio::select! {
                result = &mut *awaited => return Ok(result),
                received = self.receive() => return Err(match received {
                    Ok(_) => SessionEnd::Refused("nothing may follow the first frame before its answer".into()),
                    Err(end) => end,
                }),
                _ = alive.tick() => self.send(Body::Running(Running {})).await?,
            }
        }
    }

    /// Closes the connection, after sending the reason if there is one.
    pub(super) async fn hang_up(mut self, end: &SessionEnd) {
        if let SessionEnd::Refused(message) = end
            && let Err(e) = self.send(Body::Refused(Refused { message: message.clone() })).await
        {
            debug!("cannot send the reason to a refused process: {e}");
        }
    }
}
