//! TCP connections to other agents: accepting, connecting, reading and writing.

use super::cipher::AesGcm;
use super::handshake::{self, HandshakeError, LinkSecurity, RecordCiphers};
use super::{DriverEvent, DriverEvents};
use crate::engine::{RefusalCounters, RefusalReason, SharedSlice};
use cool_engine::{AgentConnectionId, AgentId, MemoryRange, NodeId, PeerKey};
use cool_tcp::{Congestion, LinkEstimate, bound_retransmission_timeout, set_low_water};
use cool_transport::unicast::records::Opener;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Minimum time for which to try to connect, because the other agent may be starting.
const CONNECT_TIME_MIN: Duration = Duration::from_secs(10);

/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// The time without an answer after which the system closes a connection. The engine notices a lost
/// node sooner. The limit must be long, because at a loss of 20 % in each direction, TCP alone is
/// silent for many seconds now and then.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of connections with an incomplete handshake. To crowd out an agent, an attacker
/// would have to make as many connections within the round trip in which the agent identifies
/// itself.
const SILENT_MAX: usize = 256;

/// The number of unsent bytes above which the system accepts no more, so that a small message does
/// not wait for long.
const UNSENT: u32 = 128 * 1024;

/// How long a connection that was given up may take to write its remaining data.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The size of one read of data without a known destination.
pub(super) const READ: usize = 64 * 1024;

/// The number of bytes that a read accepts beyond a known destination, enough for the headers of
/// some frames.
const HEADS: usize = 1024;

/// The system wakes a reader only when this many bytes of a frame, or all of its remaining bytes,
/// have arrived, because otherwise each packet would wake the engine.
const LOW_WATER: usize = 32 * 1024;

/// Returns a bound socket to which other agents connect, and its port.
pub(super) fn bind(ip: IpAddr, port: u16) -> io::Result<(std::net::TcpListener, u16)> {
    let address = SocketAddr::new(ip, port);
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    let listener: std::net::TcpListener = socket.into();
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Accepts connections until the driver has ended. Passes a connection to the driver only when its
/// handshake has completed, or when its first bytes show that there will be none.
pub(super) async fn accept(
    listener: TcpListener,
    security: LinkSecurity,
    refusals: Arc<RefusalCounters>,
    events: DriverEvents,
) {
    // The engine limits the number of connections, because it drops those of agents that are not
    // its peers.
    let incoming = cool_daemon::accept::LimitedListener::new(listener, "agent", usize::MAX);
    let mut silent: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let ((stream, from), _) = incoming.next().await;
        if events.is_closed() {
            return;
        }
        silent.retain(|task| !task.is_finished());
        if silent.len() >= SILENT_MAX {
            // This connection has been silent for longest.
            silent.pop_front().into_iter().for_each(|task| task.abort());
        }
        let greeted = greet(stream, from.ip(), security.clone(), Arc::clone(&refusals), events.clone());
        silent.push_back(tokio::spawn(greeted).abort_handle());
    }
}

/// Passes a connection to the driver once the other side has proved its identity, or has sent a
/// frame without a handshake.
async fn greet(
    mut stream: TcpStream,
    from: IpAddr,
    security: LinkSecurity,
    refusals: Arc<RefusalCounters>,
    events: DriverEvents,
) {
    bound_retransmission_timeout(&stream);
    match handshake::respond(&mut stream, &security).await {
        // If the driver has ended, the event is not needed.
        Ok((proven, records)) => {
            drop(events.send(DriverEvent::Accepted { stream, records, from, proven }).await);
        }
        Err(HandshakeError::Abandoned) => {}
        Err(error) => {
            refusals.count(RefusalReason::Handshake);
            tracing::debug!(%from, %error, "refused a connection");
        }
    }
}

/// The parameters of a connection to another agent.
pub(super) struct ConnectParams {
    /// The identity of this agent.
    pub(super) me: AgentId,
    /// The other agent's key; `None` if it has none.
    pub(super) key: Option<PeerKey>,
    /// Whether the connection must be encrypted.
    pub(super) encrypt: bool,
    /// How long another agent may send nothing before it counts as lost.
    pub(super) peer_timeout: Duration,
}

/// Returns how long to try to connect to an agent. No agent counts as lost before the peer timeout.
fn connect_time_max(peer_timeout: Duration) -> Duration {
    peer_timeout.max(CONNECT_TIME_MIN)
}

