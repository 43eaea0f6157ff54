//! Measures what the work of an agent costs on its CPU, so that plans fit fast networks, on which
//! the CPU is the bottleneck. An agent does this once, when it starts, in about 100 ms.
//!
//! Each cost is the shortest of several trials, because other processes only add to it. The trials
//! are short and most use one thread, so that some are not interrupted even while other programs
//! start on the same machine.

use cool_cipher::AesGcm;
use cool_machine::{Duration, Machine, Poll, Time};
use cool_proto::control::CpuCosts;
use cool_transport::packet::Packet;
use cool_transport::tagged::{GroupKey, Protection, Tagger};
use cool_transport::{
    Chain, Hop, Input, Output, RateSpec, Receiver, Sender, StreamId, StreamSpec, StreamTimers,
};
use cool_types::{ElementType, Key, ReduceOp, combine};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use std::hint::black_box;
use std::io::{self, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

/// The number of trials of each cost.
const TRIALS: usize = 8;
/// The bytes that the trials copy, combine, or pass through a TCP connection, each an equal part:
/// more than the caches of one core usually hold, because messages are not in them, either.
const MEMORY_BYTES: usize = 8 << 20;
const TRIAL_BYTES: usize = MEMORY_BYTES / TRIALS;
/// The length of the messages of the TCP connection.
const TCP_MESSAGE_BYTES: usize = 64 << 10;
/// The number of round trips in a trial of short messages, and their length in bytes.
const ROUND_TRIPS: u32 = 16;
const SHORT_MESSAGE_BYTES: usize = 64;
/// The bytes of a trial's multicast, in chunks as in Ethernet frames of 1514 bytes.
const STREAM_BYTES: u64 = 1 << 18;
const CHUNK_BYTES: u32 = 1408;
/// A stream that takes longer has lost packets. Agents then measure nothing.
const STREAM_TIME_MAX: Duration = Duration::from_secs(1);
/// The buffers for received datagrams.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 64 << 10;
/// The file that contains a random name of the running system. All containers and network
/// namespaces of a machine have it in common.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the costs on this machine. Blocks for about 100 ms.
///
/// # Errors
/// Returns an error if the loopback interface does not work.
pub fn measure() -> io::Result<CpuCosts> {
    let rate = |bytes: usize, time: Duration| (bytes as f64 / time.as_secs_f64().max(1e-9)) as u64;
    let (from, mut to) = (vec![0x55u8; MEMORY_BYTES], vec![0x66u8; MEMORY_BYTES]);
    let mut on_parts = |work: fn(&[u8], &mut [u8]) -> io::Result<Duration>| {
        let parts = from.chunks_exact(TRIAL_BYTES).zip(to.chunks_exact_mut(TRIAL_BYTES));
        shortest(parts.map(|(from, to)| work(from, to)))
    };
    let copying = on_parts(|from, to| Ok(timed(|| to.copy_from_slice(black_box(from)))))?;
    let combining = on_parts(|from, to| {
        Ok(timed(|| combine(ElementType::F32, ReduceOp::Sum, black_box(to), black_box(from))))
    })?;
    let passing = on_parts(pass_through_tcp)?;
    let exchanging = shortest((0..TRIALS).map(|_| exchange_messages()))?;
    let packets = STREAM_BYTES.div_ceil(CHUNK_BYTES.into()) as u32;
    let streaming = shortest((0..TRIALS).map(|_| multicast()))?;
    Ok(CpuCosts {
        machine: std::fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
        copy: rate(TRIAL_BYTES, copying),
        reduce: rate(TRIAL_BYTES, combining),
        // Each byte is sent and received.
        socket: rate(2 * TRIAL_BYTES, passing),
        // A round trip consists of two messages, each of which is sent and received.
        message_ns: (exchanging / (4 * ROUND_TRIPS)).as_nanos() as u64,
        packet_ns: (streaming / (2 * packets)).as_nanos() as u64,
    })
}

fn shortest(trials: impl Iterator<Item = io::Result<Duration>>) -> io::Result<Duration> {
    let times = trials.collect::<io::Result<Vec<_>>>()?;
    Ok(times.into_iter().min().unwrap_or_default())
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Returns the two ends of a TCP connection.
fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

/// Sends bytes over TCP, and receives them by the same thread.
fn pass_through_tcp(from: &[u8], to: &mut [u8]) -> io::Result<Duration> {
    let (mut sender, mut receiver) = tcp_pair()?;
    sender.set_nonblocking(true)?;
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < to.len() {
        let message = &from[sent..from.len().min(sent + TCP_MESSAGE_BYTES)];
        match sender.write(message) {
            Ok(bytes) => sent += bytes,
            // The receiver must first make room, and there is something to receive.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        received += receiver.read(&mut to[received..])?;
    }
    Ok(start.elapsed())
}

/// Exchanges short messages with another thread, which must wake up for each.
fn exchange_messages() -> io::Result<Duration> {
    let (mut one, mut other) = tcp_pair()?;
    let (mut request, mut reply) = ([0; SHORT_MESSAGE_BYTES], [0; SHORT_MESSAGE_BYTES]);
    on_two_cpus(
        move || {
            (0..ROUND_TRIPS).try_for_each(|_| {
                one.write_all(&request)?;
                one.read_exact(&mut request)
            })
        },
        move || {
            (0..ROUND_TRIPS).try_for_each(|_| {
                other.read_exact(&mut reply)?;
                other.write_all(&reply)
            })
        },
    )
}

/// Runs two threads on different CPUs, as ranks and agents of different nodes do, until both have
/// ended. A thread that fails must close its connection, so that the other one does not wait.
/// Returns how long the first one takes.
fn on_two_cpus(
    one: impl FnOnce() -> io::Result<()> + Send,
    other: impl FnOnce() -> io::Result<()> + Send,
) -> io::Result<Duration> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let first = cpus.next().unwrap_or(0);
    let second = cpus.next().unwrap_or(first);
    let pinned = |cpu| {
        let mut only = CpuSet::new();
        only.set(cpu)?;
        sched_setaffinity(Pid::from_raw(0), &only)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || pinned(second).map_err(io::Error::from).and_then(|()| other()));
        let one = scope.spawn(move || {
            pinned(first)?;
            let start = Instant::now();
            one().map(|()| start.elapsed())
        });
        let ended = || io::Error::other("a thread that measures has ended");
        let time = one.join().map_err(|_| ended())?;
        other.join().map_err(|_| ended())?.and(time)
    })
}

