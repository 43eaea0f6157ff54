//! Measures the path to another agent on request of the controller, and responds to the
//! measurements of other agents. The measurement is independent of the data path: it uses its own
//! port, sends few bytes, and ends immediately when it is dropped.
//!
//! A measurement uses one TCP connection. The latency is half the round-trip time of a small
//! message; the first quartile is used, because lost packets only ever increase the time. Then
//! trains of bytes are sent. The other side reports how long the train took without its first
//! bytes, which an idle link may pass at once; this determines the rate. The bytes that arrived
//! earlier than the rate allows are the burst. The trains get longer until one takes long enough to
//! be timed, and the fastest counts, again because losses only increase the time.

use cool_collective::timing::nanos;
use cool_daemon::accept::LimitedListener;
use cool_types::wire::{ETHERNET, TCP_IP, beyond_ipv4};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use std::{fmt, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// The number of small messages in each direction for the latency. After `FOR_ROUND_TRIPS`, for
/// example because packets are lost, `FEWEST` are enough.
const ROUND_TRIPS: usize = 15;
const FEWEST: usize = 3;
const FOR_ROUND_TRIPS: Duration = Duration::from_millis(500);
/// The sizes of trains in bytes, in ascending order. The largest bounds the data of a measurement.
const TRAINS: [u64; 3] = [64 << 10, 512 << 10, 4 << 20];
/// Number of trains of the size that takes long enough.
const REPEATS: usize = 3;
/// The number of bytes at the beginning of a train that are not timed. It is more than token
/// buckets and TCP's first window pass at once.
const HEAD: u64 = 32 << 10;
/// A train takes long enough if its timed part takes this long.
const LONG_ENOUGH: Duration = Duration::from_millis(10);
/// Maximum duration of a measurement on either side.
const LONGEST: Duration = Duration::from_secs(8);
/// Number of agents that are served at once. More must wait in the system's queue.
const ANSWERED_AT_ONCE: usize = 4;

/// The measured properties of the path to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathMeasurement {
    /// The latency in one direction.
    pub(crate) latency: Duration,
    /// The rate, which includes the headers of packets.
    pub(crate) bytes_per_second: u64,
    /// The number of bytes that pass an idle link at once.
    pub(crate) burst: u64,
}

/// The reasons why a path could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    #[error("no connection to the agent at {to}: {source}; do the nodes allow TCP to that port?")]
    Connect { to: SocketAddr, source: io::Error },
    #[error("the connection to the agent at {to} broke: {source}")]
    Broken { to: SocketAddr, source: io::Error },
    #[error("the agent at {to} took more than {LONGEST:?}")]
    Slow { to: SocketAddr },
    #[error("the agent at {to} reports impossible times")]
    Senseless { to: SocketAddr },
}

/// Responds to the measurements of other agents.
#[derive(Debug)]
pub struct Reflector {
    listener: TcpListener,
    port: u16,
}

/// The other side's report on a train: the duration and the size of its timed part.
#[derive(Clone, Copy, Debug, Default)]
struct TrainTiming {
    nanos: u64,
    bytes: u64,
}

impl Reflector {
    /// Binds a port of the data interface; 0 chooses a free port.
    ///
    /// # Errors
    /// Returns an error if the port is in use.
    pub async fn bind(ip: IpAddr, port: u16) -> io::Result<Reflector> {
        let listener = TcpListener::bind((ip, port)).await?;
        let port = listener.local_addr()?.port();
        Ok(Reflector { listener, port })
    }

    /// Returns the bound port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Responds to a few agents at a time, each for at most `LONGEST`.
    pub async fn serve(self) -> Infallible {
        let incoming = LimitedListener::new(self.listener, "probe", ANSWERED_AT_ONCE);
        loop {
            let ((stream, from), place) = incoming.next().await;
            tokio::spawn(async move {
                if let Ok(Err(error)) = timeout(LONGEST, reflect(stream)).await {
                    tracing::debug!(%from, %error, "while answering a probe");
                }
                drop(place);
            });
        }
    }
}

/// Receives trains from one agent, and reports the timing of each, until the agent disconnects.
async fn reflect(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let train = match stream.read_u64().await {
            Ok(train) if train <= TRAINS[TRAINS.len() - 1] => train,
            Ok(train) => return Err(io::Error::other(format!("a train of {train} bytes is announced"))),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        let timed = receive_train(&mut stream, train, &mut buffer).await?;
        stream.write_all(&[timed.nanos.to_be_bytes(), timed.bytes.to_be_bytes()].concat()).await?;
    }
}

