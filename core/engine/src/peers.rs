//! The other agents and the connections to them. The groups interpret the messages.

use crate::engine_outbox::EngineOutbox;
use crate::ids::{AgentConnectionId, NodeId};
use crate::inputs_outputs::Output;
use crate::lost_peer::LostPeer;
use crate::members::Members;
use crate::memory::MemoryRange;
use cool_machine::{Machine, Time};
use cool_transport::unicast::handshake::PeerKey;
use cool_transport::unicast::{self, AgentId, Input, Notice, PeerStream};
use cool_types::Key;
use core::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Maximum number of connections of agents that have not identified themselves.
const UNIDENTIFIED_MAX: usize = 64;

/// Maximum number of known nodes. Nodes of groups are exempt, because the controller vouches for
/// them.
const PEERS_MAX: usize = 4096;

/// Maximum number of bytes that are buffered from a connection that is not in use yet: the
/// greeting, and the groups of the other side.
const SPARE_BYTES: usize = 1 << 20;

/// Maximum number of reconnects in a row without group traffic before the peer is lost. A healthy
/// peer closes at most two stale connections.
const RECONNECTS_MAX: u32 = 3;

/// The reason why a node is lost if its agent has another incarnation than the one in its groups.
pub(crate) const STARTED_AGAIN: &str = "its agent was restarted";

/// Another agent.
#[derive(Debug)]
pub(crate) struct PeerLink {
    pub(crate) machine: PeerStream,
    /// The agent's incarnation, according to its groups or its greeting.
    pub(crate) incarnation: u64,
    pub(crate) connection: Option<AgentConnectionId>,
    /// Whether the other side of the connection has proved its identity.
    proven: bool,
    /// The agent's key, according to its groups. If there is one, the agent must prove its
    /// identity.
    key: Option<Key>,
    /// The keys that prove the agent's identity in groups without a key of its own, by the groups'
    /// numbers and epochs.
    group_keys: BTreeMap<(u64, u32), Key>,
    /// Whether this side has requested a connection and has no result yet.
    is_connecting: bool,
    /// Whether this side made the current connection.
    outgoing: bool,
    /// Whether the connection that this side made is kept if both sides connect at the same time.
    precedes: bool,
    /// The last [`Output::Await`] of the connection.
    pub(crate) awaited: (u64, Option<MemoryRange>),
    /// The agent's address, according to its groups or its connection.
    ip: IpAddr,
    /// The address to connect to, if this side may connect.
    connect: Option<SocketAddr>,
    /// Number of TCP connections that a connection from this side must consist of.
    streams: u8,
    pub(crate) groups: BTreeSet<u64>,
    /// Number of times that data has arrived from the agent. Groups compare it to find out whether
    /// the agent is alive.
    heard: u64,
    /// Whether the agent has ever been in a group.
    used: bool,
    /// The number of connections in a row, before this one, that ended without any group traffic.
    reconnects: u32,
}

impl PeerLink {
    /// Returns the link from the agent `me` to the agent of a node `at` an address.
    fn new(me: &AgentId, (node, incarnation): (&str, u64), at: impl fmt::Display, ip: IpAddr) -> PeerLink {
        PeerLink {
            machine: PeerStream::new(me, &format!("node {node} at {at}")),
            incarnation,
            connection: None,
            proven: false,
            key: None,
            group_keys: BTreeMap::new(),
            is_connecting: false,
            outgoing: false,
            precedes: false,
            awaited: (0, None),
            ip,
            connect: None,
            streams: 0,
            groups: BTreeSet::new(),
            heard: 0,
            used: false,
            reconnects: 0,
        }
    }

    fn must_prove(&self) -> bool {
        self.key.is_some() || !self.group_keys.is_empty()
    }

    /// Returns the key with which the agent proves its identity: its own, or that of the oldest
    /// group, because that one is likely to last longest.
    fn proof(&self) -> Option<PeerKey> {
        let own = self.key.clone().map(|key| PeerKey { key, group: None });
        let of_group = self.group_keys.first_key_value();
        own.or_else(|| of_group.map(|(group, key)| PeerKey { key: key.clone(), group: Some(*group) }))
    }
}

/// The owner of a connection.
#[derive(Debug)]
enum ConnectionOwner {
    Peer(NodeId),
    /// The agent has not identified itself yet. Holds the bytes so far.
    Unidentified {
        ip: IpAddr,
        proven: Option<AgentId>,
        bytes: Vec<u8>,
    },
}

/// A node that the engine has learned of.
#[derive(Debug)]
struct KnownNode {
    name: String,
    link: Option<PeerLink>,
    /// Whether a group has ever contained the node. If so, the group may still use its number.
    has_been_in_group: bool,
}

