//! TCP connections to other agents: accepting, connecting, reading, writing.

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

/// How long to try to connect: an agent that is starting, too, needs a moment.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to leave a peer alone that refused.
const RETRY: Duration = Duration::from_millis(50);

/// After so long without an answer a connection is closed. That a node is gone is noticed sooner, by the engine: at a
/// loss of 20 % each way, TCP alone keeps silent for many seconds now and then.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// The most connections that have not said yet who they are. Who wants to crowd out an agent has to make as many while it
/// says that, which takes a round trip.
const SILENT_MAX: usize = 256;

/// Unsent bytes beyond which the system takes no more: a small message waits for no more than these.
const UNSENT: u32 = 128 * 1024;

/// How long a connection that was given up may take to write what it still has.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Room for one read of what has no known place.
pub(super) const READ: usize = 64 * 1024;

/// Room behind a place: for the heads of some frames.
const HEADS: usize = 1024;

/// A reader is woken for no less of a frame than this, or its end: else each packet would wake the engine.
const LOW_WATER: usize = 32 * 1024;

/// The socket to which other agents connect.
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

/// Accepts connections until the driver is gone. Who has not said what it wants yet is not the engine's concern.
pub(super) async fn accept(
    listener: TcpListener,
    security: LinkSecurity,
    refusals: Arc<RefusalCounters>,
    events: DriverEvents,
) {
    // How many there may be is the engine's to say: it drops those of others than its peers.
    let incoming = cool_daemon::accept::LimitedListener::new(listener, "agent", usize::MAX);
    let mut silent: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let ((stream, from), _) = incoming.next().await;
        if events.is_closed() {
            return;
        }
        silent.retain(|task| !task.is_finished());
        if silent.len() >= SILENT_MAX {
            // The one that has been silent longest.
            silent.pop_front().into_iter().for_each(|task| task.abort());
        }
        let greeted = greet(stream, from.ip(), security.clone(), Arc::clone(&refusals), events.clone());
        silent.push_back(tokio::spawn(greeted).abort_handle());
    }
}

