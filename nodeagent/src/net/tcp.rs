//! TCP connections to other agents: accepting and connecting.

use super::handshake::{self, GreetedStream, HandshakeError, LinkSecurity, RecordCiphers};
use super::stream_sets::{CompleteSet, StreamSets};
use super::{DriverEvent, DriverEvents};
use crate::engine::{RefusalCounters, RefusalReason};
use cool_engine::{AgentId, NodeId, PeerKey};
use cool_tcp::bound_retransmission_timeout;
use cool_transport::unicast::handshake::StreamPlace;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

/// Minimum time for which to try to connect, because the other agent may be starting.
const CONNECT_TIME_MIN: Duration = Duration::from_secs(10);

/// The time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// Maximum number of connections with an incomplete handshake. To crowd out an agent, an attacker
/// would have to make as many connections within the round trip in which the agent identifies
/// itself.
const SILENT_MAX: usize = 256;

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
    let sets = StreamSets::default();
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
        let from = (from.ip(), sets.clone());
        let greeted = greet(stream, from, security.clone(), Arc::clone(&refusals), events.clone());
        silent.push_back(tokio::spawn(greeted).abort_handle());
    }
}

/// Passes a connection to the driver once the other side has proved its identity on all of its
/// streams, or has sent a frame without a handshake.
async fn greet(
    mut stream: TcpStream,
    (from, sets): (IpAddr, StreamSets),
    security: LinkSecurity,
    refusals: Arc<RefusalCounters>,
    events: DriverEvents,
) {
    bound_retransmission_timeout(&stream);
    let refuse = move |error: &dyn Display| {
        refusals.count(RefusalReason::Handshake);
        tracing::debug!(%from, %error, "refused a connection");
    };
    let (streams, records, proven) = match handshake::respond(&mut stream, &security).await {
        Ok((None, records)) => (vec![stream], records, None),
        Ok((Some((agent, None)), records)) => (vec![stream], records, Some(agent)),
        Ok((Some((agent, Some(place))), records)) => {
            let (greeted, late) = (GreetedStream { stream, records }, refuse.clone());
            match sets.add((agent.clone(), from), greeted, place, move |error| late(&error)) {
                Ok(Some(CompleteSet { streams, records })) => (streams, records, Some(agent)),
                Ok(None) => return,
                Err(error) => return refuse(&error),
            }
        }
        Err(HandshakeError::Abandoned) => return,
        Err(error) => return refuse(&error),
    };
    // If the driver has ended, the event is not needed.
    let _ = events.send(DriverEvent::Accepted { streams, records, from, proven }).await;
}

/// The parameters of a connection to another agent.
pub(super) struct ConnectParams {
    /// The identity of this agent.
    pub(super) me: AgentId,
    /// The other agent's key; `None` if it has none.
    pub(super) key: Option<PeerKey>,
    /// Whether the connection must be encrypted.
    pub(super) encrypt: bool,
    /// Number of streams of the connection, if the other agent has a key; 0 means one.
    pub(super) streams: u8,
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
        let error = match timeout_at(until, connect_streams(from, to, &approach)).await {
            Ok(Ok((streams, records))) => break DriverEvent::Connected { node, streams, records },
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

/// Connects all streams of a connection, one after the other, so that many agents that connect at
/// once have no more incomplete handshakes than with one stream each.
async fn connect_streams(
    from: IpAddr,
    to: SocketAddr,
    approach: &ConnectParams,
) -> Result<(Vec<TcpStream>, Option<RecordCiphers>), HandshakeError> {
    if approach.key.is_none() || approach.streams <= 1 {
        let (stream, records) = connect_once(from, to, approach, None).await?;
        return Ok((vec![stream], records));
    }
    let (count, token) = (approach.streams, handshake::random()?);
    let (mut streams, mut of_first) = (Vec::new(), None);
    for index in 0..count {
        let place = StreamPlace { token, index, count };
        let (stream, records) = connect_once(from, to, approach, Some(place)).await?;
        streams.push(stream);
        // The other streams' ciphers are not needed, because records are made before the division.
        of_first = if index == 0 { records } else { of_first };
    }
    Ok((streams, of_first))
}

async fn connect_once(
    from: IpAddr,
    to: SocketAddr,
    approach: &ConnectParams,
    place: Option<StreamPlace>,
) -> Result<(TcpStream, Option<RecordCiphers>), HandshakeError> {
    // The other side identifies this node by the address of its data interface.
    let mut stream = cool_tcp::connect(Some(from), to).await?;
    let ConnectParams { me, key, encrypt, .. } = approach;
    let Some(key) = key else {
        return if *encrypt { Err(HandshakeError::Plain) } else { Ok((stream, None)) };
    };
    // The messages of the handshake are short, and the other side waits for them.
    stream.set_nodelay(true)?;
    let records = handshake::initiate(&mut stream, me, key, (*encrypt, place)).await?;
    Ok((stream, records))
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