async fn receive_train(stream: &mut TcpStream, train: u64, buffer: &mut [u8]) -> io::Result<TrainTiming> {
    let mut received = 0;
    let mut begun: Option<(Instant, u64)> = None;
    while received < train {
        let most = buffer.len().min(usize::try_from(train - received).unwrap_or(buffer.len()));
        match stream.read(&mut buffer[..most]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => received += bytes as u64,
        }
        if received >= HEAD {
            begun.get_or_insert_with(|| (Instant::now(), received));
        }
    }
    let timed =
        begun.map(|(since, before)| TrainTiming { nanos: nanos(since.elapsed()), bytes: received - before });
    Ok(timed.unwrap_or_default())
}

/// Measures the path from this node, which has the address `from`, to another one.
///
/// # Errors
/// Returns an error if the other agent does not respond in time.
pub(crate) async fn measure(from: IpAddr, to: SocketAddr, mtu: u32) -> Result<PathMeasurement, ProbeError> {
    match timeout(LONGEST, Probe::run(from, to, mtu)).await {
        Ok(result) => result,
        Err(_) => Err(ProbeError::Slow { to }),
    }
}

struct Probe {
    stream: TcpStream,
    to: SocketAddr,
    latency: Duration,
}

impl Probe {
    async fn run(from: IpAddr, to: SocketAddr, mtu: u32) -> Result<PathMeasurement, ProbeError> {
        let stream = connect(from, to).await.map_err(|source| ProbeError::Connect { to, source })?;
        let mut probe = Probe { stream, to, latency: Duration::ZERO };
        let mut round_trips = Vec::with_capacity(ROUND_TRIPS);
        let begun = Instant::now();
        while round_trips.len() < FEWEST
            || round_trips.len() < ROUND_TRIPS && begun.elapsed() < FOR_ROUND_TRIPS
        {
            round_trips.push(probe.train(0).await?.0);
        }
        round_trips.sort_unstable();
        probe.latency = round_trips[round_trips.len() / 4] / 2;
        probe.rate(mtu.into()).await
    }

    async fn rate(mut self, mtu: u64) -> Result<PathMeasurement, ProbeError> {
        let mut trains = TRAINS.into_iter();
        let mut length = 0;
        // The size of the first train, which is the only one that finds the links idle, and the
        // time from its sending to the response.
        let mut first = None;
        let mut timed = TrainTiming::default();
        while nanos(LONG_ENOUGH) > timed.nanos {
            let Some(next) = trains.next() else { break };
            length = next;
            let (took, found) = self.train(length).await?;
            first.get_or_insert((took, length));
            timed = found;
        }
        let mut fastest = self.per_second(timed, mtu)?;
        for _ in 1..REPEATS {
            let (_, again) = self.train(length).await?;
            fastest = fastest.max(self.per_second(again, mtu)?);
        }
        let (took, bytes) = first.unwrap_or_default();
        let flowing = took.saturating_sub(2 * self.latency);
        let steady = u128::from(fastest) * flowing.as_nanos() / 1_000_000_000;
        let early = u128::from(self.on_wire(bytes, mtu)).saturating_sub(steady);
        // A burst of less than a packet is noise, and so is one of more than the untimed bytes.
        let burst = u64::try_from(early).unwrap_or(HEAD).min(HEAD);
        let burst = if burst < mtu { 0 } else { burst };
        Ok(PathMeasurement { latency: self.latency, bytes_per_second: fastest, burst })
    }

    /// Sends a train of `bytes`. Returns the time until the response, and the response.
    async fn train(&mut self, bytes: u64) -> Result<(Duration, TrainTiming), ProbeError> {
        let to = self.to;
        self.exchange(bytes).await.map_err(|source| ProbeError::Broken { to, source })
    }

    async fn exchange(&mut self, bytes: u64) -> io::Result<(Duration, TrainTiming)> {
        let mut train = bytes.to_be_bytes().to_vec();
        train.resize(train.len() + usize::try_from(bytes).unwrap_or(usize::MAX), 0);
        let sent = Instant::now();
        self.stream.write_all(&train).await?;
        let timed =
            TrainTiming { nanos: self.stream.read_u64().await?, bytes: self.stream.read_u64().await? };
        Ok((sent.elapsed(), timed))
    }

