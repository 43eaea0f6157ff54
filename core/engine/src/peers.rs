//! The other agents and the connections to them. What messages mean is the groups' matter.

use crate::ids::{AgentConnectionId, NodeId};
use crate::machine::Output;
use crate::members::Members;
use crate::memory::MemoryRange;
use crate::output_queue::OutputQueue;
use cool_machine::{Machine, Time};
use cool_transport::unicast::handshake::PeerKey;
use cool_transport::unicast::{self, AgentId, Input, Notice, PeerStream};
use cool_types::Key;
use core::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The most connections whose agents have not said who they are.
const UNIDENTIFIED_MAX: usize = 64;

/// The most nodes that are known; those of groups always are, since the controller says who they are.
const PEERS_MAX: usize = 4096;

/// The most that comes over a connection before it is of use: greetings and the groups that the other side has.
const SPARE_BYTES: usize = 1 << 20;

/// Reconnects in a row without group traffic before the peer is declared lost; a healthy peer closes at most two stale
/// connections.
const RECONNECTS_MAX: u32 = 3;

/// Why a node is lost whose agent is another incarnation than the one that its groups have.
pub(crate) const STARTED_AGAIN: &str = "its agent was started again";

/// Another agent.
#[derive(Debug)]
pub(crate) struct PeerLink {
    pub(crate) machine: PeerStream,
    /// Of the agent, as its groups or its greeting say.
    pub(crate) incarnation: u64,
    pub(crate) connection: Option<AgentConnectionId>,
    /// Whether the other side of the connection has proved who it is.
    proven: bool,
    /// The agent's key, as its groups say: it has to prove who it is.
    key: Option<Key>,
    /// By what it proves that in its groups that say no key of its own, by their numbers and epochs.
    group_keys: BTreeMap<(u64, u32), Key>,
    /// This side has asked for a connection, and not heard what has become of that.
    is_connecting: bool,
    /// This side has made the connection that there is.
    outgoing: bool,
    /// If both sides connect at once, the connection that this side has made stays.
    precedes: bool,
    /// What the driver was told that comes next over the connection.
    pub(crate) awaited: (u64, Option<MemoryRange>),
    /// Where its groups say it is, or where it came from.
    ip: IpAddr,
    /// Where to connect to, if this side may.
    connect: Option<SocketAddr>,
    pub(crate) groups: BTreeSet<u64>,
    /// Whether it has had a group.
    used: bool,
    /// Connections in a row, before this one, that ended before anything of any group came.
    reconnects: u32,
}

impl PeerLink {
    /// To the agent `of` a node `at` a place, from the agent `me`.
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
            groups: BTreeSet::new(),
            used: false,
            reconnects: 0,
        }
    }

    fn must_prove(&self) -> bool {
        self.key.is_some() || !self.group_keys.is_empty()
    }

    /// The key by which the agent proves who it is: its own, or that of the oldest group, which most likely lasts longest.
    fn proof(&self) -> Option<PeerKey> {
        let own = self.key.clone().map(|key| PeerKey { key, group: None });
        let of_group = self.group_keys.first_key_value();
        own.or_else(|| of_group.map(|(group, key)| PeerKey { key: key.clone(), group: Some(*group) }))
    }
}

/// Whose a connection is.
#[derive(Debug)]
enum ConnectionOwner {
    Peer(NodeId),
    /// It has not said its name; the bytes so far.
    Unidentified {
        ip: IpAddr,
        proven: Option<AgentId>,
        bytes: Vec<u8>,
    },
}

/// A peer that is gone.
#[derive(Debug)]
pub(crate) struct LostPeer {
    pub(crate) node: NodeId,
    pub(crate) groups: BTreeSet<u64>,
    pub(crate) why: String,
}

impl LostPeer {
    fn new(node: NodeId, groups: BTreeSet<u64>, why: &str) -> LostPeer {
        LostPeer { node, groups, why: why.to_owned() }
    }
}

