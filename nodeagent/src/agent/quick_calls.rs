//! Quick calls as the agent of a node serves them: it opens the socket of the node's leader among a group's ranks, and answers for what that
//! has sent. Of calls that go well it knows nothing.

use super::groups::{Abilities, CallSharing};
use crate::engine::{GroupSpec, TreeScope};
use crate::net::udp::{send_over_trees, socket_with_room};
use crate::shared_segment::SharedSegment;
use cool_proto::local;
use cool_proto::segment::RANKS_MAX;
use cool_quick::{DATAGRAM_MAX, Datagram, DatagramKind, Head};
use cool_transport::tagged::Protection;
use cool_types::Key;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The first port of leaders' sockets, and how many pairs of a leader's and its agent's there are: each group has another one. They are below
/// those that systems give out by themselves.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 6_000;

/// Room for what comes while a rank computes.
const BUFFER: usize = 1 << 20;

/// How the ranks of a group on several nodes reach each other, by the leaders of their nodes.
#[derive(Clone, Debug)]
pub(super) struct QuickGroup {
    group: (u64, u32),
    key: Key,
    tree: Ipv4Addr,
    port: u16,
    /// The ranks of this node, ascending; the first is the leader.
    ranks: Vec<u32>,
    /// The leader's number among leaders, who are in the order of their ranks.
    leader: u32,
    /// Of each leader's node.
    addresses: Vec<Ipv4Addr>,
}

impl QuickGroup {
    /// That of a group; none if its ranks do not call by datagrams, as over IPv6, which all agents find alike.
    pub(super) fn of(spec: &GroupSpec, node: &str) -> Option<QuickGroup> {
        if !spec.quick || spec.members.len() > RANKS_MAX {
            return None;
        }
        let mut leaders: Vec<(&str, Ipv4Addr)> = Vec::new();
        for member in &spec.members {
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
            key: keyed.key.derive(format!("quick calls {}", spec.epoch).as_bytes()),
            tree,
            // Less than the number of ports.
            port: FIRST_PORT + 2 * (spec.id % PORTS) as u16,
            ranks: here.map(|member| member.rank).collect(),
            leader: leader as u32,
            addresses: leaders.into_iter().map(|(_, ip)| ip).collect(),
        })
    }

    /// Whether a rank that has come can take part in quick calls.
    pub(super) fn suits(&self, abilities: Abilities) -> bool {
        abilities.quick && (self.ranks.len() == 1 || abilities.quick_leaders)
    }

    /// As a rank is told.
    pub(super) fn told(&self) -> local::Quick {
        local::Quick {
            epoch: self.group.1,
            key: self.key.bytes().to_vec(),
            tree: self.tree.to_bits(),
            port: self.port.into(),
            addresses: self.addresses.iter().map(|address| address.to_bits()).collect(),
        }
    }

    fn ip(&self) -> Ipv4Addr {
        self.addresses[self.leader as usize]
    }

    /// The leader's socket: for what comes to this node and over the tree.
    fn leader_socket(&self) -> io::Result<UdpSocket> {
        let socket = bind(Ipv4Addr::UNSPECIFIED, self.port)?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4(&self.tree, &self.ip())?;
        send_over_trees(&socket, self.ip().into())?;
        Ok(socket.into())
    }

    /// What answers an `Ask` that came from an address.
    fn answer(&self, shared: &SharedSegment, bytes: &[u8], from: IpAddr) -> Option<(Vec<u8>, SocketAddrV4)> {
        let Datagram { head, .. } = Datagram::open(&self.key, self.group, bytes).ok()?;
        let asker = *self.addresses.get(head.from as usize)?;
        if head.kind != DatagramKind::Ask || head.asked != self.leader || from != IpAddr::V4(asker) {
            return None;
        }
        let part = shared.sent();
        let answer = match part.digest(head.call).filter(|called| *called != head.digest) {
            Some(digest) => {
                let text = part.text(head.call).ok()?;
                let head = Head { kind: DatagramKind::Differs, from: self.leader, asked: 0, digest, ..head };
                Datagram { head, payload: text.as_bytes() }.seal(&self.key)
            }
            // The leader has not sent it, or nobody can lack it any more.
            None => part.kept((head.call, head.transfer))?,
        };
        Some((answer, SocketAddrV4::new(asker, self.port)))
    }
}

fn bind(ip: Ipv4Addr, port: u16) -> io::Result<socket2::Socket> {
    let socket = socket_with_room(ip.into(), BUFFER)?;
    socket.bind(&SocketAddrV4::new(ip, port).into())?;
    Ok(socket)
}

/// The quick calls of the ranks of this node, as their agent serves them until this is dropped.
#[derive(Debug)]
pub(super) struct QuickServer {
    group: QuickGroup,
    shared: Arc<SharedSegment>,
    /// The leader's, until it comes.
    socket: Option<OwnedFd>,
    answering: AbortHandle,
}

impl QuickServer {
    /// Opens the sockets, one of which is the leader's, and answers for it on a runtime.
    ///
    /// # Errors
    /// If a port is taken, the tree cannot be joined, or there is no memory.
    pub(super) fn start(group: &QuickGroup, runtime: &Handle) -> io::Result<QuickServer> {
        let leader = group.leader_socket()?;
        let own: UdpSocket = bind(group.ip(), group.port + 1)?.into();
        own.set_nonblocking(true)?;
        let socket = {
            let _inside = runtime.enter();
            Arc::new(tokio::net::UdpSocket::from_std(own)?)
        };
        let to_leader = SocketAddrV4::new(group.ip(), group.port);
        let shared = SharedSegment::of_node(&group.ranks, Arc::clone(&socket), to_leader.into());
        let shared = Arc::new(shared.map_err(io::Error::other)?);
        let answering = runtime.spawn(answer(group.clone(), Arc::clone(&shared), socket)).abort_handle();
        Ok(QuickServer { group: group.clone(), shared, socket: Some(leader.into()), answering })
    }

    /// What a rank that has come gets, if it can take part.
    pub(super) fn admit(&mut self, rank: u32, abilities: Abilities) -> Option<CallSharing> {
        self.group.suits(abilities).then(|| {
            let socket = self.socket.take_if(|_| self.group.ranks.first() == Some(&rank));
            CallSharing { segment: Arc::clone(&self.shared), quick: Some((self.group.told(), socket)) }
        })
    }
}

impl Drop for QuickServer {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

/// Answers those that lack what the leader has sent.
async fn answer(group: QuickGroup, shared: Arc<SharedSegment>, socket: Arc<tokio::net::UdpSocket>) {
    let mut buffer = [0; DATAGRAM_MAX];
    loop {
        let sent = match socket.recv_from(&mut buffer).await {
            Ok((len, from)) => match group.answer(&shared, &buffer[..len], from.ip()) {
                Some((answer, to)) => socket.send_to(&answer, to).await.map(drop),
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            // Of an earlier answer that found nobody at its destination.
            tracing::debug!(%error, "while answering for the ranks of this node");
        }
    }
}
