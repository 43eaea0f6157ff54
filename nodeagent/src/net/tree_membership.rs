//! Memberships of sockets in multicast trees: in those of any source, and in source-specific ones
//! (RFC 4607), which a socket joins together with each source.
//!
//! The system joins and leaves a tree only while it has a lock that is held for seconds if other
//! interfaces are configured. So all of this happens on other threads than the engine's.

use crate::interface;
use cool_types::is_source_specific;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The membership of a socket in a tree, at the interface with an address.
pub(super) struct TreeMembership {
    pub(super) socket: socket2::Socket,
    pub(super) tree: IpAddr,
    pub(super) ip: IpAddr,
}

impl TreeMembership {
    /// Makes the socket receive from a tree of any source.
    pub(super) fn join(&self) -> io::Result<()> {
        match (self.tree, self.ip) {
            (IpAddr::V4(tree), IpAddr::V4(ip)) => self.socket.join_multicast_v4(&tree, &ip),
            (IpAddr::V6(tree), IpAddr::V6(ip)) => {
                self.socket.join_multicast_v6(&tree, interface::index_of(ip)?)
            }
            _ => Err(other_version()),
        }
    }

    /// Makes the socket receive no more from a tree of any source.
    fn leave(&self) -> io::Result<()> {
        match (self.tree, self.ip) {
            (IpAddr::V4(tree), IpAddr::V4(ip)) => self.socket.leave_multicast_v4(&tree, &ip),
            (IpAddr::V6(tree), IpAddr::V6(ip)) => {
                self.socket.leave_multicast_v6(&tree, interface::index_of(ip)?)
            }
            _ => Err(other_version()),
        }
    }

    fn join_source(&self, source: IpAddr) -> io::Result<()> {
        match (self.tree, source, self.ip) {
            (IpAddr::V4(tree), IpAddr::V4(source), IpAddr::V4(ip)) => {
                self.socket.join_ssm_v4(&source, &tree, &ip)
            }
            (IpAddr::V6(tree), IpAddr::V6(source), IpAddr::V6(ip)) => {
                self.change_source_v6(ipv6::Change::Join, tree, source, ip)
            }
            _ => Err(other_version()),
        }
    }

    fn leave_source(&self, source: IpAddr) -> io::Result<()> {
        match (self.tree, source, self.ip) {
            (IpAddr::V4(tree), IpAddr::V4(source), IpAddr::V4(ip)) => {
                self.socket.leave_ssm_v4(&source, &tree, &ip)
            }
            (IpAddr::V6(tree), IpAddr::V6(source), IpAddr::V6(ip)) => {
                self.change_source_v6(ipv6::Change::Leave, tree, source, ip)
            }
            _ => Err(other_version()),
        }
    }

    fn change_source_v6(
        &self,
        change: ipv6::Change,
        tree: Ipv6Addr,
        source: Ipv6Addr,
        ip: Ipv6Addr,
    ) -> io::Result<()> {
        ipv6::change_source(&self.socket, change, interface::index_of(ip)?, tree, source)
    }
}

fn other_version() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is of the other version of IP")
}

/// The sources that a socket joins on a source-specific tree. Always empty for other trees.
#[derive(Debug, Default)]
pub(super) struct JoinedSources {
    /// The sources from which the socket should receive.
    wanted: Mutex<BTreeSet<IpAddr>>,
    /// Those that it has joined. The lock is held while the system joins and leaves.
    joined: Mutex<BTreeSet<IpAddr>>,
}

impl JoinedSources {
    /// Sets whether the socket should receive from a source, which takes effect with
    /// [`update`](Self::update).
    pub(super) fn want(&self, source: IpAddr, wanted: bool) {
        let mut sources = lock(&self.wanted);
        if wanted {
            sources.insert(source);
        } else {
            sources.remove(&source);
        }
    }

    /// Leaves the sources that are no longer wanted, and joins those that are.
    ///
    /// # Errors
    /// Returns the first error. The sources that could not be joined are tried again by the next
    /// update.
    pub(super) fn update(&self, membership: &TreeMembership) -> io::Result<()> {
        let mut joined = lock(&self.joined);
        // Updates may overtake each other, so only the current state counts.
        let wanted = lock(&self.wanted).clone();
        let mut result = Ok(());
        for source in joined.difference(&wanted).copied().collect::<Vec<_>>() {
            joined.remove(&source);
            result = result.and(membership.leave_source(source));
        }
        for source in wanted.difference(&joined).copied().collect::<Vec<_>>() {
            let added = membership.join_source(source);
            if added.is_ok() {
                joined.insert(source);
            }
            result = result.and(added);
        }
        result
    }

    /// Leaves the tree and joins it again, so that the system reports the membership to the network
    /// again. The socket receives nothing in between.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn renew(&self, membership: &TreeMembership) -> io::Result<()> {
        if !is_source_specific(membership.tree) {
            membership.leave()?;
            return membership.join();
        }
        let joined = std::mem::take(&mut *lock(&self.joined));
        let left = joined.into_iter().map(|source| membership.leave_source(source));
        let left = left.fold(Ok(()), Result::and);
        left.and(self.update(membership))
    }
}

