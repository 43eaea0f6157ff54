//! UDP sockets: one for what is sent and for what comes to this node, one for each tree it listens to.

use super::{Event, Events};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use tokio::net::UdpSocket;

/// Routers between racks may lie on a tree; a few more than any tree has.
const TTL: u32 = 8;

/// Room for what comes while the engine is busy: some seconds at 20 Mbit/s, some tens of milliseconds at
/// 1 Gbit/s.
const BUFFER: usize = 8 * 1024 * 1024;

/// The longest datagram.
const DATAGRAM_MAX: usize = 65_535;

/// Datagrams taken at a time.
const BATCH: usize = 64;

/// The socket for what this node sends, and for what comes to it alone.
pub(super) fn bind(ip: Ipv4Addr, port: u16) -> io::Result<(std::net::UdpSocket, u16)> {
    let socket = socket()?;
    socket.bind(&SocketAddrV4::new(ip, port).into())?;
    socket.set_multicast_if_v4(&ip)?;
    socket.set_multicast_ttl_v4(TTL)?;
    socket.set_multicast_loop_v4(false)?;
    let socket: std::net::UdpSocket = socket.into();
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

/// A socket for what comes over a tree to the interface with address `ip`.
pub(super) fn listen(tree: SocketAddrV4, ip: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = socket()?;
    socket.set_reuse_address(true)?;
    // To the tree's address, so that it gets nothing else that comes to this port.
    socket.bind(&tree.into())?;
    socket.join_multicast_v4(tree.ip(), &ip)?;
    UdpSocket::from_std(socket.into())
}

fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    // Beyond the system's limit only root may go; others get what the limit allows.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        socket.set_recv_buffer_size(BUFFER)?;
    }
    socket.set_send_buffer_size(BUFFER)?;
    Ok(socket)
}

/// Reads datagrams, many at a time, until the driver is gone.
pub(super) async fn read(socket: &UdpSocket, events: Events) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    while socket.readable().await.is_ok() {
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            match socket.try_recv_from(&mut buffer) {
                Ok((len, SocketAddr::V4(from))) => batch.push((from, buffer[..len].to_vec())),
                Ok((_, SocketAddr::V6(_))) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // Of an earlier packet that found nobody at its destination; streams ask again.
                Err(error) => tracing::debug!(%error, "while receiving datagrams"),
            }
        }
        if !batch.is_empty() && events.send(Event::Datagrams(batch)).await.is_err() {
            return;
        }
    }
}

/// Sends one datagram. What the network does not take is lost, as it may be later on the way.
pub(super) async fn send(socket: &UdpSocket, to: SocketAddrV4, bytes: &[u8]) {
    if let Err(error) = socket.send_to(bytes, to).await {
        tracing::debug!(%to, %error, "while sending a datagram");
    }
}