/// Sends a stream to one receiver by the same thread, with tags, and with as many packets in one
/// system call as the system permits.
fn multicast() -> io::Result<Duration> {
    LoopbackStream::new()?.run()
}

/// A stream from a node to itself.
struct LoopbackStream {
    sender: Sender,
    receiver: Receiver,
    message: Vec<u8>,
    received: Vec<u8>,
    tagger: Tagger<AesGcm>,
    opener: Tagger<AesGcm>,
    socket: UdpSocket,
    state: UdpSocketState,
    batch: Vec<u8>,
    buffers: Vec<u8>,
}

const STREAM: StreamId = StreamId { group: 1, epoch: 1, call: 1, transfer: 0, source: 0 };
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl LoopbackStream {
    fn new() -> io::Result<LoopbackStream> {
        let chain = Chain::new(vec![Hop { node: 0, rack: 0 }, Hop { node: 1, rack: 0 }]);
        let spec = StreamSpec {
            id: STREAM,
            len: STREAM_BYTES,
            digest: 0,
            chunk_bytes: CHUNK_BYTES,
            further_bytes: 0,
            chain: chain.map_err(io::Error::other)?,
            multicast: true,
            rack_tree: false,
            rate: RateSpec { ceiling: Some(u64::MAX), verified: true, ..RateSpec::default() },
            eager: STREAM_BYTES,
            on_hold: false,
            in_parts: false,
            timers: StreamTimers::default(),
        };
        let socket = UdpSocket::bind((HERE, 0))?;
        socket.set_nonblocking(true)?;
        let tagger = |me| {
            let mut tagger = Tagger::default();
            let key = GroupKey { key: Key::from([1; 32]), protection: Protection::Tagged };
            tagger.insert((STREAM.group, STREAM.epoch), key, (me, 2));
            tagger
        };
        Ok(LoopbackStream {
            sender: Sender::new(Time::ZERO, spec.clone()).map_err(io::Error::other)?,
            receiver: Receiver::new(Time::ZERO, spec, 1).map_err(io::Error::other)?,
            message: vec![3; STREAM_BYTES as usize],
            received: vec![0; STREAM_BYTES as usize],
            tagger: tagger(0),
            opener: tagger(1),
            state: UdpSocketState::new((&socket).into())?,
            socket,
            batch: Vec::new(),
            buffers: vec![0; BUFFERS * BUFFER_BYTES],
        })
    }

    /// Passes the stream over the loopback interface. Returns how long that takes.
    fn run(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        while !self.receiver.is_complete() {
            let elapsed = start.elapsed();
            if elapsed > STREAM_TIME_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "a stream over the loopback interface stalls",
                ));
            }
            let now = Time::from_nanos(elapsed.as_nanos() as u64);
            self.send(now)?;
            self.receive(now)?;
        }
        Ok(start.elapsed())
    }

    /// Sends as many packets as one system call permits.
    fn send(&mut self, now: Time) -> io::Result<()> {
        self.batch.clear();
        let (mut segment, mut packets) = (0, 0);
        while packets < self.state.max_gso_segments()
            && self.batch.len() + segment < BUFFER_BYTES - BUFFER_BYTES / 16
            && let Poll::Output(output) = self.sender.poll(now)
        {
            let Output::Transmit { packet, payload, .. } = output else { continue };
            if payload.is_empty() {
                continue;
            }
            let start = self.batch.len();
            packet.encode(&mut self.batch);
            self.batch.extend_from_slice(&self.message[payload.start as usize..payload.end as usize]);
            self.tagger.seal((STREAM.group, HERE), &mut self.batch, start);
            segment = segment.max(self.batch.len() - start);
            packets += 1;
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        let transmit = Transmit {
            destination: self.socket.local_addr()?,
            ecn: None,
            contents: &self.batch,
            segment_size: (packets > 1).then_some(segment),
            src_ip: None,
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Receives the packets that have arrived.
    fn receive(&mut self, now: Time) -> io::Result<()> {
        let mut metas = [RecvMeta::default(); BUFFERS];
        let mut slots: Vec<IoSliceMut<'_>> =
            self.buffers.chunks_mut(BUFFER_BYTES).map(IoSliceMut::new).collect();
        let count = match self.state.recv((&self.socket).into(), &mut slots, &mut metas) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            received => received?,
        };
        drop(slots);
        for (meta, buffer) in metas[..count].iter().zip(self.buffers.chunks_mut(BUFFER_BYTES)) {
            for datagram in buffer[..meta.len].chunks_mut(meta.stride.max(1)) {
                let (len, _) = self.opener.open(datagram, HERE).map_err(io::Error::other)?;
                let (packet, payload) = Packet::decode(&datagram[..len]).map_err(io::Error::other)?;
                self.receiver.handle(now, Input::Packet { packet: &packet, payload: payload.len() });
                while let Poll::Output(output) = self.receiver.poll(now) {
                    if let Output::Store(place) = output {
                        self.received[place.start as usize..place.end as usize].copy_from_slice(payload);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_costs_are_measured_and_a_stream_arrives() {
        let costs = measure().unwrap();
        assert!(costs.cpus > 0 && !costs.machine.is_empty(), "{costs:?}");
        assert!([costs.copy, costs.reduce, costs.socket].iter().all(|rate| *rate > 1_000_000), "{costs:?}");
        assert!(costs.message_ns > 0 && costs.packet_ns > 0, "{costs:?}");
        let mut loopback = LoopbackStream::new().unwrap();
        loopback.run().unwrap();
        assert_eq!(loopback.received, loopback.message);
    }
}
