//! Receives the LLDP of ordinary switches, so that the controller learns the node's rack on
//! networks without OpenFlow. [`NeighborTable`] interprets the frames.

use crate::async_socket::AsyncSocket;
use crate::interface::{self, Interface};
use crate::packet_socket;
use cool_daemon::clock::Clock;
use cool_machine::{Machine, Poll};
use cool_topology::lldp::ETHERTYPE;
use cool_topology::lldp_neighbor::NeighborTable;
use cool_topology::{LldpNeighbor, MacAddr};
use rustix::net::RecvFlags;
use socket2::Socket;
use std::io;
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
        match lldp_socket(index).and_then(AsyncSocket::new) {
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
fn lldp_socket(index: u32) -> io::Result<Socket> {
    let socket = packet_socket::open()?;
    socket.bind(&packet_socket::address(index, ETHERTYPE, None)?)?;
    for group in GROUPS {
        packet_socket::join(&socket, index, group)?;
    }
    Ok(socket)
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
