//! Receives the LLDP of ordinary switches, so that the controller learns the node's rack on
//! networks without OpenFlow. [`NeighborTable`] interprets the frames.
#![allow(unsafe_code, reason = "addresses and options of packet(7) sockets")]

use crate::async_socket::AsyncSocket;
use crate::interface::{self, Interface};
use cool_daemon::clock::Clock;
use cool_machine::{Machine, Poll};
use cool_topology::lldp::ETHERTYPE;
use cool_topology::lldp_neighbor::NeighborTable;
use cool_topology::{LldpNeighbor, MacAddr};
use rustix::net::RecvFlags;
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, info};

/// The group addresses of LLDP: nearest bridge, nearest bridge that is no two-port MAC relay, and
/// nearest customer bridge (802.1AB, table 7-1).
const GROUPS: [MacAddr; 3] = [
    MacAddr(0x01, 0x80, 0xc2, 0, 0, 0x0e),
    MacAddr(0x01, 0x80, 0xc2, 0, 0, 0x03),
    MacAddr(0x01, 0x80, 0xc2, 0, 0, 0x00),
];

/// Maximum number of interfaces, for example members of a bridge, from which frames are received.
const INTERFACES_MAX: usize = 32;

/// Pause after each frame of an interface. Switches send one every 30 s, and a flood must not cost
/// much.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after an error, for example because the interface is down.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Maximum length of a frame.
const FRAME_MAX: usize = 1500;

/// Receives LLDP from now on. Returns the current neighbor, and the tasks, which end when they are
/// dropped. There is no neighbor if the agent may not receive Ethernet frames.
///
/// Frames of the interface and of those below it count, because the kernel passes those for a
/// bridge to its members only.
pub(crate) fn start(interface: &Interface) -> (watch::Receiver<Option<LldpNeighbor>>, JoinSet<()>) {
    let (changed, current) = watch::channel(None);
    let mut tasks = JoinSet::new();
    let (frames, received) = mpsc::channel(INTERFACES_MAX);
    for index in interface::with_lower(&interface.name).into_iter().take(INTERFACES_MAX) {
        match packet_socket(index).and_then(AsyncSocket::new) {
            Ok(socket) => drop(tasks.spawn(receive(socket, frames.clone()))),
            Err(error) => {
                let name = &interface.name;
                info!(%error, "receives no LLDP of a switch on {name}; the racks of nodes can be named by --rack or --racks");
                break;
            }
        }
    }
    tasks.spawn(track(received, changed));
    (current, tasks)
}

/// Passes on the frames of an interface.
async fn receive(socket: AsyncSocket, frames: mpsc::Sender<Vec<u8>>) {
    let mut buffer = [0; FRAME_MAX];
    loop {
        let read =
            socket.read(|socket| Ok(rustix::net::recv(socket, &mut buffer[..], RecvFlags::empty())?.0));
        match read.await {
            Ok(len) if frames.send(buffer[..len].to_vec()).await.is_err() => return,
            Ok(_) => sleep(PAUSE).await,
            Err(error) => {
                debug!(%error, "cannot receive LLDP");
                sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// Publishes the current neighbor.
async fn track(mut frames: mpsc::Receiver<Vec<u8>>, changed: watch::Sender<Option<LldpNeighbor>>) {
    let (clock, mut table) = (Clock::start(), NeighborTable::default());
    loop {
        let deadline = loop {
            match table.poll(clock.now()) {
                Poll::Output(neighbor) => {
                    match &neighbor {
                        Some(LldpNeighbor { chassis, port, system_name }) => {
                            info!(chassis, port, system_name, "the node's switch announces itself by LLDP");
                        }
                        None => info!("the node's switch no longer announces itself by LLDP"),
                    }
                    changed.send_replace(neighbor);
                }
                Poll::Idle(deadline) => break deadline,
            }
        };
        tokio::select! {
            Some(frame) = frames.recv() => table.handle(clock.now(), &frame),
            () = clock.wait(deadline) => {}
        }
    }
}

/// Returns a socket that receives the LLDP frames of an interface, without their Ethernet headers.
/// It sees no other packets, so it costs nothing.
fn packet_socket(index: u32) -> io::Result<Socket> {
    // Without a protocol, the socket receives nothing until it is bound.
    let socket = Socket::new(Domain::PACKET, Type::DGRAM.nonblocking(), None)?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll is one of the system's address types.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETHERTYPE.to_be();
    address.sll_ifindex = index;
    // SAFETY: the storage has been initialized as an address of its family, with this length.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
    socket.bind(&address)?;
    for group in GROUPS {
        join(&socket, index, group)?;
    }
    Ok(socket)
}

/// Makes an interface accept frames to a group address while the socket is open.
fn join(socket: &Socket, index: i32, group: MacAddr) -> io::Result<()> {
    let mut request = libc::packet_mreq {
        mr_ifindex: index,
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

    #[tokio::test]
    async fn the_current_neighbor_is_published() {
        let (frames, received) = mpsc::channel(4);
        let (changed, mut current) = watch::channel(None);
        tokio::spawn(track(received, changed));
        let frame = |ttl| [b"\x02\x02\x07a\x04\x02\x07b\x06\x02\x00", &[ttl][..], b"\x00\x00"].concat();
        frames.send(b"malformed".to_vec()).await.unwrap();
        frames.send(frame(120)).await.unwrap();
        let neighbor = current.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!((neighbor.chassis.as_str(), neighbor.port.as_str()), ("a", "b"));
        frames.send(frame(0)).await.unwrap();
        assert_eq!(*current.wait_for(Option::is_none).await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_interface_without_lldp_or_permission_has_no_neighbor() {
        let (current, tasks) = start(&Interface::read("lo", false).unwrap());
        assert_eq!(*current.borrow(), None);
        assert!(!tasks.is_empty());
    }
}
