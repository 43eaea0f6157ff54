//! Listens for the querier of multicast groups on the node's network, and is the querier if the
//! controller appoints this node ([`QuerierMonitor`]). Both need permission for raw sockets.

use crate::async_socket::AsyncSocket;
use crate::interface::{self, Interface};
use crate::packet_socket;
use cool_daemon::clock::Clock;
use cool_machine::{Machine, Poll};
use cool_proto::control::QuerierChanged;
use cool_proto::features::QUERIERS;
use cool_topology::MacAddr;
use cool_topology::membership_query;
use cool_topology::querier::{QuerierInput, QuerierMonitor, QuerierOutput};
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

/// The Ethernet addresses of 224.0.0.1 and ff02::1.
const ALL_HOSTS: MacAddr = MacAddr(0x01, 0x00, 0x5e, 0, 0, 1);
const ALL_NODES: MacAddr = MacAddr(0x33, 0x33, 0, 0, 0, 1);

/// Maximum length of a received packet. Queries with sources may be longer; the rest is cut off.
const PACKET_MAX: usize = 256;
/// Pause after an error, for example because the interface is down.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// The querier that the node hears, and the node's own appointment by the controller.
pub(crate) struct NodeQuerier {
    current: watch::Receiver<QuerierChanged>,
    appointed: watch::Sender<bool>,
    /// The latest report in this session.
    reported: Option<QuerierChanged>,
    /// Whether the controller accepts reports.
    accepts_reports: bool,
    _task: JoinSet<()>,
}

impl NodeQuerier {
    /// Listens for queriers from now on.
    pub(crate) fn start(interface: &Interface) -> NodeQuerier {
        let (changed, current) = watch::channel(QuerierChanged::default());
        let (appointed, appointment) = watch::channel(false);
        let mut task = JoinSet::new();
        match QuerySockets::open(interface) {
            Ok(sockets) => {
                changed.send_modify(|status| status.can_query = true);
                task.spawn(monitor(sockets, appointment, changed));
            }
            Err(error) => {
                let name = &interface.name;
                info!(%error, "does not listen for queriers of multicast groups on {name}");
            }
        }
        NodeQuerier { current, appointed, reported: None, accepts_reports: false, _task: task }
    }

    /// Begins a session with a controller that has these features.
    pub(crate) fn begin_session(&mut self, features: u64) {
        self.accepts_reports = features & QUERIERS != 0;
        self.reported = None;
        self.appoint(false);
    }

    /// Appoints this node as querier, or ends that.
    pub(crate) fn appoint(&self, appointed: bool) {
        self.appointed.send_if_modified(|before| std::mem::replace(before, appointed) != appointed);
    }

    /// Waits until the controller must receive a report. The caller must send it, because it is
    /// returned once.
    pub(crate) async fn next_report(&mut self) -> QuerierChanged {
        let NodeQuerier { current, reported, accepts_reports, .. } = self;
        let is_new = |status: &QuerierChanged| *accepts_reports && reported.as_ref() != Some(status);
        let Ok(report) = current.wait_for(is_new).await.map(|status| status.clone()) else {
            // Nothing changes any more.
            return std::future::pending().await;
        };
        *reported = Some(report.clone());
        report
    }
}

/// Sends queries and reports queriers. Never returns.
async fn monitor(
    sockets: QuerySockets,
    mut appointment: watch::Receiver<bool>,
    changed: watch::Sender<QuerierChanged>,
) {
    let (clock, mut monitor) = (Clock::start(), QuerierMonitor::default());
    loop {
        let deadline = loop {
            match monitor.poll(clock.now()) {
                Poll::Output(QuerierOutput::Query) => {
                    if let Err(error) = sockets.query() {
                        warn!(%error, "cannot query for members of multicast groups");
                    }
                }
                Poll::Output(QuerierOutput::Changed(querier)) => {
                    let ip = querier.map_or_else(String::new, |ip| ip.to_string());
                    info!(querier = ip, "another querier of multicast groups is heard, or no longer");
                    changed.send_modify(|status| status.ip = ip);
                }
                Poll::Idle(deadline) => break deadline,
            }
        };
        tokio::select! {
            from = sockets.heard() => monitor.handle(clock.now(), QuerierInput::Heard(from)),
            Ok(()) = appointment.changed() => {
                let is_appointed = *appointment.borrow_and_update();
                if is_appointed {
                    info!("queries for members of multicast groups, because no querier is heard");
                }
                monitor.handle(clock.now(), QuerierInput::Appointed(is_appointed));
            }
            () = clock.wait(deadline) => {}
        }
    }
}

/// The sockets for queries on an interface, of the IP version of its address.
struct QuerySockets {
    /// Receives IGMP, or ICMPv6.
    raw: AsyncSocket,
    /// Sends packets to all hosts, with the packet's address.
    packets: Socket,
    to: SockAddr,
    /// The own source address of queries.
    own: IpAddr,
}

