//! UDP sockets: one for what is sent and for what comes to this node, one for each tree it listens to. Many
//! datagrams cross into the system and back at a time (sendmsg with GSO, recvmmsg, GRO) where it can do that.

use super::port_conflict::{self, PortEntry};
use super::udp_outbox::{BUFFER, DatagramBatch, DatagramSink};
use crate::interface;
use crate::readable::Readable;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, Type};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// Routers between racks may lie on a tree; a few more than any tree has. IPv6 calls it the hop limit.
const TTL: u32 = 8;

/// Receive buffers. Memory that nothing was received into is not taken.
const SLOTS: usize = 2 * BATCH_SIZE;
const SLOT: usize = 64 * 1024;

/// Free ports that are tried until one is free at all addresses.
const TRIES: u32 = 16;

/// A port of the agent's at all addresses of this machine, as long as it is kept.
pub(super) struct BoundPort {
    /// The socket for what this node sends, and for what comes to it alone.
    pub(super) socket: UdpSocket,
    /// Holds the port at all other addresses, multicast among them. Nothing is read from it.
    pub(super) guard: UdpSocket,
    pub(super) number: u16,
}

/// Takes a port. Sockets for trees share it (SO_REUSEPORT), which the system lets only those of the same user do: what others would
/// bind to hear the trees, or to send from it, is in use. Agents of one user may have the same port at different addresses.
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

/// What the system does not refuse. With more than ten sockets at a port, Linux does not compare an address of all (0.0.0.0) with single
/// ones (`udp_lib_get_port`): whoever has bound trees' addresses while no agent was here would stay.
fn refuse_conflicts(socket: &UdpSocket, ip: IpAddr, port: u16) -> io::Result<()> {
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
    hear_own_trees(&guard, ip)?;
    guard.set_recv_buffer_size(0)?;
    guard.bind(&SocketAddr::new(unspecified(ip), port).into())?;
    Ok(guard.into())
}

/// All addresses of the version of this one.
fn unspecified(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A socket at all addresses gets no copies of what other sockets' trees bring.
fn hear_own_trees(socket: &socket2::Socket, ip: IpAddr) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => socket.set_multicast_all_v4(false),
        IpAddr::V6(_) => socket.set_multicast_all_v6(false),
    }
}

fn alone(ip: IpAddr, port: u16) -> io::Result<(UdpSocket, u16)> {
    let socket = socket(ip)?;
    // A free port is to be free of other agents, too.
    socket.set_reuse_port(port != 0)?;
    socket.bind(&SocketAddr::new(ip, port).into())?;
    socket.set_reuse_port(true)?;
    send_over_trees(&socket, ip)?;
    let socket: UdpSocket = socket.into();
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

/// A socket for what comes over a tree to the interface with address `ip`.
pub(super) fn listen(tree: SocketAddr, ip: IpAddr) -> io::Result<Socket> {
    let socket = socket(ip)?;
    socket.set_reuse_port(true)?;
    // To the tree's address, so that it gets nothing else that comes to this port.
    socket.bind(&tree.into())?;
    join(&socket, tree.ip(), ip)?;
    Socket::new(socket.into(), tree.ip())
}

/// A socket gets what comes over a tree to the interface with address `ip`.
fn join(socket: &socket2::Socket, tree: IpAddr, ip: IpAddr) -> io::Result<()> {
    match (tree, ip) {
        (IpAddr::V4(tree), IpAddr::V4(ip)) => socket.join_multicast_v4(&tree, &ip),
        (IpAddr::V6(tree), IpAddr::V6(ip)) => socket.join_multicast_v6(&tree, interface::index_of(ip)?),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is of the other version of IP")),
    }
}

/// A socket of the driver's.
fn socket(ip: IpAddr) -> io::Result<socket2::Socket> {
    let socket = socket_with_room(ip, BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.set_send_buffer_size(BUFFER)?;
    Ok(socket)
}

/// A socket for addresses of the version of this one, and of no other.
fn new_socket(ip: IpAddr) -> io::Result<socket2::Socket> {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = socket2::Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP))?;
    if ip.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// A socket, for the version of IP of an address, with room for this many bytes that have come.
pub(crate) fn socket_with_room(ip: IpAddr, room: usize) -> io::Result<socket2::Socket> {
    let socket = new_socket(ip)?;
    // Beyond the system's limit only root may go; others get what the limit allows.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, room).is_err() {
        socket.set_recv_buffer_size(room)?;
    }
    Ok(socket)
}

/// What a socket sends over trees goes out at the interface with address `ip`, and does not come back.
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

/// A socket of the driver's.
pub(super) struct Socket {
    io: Readable,
    /// What comes here was sent to this address.
    address: IpAddr,
    state: UdpSocketState,
}

