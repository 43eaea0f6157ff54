//! Options of the sockets for quick calls: room for the datagrams that arrive while a rank
//! computes, and the division of long messages into datagrams by the system.

use crate::net::udp::{room_of, send_over_trees, socket_with_room};
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

/// The size of a socket's receive buffer in bytes.
pub(crate) const ROOM_BYTES: usize = 1 << 20;

/// A multicast address for tests (MCAST-TEST-NET, RFC 5771), to which nothing is really sent.
const TEST_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(233, 252, 0, 1), 9);
const TEST_DATAGRAM_BYTES: u16 = 1024;

/// Sets the length of the datagrams into which the system divides each message that a socket sends,
/// so that one system call sends all parts of a message (UDP_SEGMENT of Linux).
///
/// # Errors
/// Returns an error if the system does not support this.
pub(crate) fn divide_messages(socket: &socket2::Socket, datagram_bytes: u16) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGsoSegment, &datagram_bytes.into())?)
}

/// Makes the system deliver several parts of a message by one system call (UDP_GRO of Linux).
///
/// # Errors
/// Returns an error if the system does not support this.
pub(crate) fn join_parts(socket: &socket2::Socket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGroSegment, &true)?)
}

/// Returns whether the sockets of this process at the interface with address `ip` support long
/// quick calls: they have room for the datagrams, and the system divides messages. Before Linux
/// 6.11, it does so only if the interface computes checksums.
pub fn supports_long_quick_calls(ip: IpAddr) -> bool {
    let has_support = || {
        let socket = socket_with_room(ip, ROOM_BYTES)?;
        if room_of(&socket)? < ROOM_BYTES {
            return Ok(false);
        }
        send_over_trees(&socket, ip)?;
        // A packet with this lifetime does not leave the host.
        socket.set_multicast_ttl_v4(0)?;
        join_parts(&socket)?;
        divide_messages(&socket, TEST_DATAGRAM_BYTES)?;
        socket.send_to(&[0; 2 * TEST_DATAGRAM_BYTES as usize], &TEST_ADDRESS.into())?;
        Ok::<bool, io::Error>(true)
    };
    ip.is_ipv4() && has_support().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn a_message_is_divided_and_its_parts_are_joined() {
        let ip = Ipv4Addr::LOCALHOST;
        let socket = socket_with_room(ip.into(), ROOM_BYTES).unwrap();
        socket.bind(&SocketAddrV4::new(ip, 0).into()).unwrap();
        let plain = UdpSocket::bind((ip, 0)).unwrap();
        divide_messages(&socket, 1200).unwrap();
        let socket: UdpSocket = socket.into();
        let mut buffer = [0; 4096];
        socket.send_to(&[7; 3000], plain.local_addr().unwrap()).unwrap();
        let lengths = [0; 3].map(|_| plain.recv(&mut buffer).unwrap());
        assert_eq!(lengths, [1200, 1200, 600]);
        join_parts(&socket2::SockRef::from(&plain).try_clone().unwrap()).unwrap();
        socket.send_to(&[7; 3000], plain.local_addr().unwrap()).unwrap();
        assert_eq!(plain.recv(&mut buffer).unwrap(), 3000);
    }

    #[test]
    fn only_ipv4_supports_long_calls() {
        assert!(!supports_long_quick_calls(std::net::Ipv6Addr::LOCALHOST.into()));
    }
}
