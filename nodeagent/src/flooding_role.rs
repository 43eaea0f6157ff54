//! The node's role in an examination of whether the network floods multicasts to nodes that have
//! not joined their address ([`NodeFloodingRole`]). Only a listener needs permission for raw
//! sockets.

use crate::async_socket::AsyncSocket;
use crate::interface::{self, Interface};
use crate::net::udp::{self, member_socket};
use crate::packet_socket;
use cool_proto::control::{FloodingReport, FloodingRole, FloodingState, FloodingTask};
use cool_topology::MacAddr;
use cool_topology::flooding_probe::{FloodingProbe, NONCE_BYTES};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::info;

/// Maximum time for which a node keeps a role.
const ROLE_TIME_MAX: Duration = Duration::from_secs(120);
/// Number of probes in a train, and the time between two of them.
const TRAIN_PROBES: u32 = 10;
const PROBE_INTERVAL: Duration = Duration::from_millis(20);
/// Number of probes of a train with which it counts as heard. Switches that flood do so with all,
/// and a switch that is still learning with a few at most.
const HEARD_PROBES_MIN: u32 = 3;
/// Number of trains of an examination that can be heard.
const TRAINS_MAX: usize = 2;
/// Pause after each packet that was received, so that foreign packets cost little. It is shorter
/// than the time between two probes.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause after an error, for example because the interface is down.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of reports that wait for the connection to the controller.
const REPORTS_MAX: usize = 16;
/// Number of bytes that are read of each packet; the rest is padding.
const PACKET_BYTES: usize = 256;

/// The node's current role.
pub(crate) struct NodeFloodingRole {
    task: JoinSet<()>,
    reports: mpsc::Receiver<FloodingReport>,
    sender: mpsc::Sender<FloodingReport>,
}

impl NodeFloodingRole {
    pub(crate) fn new() -> NodeFloodingRole {
        let (sender, reports) = mpsc::channel(REPORTS_MAX);
        NodeFloodingRole { task: JoinSet::new(), reports, sender }
    }

    /// Ends the role, because a session with another controller begins.
    pub(crate) fn begin_session(&mut self) {
        *self = NodeFloodingRole::new();
    }

    /// Takes a role instead of the current one.
    pub(crate) fn take(&mut self, interface: &Interface, task: FloodingTask) {
        self.task = JoinSet::new();
        if task.role() != FloodingRole::None {
            let (interface, reports) = (interface.clone(), self.sender.clone());
            self.task.spawn(async move {
                // The controller has given up by then.
                let _ = timeout(ROLE_TIME_MAX, play(interface, task, reports)).await;
            });
        }
    }

    /// Waits for the next report to the controller. The caller must send it, because it is returned
    /// once.
    pub(crate) async fn next_report(&mut self) -> FloodingReport {
        match self.reports.recv().await {
            Some(report) => report,
            // The node keeps a sender, so this does not occur.
            None => std::future::pending().await,
        }
    }
}

/// Performs a role, and reports if that is not possible.
async fn play(interface: Interface, task: FloodingTask, reports: mpsc::Sender<FloodingReport>) {
    if let Err(error) = perform(&interface, &task, &reports).await {
        let role = task.role().as_str_name();
        info!(%error, role, "takes no part in an examination of whether the network floods");
        report(&task, &reports, FloodingState::Unable, 0).await;
    }
}

async fn report(
    task: &FloodingTask,
    reports: &mpsc::Sender<FloodingReport>,
    state: FloodingState,
    train: u32,
) {
    // The session may have ended.
    let _ = reports.send(FloodingReport { number: task.number, state: state.into(), train }).await;
}

async fn perform(
    interface: &Interface,
    task: &FloodingTask,
    reports: &mpsc::Sender<FloodingReport>,
) -> io::Result<()> {
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("invalid {what}"));
    let group: IpAddr = task.address.parse().map_err(|_| invalid("address"))?;
    let port = u16::try_from(task.port).map_err(|_| invalid("port"))?;
    let nonce: [u8; NONCE_BYTES] = task.nonce.as_slice().try_into().map_err(|_| invalid("nonce"))?;
    if !group.is_multicast() || group.is_ipv6() != interface.ip.is_ipv6() {
        return Err(invalid("address"));
    }
    let group = SocketAddr::new(group, port);
    let socket = match task.role() {
        FloodingRole::None => return Ok(()),
        FloodingRole::Sender => {
            let train = u8::try_from(task.train).map_err(|_| invalid("train"))?;
            let bytes = task.bytes.min(interface.mtu) as usize;
            let probe = FloodingProbe { nonce, train };
            return send_train(interface, group, &probe.payload(bytes, group.is_ipv6())).await;
        }
        FloodingRole::Member => HearingSocket::Member(AsyncSocket::new(member_socket(group, interface.ip)?)?),
        FloodingRole::Listener => {
            HearingSocket::Listener(AsyncSocket::new(listen(interface, group.ip())?)?, group.ip())
        }
    };
    report(task, reports, FloodingState::Ready, 0).await;
    let mut heard = BTreeMap::new();
    while heard.values().filter(|count| **count >= HEARD_PROBES_MIN).count() < TRAINS_MAX {
        let probe = socket.probe().await;
        if probe.nonce != nonce || heard.len() >= TRAINS_MAX && !heard.contains_key(&probe.train) {
            continue;
        }
        let count = heard.entry(probe.train).or_insert(0u32);
        *count += 1;
        if *count == HEARD_PROBES_MIN {
            report(task, reports, FloodingState::Heard, probe.train.into()).await;
        }
    }
    // The membership lasts until the role ends.
    std::future::pending().await
}

