//! The leader of a node in quick calls: it sends and receives datagrams by its socket, and stores
//! sent datagrams so that its agent can retransmit them.

use super::QuickCall;
use crate::call::CallBuffers;
use crate::error::Error;
use crate::segment::{DescribedCall, Interrupted};
use crate::session::call_account::LeaderTraffic;
use crate::session::watched_call::WatchedCall;
use crate::session::{SessionFailure, SocketError};
use cool_cipher::AesGcm;
use cool_collective::Rank;
use cool_machine::{Machine, Poll, Time};
use cool_proto::local;
use cool_quick::{
    BeginCall, BusyPolling, CallData, CallKey, CallLimits, DATAGRAM_BYTES_MAX, DividedMessage, Input,
    LEADER_BUFFER_BYTES, LONG_DATAGRAM_BYTES_MAX, LONG_MESSAGES_BYTES_MAX, NodeLeaders, Output, QuickCalls,
    QuickMessage, QuickSchedule, RECENT_ARRIVALS_MAX, RETRANSMIT_WINDOW, SendTo,
};
use cool_shm::segment::records::{ARRIVALS, RankArrival};
use cool_shm::segment::{
    DATAGRAM_BYTES, LONG_MESSAGE_BYTES, LONG_RETRANSMISSION_BYTES, RETRANSMISSION_SLOTS, RankPart,
    RetransmissionPosition,
};
use cool_types::Key;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recvfrom, sendmsg_addr};
use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Granularity of the socket's timeouts, so that they seldom change. Shorter waits use ppoll(2),
/// which is exact but takes another system call.
const WAIT_STEP: Duration = Duration::from_millis(10);

// The segment can store all datagrams that receivers may request again.
const _: () =
    assert!(DATAGRAM_BYTES_MAX <= DATAGRAM_BYTES && RETRANSMIT_WINDOW as u64 <= RETRANSMISSION_SLOTS);
const _: () = assert!(LONG_DATAGRAM_BYTES_MAX <= LONG_MESSAGE_BYTES);
// Each long message has a header and a tag, which are short compared with its payload.
const _: () = assert!(LONG_MESSAGES_BYTES_MAX + LONG_MESSAGES_BYTES_MAX / 32 <= LONG_RETRANSMISSION_BYTES);
const _: () = assert!(RECENT_ARRIVALS_MAX <= ARRIVALS);

/// A leader's part in calls between leaders, of which it executes one at a time.
#[derive(Debug)]
pub(super) struct LeaderCalls {
    machine: QuickCalls,
    socket: UdpSocket,
    tree: Ipv4Addr,
    /// Port of the leaders' sockets. Agents receive NAKs at the next port.
    port: u16,
    /// Address of each leader's node.
    addresses: Vec<Ipv4Addr>,
    /// Number of ranks of this node.
    ranks: usize,
    /// Position in the retransmission buffer after the datagrams stored so far.
    retransmissions: RetransmissionPosition,
    /// Traffic of the current call, until it is taken.
    exchanged: LeaderTraffic,
    /// Current timeout of the socket.
    waits: Duration,
    polling: BusyPolling,
    origin: Instant,
    /// Length of the datagrams into which the system divides messages; 0 if it does not.
    datagram_bytes: usize,
    buffer: Vec<u8>,
    /// Memory for the output of calls in place.
    output: Vec<u8>,
}

impl LeaderCalls {
    /// Returns the part of leader `leader` of a node with `ranks` ranks, given the agent's
    /// configuration. Returns `None` if the configuration is invalid.
    pub(super) fn new(
        config: &local::Quick,
        group: u64,
        (leaders, leader): (&NodeLeaders, usize),
        ranks: usize,
        socket: OwnedFd,
    ) -> Option<LeaderCalls> {
        let key: [u8; 32] = config.key.as_slice().try_into().ok()?;
        let key = CallKey::new::<AesGcm>(Key::from(key));
        let port = u16::try_from(config.port).ok().filter(|port| *port < u16::MAX)?;
        let addresses: Vec<Ipv4Addr> = config.addresses.iter().copied().map(Ipv4Addr::from_bits).collect();
        let (group, layout) = ((group, config.epoch), leaders.layout().clone());
        let fits = addresses.len() == layout.size();
        let datagram_bytes = usize::try_from(config.datagram_bytes).ok()?;
        let limits = CallLimits::for_group(datagram_bytes, leaders);
        let machine = QuickCalls::new(key, group, Rank(leader as u32), layout, limits)?;
        fits.then(|| LeaderCalls {
            machine,
            socket: socket.into(),
            tree: Ipv4Addr::from_bits(config.tree),
            port,
            addresses,
            ranks,
            retransmissions: RetransmissionPosition::default(),
            exchanged: LeaderTraffic::default(),
            waits: Duration::ZERO,
            polling: BusyPolling::default(),
            origin: Instant::now(),
            datagram_bytes,
            buffer: vec![0; LEADER_BUFFER_BYTES],
            output: Vec::new(),
        })
    }