/// A node that the engine has heard of.
#[derive(Debug)]
struct KnownNode {
    name: String,
    link: Option<PeerLink>,
    /// Whether a group has had it, and may still know it by its number.
    has_been_in_group: bool,
}

#[derive(Debug)]
pub(crate) struct PeerTable {
    me: AgentId,
    /// Those that the engine has heard of, by number; the first is this node.
    nodes: Vec<KnownNode>,
    by_name: BTreeMap<String, NodeId>,
    /// Numbers of nodes that are forgotten, since they never had a group: nobody else knows them.
    free: Vec<NodeId>,
    connections: BTreeMap<AgentConnectionId, ConnectionOwner>,
    /// Peers whose machines have been told something and not yet asked what follows.
    dirty: BTreeSet<NodeId>,
    /// Connections of peers that this side has connected to as well, whichever came first: they are of use if its own ends, since the
    /// other side has made them afterwards then, and else ended by the other side as soon as it hears from this one.
    spares: BTreeMap<NodeId, AgentConnectionId>,
    /// Of these, those that are of use now.
    needed: VecDeque<AgentConnectionId>,
    /// Peers that were not spoken to before, whose groups may not all know.
    fresh: BTreeSet<NodeId>,
    /// Connections in the name of another that had not proved it.
    pub(crate) refused: u64,
}

impl PeerTable {
    /// The peers of the agent `me`.
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

    /// The number of the node of a name.
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

    /// The name of a node.
    pub(crate) fn name(&self, node: NodeId) -> &str {
        &self.nodes[node.0 as usize].name
    }

    pub(crate) fn link(&mut self, node: NodeId) -> Option<&mut PeerLink> {
        self.nodes.get_mut(node.0 as usize)?.link.as_mut()
    }

    /// A group has members on a node, which it may speak to later; the node's number.
    pub(crate) fn add_member(&mut self, name: &str) -> NodeId {
        let node = self.number(name);
        self.nodes[node.0 as usize].has_been_in_group = true;
        node
    }