impl QuerySockets {
    fn open(interface: &Interface) -> io::Result<QuerySockets> {
        let index = *interface::with_lower(&interface.name).first().ok_or(io::ErrorKind::NotFound)?;
        let open = |domain, protocol| {
            let raw = Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))?;
            raw.bind_device(Some(interface.name.as_bytes()))?;
            io::Result::Ok(raw)
        };
        let (raw, own, ethertype, destination) = match interface.ip {
            IpAddr::V4(ip) => {
                let raw = open(Domain::IPV4, Protocol::from(libc::IPPROTO_IGMP))?;
                raw.set_multicast_if_v4(&ip)?;
                // Queries by this socket reach this host only.
                raw.set_multicast_ttl_v4(0)?;
                (raw, interface.ip, libc::ETH_P_IP as u16, ALL_HOSTS)
            }
            IpAddr::V6(_) => {
                let raw = open(Domain::IPV6, Protocol::ICMPV6)?;
                let source = interface::link_local(&interface.name).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::AddrNotAvailable, "it has no link-local IPv6 address")
                })?;
                (raw, source.into(), libc::ETH_P_IPV6 as u16, ALL_NODES)
            }
        };
        let to = packet_socket::address(index, ethertype, Some(destination))?;
        Ok(QuerySockets { raw: AsyncSocket::new(raw)?, packets: packet_socket::open()?, to, own })
    }

    /// Sends a general query to all hosts, and to this one.
    fn query(&self) -> io::Result<()> {
        match self.own {
            IpAddr::V4(_) => {
                self.packets.send_to(&membership_query::igmp_query_packet(None), &self.to)?;
                // The system does not receive packets of packet(7) sockets, so this host would not
                // answer, and switches would forget its memberships.
                let to = SocketAddr::from((membership_query::ALL_HOSTS, 0));
                let query = membership_query::igmp_query(None);
                rustix::net::sendto(self.raw.as_fd(), &query, SendFlags::empty(), &to)?;
            }
            // Switches forward all multicasts to a port with a querier that has an address.
            IpAddr::V6(own) => {
                self.packets.send_to(&membership_query::mld_query_packet(own, None), &self.to)?;
            }
        }
        Ok(())
    }

    /// Waits for the query of another host or switch. Returns its address.
    async fn heard(&self) -> IpAddr {
        let mut packet = [0; PACKET_MAX];
        loop {
            let read = self.raw.read(|socket| {
                let (length, _, from) = rustix::net::recvfrom(socket, &mut packet[..], RecvFlags::empty())?;
                let from = from.and_then(|from| SocketAddr::try_from(from).ok()).map(|from| from.ip());
                Ok((length, from))
            });
            let querier = match read.await {
                Ok((length, from)) => {
                    let packet = &packet[..length.min(PACKET_MAX)];
                    match self.own {
                        IpAddr::V4(_) => membership_query::igmp_querier(packet),
                        // The system has removed the IPv6 header.
                        IpAddr::V6(_) => from.filter(|_| membership_query::is_mld_query(packet)),
                    }
                }
                Err(_) => {
                    sleep(ERROR_PAUSE).await;
                    None
                }
            };
            if let Some(querier) = querier.filter(|querier| *querier != self.own) {
                return querier;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn querier() -> (watch::Sender<QuerierChanged>, NodeQuerier) {
        let (changed, current) = watch::channel(QuerierChanged { can_query: true, ip: String::new() });
        let (appointed, _) = watch::channel(false);
        let querier =
            NodeQuerier { current, appointed, reported: None, accepts_reports: false, _task: JoinSet::new() };
        (changed, querier)
    }

    #[tokio::test]
    async fn each_session_begins_with_a_report_and_without_an_appointment() {
        let (changed, mut querier) = querier();
        let soon = Duration::from_millis(20);
        assert!(timeout(soon, querier.next_report()).await.is_err(), "the controller accepts no reports");
        querier.begin_session(QUERIERS);
        assert!(querier.next_report().await.can_query);
        querier.appoint(true);
        assert!(timeout(soon, querier.next_report()).await.is_err(), "it is reported already");
        changed.send_modify(|status| status.ip = "10.0.0.9".to_owned());
        assert_eq!(querier.next_report().await.ip, "10.0.0.9");
        querier.begin_session(QUERIERS);
        assert_eq!(querier.next_report().await.ip, "10.0.0.9");
        assert!(!*querier.appointed.borrow());
    }

    #[tokio::test]
    async fn without_permission_the_node_cannot_query() {
        let mut querier = NodeQuerier::start(&Interface::read("lo", false).unwrap());
        querier.begin_session(QUERIERS);
        let is_permitted =
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_IGMP))).is_ok();
        assert_eq!(querier.next_report().await.can_query, is_permitted);
    }
}