    /// Executes a call with this node's data as input and the data for this node as output.
    pub(super) fn execute_between_leaders(
        &mut self,
        call: &QuickCall<'_>,
        leaders: &NodeLeaders,
        schedule: &Arc<QuickSchedule>,
        data: CallData<'_>,
    ) -> Result<(), Interrupted<Error>> {
        let carried = self.take_part(call, leaders, schedule, data);
        let arrivals = self.machine.arrivals().latest().map(|(leader, at)| {
            let at = self.origin + Duration::from_nanos(at.as_nanos());
            let after = at.saturating_duration_since(call.begun).as_nanos();
            RankArrival { from: group_rank(leaders, leader), after: u64::try_from(after).unwrap_or(u64::MAX) }
        });
        self.exchanged.arrivals.iter_mut().zip(arrivals).for_each(|(place, arrival)| *place = Some(arrival));
        carried
    }

    /// Executes a call of which the output overwrites the input.
    pub(super) fn execute_in_place(
        &mut self,
        call: &QuickCall<'_>,
        leaders: &NodeLeaders,
        schedule: &Arc<QuickSchedule>,
        (buffers, output_bytes): (&mut CallBuffers<'_>, usize),
    ) -> Result<(), Interrupted<Error>> {
        // Agents execute the call if the leaders do not complete it, so the input must remain.
        let mut output = std::mem::take(&mut self.output);
        output.resize(output.len().max(output_bytes), 0);
        let received = &mut output[..output_bytes];
        let data = CallData { input: buffers.whole_input(), output: received };
        let carried = self.execute_between_leaders(call, leaders, schedule, data);
        if carried.is_ok() {
            buffers.output(0..output_bytes).copy_from_slice(&output[..output_bytes]);
        }
        self.output = output;
        carried
    }

    /// Leaves the call with this number to the agents.
    pub(super) fn abandon(&mut self, number: u64) {
        self.machine.handle(self.now(), Input::Abandon(number));
    }

    /// Returns the traffic of the last call, once.
    pub(super) fn take_traffic(&mut self) -> LeaderTraffic {
        std::mem::take(&mut self.exchanged)
    }

    fn take_part(
        &mut self,
        call: &QuickCall<'_>,
        leaders: &NodeLeaders,
        schedule: &Arc<QuickSchedule>,
        mut data: CallData<'_>,
    ) -> Result<(), Interrupted<Error>> {
        let WatchedCall { number, call: DescribedCall { digest, text, dtype, op, .. }, .. } = call.watch;
        let sent = self.retransmit_part(call);
        sent.enter(number, *digest, text)?;
        let combining = dtype.zip(*op);
        let begin = BeginCall { number, digest: *digest, schedule: Arc::clone(schedule), combining };
        let now = self.now();
        self.machine.handle(now, Input::Retransmitted(sent.retransmissions()));
        self.machine.handle(now, Input::Begin(begin, data.reborrow()));
        let mut watched = None;
        while let Some(next) = self.perform(call, leaders, &mut watched)? {
            let left = call.next_wait(&mut watched, || {
                let awaited = self.machine.awaited();
                awaited.flat_map(|leader| leaders.ranks_of(leader.0 as usize)).map(|rank| rank.0).collect()
            })?;
            self.receive(call, next.since(self.now()).min(left), data.reborrow())?;
        }
        watched.map_or(Ok(()), |id| call.watch.completed(id))
    }

    /// Executes the outputs of the machine. Returns the time until which to wait, or `None` if the
    /// call is complete.
    fn perform(
        &mut self,
        call: &QuickCall<'_>,
        leaders: &NodeLeaders,
        watched: &mut Option<u64>,
    ) -> Result<Option<Time>, Interrupted<Error>> {
        loop {
            let now = self.now();
            match self.machine.poll(now) {
                Poll::Output(Output::Send(message)) => {
                    self.retransmit_part(call).keep_for_retransmission(
                        &mut self.retransmissions,
                        message.name,
                        &message.bytes,
                    )?;
                    self.count(&message);
                    (0..message.copies).try_for_each(|_| self.send_message(call, &message))?;
                }
                Poll::Output(Output::Nak { to, bytes }) => {
                    self.exchanged.traffic.requested += 1;
                    self.send(call, SendTo::AgentOf(to), &[IoSlice::new(&bytes)])?;
                }
                Poll::Output(Output::Mismatch { rank, text, .. }) => {
                    let id = watched.map_or_else(|| call.watch.open(), Ok)?;
                    call.watch.differs(id, group_rank(leaders, Rank(rank)), text)?;
                }
                Poll::Output(Output::Done) => return Ok(None),
                Poll::Idle(next) => return Ok(Some(next.unwrap_or(now))),
            }
        }
    }

    fn count(&mut self, message: &QuickMessage) {
        let traffic = &mut self.exchanged.traffic;
        let sent = if message.to == SendTo::All { &mut traffic.multicast } else { &mut traffic.unicast };
        *sent += message.payload_len() as u32 * u32::from(message.copies);
    }

    /// Sends a message, if necessary in parts, by one system call.
    fn send_message(&self, call: &QuickCall<'_>, message: &QuickMessage) -> Result<(), Interrupted<Error>> {
        let QuickMessage { to, bytes, .. } = message;
        let Some(divided) = DividedMessage::new(bytes, self.datagram_bytes) else {
            return self.send(call, *to, &[IoSlice::new(bytes)]);
        };
        let parts: Vec<_> = divided.parts().collect();
        let slices = parts.iter().flat_map(|(header, part)| [IoSlice::new(header), IoSlice::new(part)]);
        self.send(call, *to, &slices.collect::<Vec<IoSlice<'_>>>())
    }

    fn send(
        &self,
        call: &QuickCall<'_>,
        to: SendTo,
        bytes: &[IoSlice<'_>],
    ) -> Result<(), Interrupted<Error>> {
        let of = |leader: Rank| self.addresses[leader.0 as usize];
        let to = match to {
            SendTo::All => SocketAddrV4::new(self.tree, self.port),
            SendTo::Rank(leader) => SocketAddrV4::new(of(leader), self.port),
            SendTo::AgentOf(leader) => SocketAddrV4::new(of(leader), self.port + 1),
        };
        let mut control = SendAncillaryBuffer::default();
        match sendmsg_addr(&self.socket, &to, bytes, &mut control, SendFlags::empty()) {
            Ok(_) => Ok(()),
            Err(e) if is_loss(&e.into()) => Ok(()),
            Err(e) => Err(socket_error(call, e.into())),
        }
    }

    /// Waits for a datagram, for about `timeout` at most, and passes it to the machine.
    fn receive(
        &mut self,
        call: &QuickCall<'_>,
        timeout: Duration,
        data: CallData<'_>,
    ) -> Result<(), Interrupted<Error>> {
        let start = Instant::now();
        let mut received = self.poll_socket(timeout.min(self.polling.polling_time()));
        if received.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock) {
            received = self.wait_for_datagram(timeout);
        }
        self.polling.record(start.elapsed());
        match received {
            Ok((len, port)) => {
                let (now, before) = (self.now(), self.machine.arrivals().messages());
                self.machine.handle(now, Input::Datagram(&self.buffer[..len], data));
                let was_taken = self.machine.arrivals().messages() > before;
                // The port shows that the sender's agent retransmitted it, after a NAK.
                self.exchanged.traffic.retransmitted += u32::from(was_taken && port == self.port + 1);
                Ok(())
            }
            Err(e) if is_loss(&e) => Ok(()),
            Err(e) => Err(socket_error(call, e)),
        }
    }

    /// Receives a datagram, for which it polls for `time`. Returns its length and the sender's
    /// port, or [`ErrorKind::WouldBlock`].
    fn poll_socket(&mut self, time: Duration) -> std::io::Result<(usize, u16)> {
        let start = Instant::now();
        while start.elapsed() < time {
            match recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _, from)) => {
                    let from = from.and_then(|from| SocketAddrV4::try_from(from).ok());
                    return Ok((len, from.map_or(0, |from| from.port())));
                }
                // Other ranks and agents of this machine may need the CPU to send the datagram.
                Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Sleeps until a datagram arrives, for about `timeout` at most. Returns its length and the
    /// sender's port, or [`ErrorKind::WouldBlock`].
    fn wait_for_datagram(&mut self, timeout: Duration) -> std::io::Result<(usize, u16)> {
        match socket_timeout(timeout) {
            None if !is_readable_within(&self.socket, timeout)? => {
                return Err(ErrorKind::WouldBlock.into());
            }
            // A datagram has arrived, so the timeout of the socket does not matter.
            None => {}
            Some(waits) if self.waits == waits => {}
            Some(waits) => {
                self.socket.set_read_timeout(Some(waits))?;
                self.waits = waits;
            }
        }
        let (len, from) = self.socket.recv_from(&mut self.buffer)?;
        Ok((len, from.port()))
    }

    /// Returns the part of the segment that stores sent datagrams.
    fn retransmit_part<'a>(&self, call: &QuickCall<'a>) -> RankPart<'a> {
        call.quick.segment.leader_part(self.ranks)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Returns the rank of a leader within the group.
fn group_rank(leaders: &NodeLeaders, leader: Rank) -> u32 {
    leaders.ranks_of(leader.0 as usize).first().map_or(leader.0, |rank| rank.0)
}

/// Returns the error for an unusable socket.
fn socket_error(call: &QuickCall<'_>, error: std::io::Error) -> Interrupted<Error> {
    let why = SessionFailure::Lost(Arc::new(SocketError::System(error)));
    Interrupted::Failed(call.watch.session.disconnected(call.watch.name, why))
}

/// Returns the timeout of the socket for a wait: a multiple of [`WAIT_STEP`]. Returns `None` if the
/// wait is too short for one.
fn socket_timeout(timeout: Duration) -> Option<Duration> {
    let steps = timeout.as_millis().div_ceil(WAIT_STEP.as_millis());
    (timeout >= WAIT_STEP).then_some(WAIT_STEP * steps as u32)
}

/// Waits until a datagram or an error of the socket can be read. Returns false if there is none by
/// the end of the timeout. A signal may end the wait sooner.
fn is_readable_within(socket: &UdpSocket, timeout: Duration) -> std::io::Result<bool> {
    let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether an error means only that a datagram was lost. The system has many reasons to
/// reject a single datagram: a full or missing interface, a firewall, a full table of connections,
/// an address that is being moved, memory. Receivers that miss the datagram will send a NAK. Only
/// an error that every later use of the socket would return is different.
fn is_loss(error: &std::io::Error) -> bool {
    let unusable = [Errno::BADF, Errno::NOTSOCK, Errno::FAULT];
    !unusable.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn a_rejected_datagram_is_a_loss_and_not_the_end_of_the_socket() {
        // EPERM is the answer for a datagram that netfilter drops, also if its table is full.
        let rejected = [
            Errno::PERM,
            Errno::ACCESS,
            Errno::ADDRNOTAVAIL,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::MSGSIZE,
            Errno::NETDOWN,
            Errno::HOSTUNREACH,
            Errno::CONNREFUSED,
            Errno::AGAIN,
            // The MTU of the interface has become smaller than the parts of messages.
            Errno::INVAL,
        ];
        let is_loss = |errno: &Errno| is_loss(&Error::from_raw_os_error(errno.raw_os_error()));
        assert!(rejected.iter().all(is_loss));
        assert!(![Errno::BADF, Errno::NOTSOCK, Errno::FAULT].iter().any(is_loss));
        assert!(super::is_loss(&Error::from(std::io::ErrorKind::TimedOut)));
    }

    #[test]
    fn only_long_waits_are_rounded_to_steps_of_the_socket() {
        let ms = Duration::from_millis;
        let rounded = [0, 2, 9].map(|short| socket_timeout(ms(short)));
        assert_eq!(rounded, [None; 3]);
        assert_eq!(
            [10, 11, 200].map(|long| socket_timeout(ms(long))),
            [10, 20, 200].map(|long| Some(ms(long)))
        );
    }

    #[test]
    fn a_short_wait_ends_with_a_datagram_or_without() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_readable_within(&socket, Duration::ZERO).unwrap());
        socket.send_to(b"datagram", socket.local_addr().unwrap()).unwrap();
        assert!(is_readable_within(&socket, WAIT_STEP - Duration::from_nanos(1)).unwrap());
    }
}
