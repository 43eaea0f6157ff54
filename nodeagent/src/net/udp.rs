//! UDP sockets: one for sending and for unicast datagrams, and one for each tree from which this
//! node receives. Many datagrams are passed to and from the system at a time (sendmsg with GSO,
//! recvmmsg, GRO) where it supports that.

use super::port_conflict::{self, PortEntry};
use super::tree_membership::TreeMembership;
use super::udp_outbox::{BUFFER, DatagramBatch, DatagramSink};
use crate::async_socket::AsyncSocket;
use crate::interface;
use cool_types::is_source_specific;
use nix::sys::socket::getsockopt;
use nix::{getsockopt_impl, sockopt_impl};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use socket2::{Domain, Protocol, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// The hop limit, which is larger than the number of routers on any tree between racks.
const TTL: u32 = 8;

/// The number of receive buffers, and the size of each in bytes. The system provides memory only
/// for buffers that have been used.
const SLOTS: usize = 2 * BATCH_SIZE;
const SLOT: usize = 64 * 1024;

/// Maximum number of free ports to try until one is free at all addresses.
const TRIES: u32 = 16;

/// A port that the agent holds at all addresses of this machine until this value is dropped.
pub(super) struct BoundPort {
    /// The socket for sending and for unicast datagrams.
    pub(super) socket: UdpSocket,
    /// Reserves the port at all other addresses, including multicast addresses. It is never read.
    pub(super) guard: UdpSocket,
    pub(super) number: u16,
}

/// Binds a port. The sockets of trees share it (SO_REUSEPORT), which the system allows only for
/// sockets of the same user. Sockets of other users, which could receive or send in the agent's
/// place, get an error. Agents of one user may use the same port at different addresses.
pub(super) fn bind(ip: IpAddr, port: u16) -> io::Result<BoundPort> {
    let mut tries = if port == 0 { TRIES } else { 1 };
    loop {
        tries -= 1;
        let (socket, number) = alone(ip, port)?;
        match guard(ip, number).and_then(|guard| refuse_conflicts(&socket, ip, number).map(|()| guard)) {
            Ok(guard) => return Ok(BoundPort { socket, guard, number }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => {}
            Err(error) => return Err(error),
        }
    }
}

/// Checks for conflicts that the system allows. If a port has more than ten sockets, Linux does not
/// compare the unspecified address (0.0.0.0) with specific ones (`udp_lib_get_port`), so sockets
/// that were bound to trees' addresses while no agent was running would remain.
pub(crate) fn refuse_conflicts(socket: impl AsFd, ip: IpAddr, port: u16) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let inode = rustix::fs::fstat(socket)?.st_ino;
    let table = std::fs::read_to_string(if ip.is_ipv6() { "/proc/net/udp6" } else { "/proc/net/udp" })?;
    match port_conflict::find(&table, PortEntry { user, inode, address: ip, port }) {
        None => Ok(()),
        Some(conflict) => Err(io::Error::new(io::ErrorKind::AddrInUse, conflict)),
    }
}

fn guard(ip: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let guard = new_socket(ip)?;
    guard.set_reuse_port(true)?;
    ignore_multicast_for_other_sockets(&guard, ip)?;
    guard.set_recv_buffer_size(0)?;
    guard.bind(&SocketAddr::new(unspecified(ip), port).into())?;
    Ok(guard.into())
}

/// Returns the unspecified address of the same version of IP.
fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Makes sure that a socket at the unspecified address receives no copies of datagrams for other
/// sockets' trees.
fn ignore_multicast_for_other_sockets(socket: &socket2::Socket, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => socket.set_multicast_all_v4(false),
        IpAddr::V6(_) => socket.set_multicast_all_v6(false),
    }
}