#[derive(Debug)]
pub(crate) struct PeerTable {
    me: AgentId,
    /// The known nodes by number. The first is this node.
    nodes: Vec<KnownNode>,
    by_name: BTreeMap<String, NodeId>,
    /// Numbers of forgotten nodes. They can be reused because these nodes were never in a group.
    free: Vec<NodeId>,
    connections: BTreeMap<AgentConnectionId, ConnectionOwner>,
    /// Peers with machines that have received inputs and must be polled.
    dirty: BTreeSet<NodeId>,
    /// Connections of peers to which this side has connected as well. If this side's own connection
    /// ends, the spare is used, because then the other side made it later. Otherwise the other side
    /// closes the spare once it receives data over the other connection.
    spares: BTreeMap<NodeId, AgentConnectionId>,
    /// The spares that are in use from now on.
    needed: VecDeque<AgentConnectionId>,
    /// Peers that were connected for the first time. Their groups have not been opened to them yet.
    fresh: BTreeSet<NodeId>,
    /// The number of connections that claimed an identity without proof.
    pub(crate) refused: u64,
}

impl PeerTable {
    /// Returns the peers of the agent `me`.
    pub(crate) fn new(me: AgentId) -> PeerTable {
        let name = me.node.clone();
        let mut peers = PeerTable {
            me,
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            free: Vec::new(),
            connections: BTreeMap::new(),
            dirty: BTreeSet::new(),
            fresh: BTreeSet::new(),
            spares: BTreeMap::new(),
            needed: VecDeque::new(),
            refused: 0,
        };
        peers.number(&name);
        peers
    }

    /// Returns the number of the node with a name, and assigns one if the node is new.
    fn number(&mut self, name: &str) -> NodeId {
        if let Some(known) = self.by_name.get(name) {
            return *known;
        }
        let known = KnownNode { name: name.to_owned(), link: None, has_been_in_group: false };
        let number = match self.free.pop() {
            Some(number) => {
                self.nodes[number.0 as usize] = known;
                number
            }
            None => {
                self.nodes.push(known);
                // There are far fewer nodes than numbers.
                NodeId(self.nodes.len() as u32 - 1)
            }
        };
        self.by_name.insert(name.to_owned(), number);
        number
    }

