//! Sockets of packet(7), for frames that no other socket can send or receive.
#![allow(unsafe_code, reason = "addresses and options of packet(7) sockets")]

use cool_topology::MacAddr;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
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