    /// A group has members on this node, at an address, and on another one. Of two agents the one with the smaller address
    /// connects, or either on demand. Groups in `closing` need connections no more. Answers with the node's number, and with
    /// groups that it lacks: those of an earlier agent, or this one if a later agent is there.
    pub(crate) fn join(
        &mut self,
        now: Time,
        (members, place): (&Members, usize),
        closing: &BTreeSet<u64>,
        out: &mut OutputQueue,
    ) -> (NodeId, Option<LostPeer>) {
        let (member, group) = (&members.nodes[place], members.key());
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

    /// A group speaks to the node at one of its places: connects to it, if need be.
    pub(crate) fn reach(&mut self, now: Time, (members, place): (&Members, usize), out: &mut OutputQueue) {
        let node = members.nodes[place].id;
        if self.link(node).is_none() {
            self.join(now, (members, place), &BTreeSet::new(), out);
            self.fresh.insert(node);
        }
        self.request_connection(node, out);
    }

    /// Asks for a connection to a peer, if there is none and this side may.
    fn request_connection(&mut self, node: NodeId, out: &mut OutputQueue) {
        let Some(link) = self.link(node).filter(|link| link.connection.is_none() && !link.is_connecting)
        else {
            return;
        };
        let Some(to) = link.connect else { return };
        link.is_connecting = true;
        let key = link.proof();
        out.push(Output::Connect { node, to, key });
    }

    /// A connection that takes the place of one that has ended.
    pub(crate) fn take_needed(&mut self) -> Option<AgentConnectionId> {
        self.needed.pop_front()
    }

    /// A peer that was not spoken to before.
    pub(crate) fn take_fresh(&mut self) -> Option<NodeId> {
        self.fresh.pop_first()
    }

    /// Whether a group has been opened to a peer.
    pub(crate) fn has_group(&mut self, node: NodeId, group: u64) -> bool {
        self.link(node).is_some_and(|link| link.groups.contains(&group))
    }

    /// Drops the link to a node that is of no use for a group that it is a member of. Answers with what is lost by it.
    fn drop_useless(
        &mut self,
        (members, place): (&Members, usize),
        closing: &BTreeSet<u64>,
        out: &mut OutputQueue,
    ) -> Option<LostPeer> {
        let member = &members.nodes[place];
        let node = *self.by_name.get(&member.name)?;
        let link = self.link(node)?;
        if link.incarnation < member.incarnation {
            return self.drop_peer(node, STARTED_AGAIN, out);
        }
        // Someone else came under this name before the group told where the node is, or that it can prove who it is; or the connection is one that nobody
        // has looked after since its last group: the other side may have given it up, unheard because one of the two was
        // cut off.
        let unproven = members.must_prove(place) && link.connection.is_some() && !link.proven && !link.used;
        if link.ip != member.tcp.ip() || unproven || link.used && link.groups.is_subset(closing) {
            self.drop_peer(node, "", out);
        }
        None
    }

    /// A group has no members on this node any more.
    pub(crate) fn leave(&mut self, now: Time, node: NodeId, group: (u64, u32)) {
        if let Some(link) = self.link(node) {
            link.groups.remove(&group.0);
            link.group_keys.remove(&group);
        }
        self.handle(now, node, Input::Close { group: group.0, epoch: group.1 });
    }

    /// Tells a peer's machine something that did not come over its connection.
    pub(crate) fn handle(&mut self, now: Time, node: NodeId, input: Input<'_>) {
        if let Some(link) = self.link(node) {
            link.machine.handle(now, input);
            self.dirty.insert(node);
        }
    }

    pub(crate) fn notify(&mut self, now: Time, node: NodeId, notice: Notice) {
        self.handle(now, node, Input::Notify(notice));
    }

    pub(crate) fn take_dirty(&mut self) -> Option<NodeId> {
        self.dirty.pop_first()
    }

    /// A peer that is connected.
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

    /// The connection that was asked for is there.
    pub(crate) fn on_connected(
        &mut self,
        node: NodeId,
        connection: AgentConnectionId,
        out: &mut OutputQueue,
    ) {
        if let Some(link) = self.link(node) {
            link.is_connecting = false;
            if link.connection.is_none() {
                (link.connection, link.outgoing) = (Some(connection), true);
                // The driver has seen to it.
                link.proven = link.must_prove();
                self.connections.insert(connection, ConnectionOwner::Peer(node));
                self.dirty.insert(node);
                return;
            }
        }
        // The peer was given up meanwhile, or has connected to this side.
        out.push(Output::Hangup { connection });
    }

    /// A connection that was asked for cannot be made: whether there is none.
    pub(crate) fn on_unreachable(&mut self, node: NodeId) -> bool {
        let Some(link) = self.link(node) else { return false };
        link.is_connecting = false;
        link.connection.is_none()
    }

    /// Someone connected.
    pub(crate) fn on_accepted(
        &mut self,
        connection: AgentConnectionId,
        (ip, proven): (IpAddr, Option<AgentId>),
        out: &mut OutputQueue,
    ) {
        let is_unknown =
            |owner: &ConnectionOwner| matches!(owner, ConnectionOwner::Unidentified { proven: None, .. });
        let unidentified = self.connections.iter().filter(|(_, owner)| is_unknown(owner));
        let unidentified: Vec<AgentConnectionId> = unidentified.map(|(id, _)| *id).collect();
        if proven.is_none() && unidentified.len() >= UNIDENTIFIED_MAX {
            // Identifiers ascend: the first has been silent longest.
            self.connections.remove(&unidentified[0]);
            out.push(Output::Hangup { connection: unidentified[0] });
        }
        self.connections.insert(connection, ConnectionOwner::Unidentified { ip, proven, bytes: Vec::new() });
    }

    /// Bytes of a connection that has not said whose it is. Answers with the peer and all its bytes once it
    /// has, and with the peer of that name whose connection it replaces.
    pub(crate) fn on_greeting(
        &mut self,
        connection: AgentConnectionId,
        more: &[u8],
        out: &mut OutputQueue,
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
            // That agent has ended: a later one is in the groups.
            Ordering::Less => !link.groups.is_empty(),
            // Identifiers ascend: its agent has given this one up and made the later one, whose greeting came sooner.
            Ordering::Equal if !link.outgoing => link.connection > Some(connection),
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

    /// Whether an agent may be the one that it says it is, by what it has proved. Of one that is known to have a key, or whose
    /// connection has been proved, nothing less is believed.
    fn is_plausible(&mut self, who: &AgentId, proven: Option<&AgentId>) -> bool {
        let known = self.by_name.get(&who.node).copied();
        let link = known.and_then(|node| self.link(node));
        match proven {
            Some(proven) => proven == who,
            None => link.is_none_or(|link| !(link.must_prove() || link.proven && link.connection.is_some())),
        }
    }

    /// Drops the connection of who came in the name of an agent, without proof, before any group had it.
    fn drop_impostor(&mut self, name: &str, out: &mut OutputQueue) {
        let Some(node) = self.by_name.get(name).copied() else { return };
        if self.link(node).is_some_and(|link| !link.proven && !link.used) {
            self.drop_peer(node, "", out);
        }
    }

    /// A connection ended, or could not be made.
    pub(crate) fn on_closed(
        &mut self,
        connection: AgentConnectionId,
        why: &str,
        out: &mut OutputQueue,
    ) -> Option<LostPeer> {
        match self.connections.remove(&connection)? {
            ConnectionOwner::Unidentified { .. } => None,
            ConnectionOwner::Peer(node) => self.reconnect(node, why, out),
        }
    }

    /// The connection to a peer has ended, or is of no use: another one is asked for if one is needed and that is up to this
    /// side.
    pub(crate) fn reconnect(&mut self, node: NodeId, why: &str, out: &mut OutputQueue) -> Option<LostPeer> {
        let lost = self.end(node, why, out)?;
        self.request_connection(node, out);
        Some(lost)
    }

    /// The connection to a peer has ended. Groups of which nothing came over it wait for another: the other side may have
    /// hung up before it had them.
    fn end(&mut self, node: NodeId, why: &str, out: &mut OutputQueue) -> Option<LostPeer> {
        let ended = self.forget(node, out)?;
        let migrated: BTreeSet<u64> = ended.machine.unconfirmed().map(|(group, _)| group).collect();
        let reconnects = if ended.machine.no_group_traffic() { ended.reconnects + 1 } else { 0 };
        if migrated.is_empty() || reconnects > RECONNECTS_MAX {
            return Some(LostPeer::new(node, ended.groups, why));
        }
        let mut link = PeerLink {
            used: true,
            connect: ended.connect,
            key: ended.key,
            group_keys: ended.group_keys,
            is_connecting: ended.is_connecting,
            precedes: ended.precedes,
            reconnects,
            ..PeerLink::new(&self.me, (self.name(node), ended.incarnation), ended.ip, ended.ip)
        };
        link.machine.resume_from(ended.machine);
        let lost = LostPeer::new(node, &ended.groups - &migrated, why);
        link.groups = migrated;
        // It had groups, so its number is still its own.
        self.nodes[node.0 as usize].link = Some(link);
        Some(lost)
    }

    /// Gives a peer up and hangs up.
    pub(crate) fn drop_peer(&mut self, node: NodeId, why: &str, out: &mut OutputQueue) -> Option<LostPeer> {
        Some(LostPeer::new(node, self.forget(node, out)?.groups, why))
    }

    fn forget(&mut self, node: NodeId, out: &mut OutputQueue) -> Option<PeerLink> {
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

    fn hang_up(&mut self, connection: AgentConnectionId, out: &mut OutputQueue) {
        if self.connections.remove(&connection).is_some() {
            out.push(Output::Hangup { connection });
        }
    }
}