    fn per_second(&self, timed: TrainTiming, mtu: u64) -> Result<u64, ProbeError> {
        let TrainTiming { nanos: 1.., bytes } = timed else {
            return Err(ProbeError::Senseless { to: self.to });
        };
        let rate = u128::from(self.on_wire(bytes, mtu)) * 1_000_000_000 / u128::from(timed.nanos);
        u64::try_from(rate).map_err(|_| ProbeError::Senseless { to: self.to })
    }

    /// Returns the number of bytes on the wire, including the headers of packets.
    fn on_wire(&self, bytes: u64, mtu: u64) -> u64 {
        let headers = TCP_IP + beyond_ipv4(&self.to.ip());
        let payload = mtu.saturating_sub(headers).max(1);
        bytes.saturating_mul(payload + headers + ETHERNET) / payload
    }
}

async fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let stream = cool_tcp::connect(Some(from), to).await?;
    stream.set_nodelay(true)?;
    // When a measurement is dropped, its unsent data must not be sent.
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(stream)
}

impl fmt::Display for PathMeasurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PathMeasurement { latency, bytes_per_second, burst } = self;
        write!(f, "{latency:?}, {bytes_per_second} bytes per second, {burst} bytes at once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const MTU: u32 = 1500;
    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    async fn reflector() -> SocketAddr {
        reflector_at(HERE).await
    }

    async fn reflector_at(ip: IpAddr) -> SocketAddr {
        let reflector = Reflector::bind(ip, 0).await.unwrap();
        let to = SocketAddr::new(ip, reflector.port());
        tokio::spawn(reflector.serve());
        to
    }

    /// Starts a peer that receives trains and reports this timing for each.
    async fn reporting_peer(timed: TrainTiming) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 64 << 10];
            while let Ok(train) = stream.read_u64().await {
                receive_train(&mut stream, train, &mut buffer).await.unwrap();
                stream.write_u64(timed.nanos).await.unwrap();
                stream.write_u64(timed.bytes).await.unwrap();
            }
        });
        SocketAddr::new(HERE, port)
    }

    #[tokio::test]
    async fn two_agents_measure_the_path_between_them() {
        for ip in [HERE, Ipv6Addr::LOCALHOST.into()] {
            let to = reflector_at(ip).await;
            let found = measure(ip, to, MTU).await.unwrap();
            assert!(found.latency > Duration::ZERO && found.bytes_per_second > 0, "{found}");
            assert!(found.burst <= HEAD);
        }
    }

    #[tokio::test]
    async fn the_rate_is_that_of_the_timed_part_with_its_headers() {
        // 1448 bytes of payload are 1514 bytes on the wire.
        let to = reporting_peer(TrainTiming { nanos: 20_000_000, bytes: 14_480 }).await;
        let found = measure(HERE, to, MTU).await.unwrap();
        assert_eq!(found.bytes_per_second, 757_000);
    }

    #[tokio::test]
    async fn a_wrong_or_missing_peer_is_an_error_with_its_address() {
        let to = reporting_peer(TrainTiming::default()).await;
        let error = measure(HERE, to, MTU).await.unwrap_err();
        assert!(matches!(error, ProbeError::Senseless { .. }), "{error}");
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let nobody = SocketAddr::new(HERE, free);
        let error = measure(HERE, nobody, MTU).await.unwrap_err().to_string();
        assert!(error.contains(&nobody.to_string()), "{error}");
    }

    /// Returns the number of connections to a port that a process has accepted. Connections in the
    /// system's queue do not belong to a file yet.
    fn accepted(port: u16) -> usize {
        let (local, none) = (format!(":{port:04X}"), "0");
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let established = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        established.filter(|line| line[1].ends_with(&local) && line[3] == "01" && line[9] != none).count()
    }

    #[tokio::test]
    async fn further_connections_wait_in_the_systems_queue() {
        let to = reflector().await;
        let mut connections = VecDeque::new();
        for _ in 0..5 * ANSWERED_AT_ONCE {
            let mut stream = TcpStream::connect(to).await.unwrap();
            stream.write_u64(0).await.unwrap();
            connections.push_back(stream);
        }
        // Each connection is served in its turn, and no more than the maximum are accepted.
        while let Some(mut stream) = connections.pop_front() {
            stream.read_exact(&mut [0; 16]).await.unwrap();
            assert!(accepted(to.port()) <= ANSWERED_AT_ONCE);
        }
    }

    #[tokio::test]
    async fn a_train_longer_than_any_is_refused() {
        let to = reflector().await;
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_u64(u64::MAX).await.unwrap();
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0, "the connection is closed");
    }
}