/// Hands a connection to the driver once it is known who has made it, or that it will not say.
async fn greet(
    mut stream: TcpStream,
    from: IpAddr,
    security: LinkSecurity,
    refusals: Arc<RefusalCounters>,
    events: DriverEvents,
) {
    bound_retransmission_timeout(&stream);
    match handshake::respond(&mut stream, &security).await {
        // Without a driver nobody wants to know.
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

/// How to approach another agent.
pub(super) struct ConnectParams {
    /// Who this is.
    pub(super) me: AgentId,
    /// The other's key; none if it knows nothing of proofs.
    pub(super) key: Option<PeerKey>,
    /// Whether all that is said is to be encrypted.
    pub(super) encrypt: bool,
}

/// Connects to a node, again and again within bounds, and proves to it who this is if it can examine that.
pub(super) async fn connect(
    node: NodeId,
    (from, to): (IpAddr, SocketAddr),
    approach: ConnectParams,
    events: DriverEvents,
) {
    let until = Instant::now() + CONNECT_TIMEOUT;
    let event = loop {
        let error = match timeout_at(until, connect_once(from, to, &approach)).await {
            Ok(Ok((stream, records))) => break DriverEvent::Connected { node, stream, records },
            Ok(Err(HandshakeError::Unproven)) => {
                let why = format!("the agent at {to} has another key than it had: it was started again");
                break DriverEvent::Unreachable { node, why };
            }
            Ok(Err(error @ HandshakeError::Plain)) => {
                break DriverEvent::Unreachable { node, why: format!("the agent at {to}: {error}") };
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::from(io::ErrorKind::TimedOut).into(),
        };
        if Instant::now() + RETRY >= until {
            let why = format!("its agent at {to} could not be reached for {CONNECT_TIMEOUT:?}: {error}");
            break DriverEvent::Unreachable { node, why };
        }
        sleep(RETRY).await;
    };
    // Without a driver nobody wants to know.
    let _ = events.send(event).await;
}

async fn connect_once(
    from: IpAddr,
    to: SocketAddr,
    approach: &ConnectParams,
) -> Result<(TcpStream, Option<RecordCiphers>), HandshakeError> {
    // The other side knows this node by the address of its data interface.
    let mut stream = cool_tcp::connect(Some(from), to).await?;
    let ConnectParams { me, key, encrypt } = approach;
    let Some(key) = key else {
        return if *encrypt { Err(HandshakeError::Plain) } else { Ok((stream, None)) };
    };
    // What is said is short, and the other side waits for it.
    stream.set_nodelay(true)?;
    let records = handshake::initiate(&mut stream, me, key, *encrypt).await?;
    Ok((stream, records))
}

/// A connection that the driver reads and writes, as far as the system goes along at once. Dropped, what it has still to
/// write is written, and it is closed.
pub(super) struct AgentConnection {
    stream: Arc<TcpStream>,
    /// Bytes to come of the frame that has begun, and where they belong if that is known.
    pub(super) awaited: (u64, Option<MemoryRange>),
    /// The records that all bytes go in; none on a connection that is not encrypted.
    records: Option<RecordCiphers>,
    /// What the system did not take at once, and for how many bytes of frames it stands. Bounded by the engine, which has no more
    /// under way than a window.
    rest: mpsc::UnboundedSender<(Vec<u8>, u64)>,
    /// How many of these have not been written.
    resting: usize,
    congestion: Congestion,
    reader: AbortHandle,
    /// Wakes the reader, to tell when something has come.
    resume: Arc<Notify>,
    /// Whether decrypted bytes wait here, of which the system knows nothing.
    waiting: Arc<AtomicBool>,
    /// For how many bytes the system is to wake it.
    low_water: usize,
    /// Whether what came last belonged to a message that goes straight to its place.
    straight: bool,
}

/// What a read brought.
pub(super) struct ReadOutcome {
    /// Bytes that went to the place that was given.
    pub(super) placed: usize,
    /// Bytes after them, in the buffer.
    pub(super) tail: usize,
    /// Whether nothing is left.
    pub(super) drained: bool,
}

impl AgentConnection {
    /// Starts to tell when something comes over a stream.
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
            resting: 0,
            congestion,
            reader,
            resume,
            waiting,
            low_water: 1,
            straight: false,
        }
    }

    /// Writes a frame after all that was to be written before: how much of it is written. Of the rest
    /// [`DriverEvent::Written`] tells.
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
        let written = if self.resting > 0 { 0 } else { self.write_now(&head, payload.as_ref()) };
        if written > 0 {
            self.wrote(written);
        }
        if written < bytes {
            let whole = head.len() as u64;
            let mut rest = head;
            rest.drain(..written.min(whole) as usize);
            if let Some(payload) = payload {
                let from = written.saturating_sub(whole);
                // A frame's payload is a usize.
                payload.append(from, (payload.bytes() - from) as usize, &mut rest);
            }
            self.queue_rest(rest, bytes - written);
        }
        written
    }

    /// As [`AgentConnection::write`], of the records of a frame: it is written when its last record is.
    fn write_sealed(&mut self, mut sealed: Vec<u8>, frame_bytes: u64) -> u64 {
        let written = if self.resting > 0 { 0 } else { self.write_now(&sealed, None) };
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

    /// Leaves to the writer what the system did not take.
    fn queue_rest(&mut self, rest: Vec<u8>, frame_bytes: u64) {
        self.resting += 1;
        // If the writer has given up, the reader has found the connection closed, or will.
        let _ = self.rest.send((rest, frame_bytes));
    }

    /// How much the system takes at once; none of what it refuses, of which the writer hears again.
    fn write_now(&self, head: &[u8], payload: Option<&SharedSlice>) -> u64 {
        let written = self.stream.try_io(Interest::WRITABLE, || {
            let sent = payload.and_then(|payload| payload.send(self.stream.as_fd(), head));
            sent.unwrap_or_else(|| Ok(rustix::net::send(&*self.stream, head, SendFlags::NOSIGNAL)?))
        });
        written.map_or(0, |bytes| bytes as u64)
    }

    /// A rest is written.
    pub(super) fn wrote_rest(&mut self, bytes: u64) {
        self.resting -= 1;
        self.wrote(bytes);
    }

    fn wrote(&mut self, bytes: u64) {
        if let Err(error) = self.congestion.on_write(&*self.stream, bytes as usize) {
            tracing::debug!(%error, "cannot learn what a connection has sent again");
        }
    }

    /// Reads what has come of a frame that lacks some bytes, and of later ones: to the place where it belongs, if that
    /// is known, and what follows into a part of `tail`.
    ///
    /// # Errors
    /// If the connection has failed, or nothing has come. That nothing will come any more is no error, and no bytes.
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
            self.straight = place.is_some();
        }
        // The next frame is likely to be like this one, and then not to be read beyond its head.
        let tail = if self.straight { &mut tail[..HEADS] } else { tail };
        let mut came = None;
        // Less than there was room for was all: the system wakes the reader for more.
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
            came = Some(ReadOutcome { placed, tail: bytes - placed, drained });
            if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        came.map_or_else(|| Err(result.err().unwrap_or(io::ErrorKind::WouldBlock.into())), Ok)
    }

    /// Lets the reader tell when more has come.
    pub(super) fn await_more(&mut self) {
        let (missing, _) = self.awaited;
        // Of a record a part may have come before.
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

/// As [`AgentConnection::read`], decrypted; `waiting` is whether some of it is left.
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
        let mut came = None;
        let result = stream.try_io(Interest::READABLE, || {
            let room = opener.room();
            let bytes = rustix::net::recv(stream, &mut *room, RecvFlags::empty())?.0;
            drained = bytes < room.len();
            came = Some(bytes);
            if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match came {
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

/// Tells the driver whenever something has come.
async fn watch(
    connection: AgentConnectionId,
    stream: Arc<TcpStream>,
    (resume, waiting): (Arc<Notify>, Arc<AtomicBool>),
    events: DriverEvents,
) {
    loop {
        if !waiting.load(Ordering::Relaxed) {
            // An error is for who reads.
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
        // Once the driver has dropped its end, what is left must not take for ever.
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
                // Without a driver nobody wants to know.
                let _ = events.send(DriverEvent::Closed { connection, why }).await;
                return;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
    // If it is closed already, there is nothing to be closed.
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

/// Why a connection ended.
pub(super) fn failed(error: &io::Error) -> String {
    format!("the connection to its agent failed: {error}")
}