fn alone(ip: IpAddr, port: u16) -> io::Result<(UdpSocket, u16)> {
    let socket = socket(ip)?;
    // If the system chooses the port, it must not choose one that another agent uses. So the port
    // can be shared only after it is bound.
    socket.set_reuse_port(port != 0)?;
    socket.bind(&SocketAddr::new(ip, port).into())?;
    socket.set_reuse_port(true)?;
    send_over_trees(&socket, ip)?;
    let socket: UdpSocket = socket.into();
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

/// Returns a socket that receives from a tree at the interface with address `ip`. From a
/// source-specific tree it receives nothing until it has joined a source.
pub(super) fn listen(tree: SocketAddr, ip: IpAddr) -> io::Result<Socket> {
    let socket =
        if is_source_specific(tree.ip()) { group_socket(tree, ip)? } else { member_socket(tree, ip)? };
    Socket::new(socket.into(), tree.ip())
}

/// Returns a non-blocking socket that has joined a multicast address at the interface with address
/// `ip`, and receives only the datagrams to that address and port.
pub(crate) fn member_socket(group: SocketAddr, ip: IpAddr) -> io::Result<socket2::Socket> {
    let membership = TreeMembership { socket: group_socket(group, ip)?, tree: group.ip(), ip };
    membership.join()?;
    Ok(membership.socket)
}

/// Returns a non-blocking socket that is bound to a multicast address, and therefore receives
/// nothing else.
fn group_socket(group: SocketAddr, ip: IpAddr) -> io::Result<socket2::Socket> {
    let socket = socket(ip)?;
    socket.set_reuse_port(true)?;
    if is_source_specific(group.ip()) {
        ignore_multicast_for_other_sockets(&socket, ip)?;
    }
    socket.bind(&group.into())?;
    Ok(socket)
}

/// Returns a non-blocking socket with large buffers, for the driver.
fn socket(ip: IpAddr) -> io::Result<socket2::Socket> {
    let socket = socket_with_room(ip, BUFFER)?;
    socket.set_nonblocking(true)?;
    if sockopt::set_socket_send_buffer_size_force(&socket, BUFFER).is_err() {
        socket.set_send_buffer_size(BUFFER)?;
    }
    Ok(socket)
}

/// Returns a socket for addresses of the same version of IP only.
fn new_socket(ip: IpAddr) -> io::Result<socket2::Socket> {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = socket2::Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Returns a socket for the version of IP of an address, with a receive buffer of this size.
pub(crate) fn socket_with_room(ip: IpAddr, room: usize) -> io::Result<socket2::Socket> {
    let socket = new_socket(ip)?;
    // Only root may exceed the system's limit; otherwise the buffer gets the size that the limit
    // allows.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, room).is_err() {
        socket.set_recv_buffer_size(room)?;
    }
    Ok(socket)
}

/// The smallest receive buffer, in bytes, in which a packet rarely finds no room: at 1 Gbit/s, this
/// many bytes arrive in 16 ms, which is longer than a turn of the engine.
pub(crate) const ROOM_MIN: usize = 2 * 1024 * 1024;

/// Returns the number of bytes of the receive buffer that the system grants to this process.
///
/// # Errors
/// Returns an error if no socket can be opened.
pub(crate) fn granted_room(ip: IpAddr) -> io::Result<usize> {
    room_of(&socket_with_room(ip, BUFFER)?)
}

/// Returns the number of bytes of a socket's receive buffer.
pub(crate) fn room_of(socket: &socket2::Socket) -> io::Result<usize> {
    // The system reports twice the size, because it adds room for its own data.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Makes a socket send multicast at the interface with address `ip`, without receiving its own
/// datagrams.
pub(crate) fn send_over_trees(socket: &socket2::Socket, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(ip) => {
            socket.set_multicast_if_v4(&ip)?;
            socket.set_multicast_ttl_v4(TTL)?;
            socket.set_multicast_loop_v4(false)
        }
        IpAddr::V6(ip) => {
            socket.set_multicast_if_v6(interface::index_of(ip)?)?;
            socket.set_multicast_hops_v6(TTL)?;
            socket.set_multicast_loop_v6(false)
        }
    }
}

/// A UDP socket that the driver reads or writes.
pub(super) struct Socket {
    io: AsyncSocket,
    /// The destination address of all datagrams that arrive here.
    address: IpAddr,
    state: UdpSocketState,
    /// Whether the system may divide datagrams that are longer than the interface allows.
    may_fragment: AtomicBool,
}

impl Socket {
    /// Wraps a non-blocking socket that receives only datagrams to this address. Must be called
    /// within the runtime.
    pub(super) fn new(socket: UdpSocket, address: IpAddr) -> io::Result<Socket> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = AsyncSocket::new(socket)?;
        Ok(Socket { io, address, state, may_fragment: AtomicBool::new(false) })
    }

    /// Returns the membership of a socket that receives from a tree at the interface with address
    /// `ip`.
    pub(super) fn membership(&self, ip: IpAddr) -> io::Result<TreeMembership> {
        let socket = self.io.as_fd().try_clone_to_owned()?;
        Ok(TreeMembership { socket: socket.into(), tree: self.address, ip })
    }

    /// Returns the destination address of all datagrams that arrive here.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the number of datagrams that the system has dropped because the receive buffer was
    /// full.
    pub(super) fn dropped_datagrams(&self) -> u64 {
        getsockopt(&self.io.as_fd(), SocketMemory).map_or(0, |memory| memory[SK_MEMINFO_DROPS].into())
    }

    /// Returns whether data may have arrived. If not, wakes the task when it has.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.io.poll_ready(context)
    }

    /// Waits for room after the system had none.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.io.writable().await
    }

    fn send_once(&self, to: SocketAddr, contents: &[u8], segment: usize) -> io::Result<()> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None };
        let send = || self.io.try_write(|socket| self.state.try_send((&socket).into(), &transmit));
        match send() {
            Err(error) if is_too_long(&error) && self.allow_fragments() => send(),
            sent => sent,
        }
    }

    /// Lets the system divide datagrams that are longer than the interface allows. Returns whether
    /// it did not do so before. The length of datagrams follows from the MTUs when agents register,
    /// so this is needed only if the MTU has been reduced since; otherwise no datagram of that
    /// length would ever be sent.
    fn allow_fragments(&self) -> bool {
        if self.may_fragment.swap(true, Ordering::Relaxed) {
            return false;
        }
        tracing::warn!(ip = %self.address, "datagrams do not fit the MTU of the interface any more and are divided; restart the agent");
        let allowed = self.io.try_write(|socket| match self.address {
            IpAddr::V4(_) => Ok(sockopt::set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT)?),
            IpAddr::V6(_) => Ok(sockopt::set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DONT)?),
        });
        allowed.is_ok()
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        match self.io.try_read(|socket| self.state.recv((&socket).into(), buffers, metas)) {
            Ok(count) => count,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // The error belongs to an earlier packet that was undeliverable. Streams
                    // retransmit it.
                    tracing::debug!(%error, "while receiving datagrams");
                }
                0
            }
        }
    }
}

