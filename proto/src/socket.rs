//! Sends and receives frames with file descriptors over a unix stream socket.
//!
//! [`send`] and [`receive`] wrap the two system calls that both sides use. [`open`] returns a
//! blocking connection for the rank's side, and its halves may be used by different threads. The
//! callers interpret the frames.

use crate::frame::{Decoder, FrameError, MAX_TO_AGENT, MAX_TO_RANK, encode};
use crate::local::frame::Body;
use crate::peer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of descriptors of one receive call, and of one frame.
const RECEIVE_DESCRIPTORS_MAX: usize = 4;
const FRAME_DESCRIPTORS_MAX: usize = 2;

/// The reasons why a frame could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The peer closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// No data arrived, or could be sent, within this time.
    #[error("no reply within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The received bytes are not a frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A system call failed.
    #[error(transparent)]
    System(io::Error),
}

/// Sends a prefix of `bytes`, with at most two descriptors attached to the first byte.
///
/// Returns how many bytes were sent. The caller must send the rest without the descriptors.
///
/// # Errors
/// Returns the errors of `sendmsg(2)`, except that interrupted calls are repeated.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, bytes, descriptors, SendFlags::empty())
}

fn send_with(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a frame cannot carry this many descriptors"));
    }
    // A host program in another language may not ignore SIGPIPE, which would kill the process.
    let flags = flags | SendFlags::NOSIGNAL;
    let parts = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &parts, &mut control, flags))
        .map_err(Into::into)
}

/// Receives bytes into `buffer` and appends the attached descriptors to `descriptors`.
///
/// Returns the number of bytes, which is 0 at the end of the stream.
///
/// # Errors
/// Returns the errors of `recvmsg(2)`, except that interrupted calls are repeated. Returns an error
/// also if more descriptors arrive than frames use.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    receive_with(socket, buffer, descriptors, RecvFlags::CMSG_CLOEXEC)
}

fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVE_DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let message =
        rustix::io::retry_on_intr(|| rustix::net::recvmsg(&socket, &mut parts, &mut control, flags))?;
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = item {
            descriptors.extend(received);
        }
    }
    let is_truncated = message.flags.contains(ReturnFlags::CTRUNC);
    descriptor_error(is_truncated, descriptors.len()).map_or(Ok(message.bytes), Err)
}

/// Returns the error of a message if the system has dropped some of its descriptors, or if more
/// arrived than frames use.
fn descriptor_error(is_truncated: bool, received: usize) -> Option<io::Error> {
    if received >= RECEIVE_DESCRIPTORS_MAX && is_truncated || received > RECEIVE_DESCRIPTORS_MAX {
        return Some(io::Error::new(ErrorKind::InvalidData, "more descriptors arrived than frames use"));
    }
    // There was room for more, so this process has no free descriptors.
    let text = "this process has as many open files as it may have; raise the limit (ulimit -n)";
    is_truncated.then(|| io::Error::other(text))
}

/// The sending half of a rank's connection to its agent. No operation blocks without a deadline.
#[derive(Debug)]
pub struct LocalFrameSender {
    stream: Arc<UnixStream>,
    /// Maximum time for which the agent may accept no data.
    timeout: Duration,
}

/// The receiving half of a rank's connection to its agent. No operation blocks without a deadline.
#[derive(Debug)]
pub struct LocalFrameReceiver {
    stream: Arc<UnixStream>,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// Received descriptors that the caller has not requested yet.
    descriptors: VecDeque<OwnedFd>,
}

/// Connects to the agent's socket and returns both halves of the connection.
///
/// # Errors
/// Returns an error if no process listens there, or the connection is not established within
/// `timeout`.
pub fn open(path: &Path, timeout: Duration) -> Result<(LocalFrameSender, LocalFrameReceiver), SocketError> {
    let system = |e: rustix::io::Errno| match e {
        rustix::io::Errno::AGAIN => SocketError::TimedOut(timeout),
        e => SocketError::System(e.into()),
    };
    let address = SocketAddrUnix::new(path).map_err(system)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(system)?;
    // For unix sockets this timeout also applies to connect, which waits for room in the backlog.
    let bound = timeout.max(Duration::from_millis(1));
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(bound)).map_err(system)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address)).map_err(system)?;
    let stream = Arc::new(UnixStream::from(socket));
    let receiver = LocalFrameReceiver {
        stream: Arc::clone(&stream),
        decoder: Decoder::new(MAX_TO_RANK),
        buffer: vec![0; 64 << 10],
        descriptors: VecDeque::new(),
    };
    Ok((LocalFrameSender { stream, timeout: bound }, receiver))
}