/// Multicasts the probes of a train.
async fn send_train(interface: &Interface, group: SocketAddr, payload: &[u8]) -> io::Result<()> {
    let socket = udp::socket_with_room(interface.ip, PACKET_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::new(interface.ip, 0).into())?;
    udp::send_over_trees(&socket, interface.ip)?;
    for _ in 0..TRAIN_PROBES {
        // A probe that the system rejects for the moment is lost.
        let sent = rustix::net::sendto(&socket, payload, SendFlags::DONTWAIT, &group);
        if let Err(error) = sent.map_err(io::Error::from)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Err(error);
        }
        sleep(PROBE_INTERVAL).await;
    }
    Ok(())
}

/// Returns a socket that receives the packets to a multicast address without joining it, so no
/// switch learns of a member. Other packets remain in the kernel.
fn listen(interface: &Interface, group: IpAddr) -> io::Result<socket2::Socket> {
    if interface.ip.is_loopback() {
        let why = "a loopback interface delivers all packets to all sockets";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let index = *interface::with_lower(&interface.name).first().ok_or(io::ErrorKind::NotFound)?;
    let ethertype = if group.is_ipv6() { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
    let socket = packet_socket::open()?;
    packet_socket::accept_only(&socket, group)?;
    socket.bind(&packet_socket::address(index, ethertype, None)?)?;
    packet_socket::join(&socket, index, ethernet_address(group))?;
    Ok(socket)
}

/// Returns the Ethernet address of a multicast address (RFC 1112, 6.4; RFC 2464, 7).
fn ethernet_address(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            MacAddr(0x01, 0x00, 0x5e, b & 0x7f, c, d)
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            MacAddr(0x33, 0x33, a, b, c, d)
        }
    }
}

/// A socket at which probes arrive.
enum HearingSocket {
    /// Receives datagrams to the address that it has joined.
    Member(AsyncSocket),
    /// Receives IP packets to this address, which it has not joined.
    Listener(AsyncSocket, IpAddr),
}

impl HearingSocket {
    /// Waits for the next probe.
    async fn probe(&self) -> FloodingProbe {
        let mut packet = [0; PACKET_BYTES];
        loop {
            let (HearingSocket::Member(socket) | HearingSocket::Listener(socket, _)) = self;
            let read =
                socket.read(|socket| Ok(rustix::net::recv(socket, &mut packet[..], RecvFlags::empty())?.0));
            let Ok(length) = read.await else {
                sleep(ERROR_PAUSE).await;
                continue;
            };
            let packet = &packet[..length.min(PACKET_BYTES)];
            let probe = match self {
                HearingSocket::Member(_) => FloodingProbe::from_payload(packet),
                HearingSocket::Listener(_, group) => FloodingProbe::from_packet(packet, *group),
            };
            sleep(PAUSE).await;
            if let Some(probe) = probe {
                return probe;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = 3;

    fn task(role: FloodingRole) -> FloodingTask {
        FloodingTask {
            number: NUMBER,
            role: role.into(),
            address: "239.195.255.255".to_owned(),
            port: 7420,
            bytes: 1500,
            nonce: vec![7; NONCE_BYTES],
            train: 0,
        }
    }

    fn interface() -> Interface {
        Interface::read("lo", false).unwrap()
    }

    async fn state_after(task: FloodingTask) -> FloodingState {
        let mut role = NodeFloodingRole::new();
        role.take(&interface(), task);
        let report = role.next_report().await;
        assert_eq!(report.number, NUMBER);
        report.state()
    }

    #[test]
    fn addresses_have_those_of_ethernet() {
        let ethernet = |ip: &str| ethernet_address(ip.parse().unwrap()).to_string();
        assert_eq!(ethernet("239.195.255.254"), "01:00:5e:43:ff:fe");
        assert_eq!(ethernet("ff18::434f:4f4c:c003:ffff"), "33:33:c0:03:ff:ff");
    }

    #[tokio::test]
    async fn malformed_tasks_and_loopback_listeners_are_rejected() {
        let member = || task(FloodingRole::Member);
        for wrong in [
            FloodingTask { address: "10.0.0.1".into(), ..member() },
            FloodingTask { address: "ff18::1".into(), ..member() },
            FloodingTask { port: 70_000, ..member() },
            FloodingTask { nonce: vec![7; 15], ..member() },
            FloodingTask { train: 256, ..task(FloodingRole::Sender) },
            task(FloodingRole::Listener),
        ] {
            assert_eq!(state_after(wrong.clone()).await, FloodingState::Unable, "{wrong:?}");
        }
    }

    #[tokio::test]
    async fn a_member_reports_each_train_once() {
        let mut role = NodeFloodingRole::new();
        role.take(&interface(), task(FloodingRole::Member));
        assert_eq!(role.next_report().await.state(), FloodingState::Ready);
        // This machine delivers multicasts to itself only if the sender permits it.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = socket2::SockRef::from(&socket);
        sender.set_multicast_if_v4(&[127, 0, 0, 1].into()).unwrap();
        let send = |nonce, train| {
            let payload = FloodingProbe { nonce: [nonce; NONCE_BYTES], train }.payload(100, false);
            socket.send_to(&payload, "239.195.255.255:7420").unwrap();
        };
        for _ in 0..2 * HEARD_PROBES_MIN {
            send(6, 0);
            send(7, 1);
        }
        let heard = FloodingReport { number: NUMBER, state: FloodingState::Heard.into(), train: 1 };
        assert_eq!(role.next_report().await, heard);
        (0..HEARD_PROBES_MIN).for_each(|_| send(7, 0));
        assert_eq!(role.next_report().await, FloodingReport { train: 0, ..heard });
        role.take(&interface(), task(FloodingRole::None));
        assert!(role.task.is_empty());
    }
}