impl DatagramSink for Socket {
    fn segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn send(&self, mut batch: DatagramBatch) -> Result<Vec<u8>, DatagramBatch> {
        let DatagramBatch { to, segment, .. } = batch;
        let Err(error) = self.send_once(to, &batch.bytes, segment) else { return Ok(batch.bytes) };
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(batch);
        }
        if batch.bytes.len() <= segment {
            tracing::debug!(%to, %error, "while sending a datagram");
            return Ok(batch.bytes);
        }
        // The interface does not support GSO, which quinn-udp has recorded for later batches.
        let mut sent = 0;
        for datagram in batch.bytes.chunks(segment) {
            match self.send_once(to, datagram, segment) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    batch.bytes.drain(..sent);
                    return Err(batch);
                }
                Err(error) => tracing::debug!(%to, %error, "while sending a datagram"),
                Ok(()) => {}
            }
            sent += datagram.len();
        }
        Ok(batch.bytes)
    }
}

sockopt_impl!(
    /// Figures of a socket's memory, in the order of `linux/sock_diag.h`.
    SocketMemory,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_MEMINFO,
    [u32; 9]
);

/// Index of the number of dropped datagrams in [`SocketMemory`].
const SK_MEMINFO_DROPS: usize = 8;

/// Returns whether a datagram is longer than the interface allows.
fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error())
}

/// A datagram in the inbox.
struct InboxDatagram {
    /// The time of arrival, by the clock of the system's timestamps.
    at: Option<Duration>,
    from: SocketAddr,
    to: IpAddr,
    start: usize,
    end: usize,
}

