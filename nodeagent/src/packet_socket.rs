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