impl LocalFrameSender {
    /// Sends a frame, optionally with a descriptor.
    ///
    /// # Errors
    /// Returns an error if the agent closed the connection, or accepts no data for the timeout that
    /// was passed to [`open`].
    pub fn send(&mut self, body: Body, descriptor: Option<BorrowedFd<'_>>) -> Result<(), SocketError> {
        self.send_when(PollFlags::OUT, body, descriptor, || ())
    }

    /// Sends a frame as [`LocalFrameSender::send`] does, and calls `meanwhile` whenever data can be
    /// received while the agent accepts none.
    ///
    /// The callback must receive that data, because the agent may stop reading until its replies
    /// are read.
    ///
    /// # Errors
    /// Returns the errors of [`LocalFrameSender::send`].
    pub fn send_and_receive(
        &mut self,
        body: Body,
        descriptor: Option<BorrowedFd<'_>>,
        meanwhile: impl FnMut(),
    ) -> Result<(), SocketError> {
        self.send_when(PollFlags::IN | PollFlags::OUT, body, descriptor, meanwhile)
    }

    fn send_when(
        &mut self,
        ready: PollFlags,
        body: Body,
        descriptor: Option<BorrowedFd<'_>>,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), SocketError> {
        let bytes = encode(body, MAX_TO_AGENT)?;
        let (mut sent, mut progress) = (0, Instant::now());
        while sent < bytes.len() {
            let now = descriptor.filter(|_| sent == 0);
            match send_with(&self.stream, &bytes[sent..], now.as_slice(), SendFlags::DONTWAIT) {
                Ok(n) => (sent, progress) = (sent + n, Instant::now()),
                Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Err(SocketError::Closed);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let left = self.timeout.saturating_sub(progress.elapsed());
                    if left.is_zero() {
                        return Err(SocketError::TimedOut(self.timeout));
                    }
                    sleep(&self.stream, ready, left)?;
                    meanwhile();
                }
                Err(e) => return Err(SocketError::System(e)),
            }
        }
        Ok(())
    }

    /// Closes the connection. Later sends and receives return an error.
    pub fn close(&mut self) {
        // Shutting down fails only if the connection is closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl LocalFrameReceiver {
    /// Returns whether the agent runs in this process.
    pub fn agent_is_in_this_process(&self) -> bool {
        let own = rustix::process::getpid();
        peer::credentials(&self.stream).is_ok_and(|peer| peer.pid == Some(own))
    }

    /// Returns the connection, for callers that wait for several connections.
    pub fn stream(&self) -> Arc<UnixStream> {
        Arc::clone(&self.stream)
    }

    /// Returns the next received descriptor, if there is one. An `Attached` frame shows which
    /// descriptors accompany it: those of its `segment` and `quick`.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Returns the next frame from the agent. With a `timeout` of zero, returns only a frame that
    /// has arrived already.
    ///
    /// # Errors
    /// Returns an error if no frame arrives within `timeout`, the agent closes the connection, or
    /// the bytes are not a frame.
    pub fn receive(&mut self, timeout: Duration) -> Result<Body, SocketError> {
        let begun = Instant::now();
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        loop {
            if let Some(body) = self.decoder.take()? {
                return Ok(body);
            }
            match receive_with(&self.stream, &mut self.buffer, &mut self.descriptors, flags) {
                Ok(0) => return Err(SocketError::Closed),
                Ok(n) => self.decoder.push(&self.buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let left = timeout.saturating_sub(begun.elapsed());
                    if left.is_zero() {
                        return Err(SocketError::TimedOut(timeout));
                    }
                    sleep(&self.stream, PollFlags::IN, left)?;
                }
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Err(SocketError::Closed),
                Err(e) => return Err(SocketError::System(e)),
            }
        }
    }
}

