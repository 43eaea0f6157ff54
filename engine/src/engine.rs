//! The engine without I/O: brings what happens to the group it concerns, and what groups want to the driver.

mod peering;

use super::api::{CallRequest, GroupError, GroupSpec, TransferRequest, failure};
use super::group::Group;
use super::members::Members;
use super::memory::SharedSlice;
use super::peers::Peers;
use super::stream::{Sending, Share, Stream};
use super::timers::Timers;
use super::trace::{CallRecord, Ring};
use cool_collective::{Call, Plan, Planner};
use cool_machine::{Duration, Machine, Poll, Time};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_transport::packet::Body;
use cool_transport::unicast;
use cool_transport::{Packet, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

/// A fair number for [`Engine::new`].
pub const COPIES_BYTES: u64 = 16 * 1024 * 1024;

/// A connection, numbered by the driver in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What happens to the engine.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are said in their variants' docs")]
pub enum Input<'a> {
    /// A datagram came.
    Datagram { from: SocketAddrV4, bytes: &'a [u8] },
    /// Someone connected.
    Accepted { connection: ConnectionId, from: Ipv4Addr },
    /// A node that was to be connected to is.
    Connected { node: String, connection: ConnectionId },
    /// A node that was to be connected to cannot be reached.
    Unreachable { node: String, why: String },
    /// Bytes came over a connection, after so many that were put where [`Engine::awaited`] says.
    Bytes { connection: ConnectionId, placed: u32, bytes: &'a [u8] },
    /// So many bytes of earlier [`Output::Write`]s have been written.
    Written { connection: ConnectionId, bytes: u64 },
    /// A connection ended by itself.
    Closed { connection: ConnectionId, why: String },
    /// The plan for a call of a group, by its number and epoch, has been found.
    Picked { group: (u64, u32), call: Call, plan: Plan },
}

/// What the engine asks of its driver.
#[derive(Debug)]
#[allow(missing_docs, reason = "fields are said in their variants' docs")]
pub enum Output {
    /// Send this, to a node or a tree. Words are packets without payload, behind which others may go.
    Datagram { to: SocketAddrV4, bytes: Vec<u8>, words: bool },
    /// Connect to a node, within bounds again and again: its agent may be starting.
    Connect { node: String, to: SocketAddrV4 },
    /// Write this, a frame. The payload does not change before that is done or a copy of it is made, which is to be
    /// done before anything else that is asked later.
    Write { connection: ConnectionId, head: Vec<u8>, payload: Option<SharedSlice> },
    /// Write what is left to write, then close.
    Hangup { connection: ConnectionId },
    /// A call is done.
    Done { token: u64, result: Result<Stats, Failure> },
    /// Find the best plan for a call of a group, without holding up the engine: that may take some milliseconds.
    Pick { group: (u64, u32), planner: Box<Planner>, call: Call },
    /// A group is gone: nothing that comes over its trees is of use.
    Forgotten { group: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKey {
    Stream(StreamId),
    /// Group and call.
    Call(u64, u64),
    /// Group and transfer.
    Direct(u64, u64),
    /// Group.
    Vigil(u64),
}

/// A number of bytes that may be in use.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
}

impl Budget {
    /// Takes room for so many bytes if there is.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let left = self.left.checked_sub(bytes);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(super) fn give(&mut self, bytes: u64) {
        self.left += bytes;
    }
}

/// Packets without payload share a datagram of so many bytes at most, which fits any link.
const WORDS_MAX: usize = 1200;

/// Among so many outputs such a datagram is looked for.
const WORDS_AHEAD: usize = 64;

/// What the groups of a node share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) out: VecDeque<Output>,
    pub(super) timers: Timers<TimerKey>,
    pub(super) peers: Peers,
    pub(super) copies: Budget,
    /// What this node is sending for the first time: it shares its link.
    pub(super) sending: Sending,
    /// That has changed, and the streams do not know.
    pub(super) sending_changed: bool,
    /// What the latest calls cost.
    pub(super) ring: Ring,
    /// How long a node may be silent while others wait.
    pub(super) peer_timeout: Duration,
}

impl Shared {
    pub(super) fn done(&mut self, token: u64, result: Result<Stats, Failure>) {
        self.out.push_back(Output::Done { token, result });
    }

    /// Sends a packet without payload, in one datagram with others for the same place if there are any.
    pub(super) fn send_word(&mut self, to: SocketAddrV4, packet: &[u8]) {
        let mut waiting = self.out.iter_mut().rev().take(WORDS_AHEAD);
        let same = waiting.find_map(|output| match output {
            Output::Datagram { to: other, bytes, words: true } if *other == to => Some(bytes),
            _ => None,
        });
        match same {
            Some(bytes) if bytes.len() + packet.len() <= WORDS_MAX => bytes.extend_from_slice(packet),
            _ => self.out.push_back(Output::Datagram { to, bytes: packet.to_vec(), words: true }),
        }
    }

    /// Gives back what a stream had a claim on.
    pub(super) fn forget_stream(&mut self, id: &StreamId, stream: &Stream) {
        self.timers.set(TimerKey::Stream(*id), None);
        self.copies.give(stream.copied);
        if let Some(share) = stream.sending {
            self.sent(share);
        }
    }

    /// A stream has its share of the node's link from now on.
    pub(super) fn sends(&mut self, share: Share) {
        self.sending = self.sending.with(&share);
        self.sending_changed = true;
    }

    /// A stream has put its last chunk on the link, or never will: others may have its share.
    pub(super) fn sent(&mut self, share: Share) {
        self.sending.ends(&share);
        self.sending_changed = true;
    }
}

/// The engine of one node.
#[derive(Debug)]
pub struct Engine {
    node: String,
    groups: BTreeMap<u64, Group>,
    /// Released groups whose streams other nodes still need.
    closing: BTreeSet<u64>,
    shared: Shared,
}

impl Engine {
    /// The engine of the node of that name. It copies messages, so that calls may return before everybody
    /// has them, up to `copies` bytes; beyond it, calls wait. Nodes that are silent for `peer_timeout` while
    /// others wait are gone.
    pub fn new(node: &str, copies: u64, peer_timeout: Duration) -> Engine {
        let shared = Shared {
            out: VecDeque::new(),
            timers: Timers::new(),
            peers: Peers::new(node),
            copies: Budget { left: copies },
            sending: Sending::default(),
            sending_changed: false,
            ring: Ring::default(),
            peer_timeout,
        };
        Engine { node: node.to_owned(), groups: BTreeMap::new(), closing: BTreeSet::new(), shared }
    }

    /// Makes a group; answers with the trees to listen to. Poll afterwards.
    pub fn make_group(&mut self, now: Time, spec: &GroupSpec) -> Result<Vec<SocketAddrV4>, GroupError> {
        if self.closing.remove(&spec.id) {
            self.forget_group(now, spec.id);
        }
        if self.groups.contains_key(&spec.id) {
            return Err(GroupError::Exists(spec.id));
        }
        let members = Members::new(spec, &self.node)?;
        let trees = members.my_trees();
        let mine = members.nodes[members.me].tcp;
        for node in members.others() {
            let (group, addresses) = ((members.id, members.epoch), (mine, node.tcp));
            let Shared { peers, out, .. } = &mut self.shared;
            peers.join(now, &node.name, addresses, group, &self.closing, out);
        }
        self.groups.insert(spec.id, Group::new(members, spec.cost_model));
        self.settle(now);
        Ok(trees)
    }

    /// Forgets a group, as soon as no other node needs what was sent. Poll afterwards.
    pub fn release_group(&mut self, now: Time, id: u64) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        self.closing.insert(id);
        group.close(now, &mut self.shared);
        self.settle(now);
    }

    /// A local rank makes a call, answered by [`Output::Done`] with this token. Poll afterwards.
    pub fn call(&mut self, now: Time, token: u64, request: CallRequest) {
        let (id, rank) = (request.group, request.rank);
        self.of_rank(now, token, (id, rank), |group, shared| group.call(now, shared, token, request));
    }

    /// A local rank sends or receives a message, answered like a call. Poll afterwards.
    pub fn transfer(&mut self, now: Time, token: u64, request: TransferRequest) {
        let (id, rank) = (request.group, request.rank);
        self.of_rank(now, token, (id, rank), |group, shared| group.transfer(now, shared, token, request));
    }

    /// Does what a rank of a group asks for.
    fn of_rank(
        &mut self,
        now: Time,
        token: u64,
        (id, rank): (u64, u32),
        asked: impl FnOnce(&mut Group, &mut Shared) -> Result<(), Failure>,
    ) {
        let Some(group) = self.groups.get_mut(&id).filter(|_| !self.closing.contains(&id)) else {
            let message =
                format!("there is no group {id} on node {}: it was released or never made", self.node);
            return self.shared.done(token, Err(failure(Kind::Invalid, message, vec![rank])));
        };
        let result = asked(group, &mut self.shared);
        self.conclude(now, id, result);
        self.settle(now);
    }

    /// What the last so many calls of a group, or of all, cost.
    pub fn trace(&self, last: usize, group: Option<u64>) -> Vec<Arc<CallRecord>> {
        self.shared.ring.last(last, group)
    }

    fn picked(&mut self, now: Time, key: (u64, u32), call: &Call, plan: Plan) {
        let Some(group) = self.groups.get_mut(&key.0).filter(|group| group.key() == key) else { return };
        let result = group.picked(now, &mut self.shared, call, plan);
        self.conclude(now, key.0, result);
    }

    /// A local rank went away. Poll afterwards.
    pub fn lose_rank(&mut self, now: Time, id: u64, rank: u32, why: String) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let result = group.lose_rank(now, &mut self.shared, rank, why);
        self.conclude(now, id, result);
        self.settle(now);
    }

    /// A local rank revokes its group. Poll afterwards.
    pub fn revoke(&mut self, now: Time, id: u64, rank: u32) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let revoked = group.revoked(rank);
        group.fail(now, &mut self.shared, &revoked, true);
        self.settle(now);
    }

    /// The ranks by whose loss a group has failed.
    pub fn lost_ranks(&self, id: u64) -> Vec<u32> {
        self.groups.get(&id).map_or(Vec::new(), Group::lost_ranks)
    }

    /// Fails a group if what was done with it says so.
    fn conclude(&mut self, now: Time, id: u64, result: Result<(), Failure>) {
        if let (Err(failed), Some(group)) = (result, self.groups.get_mut(&id)) {
            group.fail(now, &mut self.shared, &failed, true);
        }
    }

    /// Lets everything follow that follows from an input: messages between groups and peers, shares of the
    /// link, groups that are over.
    fn settle(&mut self, now: Time) {
        loop {
            if let Some(node) = self.shared.peers.take_dirty() {
                self.drain_peer(now, &node, &[]);
            } else if std::mem::take(&mut self.shared.sending_changed) {
                let ids: Vec<u64> = self.groups.keys().copied().collect();
                for id in ids {
                    if let Some(group) = self.groups.get_mut(&id) {
                        let result = group.share_link(now, &mut self.shared);
                        self.conclude(now, id, result);
                    }
                }
            } else {
                let over = |id: &&u64| self.groups.get(*id).is_none_or(Group::quiet);
                let over: Vec<u64> = self.closing.iter().filter(over).copied().collect();
                if over.is_empty() {
                    return;
                }
                for id in over {
                    self.closing.remove(&id);
                    self.forget_group(now, id);
                }
            }
        }
    }

    fn forget_group(&mut self, now: Time, id: u64) {
        if let Some(mut group) = self.groups.remove(&id) {
            group.close(now, &mut self.shared);
            group.leave(now, &mut self.shared);
            self.shared.out.push_back(Output::Forgotten { group: id });
        }
    }

    fn datagram(&mut self, now: Time, from: SocketAddrV4, bytes: &[u8]) {
        for decoded in Packet::decode_all(bytes) {
            match decoded {
                Ok((packet, payload)) => self.packet(now, from, packet, payload),
                Err(error) => tracing::debug!(%from, %error, "dropped what is no packet"),
            }
        }
    }

    fn packet(&mut self, now: Time, from: SocketAddrV4, packet: Packet, payload: &[u8]) {
        let (id, epoch) = (packet.id.group, packet.id.epoch);
        if let Body::Ping { answer } = packet.body {
            return self.ping(from, packet, answer);
        }
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.key() == (id, epoch)) else {
            tracing::debug!(%from, group = id, epoch, "dropped a packet of a group that is not here");
            return;
        };
        let result = group.packet(now, &mut self.shared, from, packet, payload);
        self.conclude(now, id, result);
    }

    /// Someone asks whether this agent is there, whatever has become of the group here; or answers.
    fn ping(&mut self, from: SocketAddrV4, packet: Packet, answer: bool) {
        if answer {
            let mut bytes = Vec::new();
            Packet { body: Body::Ping { answer: false }, ..packet }.encode(&mut bytes);
            self.shared.send_word(from, &bytes);
        } else if let Some(group) = self.groups.get_mut(&packet.id.group) {
            group.answered(from);
        }
    }

    fn due(&mut self, now: Time, key: TimerKey) {
        let id = match key {
            TimerKey::Stream(stream) => stream.group,
            TimerKey::Call(group, _) | TimerKey::Direct(group, _) | TimerKey::Vigil(group) => group,
        };
        let Some(group) = self.groups.get_mut(&id) else { return };
        let result = match key {
            TimerKey::Stream(stream) => group.stream_due(now, &mut self.shared, stream),
            TimerKey::Call(_, call) => group.call_due(now, &mut self.shared, call),
            TimerKey::Direct(_, transfer) => group.direct_due(now, &mut self.shared, transfer),
            TimerKey::Vigil(_) => {
                let gone = group.vigil_due(now, &mut self.shared);
                let why = format!("no answer for {:?}", self.shared.peer_timeout);
                return self.lose_peers(now, gone, &why);
            }
        };
        self.conclude(now, id, result);
    }
}

