//! Quick calls as the agent of a rank serves them: it opens the rank's socket, and answers for what the rank has sent. Of calls that go
//! well it knows nothing.

use crate::engine::{GroupSpec, TreeScope};
use crate::net::udp::{send_over_trees, socket_with_room};
use crate::shared_segment::SharedSegment;
use cool_proto::local;
use cool_proto::segment::{RANKS_MAX, Segment};
use cool_quick::{DATAGRAM_MAX, Datagram, DatagramKind, Head};
use cool_transport::tagged::Protection;
use cool_types::Key;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// The first port of ranks' sockets, and how many pairs of a rank's and its agent's there are: each group has another one. They are below
/// those that systems give out by themselves.
const FIRST_PORT: u16 = 20_000;
const PORTS: u64 = 6_000;

/// Room for what comes while a rank computes.
const BUFFER: usize = 1 << 20;

/// How the ranks of a group, one on each of several nodes, reach each other.
#[derive(Clone, Debug)]
pub(super) struct QuickGroup {
    group: (u64, u32),
    key: Key,
    tree: Ipv4Addr,
    port: u16,
    /// The rank of this node.
    rank: u32,
    /// Of each rank's node.
    addresses: Vec<Ipv4Addr>,
}

impl QuickGroup {
    /// That of a group; none if its ranks do not call by datagrams, which all agents find alike.
    pub(super) fn of(spec: &GroupSpec, node: &str) -> Option<QuickGroup> {
        let nodes: BTreeSet<&str> = spec.members.iter().map(|member| member.node.as_str()).collect();
        let size = spec.members.len();
        let fits = spec.quick && nodes.len() == size && (2..=RANKS_MAX).contains(&size);
        let keyed = spec.keyed.as_ref().filter(|keyed| fits && keyed.protection == Protection::Tagged)?;
        let tree = spec.trees.iter().find(|tree| tree.scope == TreeScope::All)?;
        let here = spec.members.iter().find(|member| member.node == node)?;
        Some(QuickGroup {
            group: (spec.id, spec.epoch),
            key: keyed.key.derive(format!("quick calls {}", spec.epoch).as_bytes()),
            tree: tree.address,
            // Less than the number of ports.
            port: FIRST_PORT + 2 * (spec.id % PORTS) as u16,
            rank: here.rank,
            addresses: spec.members.iter().map(|member| member.ip).collect(),
        })
    }

    /// As the rank is told.
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
        self.addresses[self.rank as usize]
    }

    /// The rank's socket: for what comes to this node and over the tree.
    fn rank_socket(&self) -> io::Result<UdpSocket> {
        let socket = bind(Ipv4Addr::UNSPECIFIED, self.port)?;
        socket.set_multicast_all_v4(false)?;
        socket.join_multicast_v4(&self.tree, &self.ip())?;
        send_over_trees(&socket, self.ip())?;
        Ok(socket.into())
    }

    /// What answers an `Ask` that came from an address.
    fn answer(&self, shared: &SharedSegment, bytes: &[u8], from: IpAddr) -> Option<(Vec<u8>, SocketAddrV4)> {
        let Datagram { head, .. } = Datagram::open(&self.key, self.group, bytes).ok()?;
        let asker = *self.addresses.get(head.from as usize)?;
        if head.kind != DatagramKind::Ask || head.asked != self.rank || from != IpAddr::V4(asker) {
            return None;
        }
        let part = shared.part(self.rank);
        let answer = match part.digest(head.call).filter(|called| *called != head.digest) {
            Some(digest) => {
                let text = part.text(head.call).ok()?;
                let head = Head { kind: DatagramKind::Differs, from: self.rank, asked: 0, digest, ..head };
                Datagram { head, payload: text.as_bytes() }.seal(&self.key)
            }
            // The rank has not sent it, or nobody can lack it any more.
            None => part.kept((head.call, head.transfer))?,
        };
        Some((answer, SocketAddrV4::new(asker, self.port)))
    }
}

fn bind(ip: Ipv4Addr, port: u16) -> io::Result<socket2::Socket> {
    let socket = socket_with_room(BUFFER)?;
    socket.bind(&SocketAddrV4::new(ip, port).into())?;
    Ok(socket)
}

/// The quick calls of a rank of this node, as its agent serves them until this is dropped.
#[derive(Debug)]
pub(super) struct QuickServer {
    pub(super) shared: Arc<SharedSegment>,
    answering: AbortHandle,
}

impl QuickServer {
    /// Opens the sockets, one of which is the rank's, and answers for it on a runtime.
    ///
    /// # Errors
    /// If a port is taken, the tree cannot be joined, or there is no memory.
    pub(super) fn start(group: &QuickGroup, runtime: &Handle) -> io::Result<(QuickServer, OwnedFd)> {
        let rank = group.rank_socket()?;
        let own: UdpSocket = bind(group.ip(), group.port + 1)?.into();
        own.set_nonblocking(true)?;
        let socket = {
            let _inside = runtime.enter();
            Arc::new(tokio::net::UdpSocket::from_std(own)?)
        };
        let segment = Segment::create(1).map_err(io::Error::other)?;
        let to_rank = SocketAddrV4::new(group.ip(), group.port);
        let shared = Arc::new(SharedSegment::of_rank(segment, Arc::clone(&socket), to_rank));
        let answering = runtime.spawn(answer(group.clone(), Arc::clone(&shared), socket)).abort_handle();
        Ok((QuickServer { shared, answering }, rank.into()))
    }
}

impl Drop for QuickServer {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

/// Answers those that lack what the rank has sent.
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
            tracing::debug!(%error, "while answering for a rank");
        }
    }
}