// Every change is one insertion or removal, so a panic elsewhere leaves a set consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

mod ipv6 {
    //! The options of RFC 3678 for IPv6, which socket2 and rustix do not have.
    #![allow(unsafe_code, reason = "socket options with addresses")]

    use socket2::SockAddr;
    use std::io;
    use std::net::{Ipv6Addr, SocketAddrV6};
    use std::os::fd::AsRawFd;

    #[derive(Clone, Copy)]
    pub(super) enum Change {
        Join,
        Leave,
    }

    /// Makes a socket receive from a source of a tree, or no more.
    pub(super) fn change_source(
        socket: &socket2::Socket,
        change: Change,
        interface: u32,
        tree: Ipv6Addr,
        source: Ipv6Addr,
    ) -> io::Result<()> {
        let option = match change {
            Change::Join => libc::MCAST_JOIN_SOURCE_GROUP,
            Change::Leave => libc::MCAST_LEAVE_SOURCE_GROUP,
        };
        let request = libc::group_source_req {
            gsr_interface: interface,
            gsr_group: storage(tree),
            gsr_source: storage(source),
        };
        // SAFETY: the descriptor is open, and the option's value has this type and length.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IPV6,
                option,
                (&raw const request).cast(),
                size_of::<libc::group_source_req>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn storage(ip: Ipv6Addr) -> libc::sockaddr_storage {
        let mut storage = SockAddr::from(SocketAddrV6::new(ip, 0, 0, 0)).as_storage();
        // SAFETY: sockaddr_storage is the system's type for all of its addresses.
        *unsafe { storage.view_as::<libc::sockaddr_storage>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Protocol, Type};
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::time::Duration;

    const TREE: Ipv4Addr = Ipv4Addr::new(232, 192, 0, 77);

    fn socket(domain: Domain) -> socket2::Socket {
        socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).unwrap()
    }

    /// Returns the membership of a socket at the address of the tree, and the port of the socket.
    fn membership() -> (TreeMembership, u16) {
        let socket = socket(Domain::IPV4);
        socket.set_multicast_all_v4(false).unwrap();
        socket.bind(&SocketAddr::new(TREE.into(), 0).into()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        (TreeMembership { socket, tree: TREE.into(), ip: Ipv4Addr::LOCALHOST.into() }, port)
    }

    /// Sends a datagram from an address on the loopback interface to the tree. Returns whether it
    /// arrives.
    fn arrives(membership: &TreeMembership, port: u16, from: IpAddr) -> bool {
        let sender = socket(Domain::IPV4);
        sender.bind(&SocketAddr::new(from, 0).into()).unwrap();
        sender.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
        sender.send_to(&[1], &SocketAddr::new(TREE.into(), port).into()).unwrap();
        let receiver: UdpSocket = membership.socket.try_clone().unwrap().into();
        receiver.recv_from(&mut [0; 10]).is_ok_and(|(_, sender)| sender.ip() == from)
    }

    #[test]
    fn only_joined_sources_are_received() {
        let (membership, port) = membership();
        let [one, two, other] = [2, 3, 4].map(|last| IpAddr::from([127, 0, 0, last]));
        let sources = JoinedSources::default();
        let received = || [one, two, other].map(|from| arrives(&membership, port, from));
        assert_eq!(received(), [false; 3]);
        [one, two].into_iter().for_each(|source| sources.want(source, true));
        sources.update(&membership).unwrap();
        assert_eq!(received(), [true, true, false]);
        sources.want(one, false);
        sources.update(&membership).unwrap();
        sources.renew(&membership).unwrap();
        assert_eq!(received(), [false, true, false]);
    }

    #[test]
    fn sources_beyond_the_limit_of_the_system_are_errors() {
        let (membership, _) = membership();
        let sources = JoinedSources::default();
        (1..=250).for_each(|last| sources.want([127, 0, 0, last].into(), true));
        let error = sources.update(&membership).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
        // A wanted source is joined once there is room.
        (2..=250).for_each(|last| sources.want([127, 0, 0, last].into(), false));
        sources.update(&membership).unwrap();
    }

    #[test]
    fn sources_of_ipv6_are_joined_and_left() {
        let socket = socket(Domain::IPV6);
        let tree = "ff38::c000:4d".parse().unwrap();
        let membership = TreeMembership { socket, tree, ip: Ipv6Addr::LOCALHOST.into() };
        let (sources, source) = (JoinedSources::default(), "fd00::2".parse().unwrap());
        sources.want(source, true);
        sources.update(&membership).unwrap();
        let again = membership.join_source(source).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EADDRNOTAVAIL), "{again}");
        sources.want(source, false);
        sources.update(&membership).unwrap();
        assert!(membership.leave_source(source).is_err());
    }
}
