//! TCP connections to other agents: accepting, connecting, reading, writing.

use super::congestion::{Congestion, Link};
use super::{Event, Events, sockopt};
use crate::engine::ConnectionId;
use cool_transport::unicast::Frames;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long to try to connect: an agent that is starting, too, needs a moment.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to leave a peer alone that refused.
const RETRY: Duration = Duration::from_millis(50);

/// After so long without an answer a connection is closed. That a node is gone is noticed sooner, by the engine: at a
/// loss of 20 % each way, TCP alone keeps silent for many seconds now and then.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// So long after a round trip, at least, what was lost is sent again. TCP alone waits 200 ms, made for the Internet: as
/// long as half a megabyte takes at 20 Mbit/s, and all who wait for the message wait with it.
const SHORTEST_RETRY: Duration = Duration::from_millis(30);

/// At most so long after the last try it is. TCP alone doubles the time with each loss, up to two minutes, so that at a
/// loss of 20 % a connection fails now and then though both sides live.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Unsent bytes beyond which the system takes no more: a small message waits for no more than these.
const UNSENT: u32 = 128 * 1024;

/// How long a connection that was given up may take to write what it still has.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Room for one read: twice what the last one brought, within these.
const READ: std::ops::RangeInclusive<usize> = 4 * 1024..=64 * 1024;

/// A reader is woken for no less of a frame than this, or its end: else each packet would wake the engine.
const LOW_WATER: usize = 32 * 1024;

/// The socket to which other agents connect.
pub(super) fn bind(ip: Ipv4Addr, port: u16) -> io::Result<(std::net::TcpListener, u16)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddrV4::new(ip, port).into())?;
    socket.listen(1024)?;
    let listener: std::net::TcpListener = socket.into();
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Accepts connections until the driver is gone.
pub(super) async fn accept(listener: TcpListener, events: Events) {
    loop {
        match listener.accept().await {
            Ok((stream, SocketAddr::V4(from))) => {
                if events.send(Event::Accepted(stream, *from.ip())).await.is_err() {
                    return;
                }
            }
            Ok((_, SocketAddr::V6(_))) => {}
            Err(error) => {
                // Most likely there are too many open files: only time helps.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(RETRY).await;
            }
        }
    }
}

/// Connects to a node, again and again within bounds.
pub(super) async fn connect(node: String, from: Ipv4Addr, to: SocketAddrV4, events: Events) {
    let until = Instant::now() + CONNECT_TIMEOUT;
    let event = loop {
        let error = match timeout_at(until, connect_once(from, to)).await {
            Ok(Ok(stream)) => break Event::Connected { node, stream },
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        if Instant::now() + RETRY >= until {
            let why = format!("its agent at {to} could not be reached for {CONNECT_TIMEOUT:?}: {error}");
            break Event::Unreachable { node, why };
        }
        sleep(RETRY).await;
    };
    // Without a driver nobody wants to know.
    let _ = events.send(event).await;
}

async fn connect_once(from: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    // The other side knows this node by the address of its data interface.
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to.into()).await
}

/// A connection that the driver writes to. Dropped, it writes what it has and closes.
pub(super) struct Connection {
    /// Bounded by the engine, which has no more under way than a window.
    bytes: mpsc::UnboundedSender<Vec<u8>>,
    reader: tokio::task::AbortHandle,
}

impl Connection {
    /// Starts to read from a stream.
    pub(super) fn new(id: ConnectionId, stream: TcpStream, link: &Link, events: &Events) -> Connection {
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "cannot tune a connection");
        }
        let congestion = link.choose(&stream);
        let (reading, writing) = stream.into_split();
        let (bytes, queue) = mpsc::unbounded_channel();
        tokio::spawn(write(id, writing, queue, congestion, events.clone()));
        let reader = tokio::spawn(read(id, reading, events.clone())).abort_handle();
        Connection { bytes, reader }
    }

    /// Writes after all that was to be written before.
    pub(super) fn write(&self, bytes: Vec<u8>) {
        // If the writer has given up, the reader has found the connection closed, or will.
        let _ = self.bytes.send(bytes);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT)?;
    let probes = TcpKeepalive::new().with_time(DEAD_AFTER / 2).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_thin_linear_timeouts(true)?;
    if let Err(error) = sockopt::set_retries(stream, SHORTEST_RETRY, LONGEST_RETRY) {
        tracing::debug!(%error, "the system does not bound the time between retries");
    }
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}

async fn read(connection: ConnectionId, mut stream: OwnedReadHalf, events: Events) {
    let (mut frames, mut low_water, mut room) = (Frames::default(), 1, *READ.start());
    let why = loop {
        let mut bytes = Vec::with_capacity(room);
        match stream.read_buf(&mut bytes).await {
            Ok(0) => break "its agent closed the connection".to_owned(),
            Ok(came) => {
                room = (2 * came).clamp(*READ.start(), *READ.end());
                let worth = frames.read(&bytes).min(LOW_WATER);
                if worth != low_water {
                    low_water = worth;
                    if let Err(error) = sockopt::set_low_water(stream.as_ref(), low_water as u32) {
                        tracing::debug!(%error, "cannot set how much a connection waits for");
                    }
                }
                if events.send(Event::Bytes { connection, bytes }).await.is_err() {
                    return;
                }
            }
            Err(error) => break format!("the connection to its agent failed: {error}"),
        }
    };
    // Without a driver nobody wants to know.
    let _ = events.send(Event::Closed { connection, why }).await;
}

async fn write(
    connection: ConnectionId,
    mut stream: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    mut congestion: Congestion,
    events: Events,
) {
    while let Some(bytes) = queue.recv().await {
        // Once the driver has dropped its end, what is left must not take for ever.
        let written = if queue.sender_strong_count() == 0 {
            timeout(LAST_WORDS, stream.write_all(&bytes)).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
        } else {
            stream.write_all(&bytes).await
        };
        let written = written.and_then(|()| congestion.wrote(stream.as_ref(), bytes.len()));
        let event = match written {
            Ok(()) => Event::Written { connection, bytes: bytes.len() as u64 },
            Err(error) => {
                let why = format!("the connection to its agent failed: {error}");
                // Without a driver nobody wants to know.
                let _ = events.send(Event::Closed { connection, why }).await;
                return;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}
