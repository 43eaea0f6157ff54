//! The agent's part in quick calls: it opens the socket of its node's leader among a group's ranks,
//! and responds to NAKs for datagrams that the leader has sent. It takes no part in calls without
//! losses.

use crate::agent::attachment::Abilities;
use crate::datagram_faults::DatagramFaults;
use crate::engine::{GroupSpec, TreeScope};
use crate::leader_probe::LeaderProbe;
use crate::net::udp::{refuse_conflicts, send_over_trees, socket_with_room};
use crate::quick_socket::{ROOM_BYTES, divide_messages, join_parts};
use crate::shared_segment::SharedSegment;
use cool_cipher::AesGcm;
use cool_proto::local;
use cool_quick::{CallKey, DATAGRAM_BYTES_MAX, DatagramProbe, NakResponder, RetransmitBuffer};
use cool_shm::segment::{RANKS_MAX, RankPart};
use cool_transport::tagged::Protection;
use cool_types::Rank;
use prometheus_client::metrics::counter::Counter;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The first port of the leaders' sockets, and the number of pairs of ports, one for a leader and
/// one for its agent. The id of a group selects its pair. The ports are below those that systems
/// assign automatically.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 6_000;

/// How the ranks of a group on several nodes reach each other through the leaders of their nodes.
#[derive(Clone, Debug)]
pub(in crate::agent) struct QuickGroup {
    group: (u64, u32),
    key: CallKey,
    tree: Ipv4Addr,
    port: u16,
    /// The ranks of this node in ascending order. The first is the leader.
    ranks: Vec<u32>,
    /// The leader's index among all leaders, in the order of their ranks.
    leader: u32,
    /// The addresses of the leaders' nodes.
    addresses: Vec<Ipv4Addr>,
    /// Whether datagrams are tested before the first call.
    probes: bool,
    /// Length of the datagrams into which long messages are divided; 0 if calls are short.
    datagram_bytes: u16,
}

impl QuickGroup {
    /// Returns the description for a group, or `None` if its ranks cannot use datagrams, for
    /// example over IPv6. All agents must return the same result.
    pub(in crate::agent) fn from_spec(spec: &GroupSpec, node: &str) -> Option<QuickGroup> {
        if !spec.quick || spec.members.len() > RANKS_MAX {
            return None;
        }
        let mut leaders: Vec<(&str, Ipv4Addr)> = Vec::new();
        for member in &spec.members {
            // A socket that receives both unicast and multicast is bound to neither address, and
            // with IPv6 would send from an address that the system chooses.
            let IpAddr::V4(ip) = member.ip else { return None };
            if leaders.iter().all(|(node, _)| *node != member.node) {
                leaders.push((&member.node, ip));
            }
        }
        let several = leaders.len() > 1;
        let keyed = spec.keyed.as_ref().filter(|keyed| several && keyed.protection == Protection::Tagged)?;
        let tree = spec.trees.iter().find(|tree| tree.scope == TreeScope::All)?;
        let IpAddr::V4(tree) = tree.address else { return None };
        let leader = leaders.iter().position(|(leader, _)| *leader == node)?;
        let here = spec.members.iter().filter(|member| member.node == node);
        Some(QuickGroup {
            group: (spec.id, spec.epoch),
            key: CallKey::new::<AesGcm>(keyed.key.derive(format!("quick calls {}", spec.epoch).as_bytes())),
            tree,
            // The remainder is smaller than the number of ports.
            port: FIRST_PORT + 2 * (spec.id % PORTS) as u16,
            ranks: here.map(|member| member.rank).collect(),
            leader: leader as u32,
            addresses: leaders.into_iter().map(|(_, ip)| ip).collect(),
            probes: spec.probe_quick,
            datagram_bytes: spec.quick_datagram_bytes,
        })
    }

    /// Returns the description that a rank receives when it attaches.
    pub(in crate::agent) fn description(&self) -> local::Quick {
        local::Quick {
            epoch: self.group.1,
            key: self.key.bytes().to_vec(),
            tree: self.tree.to_bits(),
            port: self.port.into(),
            addresses: self.addresses.iter().map(|address| address.to_bits()).collect(),
            datagram_bytes: self.datagram_bytes.into(),
        }
    }

    /// Returns the address of the tree over all nodes.
    pub(in crate::agent) fn tree(&self) -> Ipv4Addr {
        self.tree
    }

    fn ip(&self) -> Ipv4Addr {
        self.addresses[self.leader as usize]
    }

