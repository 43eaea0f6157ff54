//! The trees from which the node receives: joins and leaves them, and the sources of
//! source-specific ones.

use super::EngineHost;
use crate::datagram_faults::DatagramFaults;
use crate::net::tree_membership::{JoinedSources, TreeMembership};
use crate::net::udp::{self, Socket};
use crate::net::{DriverEvent, GroupReply};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A tree from which this node receives, and the groups that use it.
pub(super) struct JoinedTree {
    groups: BTreeSet<u64>,
    pub(super) socket: Socket,
    /// The sources of a source-specific tree, each with the groups that use it.
    sources: BTreeMap<IpAddr, BTreeSet<u64>>,
    memberships: Arc<JoinedSources>,
}

impl JoinedTree {
    fn new(socket: Socket) -> JoinedTree {
        let (groups, sources, memberships) = Default::default();
        JoinedTree { groups, socket, sources, memberships }
    }

    /// Stops using a source for a group. Returns whether no group uses it any more.
    fn forget_source(&mut self, group: u64, source: IpAddr) -> bool {
        let Some(groups) = self.sources.get_mut(&source) else { return false };
        let is_unused = groups.remove(&group) && groups.is_empty();
        if is_unused {
            self.sources.remove(&source);
            self.memberships.want(source, false);
        }
        is_unused
    }
}

/// Closes sockets of trees on another thread, because leaving a tree takes as long as joining one.
fn close<T: Send + 'static>(sockets: Vec<T>) {
    if !sockets.is_empty()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn_blocking(move || drop(sockets));
    }
}

impl EngineHost {
    /// Joins the trees of a group on another thread, because the system joins a tree only while it
    /// has a lock that is held for seconds if other interfaces are configured. The group is made
    /// once all trees are joined.
    pub(super) fn join_trees(&mut self, group: u64, reply: GroupReply, trees: Vec<SocketAddr>) {
        let is_new = |tree: &SocketAddr| match self.trees.get_mut(tree) {
            Some(joined) => {
                joined.groups.insert(group);
                false
            }
            None => true,
        };
        let (new, ip): (Vec<SocketAddr>, IpAddr) = (trees.into_iter().filter(is_new).collect(), self.ip);
        if new.is_empty() {
            return drop(reply.send(Ok(())));
        }
        let events = self.events.clone();
        let join = move || {
            let joined = new.into_iter().map(|tree| (tree, udp::listen(tree, ip))).collect();
            // The driver may have ended.
            let _ = events.blocking_send(DriverEvent::TreesJoined { group, reply, joined });
        };
        tokio::task::spawn_blocking(join);
    }

    /// Handles the sockets of a group's trees. A tree that this node cannot join does not prevent
    /// the group: the chain delivers the messages of that tree to this node.
    pub(in crate::net) fn trees_joined(
        &mut self,
        group: u64,
        reply: GroupReply,
        joined: Vec<(SocketAddr, io::Result<Socket>)>,
    ) {
        // The group may have been released meanwhile.
        if !self.paces.contains_key(&group) {
            return close(joined);
        }
        for (address, socket) in joined {
            match socket {
                Ok(socket) => {
                    // Another group may have joined the same tree meanwhile.
                    let tree = self.trees.entry(address);
                    let tree = tree.or_insert_with(|| JoinedTree::new(socket));
                    tree.groups.insert(group);
                }
                Err(error) => self.counters.faults.record_unjoined_tree(address.ip(), self.ip, &error),
            }
        }
        // The caller may have stopped waiting. The group exists until it is released.
        let _ = reply.send(Ok(()));
    }

    /// Stops receiving for a group.
    pub(super) fn leave_trees(&mut self, group: u64) {
        let unused =
            self.trees.extract_if(.., |_, tree| tree.groups.remove(&group) && tree.groups.is_empty());
        let unused: Vec<_> = unused.collect();
        self.dropped_before += unused.iter().map(|(_, tree)| tree.socket.dropped_datagrams()).sum::<u64>();
        close(unused);
        // Other groups may use the same trees with other sources.
        for tree in self.trees.values_mut() {
            let sources: Vec<IpAddr> = tree.sources.keys().copied().collect();
            let unused = sources.into_iter().filter(|source| tree.forget_source(group, *source)).count();
            if unused > 0 {
                change_membership(tree, (self.ip, &self.counters.faults), JoinedSources::update);
            }
        }
    }

    /// Returns the number of datagrams that the system has dropped because a socket's receive
    /// buffer was full.
    pub(in crate::net) fn dropped_datagrams(&self) -> u64 {
        self.dropped_before + self.sockets().map(Socket::dropped_datagrams).sum::<u64>()
    }

    /// Leaves and joins these trees again, on another thread as in [`Self::join_trees`].
    pub(super) fn renew_trees(&self, trees: &[SocketAddr]) {
        for joined in trees.iter().filter_map(|tree| self.trees.get(tree)) {
            change_membership(joined, (self.ip, &self.counters.faults), JoinedSources::renew);
        }
    }

    /// Receives the multicasts of a source from a source-specific tree of a group.
    pub(super) fn join_source(&mut self, group: u64, tree: SocketAddr, source: IpAddr) {
        // Without a socket the source's probes do not arrive, so it uses the chain.
        let Some(joined) = self.trees.get_mut(&tree) else { return };
        let groups = joined.sources.entry(source).or_default();
        if groups.insert(group) && groups.len() == 1 {
            joined.memberships.want(source, true);
            change_membership(joined, (self.ip, &self.counters.faults), JoinedSources::update);
        }
    }

    /// Stops receiving the multicasts of a source for a group.
    pub(super) fn leave_source(&mut self, group: u64, tree: SocketAddr, source: IpAddr) {
        let Some(joined) = self.trees.get_mut(&tree) else { return };
        if joined.forget_source(group, source) {
            change_membership(joined, (self.ip, &self.counters.faults), JoinedSources::update);
        }
    }

    /// Records whether multicasts of this node over a source-specific tree arrive at all nodes.
    pub(super) fn source_probed(&self, tree: IpAddr, missing: &[String]) {
        let faults = &self.counters.faults;
        if missing.is_empty() {
            faults.clear(tree);
        } else {
            faults.record_unproven_source(tree, self.ip, missing);
        }
    }
}

/// Changes the membership of the node with this address in a tree on another thread, as in
/// [`EngineHost::join_trees`].
fn change_membership(
    joined: &JoinedTree,
    (ip, faults): (IpAddr, &Arc<DatagramFaults>),
    change: fn(&JoinedSources, &TreeMembership) -> io::Result<()>,
) {
    let (membership, sources) = (joined.socket.membership(ip), Arc::clone(&joined.memberships));
    let (tree, faults) = (joined.socket.address(), Arc::clone(faults));
    tokio::task::spawn_blocking(move || {
        if let Err(error) = membership.and_then(|membership| change(&sources, &membership)) {
            faults.record_unjoined_tree(tree, ip, &error);
        }
    });
}