    /// Returns the name of a node.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0 as usize].name
    }

    pub(crate) fn link(&mut self, node: NodeId) -> Option<&mut PeerLink> {
        self.nodes.get_mut(node.0 as usize)?.link.as_mut()
    }

    /// Records that a group contains a node, and returns the node's number.
    pub(crate) fn add_member(&mut self, name: &str) -> NodeId {
        let node = self.number(name);
        self.nodes[node.0 as usize].has_been_in_group = true;
        node
    }

    /// Opens a group to the agent of one of its nodes. Of two agents, the one with the smaller
    /// address connects; on demand, either does. Groups in `closing` need no connection. Returns
    /// the node's number and the groups that are lost: those of an earlier agent, or this one if a
    /// later agent is already connected.
    pub(crate) fn join(
        &mut self,
        now: Time,
        (members, place): (&Members, usize),
        closing: &BTreeSet<u64>,
        out: &mut EngineOutbox,
    ) -> (NodeId, Option<LostPeer>) {
        let (member, group) = (&members.nodes[place], members.id_and_epoch());
        let (name, incarnation, theirs) = (member.name.as_str(), member.incarnation, member.tcp);
        let mut lost = self.drop_useless((members, place), closing, out);
        let node = self.add_member(name);
        let known = &mut self.nodes[node.0 as usize];
        let link = known
            .link
            .get_or_insert_with(|| PeerLink::new(&self.me, (name, incarnation), theirs, theirs.ip()));
        link.used = true;
        link.precedes = members.nodes[members.me].tcp < theirs;
        if link.precedes || members.on_demand {
            link.connect = Some(theirs);
        }
        link.streams = link.streams.max(members.connections_per_hop);
        link.key = member.key.clone().or(link.key.take());
        link.group_keys.extend(members.group_key_of(place).map(|key| (group, key)));
        link.groups.insert(group.0);
        link.machine.handle(now, Input::Open { group: group.0, epoch: group.1 });
        if incarnation < link.incarnation {
            lost = Some(LostPeer::new(node, BTreeSet::from([group.0]), STARTED_AGAIN));
        }
        self.dirty.insert(node);
        if self.link(node).is_some_and(|link| link.precedes) && !members.on_demand {
            self.request_connection(node, out);
        }
        (node, lost)
    }

    /// Connects to a node of a group, if it is not connected.
    pub(crate) fn reach(&mut self, now: Time, (members, place): (&Members, usize), out: &mut EngineOutbox) {
        let node = members.nodes[place].id;
        if self.link(node).is_none() {
            self.join(now, (members, place), &BTreeSet::new(), out);
            self.fresh.insert(node);
        }
        self.request_connection(node, out);
    }

    /// Requests a connection to a peer, if there is none and this side may connect.
    fn request_connection(&mut self, node: NodeId, out: &mut EngineOutbox) {
        let Some(link) = self.link(node).filter(|link| link.connection.is_none() && !link.is_connecting)
        else {
            return;
        };
        let Some(to) = link.connect else { return };
        link.is_connecting = true;
        let (key, streams) = (link.proof(), link.streams);
        out.push(Output::Connect { node, to, key, streams });
    }

    /// Returns a spare connection that replaces one that has ended.
    pub(crate) fn take_needed(&mut self) -> Option<AgentConnectionId> {
        self.needed.pop_front()
    }

    /// Returns a peer that was connected for the first time.
    pub(crate) fn take_fresh(&mut self) -> Option<NodeId> {
        self.fresh.pop_first()
    }

    /// Returns whether a group has been opened to a peer.
    pub(crate) fn has_group(&mut self, node: NodeId, group: u64) -> bool {
        self.link(node).is_some_and(|link| link.groups.contains(&group))
    }

    /// Drops the link to a node of a group if the link cannot be used for that group. Returns the
    /// groups that are lost with it.
    fn drop_useless(
        &mut self,
        (members, place): (&Members, usize),
        closing: &BTreeSet<u64>,
        out: &mut EngineOutbox,
    ) -> Option<LostPeer> {
        let member = &members.nodes[place];
        let node = *self.by_name.get(&member.name)?;
        let link = self.link(node)?;
        if link.incarnation < member.incarnation {
            return self.drop_peer(node, STARTED_AGAIN, out);
        }
        // The link cannot be used if another agent took this name before the group announced the
        // node's address or that it can prove its identity. It cannot be used either if the
        // connection has been idle since its last group, because the other side may have given it
        // up without this side noticing.
        let unproven = members.must_prove(place) && link.connection.is_some() && !link.proven && !link.used;
        if link.ip != member.tcp.ip() || unproven || link.used && link.groups.is_subset(closing) {
            self.drop_peer(node, "", out);
        }
        None
    }

    /// Closes a group to a peer.
    pub(crate) fn leave(&mut self, now: Time, node: NodeId, group: (u64, u32)) {
        if let Some(link) = self.link(node) {
            link.groups.remove(&group.0);
            link.group_keys.remove(&group);
        }
        self.handle(now, node, Input::Close { group: group.0, epoch: group.1 });
    }

    /// Hands a peer's machine an input that did not arrive over its connection.
    pub(crate) fn handle(&mut self, now: Time, node: NodeId, input: Input<'_>) {
        if let Some(link) = self.link(node) {
            link.machine.handle(now, input);
            self.dirty.insert(node);
        }
    }

    pub(crate) fn notify(&mut self, now: Time, node: NodeId, notice: Notice) {
        self.handle(now, node, Input::Notify(notice));
    }

    /// Records that data from an agent has arrived.
    pub(crate) fn on_heard(&mut self, node: NodeId) {
        self.link(node).into_iter().for_each(|link| link.heard += 1);
    }

    /// Returns the number of times that data has arrived from an agent.
    pub(crate) fn heard(&self, node: NodeId) -> u64 {
        self.nodes.get(node.0 as usize).and_then(|node| node.link.as_ref()).map_or(0, |link| link.heard)
    }

    pub(crate) fn take_dirty(&mut self) -> Option<NodeId> {
        self.dirty.pop_first()
    }

    /// Returns a peer's link and connection, if it is connected.
    pub(crate) fn connected_link(&mut self, node: NodeId) -> Option<(&mut PeerLink, AgentConnectionId)> {
        let link = self.link(node)?;
        let connection = link.connection?;
        Some((link, connection))
    }

    pub(crate) fn node_of(&self, connection: AgentConnectionId) -> Option<NodeId> {
        match self.connections.get(&connection)? {
            ConnectionOwner::Peer(node) => Some(*node),
            ConnectionOwner::Unidentified { .. } => None,
        }
    }

    /// Handles the success of a requested connection.
    pub(crate) fn on_connected(
        &mut self,
        node: NodeId,
        connection: AgentConnectionId,
        out: &mut EngineOutbox,
    ) {
        if let Some(link) = self.link(node) {
            link.is_connecting = false;
            if link.connection.is_none() {
                (link.connection, link.outgoing) = (Some(connection), true);
                // The driver has verified the proof.
                link.proven = link.must_prove();
                self.connections.insert(connection, ConnectionOwner::Peer(node));
                self.dirty.insert(node);
                return;
            }
        }
        // The peer was given up meanwhile, or has connected to this side.
        out.push(Output::Hangup { connection });
    }

    /// Handles the failure of a requested connection. Returns whether the peer has no connection at
    /// all.
    pub(crate) fn on_unreachable(&mut self, node: NodeId) -> bool {
        let Some(link) = self.link(node) else { return false };
        link.is_connecting = false;
        link.connection.is_none()
    }

    /// Handles a connection that another agent made.
    pub(crate) fn on_accepted(
        &mut self,
        connection: AgentConnectionId,
        (ip, proven): (IpAddr, Option<AgentId>),
        out: &mut EngineOutbox,
    ) {
        let is_unknown =
            |owner: &ConnectionOwner| matches!(owner, ConnectionOwner::Unidentified { proven: None, .. });
        let unidentified = self.connections.iter().filter(|(_, owner)| is_unknown(owner));
        let unidentified: Vec<AgentConnectionId> = unidentified.map(|(id, _)| *id).collect();
        if proven.is_none() && unidentified.len() >= UNIDENTIFIED_MAX {
            // The numbers ascend, so the first connection has been silent for longest.
            self.connections.remove(&unidentified[0]);
            out.push(Output::Hangup { connection: unidentified[0] });
        }
        self.connections.insert(connection, ConnectionOwner::Unidentified { ip, proven, bytes: Vec::new() });
    }

    /// Handles bytes of a connection that is not identified yet. Once it is, returns the peer with
    /// all its bytes, and the peer whose connection it replaces.
    pub(crate) fn on_greeting(
        &mut self,
        connection: AgentConnectionId,
        more: &[u8],
        out: &mut EngineOutbox,
    ) -> Option<(NodeId, Vec<u8>, Option<LostPeer>)> {
        let Some(ConnectionOwner::Unidentified { ip, proven, bytes }) = self.connections.get_mut(&connection)
        else {
            return None;
        };
        bytes.extend_from_slice(more);
        let who = match unicast::greeting(bytes) {
            Ok(None) => return None,
            Ok(Some(who)) => who,
            Err(violation) => {
                tracing::warn!(%ip, %violation, "refused a connection that is not an agent's");
                self.hang_up(connection, out);
                return None;
            }
        };
        let (ip, bytes, proven) = (*ip, std::mem::take(bytes), proven.take());
        if !self.is_plausible(&who, proven.as_ref()) {
            self.refused += 1;
            tracing::debug!(%ip, name = who.node, "refused a connection without proof of its agent");
            self.hang_up(connection, out);
            return None;
        }
        let name = who.node;
        if proven.is_some() {
            self.drop_impostor(&name, out);
        }
        let known = self.by_name.get(&name).copied();
        let link = known.and_then(|node| self.link(node));
        let stale = link.as_ref().is_some_and(|link| match who.incarnation.cmp(&link.incarnation) {
            // That agent has ended, because a later one is in the groups.
            Ordering::Less => !link.groups.is_empty(),
            // The numbers ascend: the current connection was made later. Either the agent has given
            // this one up, or both sides have connected at the same time. The agent then keeps the
            // current connection as a spare one, because its own precedes.
            Ordering::Equal if !(link.outgoing && link.precedes) => link.connection > Some(connection),
            Ordering::Equal | Ordering::Greater => false,
        });
        let crossing = link.as_ref().is_some_and(|link| {
            let same = link.incarnation == who.incarnation;
            same && link.outgoing && link.precedes && link.connection.is_some()
        });
        let elsewhere = link.is_some_and(|link| link.ip != ip);
        if stale && !elsewhere {
            self.hang_up(connection, out);
            return None;
        }
        if elsewhere
            || name == self.me.node
            || (known.is_none() && proven.is_none() && self.by_name.len() > PEERS_MAX)
        {
            tracing::warn!(%ip, name, "refused a connection in the name of another node");
            self.hang_up(connection, out);
            return None;
        }
        let node = self.number(&name);
        if crossing && bytes.len() <= SPARE_BYTES {
            self.spares.insert(node, connection);
            self.connections.insert(connection, ConnectionOwner::Unidentified { ip, proven, bytes });
            return None;
        }
        let replaced = match self.link(node) {
            Some(link) if link.incarnation != who.incarnation => self.drop_peer(node, STARTED_AGAIN, out),
            Some(link) if link.connection.is_some() => {
                self.end(node, "its agent made another connection", out)
            }
            _ => None,
        };
        let node = self.number(&name);
        let fresh = PeerLink::new(&self.me, (&name, who.incarnation), ip, ip);
        let link = self.nodes[node.0 as usize].link.get_or_insert(fresh);
        (link.connection, link.proven, link.outgoing) = (Some(connection), proven.is_some(), false);
        self.connections.insert(connection, ConnectionOwner::Peer(node));
        Some((node, bytes, replaced))
    }

    /// Returns whether an agent may be the one that it claims to be. If it is known to have a key,
    /// or its current connection is proved, then a new connection must be proved too.
    fn is_plausible(&mut self, who: &AgentId, proven: Option<&AgentId>) -> bool {
        let known = self.by_name.get(&who.node).copied();
        let link = known.and_then(|node| self.link(node));
        match proven {
            Some(proven) => proven == who,
            None => link.is_none_or(|link| !(link.must_prove() || link.proven && link.connection.is_some())),
        }
    }

    /// Drops the unproved connection of an agent that took another agent's name before any group
    /// contained it.
    fn drop_impostor(&mut self, name: &str, out: &mut EngineOutbox) {
        let Some(node) = self.by_name.get(name).copied() else { return };
        if self.link(node).is_some_and(|link| !link.proven && !link.used) {
            self.drop_peer(node, "", out);
        }
    }

    /// Handles the end of a connection.
    pub(crate) fn on_closed(
        &mut self,
        connection: AgentConnectionId,
        why: &str,
        out: &mut EngineOutbox,
    ) -> Option<LostPeer> {
        match self.connections.remove(&connection)? {
            ConnectionOwner::Unidentified { .. } => None,
            ConnectionOwner::Peer(node) => self.reconnect(node, why, out),
        }
    }

    /// Handles the end of a connection, or gives it up, and requests another one if it is needed
    /// and this side may connect.
    pub(crate) fn reconnect(&mut self, node: NodeId, why: &str, out: &mut EngineOutbox) -> Option<LostPeer> {
        let lost = self.end(node, why, out)?;
        self.request_connection(node, out);
        Some(lost)
    }

    /// Ends a peer's connection. Groups without traffic over it are kept for the next connection,
    /// because the other side may have closed this one before it had them.
    fn end(&mut self, node: NodeId, why: &str, out: &mut EngineOutbox) -> Option<LostPeer> {
        let ended = self.forget(node, out)?;
        let migrated: BTreeSet<u64> = ended.machine.unconfirmed().map(|(group, _)| group).collect();
        let reconnects = if ended.machine.has_group_traffic() { 0 } else { ended.reconnects + 1 };
        if migrated.is_empty() || reconnects > RECONNECTS_MAX {
            return Some(LostPeer::new(node, ended.groups, why));
        }
        let mut link = PeerLink {
            used: true,
            connect: ended.connect,
            streams: ended.streams,
            key: ended.key,
            group_keys: ended.group_keys,
            is_connecting: ended.is_connecting,
            precedes: ended.precedes,
            heard: ended.heard,
            reconnects,
            ..PeerLink::new(&self.me, (self.name(node), ended.incarnation), ended.ip, ended.ip)
        };
        link.machine.resume_from(ended.machine);
        let lost = LostPeer::new(node, &ended.groups - &migrated, why);
        link.groups = migrated;
        // It was in groups, so its number has not been reused.
        self.nodes[node.0 as usize].link = Some(link);
        Some(lost)
    }

    /// Gives a peer up and closes its connection.
    pub(crate) fn drop_peer(&mut self, node: NodeId, why: &str, out: &mut EngineOutbox) -> Option<LostPeer> {
        Some(LostPeer::new(node, self.forget(node, out)?.groups, why))
    }

    fn forget(&mut self, node: NodeId, out: &mut EngineOutbox) -> Option<PeerLink> {
        let link = self.nodes.get_mut(node.0 as usize)?.link.take()?;
        self.dirty.remove(&node);
        self.fresh.remove(&node);
        self.needed.extend(self.spares.remove(&node));
        if let Some(connection) = link.connection {
            self.hang_up(connection, out);
        }
        if !self.nodes[node.0 as usize].has_been_in_group {
            self.by_name.remove(&self.nodes[node.0 as usize].name);
            self.free.push(node);
        }
        Some(link)
    }

    fn hang_up(&mut self, connection: AgentConnectionId, out: &mut EngineOutbox) {
        if self.connections.remove(&connection).is_some() {
            out.push(Output::Hangup { connection });
        }
    }
}