/// Connects to a node, with several attempts, and proves this agent's identity if the other agent
/// has a key.
pub(super) async fn connect(
    node: NodeId,
    (from, to): (IpAddr, SocketAddr),
    approach: ConnectParams,
    events: DriverEvents,
) {
    let time_max = connect_time_max(approach.peer_timeout);
    let until = Instant::now() + time_max;
    let event = loop {
        let error = match timeout_at(until, connect_once(from, to, &approach)).await {
            Ok(Ok((stream, records))) => break DriverEvent::Connected { node, stream, records },
            Ok(Err(HandshakeError::Unproven)) => {
                let why = format!("the agent at {to} has another key than before: it was restarted");
                break DriverEvent::Unreachable { node, why };
            }
            Ok(Err(error @ HandshakeError::Plain)) => {
                break DriverEvent::Unreachable { node, why: format!("the agent at {to}: {error}") };
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::from(io::ErrorKind::TimedOut).into(),
        };
        if Instant::now() + RETRY >= until {
            let why = format!("its agent at {to} could not be reached for {time_max:?}: {error}");
            break DriverEvent::Unreachable { node, why };
        }
        sleep(RETRY).await;
    };
    // If the driver has ended, the event is not needed.
    let _ = events.send(event).await;
}

async fn connect_once(
    from: IpAddr,
    to: SocketAddr,
    approach: &ConnectParams,
) -> Result<(TcpStream, Option<RecordCiphers>), HandshakeError> {
    // The other side identifies this node by the address of its data interface.
    let mut stream = cool_tcp::connect(Some(from), to).await?;
    let ConnectParams { me, key, encrypt, .. } = approach;
    let Some(key) = key else {
        return if *encrypt { Err(HandshakeError::Plain) } else { Ok((stream, None)) };
    };
    // The messages of the handshake are short, and the other side waits for them.
    stream.set_nodelay(true)?;
    let records = handshake::initiate(&mut stream, me, key, *encrypt).await?;
    Ok((stream, records))
}

/// A connection that the driver reads and writes without waiting. When it is dropped, the remaining
/// data is written before the connection is closed.
pub(super) struct AgentConnection {
    stream: Arc<TcpStream>,
    /// The number of remaining bytes of the current frame, and their destination if it is known.
    pub(super) awaited: (u64, Option<MemoryRange>),
    /// The ciphers, if the connection is encrypted.
    records: Option<RecordCiphers>,
    /// A queue for data that the system did not accept immediately. Each item states how many bytes
    /// of frames count as written with it. The engine bounds the queue, because it sends no more
    /// than a window.
    rest: mpsc::UnboundedSender<(Vec<u8>, u64)>,
    /// The number of such items that have not been written yet.
    unwritten: usize,
    congestion: Congestion,
    reader: AbortHandle,
    /// Lets the reader report again when data has arrived.
    resume: Arc<Notify>,
    /// Whether decrypted bytes are waiting here. The system does not wake the reader for them.
    waiting: Arc<AtomicBool>,
    /// The number of bytes for which the system must wake the reader.
    low_water: usize,
    /// Whether the last data belonged to a message that is read directly to its destination.
    is_direct: bool,
}

/// The result of a read from a connection.
pub(super) struct ReadOutcome {
    /// The number of bytes that were read to the given destination.
    pub(super) placed: usize,
    /// The number of further bytes, in the buffer.
    pub(super) tail: usize,
    /// Whether all data that had arrived has been read.
    pub(super) drained: bool,
}

impl AgentConnection {
    /// Starts to report when data arrives over a stream.
    pub(super) fn new(
        id: AgentConnectionId,
        (stream, records): (TcpStream, Option<RecordCiphers>),
        link: &LinkEstimate,
        events: &DriverEvents,
    ) -> AgentConnection {
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "cannot tune a connection");
        }
        let congestion = link.choose(&stream);
        let stream = Arc::new(stream);
        let (rest, queue) = mpsc::unbounded_channel();
        tokio::spawn(write(id, Arc::clone(&stream), queue, events.clone()));
        let (resume, waiting) = (Arc::new(Notify::new()), Arc::<AtomicBool>::default());
        let watched =
            watch(id, Arc::clone(&stream), (Arc::clone(&resume), Arc::clone(&waiting)), events.clone());
        let reader = tokio::spawn(watched).abort_handle();
        AgentConnection {
            stream,
            awaited: (0, None),
            records,
            rest,
            unwritten: 0,
            congestion,
            reader,
            resume,
            waiting,
            low_water: 1,
            is_direct: false,
        }
    }

    /// Writes a frame behind all earlier ones. Returns how many bytes were written immediately;
    /// [`DriverEvent::Written`] reports the rest.
    pub(super) fn write(&mut self, mut head: Vec<u8>, mut payload: Option<SharedSlice>) -> u64 {
        if let Some(short) = payload.take_if(|payload| !(payload.is_long() && payload.is_mapped())) {
            short.append(0, short.bytes() as usize, &mut head);
        }
        if let Some(records) = &mut self.records {
            if let Some(payload) = &payload {
                payload.append(0, payload.bytes() as usize, &mut head);
            }
            let sealed = records.sealer.seal(&head);
            return self.write_sealed(sealed, head.len() as u64);
        }
        let bytes = head.len() as u64 + payload.as_ref().map_or(0, SharedSlice::bytes);
        let written = if self.unwritten > 0 { 0 } else { self.write_now(&head, payload.as_ref()) };
        if written > 0 {
            self.wrote(written);
        }
        if written < bytes {
            let whole = head.len() as u64;
            let mut rest = head;
            rest.drain(..written.min(whole) as usize);
            if let Some(payload) = payload {
                let from = written.saturating_sub(whole);
                // The length of a frame's payload fits a `usize`.
                payload.append(from, (payload.bytes() - from) as usize, &mut rest);
            }
            self.queue_rest(rest, bytes - written);
        }
        written
    }

    /// Writes the encrypted records of a frame like [`AgentConnection::write`]. The frame counts as
    /// written when its last record is.
    fn write_sealed(&mut self, mut sealed: Vec<u8>, frame_bytes: u64) -> u64 {
        let written = if self.unwritten > 0 { 0 } else { self.write_now(&sealed, None) };
        if written > 0 {
            self.wrote(written);
        }
        if written == sealed.len() as u64 {
            return frame_bytes;
        }
        sealed.drain(..written as usize);
        self.queue_rest(sealed, frame_bytes);
        0
    }

    /// Queues the data that the system did not accept.
    fn queue_rest(&mut self, rest: Vec<u8>, frame_bytes: u64) {
        self.unwritten += 1;
        // If the task that writes has ended, it has reported the end of the connection.
        let _ = self.rest.send((rest, frame_bytes));
    }

    /// Writes data that the system accepts immediately. Returns the number of bytes, which is 0 on
    /// an error, because the task that writes the rest then gets the same error.
    fn write_now(&self, head: &[u8], payload: Option<&SharedSlice>) -> u64 {
        let written = self.stream.try_io(Interest::WRITABLE, || {
            let sent = payload.and_then(|payload| payload.send(self.stream.as_fd(), head));
            sent.unwrap_or_else(|| Ok(rustix::net::send(&*self.stream, head, SendFlags::NOSIGNAL)?))
        });
        written.map_or(0, |bytes| bytes as u64)
    }

    /// Records that an item of queued data has been written, with this many bytes of frames.
    pub(super) fn wrote_rest(&mut self, bytes: u64) {
        self.unwritten -= 1;
        self.wrote(bytes);
    }

    fn wrote(&mut self, bytes: u64) {
        if let Err(error) = self.congestion.on_write(&*self.stream, bytes as usize) {
            tracing::debug!(%error, "cannot read the retransmissions of a connection");
        }
    }

    /// Reads the rest of the current frame and later frames: to the destination of the frame's
    /// payload, if it is known, and the remaining data into `tail` or its beginning. The numbers of
    /// bytes in the result are 0 at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the connection has failed, or `WouldBlock` if no data has arrived.
    pub(super) fn read(
        &mut self,
        (missing, place): (u64, Option<SharedSlice>),
        tail: &mut [u8],
    ) -> io::Result<ReadOutcome> {
        if let Some(RecordCiphers { opener, .. }) = &mut self.records {
            return read_sealed((&self.stream, opener), &self.waiting, place.as_ref(), tail);
        }
        let place = place.filter(SharedSlice::is_mapped);
        if missing > 0 {
            self.is_direct = place.is_some();
        }
        // The next frame is likely to be like this one, so nothing beyond its header should be read
        // into the buffer.
        let tail = if self.is_direct { &mut tail[..HEADS] } else { tail };
        let mut outcome = None;
        // If there was less data than room, none is left. `WouldBlock` then makes Tokio wait until
        // more arrives.
        let result = self.stream.try_io(Interest::READABLE, || {
            let here = place
                .as_ref()
                .and_then(|place| Some((place.bytes(), place.receive(self.stream.as_fd(), tail)?)));
            let (room, bytes) = match here {
                Some((room, bytes)) => (room as usize, bytes?),
                None => (0, rustix::net::recv(&*self.stream, &mut *tail, RecvFlags::empty())?.0),
            };
            let drained = bytes < room + tail.len();
            let placed = bytes.min(room);
            outcome = Some(ReadOutcome { placed, tail: bytes - placed, drained });
            if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        outcome.map_or_else(|| Err(result.err().unwrap_or(io::ErrorKind::WouldBlock.into())), Ok)
    }

    /// Lets the reader report when more data has arrived.
    pub(super) fn await_more(&mut self) {
        let (missing, _) = self.awaited;
        // A part of an encrypted record may have been read already, so the number of its missing
        // bytes is unknown here.
        let most = if self.records.is_some() { 1 } else { LOW_WATER as u64 };
        let worth = (missing.max(1)).min(most) as usize;
        if worth != self.low_water {
            self.low_water = worth;
            if let Err(error) = set_low_water(&*self.stream, worth as u32) {
                tracing::debug!(%error, "cannot set how much a connection waits for");
            }
        }
        self.resume.notify_one();
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Reads and decrypts data like [`AgentConnection::read`]. Sets `waiting` to whether decrypted data
/// is left.
fn read_sealed(
    (stream, opener): (&TcpStream, &mut Opener<AesGcm>),
    waiting: &AtomicBool,
    place: Option<&SharedSlice>,
    tail: &mut [u8],
) -> io::Result<ReadOutcome> {
    let mut drained = false;
    while opener.plain().map_err(io::Error::other)?.is_empty() {
        if drained {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut outcome = None;
        let result = stream.try_io(Interest::READABLE, || {
            let room = opener.room();
            let bytes = rustix::net::recv(stream, &mut *room, RecvFlags::empty())?.0;
            drained = bytes < room.len();
            outcome = Some(bytes);
            if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match outcome {
            None => return Err(result.err().unwrap_or(io::ErrorKind::WouldBlock.into())),
            Some(0) => return Ok(ReadOutcome { placed: 0, tail: 0, drained: true }),
            Some(bytes) => opener.received(bytes),
        }
    }
    let room = place.map_or(0, SharedSlice::bytes) as usize;
    let (mut placed, mut tailed) = (0, 0);
    loop {
        let plain = opener.plain().map_err(io::Error::other)?;
        let taken = match place {
            Some(place) if placed < room => {
                let taken = plain.len().min(room - placed);
                place.write(placed as u64, &plain[..taken]);
                placed += taken;
                taken
            }
            _ => {
                let taken = plain.len().min(tail.len() - tailed);
                tail[tailed..tailed + taken].copy_from_slice(&plain[..taken]);
                tailed += taken;
                taken
            }
        };
        if taken == 0 {
            break;
        }
        opener.consume(taken);
    }
    let waits = !opener.plain().map_err(io::Error::other)?.is_empty();
    waiting.store(waits, Ordering::Relaxed);
    Ok(ReadOutcome { placed, tail: tailed, drained: drained && !waits })
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT)?;
    let probes = TcpKeepalive::new().with_time(DEAD_AFTER / 2).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_thin_linear_timeouts(true)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}

/// Reports to the driver whenever data has arrived.
async fn watch(
    connection: AgentConnectionId,
    stream: Arc<TcpStream>,
    (resume, waiting): (Arc<Notify>, Arc<AtomicBool>),
    events: DriverEvents,
) {
    loop {
        if !waiting.load(Ordering::Relaxed) {
            // An error is ignored here, because the driver's read returns it.
            let _ = stream.readable().await;
        }
        if events.send(DriverEvent::Readable(connection)).await.is_err() {
            return;
        }
        resume.notified().await;
    }
}

async fn write(
    connection: AgentConnectionId,
    stream: Arc<TcpStream>,
    mut queue: mpsc::UnboundedReceiver<(Vec<u8>, u64)>,
    events: DriverEvents,
) {
    while let Some((bytes, frame_bytes)) = queue.recv().await {
        // Once the driver has dropped its end, writing the rest must not take forever.
        let written = if queue.sender_strong_count() == 0 {
            timeout(FLUSH_TIMEOUT, write_all(&stream, &bytes))
                .await
                .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        } else {
            write_all(&stream, &bytes).await
        };
        let event = match written {
            Ok(()) => DriverEvent::Written { connection, bytes: frame_bytes },
            Err(error) => {
                let why = failed(&error);
                // If the driver has ended, the event is not needed.
                let _ = events.send(DriverEvent::Closed { connection, why }).await;
                return;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
    // An error means that the stream is closed already.
    let _ = SockRef::from(&*stream).shutdown(Shutdown::Write);
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the reason why a connection failed, for the engine.
pub(super) fn failed(error: &io::Error) -> String {
    format!("the connection to its agent failed: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_not_unreachable_before_the_peer_timeout() {
        let seconds = [2, 10, 30].map(|s| connect_time_max(Duration::from_secs(s)).as_secs());
        assert_eq!(seconds, [10, 10, 30]);
    }
}