/// The datagrams that have arrived and have not been handled yet.
pub(super) struct DatagramInbox {
    slots: Vec<u8>,
    metas: Vec<RecvMeta>,
    arrived: Vec<InboxDatagram>,
    /// When the datagrams were read, by the same clock.
    now: Duration,
    /// The socket to read first, in case there are more sockets than slots.
    turn: usize,
}

impl DatagramInbox {
    pub(super) fn new() -> DatagramInbox {
        let metas = vec![RecvMeta::default(); SLOTS];
        DatagramInbox {
            slots: vec![0; SLOTS * SLOT],
            metas,
            arrived: Vec::new(),
            now: Duration::ZERO,
            turn: 0,
        }
    }

    /// Reads the datagrams that have arrived at the sockets, and drops the earlier ones. Returns
    /// whether there are any. All sockets share the slots equally.
    pub(super) fn receive(&mut self, sockets: &[&Socket]) -> bool {
        self.arrived.clear();
        let read = sockets.len().min(SLOTS);
        let share = (SLOTS / read.max(1)).clamp(1, BATCH_SIZE);
        let mut used = 0;
        for socket in sockets.iter().cycle().skip(self.turn).take(read) {
            let slots = self.slots[used * SLOT..].chunks_exact_mut(SLOT).take(share);
            let mut buffers: Vec<IoSliceMut<'_>> = slots.map(IoSliceMut::new).collect();
            let count = socket.receive(&mut buffers, &mut self.metas[used..used + share]);
            for slot in used..used + count {
                self.arrived.extend(datagrams(&self.metas[slot], socket.address, slot * SLOT));
            }
            used += count;
        }
        self.turn = (self.turn + read) % sockets.len().max(1);
        // Only differences to the system's timestamps are used, so it does not matter if the clock
        // is set.
        self.now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // The sort is stable, so the datagrams of one socket keep their order.
        self.arrived.sort_by_key(|arrived| arrived.at);
        !self.arrived.is_empty()
    }

    /// Returns the number of datagrams in the inbox.
    pub(super) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// Returns a datagram, in the order of arrival: its age when it was read, its source and
    /// destination, and its bytes.
    pub(super) fn datagram(&mut self, at: usize) -> (Duration, (SocketAddr, IpAddr), &mut [u8]) {
        let arrived = &self.arrived[at];
        let age = arrived.at.map_or(Duration::ZERO, |at| self.now.saturating_sub(at));
        (age, (arrived.from, arrived.to), &mut self.slots[arrived.start..arrived.end])
    }
}