    /// Opens the leader's socket, for datagrams to this node and over the tree.
    fn leader_socket(&self) -> io::Result<UdpSocket> {
        let socket = bind(Ipv4Addr::UNSPECIFIED, self.port)?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4(&self.tree, &self.ip())?;
        send_over_trees(&socket, self.ip().into())?;
        if self.datagram_bytes > 0 {
            join_parts(&socket)?;
            divide_messages(&socket, self.datagram_bytes)?;
        }
        Ok(socket.into())
    }

    /// Opens the sockets of the leader and the agent. The caller must be able to wait: the system
    /// joins a tree only while it has a lock that is held for seconds if other interfaces are
    /// configured.
    ///
    /// # Errors
    /// Returns an error if a port is in use or if the tree cannot be joined.
    pub(in crate::agent) fn open(&self) -> io::Result<QuickSockets> {
        let leader = self.leader_socket()?;
        let agent = bind(self.ip(), self.port + 1)?;
        if self.datagram_bytes > 0 {
            divide_messages(&agent, self.datagram_bytes)?;
        }
        let agent: UdpSocket = agent.into();
        agent.set_nonblocking(true)?;
        Ok(QuickSockets { leader, agent })
    }

    /// Returns the test of the leader's datagrams, if they must be tested.
    fn probe(&self, leader: &UdpSocket, faults: Arc<DatagramFaults>) -> io::Result<Option<LeaderProbe>> {
        if !self.probes {
            return Ok(None);
        }
        let QuickGroup { key, group, leader: number, addresses, tree, port, datagram_bytes, .. } = self;
        let probe =
            DatagramProbe::new(key.clone(), *group, Rank(*number), addresses.len(), (*datagram_bytes).into());
        let (socket, addresses) = (leader.try_clone()?.into(), addresses.clone());
        Ok(Some(LeaderProbe { socket, probe, addresses, tree: *tree, port: *port, faults }))
    }

    /// Returns the responder that answers in the leader's name.
    fn answering(&self) -> NakResponder {
        NakResponder { key: self.key.clone(), group: self.group, leader: Rank(self.leader) }
    }

    /// Returns the datagrams of the response to a datagram, one right after the other, and the
    /// address to which they must be sent. Returns `None` if the datagram needs no response. The
    /// address from which the datagram was sent does not matter: the leader's socket is bound to no
    /// address, so the system may choose another one of the node's addresses, and the tag proves
    /// that a leader of the group sent it.
    fn reply_to(
        &self,
        answering: &NakResponder,
        buffer: &impl RetransmitBuffer,
        bytes: &[u8],
    ) -> Option<(Vec<u8>, SocketAddrV4)> {
        let answer = answering.respond(buffer, bytes)?;
        let requester = self.addresses.get(answer.requester.0 as usize)?;
        let datagrams = answer.datagrams(self.datagram_bytes.into()).into_owned();
        Some((datagrams, SocketAddrV4::new(*requester, self.port)))
    }
}

/// The leader's retransmission buffer, which is in the segment.
struct KeptInSegment<'a>(RankPart<'a>);

impl RetransmitBuffer for KeptInSegment<'_> {
    fn message(&self, name: (u64, u32)) -> Option<Vec<u8>> {
        self.0.find_retransmission(name)
    }

    fn digest(&self, call: u64) -> Option<u64> {
        self.0.digest(call)
    }

    fn text(&self, call: u64) -> Option<String> {
        self.0.text(call).ok()
    }
}

/// Binds a socket. No other user may have a socket at the port, because it could receive datagrams
/// in this socket's place.
fn bind(ip: Ipv4Addr, port: u16) -> io::Result<socket2::Socket> {
    let socket = socket_with_room(ip.into(), ROOM_BYTES)?;
    socket.bind(&SocketAddrV4::new(ip, port).into())?;
    refuse_conflicts(&socket, ip.into(), port)?;
    Ok(socket)
}

/// The sockets of a group's quick calls on this node.
#[derive(Debug)]
pub(in crate::agent) struct QuickSockets {
    leader: UdpSocket,
    agent: UdpSocket,
}

/// The agent's part in the quick calls of a group, until it is dropped.
#[derive(Debug)]
pub(in crate::agent) struct QuickServer {
    group: QuickGroup,
    shared: Arc<SharedSegment>,
    /// The leader's socket, until the leader attaches.
    socket: Option<OwnedFd>,
    answering: AbortHandle,
}