impl Machine for Engine {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Datagram { from, bytes } => self.datagram(now, from, bytes),
            Input::Accepted { connection, from } => {
                self.shared.peers.accepted(connection, from, &mut self.shared.out);
            }
            Input::Connected { node, connection } => {
                self.shared.peers.connected(&node, connection, &mut self.shared.out);
            }
            Input::Unreachable { node, why } => self.lose_peer(now, &node, &why),
            Input::Bytes { connection, placed, bytes } => self.bytes(now, connection, placed, bytes),
            Input::Written { connection, bytes } => {
                if let Some(node) = self.shared.peers.node_of(connection) {
                    self.shared.peers.handle(now, &node, unicast::Input::Written(bytes));
                }
            }
            Input::Picked { group, call, plan } => self.picked(now, group, &call, plan),
            Input::Closed { connection, why } => {
                if let Some(lost) = self.shared.peers.closed(connection, why, &mut self.shared.out) {
                    self.lost(now, &[lost]);
                }
            }
        }
        self.settle(now);
    }

    fn poll(&mut self, now: Time) -> Poll<Output> {
        // All that is due, so that what goes to one place goes together.
        while let Some(key) = self.shared.timers.due(now) {
            self.due(now, key);
            self.settle(now);
        }
        match self.shared.out.pop_front() {
            Some(output) => Poll::Output(output),
            None => Poll::Idle(self.shared.timers.next()),
        }
    }
}