/// Returns the datagrams in a slot that begins at `start`. GRO puts many datagrams into one slot.
fn datagrams(meta: &RecvMeta, to: IpAddr, start: usize) -> impl Iterator<Item = InboxDatagram> + use<> {
    let (at, from) = (meta.timestamp, meta.addr);
    let (end, stride) = (start + meta.len, meta.stride.max(1));
    let starts = (start..end).step_by(stride);
    starts.map(move |start| InboxDatagram { at, from, to, start, end: end.min(start + stride) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::udp_outbox::DatagramOutbox;
    use std::time::Duration;
    use tokio::time::timeout;

    const VERSIONS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

    fn pair() -> (Socket, Socket, SocketAddr) {
        pair_at(VERSIONS[0])
    }

    fn pair_at(ip: IpAddr) -> (Socket, Socket, SocketAddr) {
        let (sender, _) = alone(ip, 0).unwrap();
        let (receiver, port) = alone(ip, 0).unwrap();
        (Socket::new(sender, ip).unwrap(), Socket::new(receiver, ip).unwrap(), SocketAddr::new(ip, port))
    }

    #[test]
    fn agents_share_a_port_only_at_different_addresses() {
        for here in VERSIONS {
            let one = bind(here, 0).unwrap();
            let other = bind([127, 0, 0, 2].into(), one.number).unwrap();
            assert_eq!(other.number, one.number);
            let refused = bind(here, one.number).map(|port| port.number).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
            let holder = format!("another process of this user has {}", SocketAddr::new(here, one.number));
            assert!(refused.to_string().contains(&holder), "{refused}");
        }
    }

    /// Returns at least the next `count` datagrams that arrive at the sockets.
    async fn next(sockets: &[&Socket], inbox: &mut DatagramInbox, count: usize) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        let receive = async {
            while received.len() < count {
                std::future::poll_fn(|context| {
                    let ready = sockets.iter().any(|socket| socket.poll_ready(context).is_ready());
                    if ready { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                inbox.receive(sockets);
                received.extend((0..inbox.len()).map(|at| inbox.datagram(at).2.to_vec()));
            }
        };
        timeout(Duration::from_secs(60), receive).await.expect("what is sent on loopback comes");
        received
    }

    /// Returns one datagram of each size. All of its bytes are its index.
    fn datagrams_of(sizes: &[usize]) -> Vec<Vec<u8>> {
        (0u8..).zip(sizes).map(|(tag, size)| vec![tag; *size]).collect()
    }

    const SIZES: [usize; 16] =
        [100, 100, 100, 40, 100, 1400, 1400, 7, 8, 9, 9, 65_507, 65_507, 30_000, 30_000, 30_000];

    #[tokio::test]
    async fn datagrams_of_all_sizes_arrive_whole_and_in_order() {
        for (sender, receiver, to) in VERSIONS.map(pair_at) {
            // The datagrams must not be fragmented, and the header of IPv6 is longer.
            let sent =
                datagrams_of(&SIZES.map(|size| size - 20 * usize::from(to.is_ipv6() && size == 65_507)));
            let mut outbox = DatagramOutbox::default();
            for datagram in &sent {
                outbox.datagram(&sender, to, datagram.len()).extend_from_slice(datagram);
            }
            outbox.flush(&sender);
            assert!(next(&[&receiver], &mut DatagramInbox::new(), sent.len()).await == sent);
        }
    }

    #[tokio::test]
    async fn a_batch_that_the_system_refuses_is_sent_one_by_one() {
        let (sender, receiver, to) = pair();
        // No system divides a message into more than 128 pieces.
        let bytes: Vec<u8> = (0..=199).flat_map(|tag| [tag; 10]).collect();
        assert!(sender.send_once(to, &bytes, 10).is_err());
        assert!(sender.send(DatagramBatch { to, bytes: bytes.clone(), segment: 10 }).is_ok());
        let received = next(&[&receiver], &mut DatagramInbox::new(), 200).await;
        assert!(received.iter().all(|datagram| datagram.len() == 10));
        assert_eq!(received.concat(), bytes);
    }

    #[tokio::test]
    async fn datagrams_without_room_are_counted_as_dropped() {
        let (sender, _, _) = pair();
        let full = socket_with_room(VERSIONS[0], 0).unwrap();
        full.set_nonblocking(true).unwrap();
        full.bind(&SocketAddr::new(VERSIONS[0], 0).into()).unwrap();
        let full = UdpSocket::from(full);
        let to = full.local_addr().unwrap();
        let full = Socket::new(full, VERSIONS[0]).unwrap();
        assert_eq!(full.dropped_datagrams(), 0);
        // A busy system delivers datagrams later than the calls return.
        let sent = (1..100_000).find(|_| {
            sender.send_once(to, &[0; 1000], 1000).unwrap();
            full.dropped_datagrams() > 0
        });
        let received = next(&[&full], &mut DatagramInbox::new(), 1).await.len();
        assert!(sent.is_some_and(|sent| received < sent), "{received} of {sent:?}");
    }

    #[tokio::test]
    async fn datagrams_of_all_sockets_are_handled_in_order_of_arrival() {
        let (sender, first, to_first) = pair();
        let (_, second, to_second) = pair();
        let sent = datagrams_of(&[10; 20]);
        // A busy system may deliver the last datagrams only while the first are being read. The
        // order is not guaranteed then, so the test tries again.
        for _ in 0..100 {
            let mut outbox = DatagramOutbox::default();
            for (place, datagram) in sent.iter().enumerate() {
                let to = if place % 3 == 0 { to_first } else { to_second };
                outbox.datagram(&sender, to, datagram.len()).extend_from_slice(datagram);
                outbox.flush(&sender);
            }
            if next(&[&first, &second], &mut DatagramInbox::new(), sent.len()).await == sent {
                return;
            }
        }
        panic!("they never come in the order in which they were sent");
    }
}