impl QuickServer {
    /// Starts to respond to NAKs.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory.
    pub(in crate::agent) fn start(
        group: &QuickGroup,
        QuickSockets { leader, agent }: QuickSockets,
        runtime: &Handle,
        (answered, faults): (Counter, Arc<DatagramFaults>),
    ) -> io::Result<QuickServer> {
        let socket = {
            let _inside = runtime.enter();
            Arc::new(tokio::net::UdpSocket::from_std(agent)?)
        };
        let to_leader = SocketAddrV4::new(group.ip(), group.port);
        let probe = group.probe(&leader, faults)?;
        let shared = SharedSegment::for_node(&group.ranks, Arc::clone(&socket), to_leader.into(), probe);
        let shared = Arc::new(shared.map_err(io::Error::other)?);
        let answering = serve_naks(group.clone(), Arc::clone(&shared), socket, answered);
        let answering = runtime.spawn(answering).abort_handle();
        Ok(QuickServer { group: group.clone(), shared, socket: Some(leader.into()), answering })
    }

    /// Returns the description of the group for an attaching rank and, for the leader, its socket.
    /// Returns `None` if the rank is not able to take part.
    pub(in crate::agent) fn admit(
        &mut self,
        rank: u32,
        abilities: Abilities,
    ) -> Option<(local::Quick, Option<OwnedFd>)> {
        let is_long = self.group.datagram_bytes > 0;
        (abilities.quick && (abilities.long_quick || !is_long)).then(|| {
            let socket = self.socket.take_if(|_| self.group.ranks.first() == Some(&rank));
            (self.group.description(), socket)
        })
    }

    /// Returns the segment that the ranks of this node share.
    pub(in crate::agent) fn segment(&self) -> &Arc<SharedSegment> {
        &self.shared
    }
}

impl Drop for QuickServer {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

/// Retransmits messages of the leader in response to NAKs. It never returns.
async fn serve_naks(
    group: QuickGroup,
    shared: Arc<SharedSegment>,
    socket: Arc<tokio::net::UdpSocket>,
    answered: Counter,
) {
    let (mut buffer, answering) = ([0; DATAGRAM_BYTES_MAX], group.answering());
    loop {
        let sent = match socket.recv_from(&mut buffer).await {
            Ok((len, _)) => {
                match group.reply_to(&answering, &KeptInSegment(shared.leader_part()), &buffer[..len]) {
                    Some((answer, to)) => socket.send_to(&answer, to).await.map(|_| {
                        answered.inc();
                        shared.leader_part().count_retransmission();
                    }),
                    None => Ok(()),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            // UDP sockets also return errors of earlier datagrams, for example that a response was
            // undeliverable. So the server continues.
            tracing::debug!(%error, "while answering for the ranks of this node");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_quick::{Datagram, DatagramHeader, DatagramKind};
    use cool_types::Key;

    /// The buffer of a leader that has sent one message in call 7.
    struct OneMessage(Vec<u8>);

    impl RetransmitBuffer for OneMessage {
        fn message(&self, name: (u64, u32)) -> Option<Vec<u8>> {
            (name == (7, 1)).then(|| self.0.clone())
        }

        fn digest(&self, _: u64) -> Option<u64> {
            None
        }

        fn text(&self, _: u64) -> Option<String> {
            None
        }
    }

    #[test]
    fn a_nak_is_answered_to_the_listed_address_of_its_leader() {
        let addresses = vec![Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        let quick = QuickGroup {
            group: (9, 2),
            key: CallKey::new::<AesGcm>(Key::from([3; 32])),
            tree: Ipv4Addr::new(239, 192, 0, 1),
            port: 20_018,
            ranks: vec![0],
            leader: 0,
            addresses: addresses.clone(),
            probes: true,
            datagram_bytes: 0,
        };
        let header = |kind, from, requested| DatagramHeader {
            kind,
            group: 9,
            epoch: 2,
            call: 7,
            transfer: 1,
            from,
            requested,
            digest: 5,
        };
        let encode = |header| Datagram { header, payload: b"" }.encode(&quick.key);
        let message = encode(header(DatagramKind::Message, 0, 0));
        let nak = encode(header(DatagramKind::Nak, 1, 0));
        // The address that the system chose for the sender does not appear here.
        let answer = quick.reply_to(&quick.answering(), &OneMessage(message.clone()), &nak);
        assert_eq!(answer, Some((message.clone(), SocketAddrV4::new(addresses[1], 20_018))));
        let unlisted = encode(header(DatagramKind::Nak, 2, 0));
        assert_eq!(quick.reply_to(&quick.answering(), &OneMessage(message), &unlisted), None);
    }
}
