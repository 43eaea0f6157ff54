//! Reading and writing a connection to another agent, which consists of one or several TCP streams.

use super::division::StreamCursor;
use super::handshake::RecordCiphers;
use super::{DriverEvent, DriverEvents};
use crate::engine::SharedSlice;
use cool_cipher::AesGcm;
use cool_engine::{AgentConnectionId, MemoryRange};
use cool_tcp::{Congestion, LinkEstimate, set_low_water};
use cool_transport::unicast::records::Opener;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The time without an answer after which the system closes a connection. The engine notices a lost
/// node sooner. The limit must be long, because at a loss of 20 % in each direction, TCP alone is
/// silent for many seconds now and then.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// The number of unsent bytes above which the system accepts no more, so that a small message does
/// not wait for long. The streams of a connection have equal shares.
const UNSENT: u32 = 128 * 1024;

/// Minimum number of unsent bytes that the system accepts on one of several streams.
const UNSENT_MIN: u32 = 16 * 1024;

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

/// The parts of a connection that its tasks use, too.
struct SharedStreams {
    streams: Vec<TcpStream>,
    /// The index of the stream from which the next byte must be read.
    current: AtomicUsize,
    /// Lets the reader report again when data has arrived.
    resume: Notify,
    /// Whether decrypted bytes are waiting here. The system does not wake the reader for them.
    waiting: AtomicBool,
}

/// The state of one TCP stream of a connection.
struct StreamState {
    /// A queue for data that the system did not accept immediately. Each item states how many bytes
    /// of frames count as written with it. The engine bounds the queue, because it sends no more
    /// than a window.
    rest: mpsc::UnboundedSender<(Vec<u8>, u64)>,
    /// The number of such items that have not been written yet.
    unwritten: usize,
    congestion: Congestion,
    /// The number of bytes for which the system must wake the reader.
    low_water: usize,
}

/// A connection that the driver reads and writes without waiting. When it is dropped, the remaining
/// data is written before the connection is closed.
pub(super) struct AgentConnection {
    shared: Arc<SharedStreams>,
    states: Vec<StreamState>,
    /// The positions of the next byte to write and to read.
    writes: StreamCursor,
    reads: StreamCursor,
    /// The number of remaining bytes of the current frame, and their destination if it is known.
    pub(super) awaited: (u64, Option<MemoryRange>),
    /// The ciphers, if the connection is encrypted.
    records: Option<RecordCiphers>,
    reader: AbortHandle,
    /// Whether the last data belonged to a message that is read directly to its destination.
    is_direct: bool,
}

/// The result of a read from a connection.
#[derive(Debug, Default)]
pub(super) struct ReadOutcome {
    /// The number of bytes that were read to the given destination.
    pub(super) placed: usize,
    /// The number of further bytes, in the buffer.
    pub(super) tail: usize,
    /// Whether all data that had arrived has been read.
    pub(super) drained: bool,
}

/// Data to write: a header, and payload that need not be copied first.
struct OutgoingFrame<'a> {
    head: &'a [u8],
    payload: Option<&'a SharedSlice>,
}

impl OutgoingFrame<'_> {
    fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.payload.map_or(0, SharedSlice::bytes)
    }

    /// Returns the bytes from `from` to `to`.
    fn range(&self, from: u64, to: u64) -> (&[u8], Option<SharedSlice>) {
        let whole = self.head.len() as u64;
        // The header fits a `usize`.
        let head = &self.head[from.min(whole) as usize..to.min(whole) as usize];
        let (from, to) = (from.saturating_sub(whole), to.saturating_sub(whole));
        let payload = self.payload.filter(|_| from < to).map(|payload| payload.part(from, to - from));
        (head, payload)
    }

    /// Returns a copy of the bytes from `from` to `to`.
    fn copy(&self, from: u64, to: u64) -> Vec<u8> {
        let (head, payload) = self.range(from, to);
        let mut copy = head.to_vec();
        if let Some(payload) = payload {
            // The length of a frame's payload fits a `usize`.
            payload.append(0, payload.bytes() as usize, &mut copy);
        }
        copy
    }
}