impl Socket {
    /// The socket of an address. To be called within the runtime.
    pub(super) fn new(socket: UdpSocket, address: IpAddr) -> io::Result<Socket> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = Readable::new(socket)?;
        Ok(Socket { io, address, state })
    }

    /// Whether something may have come; wakes the task when it has.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        self.io.poll_ready(context)
    }

    /// Waits for room, after the system had none.
    pub(super) async fn writable(&self) -> io::Result<()> {
        self.io.writable().await
    }

    fn send_once(&self, to: SocketAddr, contents: &[u8], segment: usize) -> io::Result<()> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit { destination: to, ecn: None, contents, segment_size, src_ip: None };
        self.io.try_write(|socket| self.state.try_send((&socket).into(), &transmit))
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        match self.io.try_read(|socket| self.state.recv((&socket).into(), buffers, metas)) {
            Ok(count) => count,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    // Of an earlier packet that found nobody at its destination; streams ask again.
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
        // The interface takes no more than one at a time: quinn-udp has noted that.
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

/// A datagram in the inbox.
struct InboxDatagram {
    /// When, by the clock that the system stamps datagrams with.
    at: Option<Duration>,
    from: SocketAddr,
    to: IpAddr,
    start: usize,
    end: usize,
}

/// What has come and was not handled yet.
pub(super) struct DatagramInbox {
    slots: Vec<u8>,
    metas: Vec<RecvMeta>,
    arrived: Vec<InboxDatagram>,
    /// When they were taken.
    now: Duration,
    /// The socket that is the first to be read, should there be more than slots.
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

    /// Takes what has come to the sockets, in place of what was here; tells whether there was anything. Each
    /// socket gets its share of the room.
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
        // Only differences to its own stamps are of use, so that the clock may be set as anybody likes.
        self.now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Those of one socket keep their order.
        self.arrived.sort_by_key(|arrived| arrived.at);
        !self.arrived.is_empty()
    }

    /// How many datagrams are here.
    pub(super) fn len(&self) -> usize {
        self.arrived.len()
    }

    /// A datagram, counted in the order in which they came: its age when it was taken, whose it is and where it was sent to, and
    /// its bytes.
    pub(super) fn datagram(&mut self, at: usize) -> (Duration, (SocketAddr, IpAddr), &mut [u8]) {
        let arrived = &self.arrived[at];
        let age = arrived.at.map_or(Duration::ZERO, |at| self.now.saturating_sub(at));
        (age, (arrived.from, arrived.to), &mut self.slots[arrived.start..arrived.end])
    }
}

/// The datagrams in a slot that begins at `start`, which came to an address: GRO puts many into one.
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
    fn agents_of_a_user_have_a_port_at_different_addresses_and_not_twice_at_one() {
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

    /// The next `count` datagrams to come.
    async fn next(sockets: &[&Socket], inbox: &mut DatagramInbox, count: usize) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        let receive = async {
            while came.len() < count {
                std::future::poll_fn(|context| {
                    let ready = sockets.iter().any(|socket| socket.poll_ready(context).is_ready());
                    if ready { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                inbox.receive(sockets);
                came.extend((0..inbox.len()).map(|at| inbox.datagram(at).2.to_vec()));
            }
        };
        timeout(Duration::from_secs(60), receive).await.expect("what is sent on loopback comes");
        came
    }

    /// Datagrams of sizes that make every kind of boundary: equal ones, a shorter one after them, longer ones.
    fn datagrams_of(sizes: &[usize]) -> Vec<Vec<u8>> {
        (0u8..).zip(sizes).map(|(tag, size)| vec![tag; *size]).collect()
    }

    const SIZES: [usize; 16] =
        [100, 100, 100, 40, 100, 1400, 1400, 7, 8, 9, 9, 65_507, 65_507, 30_000, 30_000, 30_000];

    #[tokio::test]
    async fn datagrams_of_all_sizes_arrive_whole_and_in_order() {
        for (sender, receiver, to) in VERSIONS.map(pair_at) {
            // None is cut into fragments, and IPv6's header is longer.
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
    async fn what_the_system_does_not_take_as_one_leaves_one_by_one() {
        let (sender, receiver, to) = pair();
        // No system cuts a message into more than 128 pieces.
        let bytes: Vec<u8> = (0..=199).flat_map(|tag| [tag; 10]).collect();
        assert!(sender.send_once(to, &bytes, 10).is_err());
        assert!(sender.send(DatagramBatch { to, bytes: bytes.clone(), segment: 10 }).is_ok());
        let came = next(&[&receiver], &mut DatagramInbox::new(), 200).await;
        assert!(came.iter().all(|datagram| datagram.len() == 10));
        assert_eq!(came.concat(), bytes);
    }

    #[tokio::test]
    async fn what_comes_to_several_sockets_is_handled_in_the_order_of_its_arrival() {
        let (sender, first, to_first) = pair();
        let (_, second, to_second) = pair();
        let sent = datagrams_of(&[10; 20]);
        // A system that is busy may deliver the last of them only while the first are read; of those nothing is said.
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