/// Waits until the socket is ready or `timeout` passes. Uses `poll`, because a socket's own timeout
/// is rounded to the kernel's ticks of several milliseconds.
fn sleep(stream: &UnixStream, until: PollFlags, timeout: Duration) -> Result<(), SocketError> {
    // A timeout beyond the range of the system's type is infinite.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut [PollFd::new(stream, until)], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(SocketError::System(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Attach, Done, Map};
    use cool_shm::region::Region;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn pair() -> (tempfile::TempDir, LocalFrameSender, LocalFrameReceiver, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (sender, receiver) = open(&path, PATIENCE).unwrap();
        let (agent, _) = listener.accept().unwrap();
        (dir, sender, receiver, agent)
    }

    #[test]
    fn a_region_travels_with_its_frame() {
        let (_dir, mut rank, _receiver, agent) = pair();
        let region = Region::create(4096).unwrap();
        region.copy_in(0, b"shared").unwrap();
        let attach = Body::Attach(Attach {
            version: 1,
            group: 1,
            rank: 0,
            segment: false,
            quick: false,
            long_quick: false,
        });
        let map = Body::Map(Map { region: 5, bytes: 4096 });
        rank.send(attach.clone(), None).unwrap();
        rank.send(map.clone(), Some(region.descriptor())).unwrap();

        let (mut decoder, mut descriptors, mut frames) =
            (Decoder::new(MAX_TO_AGENT), VecDeque::new(), Vec::new());
        while frames.len() < 2 {
            let mut buffer = [0; 3];
            let n = receive(&agent, &mut buffer, &mut descriptors).unwrap();
            assert_ne!(n, 0, "the stream ended early");
            decoder.push(&buffer[..n]);
            frames.extend(decoder.take().unwrap());
        }
        assert_eq!(frames, [attach, map]);
        let seen = Region::open(descriptors.pop_front().unwrap(), 4096).unwrap();
        let mut bytes = [0; 6];
        seen.copy_out(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"shared");
    }

    #[test]
    fn more_descriptors_than_frames_can_use_are_refused() {
        let (_dir, rank, _receiver, agent) = pair();
        let region = Region::create(1).unwrap();
        let mut descriptors = VecDeque::new();
        for _ in 0..RECEIVE_DESCRIPTORS_MAX {
            send(&rank.stream, &[0], &[region.descriptor()]).unwrap();
            receive(&agent, &mut [0; 16], &mut descriptors).unwrap();
        }
        send(&rank.stream, &[0], &[region.descriptor()]).unwrap();
        let e = receive(&agent, &mut [0; 16], &mut descriptors).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn an_agent_that_hangs_up_is_an_error_and_no_wait() {
        let (_dir, mut rank, mut receiver, agent) = pair();
        drop(agent);
        assert!(matches!(receiver.receive(PATIENCE), Err(SocketError::Closed)));
        assert!(matches!(rank.send(Body::Done(Done::default()), None), Err(SocketError::Closed)));
    }

    #[test]
    fn a_silent_agent_is_an_error_after_the_timeout() {
        let (_dir, _rank, mut receiver, _agent) = pair();
        let e = receiver.receive(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(e, SocketError::TimedOut(_)), "{e}");
    }

    #[test]
    fn a_blocked_sender_receives_replies_meanwhile() {
        let (_dir, mut rank, mut receiver, mut agent) = pair();
        // Small buffers make the test independent of the system's defaults.
        sockopt::set_socket_send_buffer_size(&*rank.stream, 16 << 10).unwrap();
        sockopt::set_socket_send_buffer_size(&agent, 16 << 10).unwrap();
        std::thread::scope(|scope| {
            // The agent reads nothing until it has sent all its replies, which are more than the
            // socket holds.
            scope.spawn(move || {
                let answer = encode(Body::Done(Done::default()), MAX_TO_RANK).unwrap();
                (0..5000).for_each(|_| agent.write_all(&answer).unwrap());
                std::io::copy(&mut agent, &mut std::io::sink()).unwrap();
            });
            let mut taken = 0;
            for id in 0..5000 {
                let done = Body::Done(Done { id, ..Done::default() });
                rank.send_and_receive(done, None, || {
                    taken += usize::from(receiver.receive(Duration::ZERO).is_ok())
                })
                .unwrap();
            }
            let meanwhile = taken;
            while taken < 5000 {
                receiver.receive(PATIENCE).unwrap();
                taken += 1;
            }
            rank.close();
            assert!(meanwhile > 0);
        });
    }

    #[test]
    fn a_socket_that_does_not_exist_is_an_error() {
        let e = open(Path::new("/nonexistent/agent.sock"), PATIENCE).unwrap_err();
        assert!(matches!(e, SocketError::System(_)), "{e}");
    }

    #[test]
    fn missing_descriptors_are_explained_by_the_limit_of_open_files() {
        let text = |is_truncated, received| descriptor_error(is_truncated, received).map(|e| e.to_string());
        assert!(text(true, 0).unwrap().contains("ulimit -n"));
        assert!(text(true, RECEIVE_DESCRIPTORS_MAX).unwrap().contains("more descriptors"));
        assert!(text(false, RECEIVE_DESCRIPTORS_MAX + 1).unwrap().contains("more descriptors"));
        assert_eq!(text(false, RECEIVE_DESCRIPTORS_MAX), None);
    }
}