impl AgentConnection {
    /// Starts to report when data arrives over the streams of a connection, of which there is at
    /// least one.
    pub(super) fn new(
        id: AgentConnectionId,
        (streams, records): (Vec<TcpStream>, Option<RecordCiphers>),
        link: &LinkEstimate,
        events: &DriverEvents,
    ) -> AgentConnection {
        let count = streams.len();
        let shared = Arc::new(SharedStreams {
            streams,
            current: AtomicUsize::new(0),
            resume: Notify::new(),
            waiting: AtomicBool::new(false),
        });
        // There are at most 16 streams.
        let start = |index: usize| {
            let stream = &shared.streams[index];
            if let Err(error) = tune(stream, count) {
                tracing::debug!(%error, "cannot tune a connection");
            }
            let (rest, queue) = mpsc::unbounded_channel();
            tokio::spawn(write((id, index), Arc::clone(&shared), queue, events.clone()));
            StreamState { rest, unwritten: 0, congestion: link.choose(stream, count as u32), low_water: 1 }
        };
        AgentConnection {
            states: (0..count).map(start).collect(),
            writes: StreamCursor::new(count),
            reads: StreamCursor::new(count),
            awaited: (0, None),
            records,
            reader: tokio::spawn(watch(id, Arc::clone(&shared), events.clone())).abort_handle(),
            is_direct: false,
            shared,
        }
    }

    /// Writes a frame behind all earlier ones. Returns how many bytes were written immediately;
    /// [`DriverEvent::Written`] reports the rest.
    pub(super) fn write(&mut self, mut head: Vec<u8>, mut payload: Option<SharedSlice>) -> u64 {
        let is_copied =
            |payload: &SharedSlice| self.records.is_some() || !(payload.is_long() && payload.is_mapped());
        if let Some(copied) = payload.take_if(|payload| is_copied(payload)) {
            copied.append(0, copied.bytes() as usize, &mut head);
        }
        if let Some(records) = &mut self.records {
            let sealed = records.sealer.seal(&head);
            return self.write_divided(&OutgoingFrame { head: &sealed, payload: None }, head.len() as u64);
        }
        let frame = OutgoingFrame { head: &head, payload: payload.as_ref() };
        self.write_divided(&frame, frame.bytes())
    }

    /// Writes data to the streams that carry it, and queues the part that the system does not
    /// accept. The whole counts as `counted` bytes of frames. Returns how many of them were
    /// written.
    fn write_divided(&mut self, frame: &OutgoingFrame<'_>, counted: u64) -> u64 {
        let all = frame.bytes();
        // The quotient is at most `counted`.
        let counted_until = |at: u64| (u128::from(at) * u128::from(counted) / u128::from(all)) as u64;
        let (mut at, mut written) = (0, 0);
        while at < all {
            let index = self.writes.stream();
            let end = all.min(at.saturating_add(self.writes.left()));
            let (state, stream) = (&mut self.states[index], &self.shared.streams[index]);
            let accepted = if state.unwritten > 0 { 0 } else { write_now(stream, frame.range(at, end)) };
            if accepted > 0 {
                state.wrote(stream, accepted);
                written += counted_until(at + accepted) - counted_until(at);
            }
            if at + accepted < end {
                let (from, count) = (at + accepted, counted_until(end) - counted_until(at + accepted));
                state.unwritten += 1;
                // If the task that writes has ended, it has reported the end of the connection.
                let _ = state.rest.send((frame.copy(from, end), count));
            }
            self.writes.advance(end - at);
            at = end;
        }
        written
    }

