//! Sockets of packet(7), for frames that no other socket can send or receive.
#![allow(unsafe_code, reason = "addresses and options of packet(7) sockets")]

use cool_topology::MacAddr;
use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

/// Returns a socket that receives no frames until it is bound. It sends and receives frames without
/// their Ethernet headers.
pub(crate) fn open() -> io::Result<Socket> {
    // Frames are received only with a protocol.
    Socket::new(Domain::PACKET, Type::DGRAM.nonblocking(), None)
}

/// Returns the address of frames of a type (EtherType) on an interface; to send, with their
/// destination.
pub(crate) fn address(index: u32, ethertype: u16, destination: Option<MacAddr>) -> io::Result<SockAddr> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll is one of the system's address types.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    if let Some(destination) = destination {
        address.sll_halen = 6;
        address.sll_addr[..6].copy_from_slice(&destination.octets());
    }
    // SAFETY: the storage has been initialized as an address of its family, with this length.
    Ok(unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) })
}

/// Makes a socket for IP packets receive only those to this address. The kernel drops all others
/// without a copy. Should be called before the socket is bound, because it may receive others until
/// then.
pub(crate) fn accept_only(socket: &Socket, to: IpAddr) -> io::Result<()> {
    // Filters run on a frame without its Ethernet header. The address has this offset.
    let (offset, words): (u32, Vec<u32>) = match to {
        IpAddr::V4(ip) => (16, vec![ip.to_bits()]),
        IpAddr::V6(ip) => (24, (0..4).rev().map(|word| (ip.to_bits() >> (32 * word)) as u32).collect()),
    };
    let mut filter = Vec::new();
    for (at, word) in (0u8..).zip(&words) {
        // After each comparison that fails, the rest is skipped up to the last instruction.
        let skipped = 2 * (words.len() as u8 - 1 - at) + 1;
        let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        let compare = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        filter.push(SockFilter::new(load, 0, 0, offset + 4 * u32::from(at)));
        filter.push(SockFilter::new(compare, 0, skipped, *word));
    }
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    // Accepts the whole packet, or nothing of it.
    filter.extend([u32::MAX, 0].map(|bytes| SockFilter::new(end, 0, 0, bytes)));
    socket.attach_filter(&filter)
}

/// Makes an interface accept frames to a group address while the socket is open.
pub(crate) fn join(socket: &Socket, index: u32, group: MacAddr) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        mr_type: libc::PACKET_MR_MULTICAST as u16,
        mr_alen: 6,
        mr_address: [0; 8],
    };
    request.mr_address[..6].copy_from_slice(&group.octets());
    // SAFETY: the descriptor is open, and the option's value has this type and length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::UdpSocket;
    use std::time::Duration;

    /// Returns a socket that receives the packets to an address at the loopback interface. `None`
    /// without permission for such sockets.
    fn listener(to: &str) -> Option<Socket> {
        let (socket, to) = (open().ok()?, to.parse::<IpAddr>().unwrap());
        let index = *crate::interface::with_lower("lo").first().unwrap();
        let ethertype = if to.is_ipv6() { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
        accept_only(&socket, to).unwrap();
        socket.bind(&address(index, ethertype, None).unwrap()).unwrap();
        Some(socket)
    }

    /// Returns the next packet.
    fn next(socket: &mut Socket) -> Vec<u8> {
        let mut packet = vec![0; 100];
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let length = socket.read(&mut packet).unwrap();
        packet.truncate(length);
        packet
    }

    #[test]
    fn a_filter_passes_packets_to_one_address_only() {
        let Some(mut socket) = listener("127.9.8.7") else { return };
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for to in [[127, 9, 8, 6], [127, 9, 9, 7], [127, 9, 8, 7]] {
            sender.send_to(&to, (IpAddr::from(to), 9)).unwrap();
        }
        let packet = next(&mut socket);
        assert_eq!((&packet[16..20], &packet[28..]), (&[127, 9, 8, 7][..], &[127, 9, 8, 7][..]));
    }

    #[test]
    fn a_filter_for_ipv6_compares_the_whole_address() {
        let (Some(mut socket), Ok(sender)) = (listener("::1"), UdpSocket::bind("[::1]:0")) else { return };
        let others = ["::2", "::1:0:1", "::1:0:0:0:1", "1::1"].map(|to| listener(to).unwrap());
        sender.send_to(b"probe", ("::1", 9)).unwrap();
        // Other tests may send to this address, too.
        while !next(&mut socket).ends_with(b"probe") {}
        for mut other in others {
            assert_eq!(other.read(&mut [0; 100]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }
}