    /// Records that an item of queued data has been written to a stream, with this many bytes of
    /// frames.
    pub(super) fn wrote_rest(&mut self, stream: usize, bytes: u64) {
        self.states[stream].unwritten -= 1;
        self.states[stream].wrote(&self.shared.streams[stream], bytes);
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
            return read_sealed((&self.shared, &mut self.reads), opener, place.as_ref(), tail);
        }
        let place = place.filter(SharedSlice::is_mapped);
        if missing > 0 {
            self.is_direct = place.is_some();
        }
        // The next frame is likely to be like this one, so nothing beyond its header should be read
        // into the buffer.
        let tail = if self.is_direct { &mut tail[..HEADS] } else { tail };
        let room = place.as_ref().map_or(0, SharedSlice::bytes);
        let mut outcome = ReadOutcome::default();
        while !outcome.drained && outcome.placed as u64 + (outcome.tail as u64) < room + tail.len() as u64 {
            let placed = outcome.placed as u64;
            let part = self.reads.left().min(room - placed);
            let place = place.as_ref().filter(|_| part > 0).map(|place| place.part(placed, part));
            // A part that ends within the destination leaves nothing for the buffer.
            let more = usize::try_from(self.reads.left() - part).unwrap_or(usize::MAX);
            let end = outcome.tail.saturating_add(more).min(tail.len());
            let buffer = &mut tail[outcome.tail..end];
            match receive(&self.shared, (place.as_ref(), buffer)) {
                // Whatever ends the connection also ends the next read.
                Ok((0, _)) | Err(_) if outcome.placed + outcome.tail > 0 => break,
                Ok((0, _)) => return Ok(outcome),
                Ok((bytes, drained)) => {
                    let placed = bytes.min(part as usize);
                    outcome.placed += placed;
                    outcome.tail += bytes - placed;
                    outcome.drained = drained;
                    self.shared.advance(&mut self.reads, bytes);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(outcome)
    }

    /// Lets the reader report when more data has arrived.
    pub(super) fn await_more(&mut self) {
        let (missing, _) = self.awaited;
        // A part of an encrypted record may have been read already, so the number of its missing
        // bytes is unknown here.
        let most = if self.records.is_some() { 1 } else { self.reads.left_of(LOW_WATER) as u64 };
        let worth = (missing.max(1)).min(most) as usize;
        let (state, stream) =
            (&mut self.states[self.reads.stream()], &self.shared.streams[self.reads.stream()]);
        if worth != state.low_water {
            state.low_water = worth;
            if let Err(error) = set_low_water(stream, worth as u32) {
                tracing::debug!(%error, "cannot set how much a connection waits for");
            }
        }
        self.shared.resume.notify_one();
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl StreamState {
    fn wrote(&mut self, stream: &TcpStream, bytes: u64) {
        if let Err(error) = self.congestion.on_write(stream, bytes as usize) {
            tracing::debug!(%error, "cannot read the retransmissions of a connection");
        }
    }
}

impl SharedStreams {
    fn current(&self) -> &TcpStream {
        &self.streams[self.current.load(Ordering::Relaxed)]
    }

    /// Records that this many bytes were read.
    fn advance(&self, reads: &mut StreamCursor, bytes: usize) {
        reads.advance(bytes as u64);
        self.current.store(reads.stream(), Ordering::Relaxed);
    }
}

/// Writes data that the system accepts immediately. Returns the number of bytes, which is 0 on an
/// error, because the task that writes the rest then gets the same error.
fn write_now(stream: &TcpStream, (head, payload): (&[u8], Option<SharedSlice>)) -> u64 {
    let written = stream.try_io(Interest::WRITABLE, || {
        let sent = payload.and_then(|payload| payload.send(stream.as_fd(), head));
        sent.unwrap_or_else(|| Ok(rustix::net::send(stream, head, SendFlags::NOSIGNAL)?))
    });
    written.map_or(0, |bytes| bytes as u64)
}

/// Reads from the current stream to a destination, if there is one, and further bytes into a
/// buffer. Returns the number of bytes, and whether none are left.
fn receive(
    shared: &SharedStreams,
    (place, buffer): (Option<&SharedSlice>, &mut [u8]),
) -> io::Result<(usize, bool)> {
    let stream = shared.current();
    let mut received = None;
    // If there was less data than room, none is left. `WouldBlock` then makes Tokio wait until more
    // arrives.
    let result = stream.try_io(Interest::READABLE, || {
        let here = place.and_then(|place| Some((place.bytes(), place.receive(stream.as_fd(), buffer)?)));
        let (room, bytes) = match here {
            Some((room, bytes)) => (room as usize, bytes?),
            None => (0, rustix::net::recv(stream, &mut *buffer, RecvFlags::empty())?.0),
        };
        let drained = bytes < room + buffer.len();
        received = Some((bytes, drained));
        if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    received.map_or_else(|| Err(result.err().unwrap_or(io::ErrorKind::WouldBlock.into())), Ok)
}

/// Reads and decrypts data like [`AgentConnection::read`]. Sets whether decrypted data is left.
fn read_sealed(
    (shared, reads): (&SharedStreams, &mut StreamCursor),
    opener: &mut Opener<AesGcm>,
    place: Option<&SharedSlice>,
    tail: &mut [u8],
) -> io::Result<ReadOutcome> {
    let mut drained = false;
    while opener.plain().map_err(io::Error::other)?.is_empty() {
        if drained {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = opener.room();
        let part = reads.left_of(room.len());
        let bytes;
        (bytes, drained) = receive(shared, (None, &mut room[..part]))?;
        if bytes == 0 {
            return Ok(ReadOutcome { drained, ..ReadOutcome::default() });
        }
        shared.advance(reads, bytes);
        opener.received(bytes);
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
    shared.waiting.store(waits, Ordering::Relaxed);
    Ok(ReadOutcome { placed, tail: tailed, drained: drained && !waits })
}

/// Configures one of the streams of a connection.
fn tune(stream: &TcpStream, streams: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // There are at most 16 streams.
    socket.set_tcp_notsent_lowat((UNSENT / streams as u32).max(UNSENT_MIN))?;
    let probes = TcpKeepalive::new().with_time(DEAD_AFTER / 2).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_thin_linear_timeouts(true)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}

/// Reports to the driver whenever data has arrived.
async fn watch(connection: AgentConnectionId, shared: Arc<SharedStreams>, events: DriverEvents) {
    loop {
        if !shared.waiting.load(Ordering::Relaxed) {
            // An error is ignored here, because the driver's read returns it.
            let _ = shared.current().readable().await;
        }
        if events.send(DriverEvent::Readable(connection)).await.is_err() {
            return;
        }
        shared.resume.notified().await;
    }
}

/// Writes the queued data of a stream, and reports if the stream fails.
async fn write(
    (connection, index): (AgentConnectionId, usize),
    shared: Arc<SharedStreams>,
    mut queue: mpsc::UnboundedReceiver<(Vec<u8>, u64)>,
    events: DriverEvents,
) {
    let stream = &shared.streams[index];
    // The driver reads only one stream at a time, and would notice late that another has failed.
    let is_watched = shared.streams.len() > 1;
    loop {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            _ = stream.ready(Interest::ERROR), if is_watched => {
                let error = stream.take_error().ok().flatten();
                let why = failed(&error.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()));
                // If the driver has ended, the event is not needed.
                let _ = events.send(DriverEvent::StreamFailed { connection, why }).await;
                return;
            }
        };
        let Some((bytes, frame_bytes)) = next else { break };
        // Once the driver has dropped its end, writing the rest must not take forever.
        let written = if queue.sender_strong_count() == 0 {
            timeout(FLUSH_TIMEOUT, write_all(stream, &bytes))
                .await
                .unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        } else {
            write_all(stream, &bytes).await
        };
        let event = match written {
            Ok(()) => DriverEvent::Written { connection, stream: index, bytes: frame_bytes },
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
    let _ = SockRef::from(stream).shutdown(Shutdown::Write);
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
