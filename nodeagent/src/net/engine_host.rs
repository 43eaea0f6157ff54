//! The engine with all that it asks of the world: does each of its outputs, in order and without ever waiting.

use super::Events;
use super::answers::Reply;
use super::cipher::AesGcm;
use super::handshake::{LinkSecurity, Records};
use super::memories::Memories;
use super::pace::pace;
use super::tcp::{self, Approach, Connection};
use super::udp::{self, Socket};
use super::udp_outbox::Outbox;
use super::work::{self, Move, Pool};
use crate::engine::{
    CallRequest, EngineConfig, GroupError, GroupKey, Refusals, Refused, SharedSlice, Trace, TrafficCounters,
    TransferRequest,
};
use crate::shared_segment::SharedSegment;
use cool_engine::{
    AgentId, ConnectionId, Engine, GroupSpec, Input, MadeGroup, MemoryRange, Output, Work, WorkId,
};
use cool_machine::{Machine, Poll, Time};
use cool_proto::local::{Failure, Stats};
use cool_tcp::LinkEstimate;
use cool_transport::packet::DATA_HEADER;
use cool_transport::tagged::Tagger;
use cool_types::limits::BOUNCE_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// A tree that this node listens to.
struct Tree {
    groups: BTreeSet<u64>,
    socket: Socket,
}

/// Where it goes that a group is made.
type GroupReply = oneshot::Sender<Result<(), GroupError>>;

/// A group that is being made.
struct Making {
    reply: GroupReply,
    /// What its links carry.
    pace: u32,
    /// Its epoch and its key, if it has one.
    keyed: Option<(u32, GroupKey)>,
    /// Whether its key proves who its agents are.
    proves: bool,
}

/// What is counted for others to read.
pub(super) struct Counters {
    pub(super) traffic: Arc<TrafficCounters>,
    pub(super) refusals: Arc<Refusals>,
}

pub(super) struct EngineHost {
    engine: Engine,
    me: AgentId,
    /// What is asked of who connects to this agent.
    security: LinkSecurity,
    tagger: Tagger<AesGcm>,
    ip: IpAddr,
    origin: Instant,
    /// The latest time that the engine was told.
    clock: Time,
    /// When to poll the engine again, if nothing happens before.
    deadline: Option<Instant>,
    memories: Memories,
    pool: Pool,
    /// Bytes that may still be moved by this thread in this turn.
    turn_bytes: u64,
    udp: Socket,
    outbox: Outbox,
    trees: BTreeMap<SocketAddr, Tree>,
    connections: BTreeMap<ConnectionId, Connection>,
    last_connection: u64,
    link: LinkEstimate,
    /// What each group's links carry.
    paces: BTreeMap<u64, u32>,
    making: BTreeMap<u64, Making>,
    calls: BTreeMap<u64, Reply>,
    /// In which ranks carry out calls themselves, of groups that have not failed.
    segments: BTreeMap<u64, Arc<SharedSegment>>,
    last_token: u64,
    counters: Counters,
    events: Events,
}

impl EngineHost {
    pub(super) fn new(
        (me, security): (AgentId, LinkSecurity),
        config: &EngineConfig,
        udp: Socket,
        events: Events,
        counters: Counters,
    ) -> io::Result<EngineHost> {
        Ok(EngineHost {
            engine: Engine::new(me.clone(), BOUNCE_BYTES, config.peer_timeout),
            me,
            security,
            tagger: Tagger::default(),
            ip: config.ip,
            origin: Instant::now(),
            clock: Time::ZERO,
            deadline: None,
            memories: Memories::default(),
            pool: Pool::start(events.clone())?,
            turn_bytes: work::TURN_BYTES,
            udp,
            outbox: Outbox::default(),
            trees: BTreeMap::new(),
            connections: BTreeMap::new(),
            last_connection: 0,
            link: LinkEstimate::new(false),
            paces: BTreeMap::new(),
            making: BTreeMap::new(),
            calls: BTreeMap::new(),
            segments: BTreeMap::new(),
            last_token: 0,
            counters,
            events,
        })
    }

    /// The sockets on which datagrams come.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.udp).chain(self.trees.values().map(|tree| &tree.socket))
    }

    pub(super) fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// The memory of a range; see [`Memories::get`].
    pub(super) fn memory(&self, range: MemoryRange) -> Option<SharedSlice> {
        self.memories.get(range)
    }

    /// What is asked of who connects to this agent.
    pub(super) fn security(&self) -> &LinkSecurity {
        &self.security
    }

    /// What is refused, to be counted.
    pub(super) fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.counters.refusals)
    }

    /// Examines the tag of a datagram, from somebody and to an address, if it has one: the length of its packets, and the group
    /// that it proves.
    pub(super) fn examine(
        &mut self,
        datagram: &mut [u8],
        (from, to): (SocketAddr, IpAddr),
    ) -> Option<(usize, Option<u64>)> {
        match self.tagger.open(datagram, to) {
            Ok(opened) => Some(opened),
            Err(refusal) => {
                self.counters.refusals.count(refusal.into());
                tracing::debug!(%from, %refusal, "refused a datagram");
                None
            }
        }
    }

    /// When to poll the engine again, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Time since the engine was made.
    pub(super) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Tells the engine of something that happened just now, and does what follows.
    pub(super) fn handle(&mut self, input: Input<'_>) {
        let now = self.elapsed();
        self.handle_at(now, input);
    }

    /// As [`EngineHost::handle`], for what happened when the engine was that old.
    pub(super) fn handle_at(&mut self, age: Duration, input: Input<'_>) {
        let bytes = match &input {
            Input::Datagram { bytes, .. } | Input::Bytes { bytes, .. } => bytes,
            _ => &[][..],
        };
        let now = self.time(age);
        self.engine.handle(now, input);
        self.perform(bytes);
    }

    /// A turn ends: what is due by a time is done, what waits to be sent with others is sent, and what was counted can be read.
    pub(super) fn end_turn(&mut self, age: Duration) {
        self.time(age);
        self.perform(&[]);
        self.flush();
        self.counters.traffic.set(self.engine.traffic());
        self.counters.refusals.set(Refused::Unproven, self.engine.refused());
        self.turn_bytes = work::TURN_BYTES;
    }

    /// Sends datagrams that wait for others like them.
    pub(super) fn flush(&mut self) {
        self.outbox.flush(&self.udp);
    }

    /// Completes when the system has room again for datagrams that it had none for; never if there are none.
    pub(super) async fn room(&self) {
        if !self.outbox.is_blocked() || self.udp.writable().await.is_err() {
            std::future::pending().await
        }
    }

    /// Sends what the system had no room for.
    pub(super) fn resume(&mut self) {
        self.outbox.resume(&self.udp);
    }

    fn time(&mut self, age: Duration) -> Time {
        self.clock = self.clock.max(Time::from_nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        self.clock
    }

    /// Does what the engine asks until it is idle; `input` are the bytes that it was handed last.
    fn perform(&mut self, input: &[u8]) {
        loop {
            match self.engine.poll(self.clock) {
                Poll::Output(output) => self.output(output, input),
                Poll::Idle(deadline) => {
                    self.deadline = deadline.map(|at| self.origin + Duration::from_nanos(at.as_nanos()));
                    return;
                }
            }
        }
    }

    fn output(&mut self, output: Output, input: &[u8]) {
        match output {
            Output::Store { within, to } => self.memories.store(&input[within], to),
            Output::Data { to, packet, payload } => {
                let bytes = payload.len as usize;
                let group = packet.id.group;
                let whole = DATA_HEADER + bytes + self.tagger.tag_bytes(group);
                let datagram = self.outbox.datagram(&self.udp, to, whole);
                let start = datagram.len();
                packet.encode(datagram);
                match self.memories.get(payload) {
                    Some(payload) => payload.append(0, bytes, datagram),
                    None => datagram.resize(datagram.len() + bytes, 0),
                }
                self.tagger.seal((group, to.ip()), datagram, start);
            }
            Output::Control { to, group, bytes } => {
                let whole = bytes.len() + self.tagger.tag_bytes(group);
                let datagram = self.outbox.datagram(&self.udp, to, whole);
                let start = datagram.len();
                datagram.extend_from_slice(&bytes);
                self.tagger.seal((group, to.ip()), datagram, start);
            }
            Output::Write { connection, head, payload } => self.write(connection, head, payload),
            Output::Await { connection, bytes, place } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    connection.awaited = (bytes, place);
                }
            }
            Output::Connect { node, to, key } => {
                let encrypt = self.security.encrypt;
                let approach = Approach { me: self.me.clone(), key, encrypt };
                tokio::spawn(tcp::connect(node, (self.ip, to), approach, self.events.clone()));
            }
            Output::Hangup { connection } => drop(self.connections.remove(&connection)),
            Output::Allocate { memory, bytes } => {
                if !self.memories.allocate(memory, bytes) {
                    self.engine.handle(self.clock, Input::AllocationFailed(memory));
                }
            }
            Output::Free { memory } => self.memories.free(memory),
            Output::Copy { from, to } => {
                if let Some((from, to)) = self.memories.get(from).zip(self.memories.get(to)) {
                    work::copy(&from, &to);
                }
            }
            Output::Work { id, work } => self.work(id, work),
            Output::Done { token, result } => {
                self.memories.forget(token);
                if let Some(reply) = self.calls.remove(&token) {
                    reply.send(result);
                }
            }
            Output::GroupMade { group, result } => self.group_made(group, result),
            Output::GroupFailed { group } => self.end_sharing(group),
            Output::Quick { group, all } => {
                self.segments.get(&group).into_iter().for_each(|segment| segment.quick(all));
            }
            Output::GroupForgotten { group } => self.group_forgotten(group),
        }
    }

    fn write(&mut self, id: ConnectionId, mut head: Vec<u8>, payload: Option<MemoryRange>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let memory = payload.and_then(|payload| self.memories.get(payload));
        if let (Some(payload), None) = (payload, &memory) {
            // The frame has promised these bytes.
            head.resize(head.len() + payload.len as usize, 0);
        }
        let bytes = connection.write(head, memory);
        self.engine.handle(self.clock, Input::Written { connection: id, bytes });
    }

    /// Does work at once if it is short and the turn is, else has it done.
    fn work(&mut self, id: WorkId, work: Work) {
        let moved = Move::of(&work, &self.memories);
        match (work, moved) {
            (Work::Prepare(preparation), _) => self.pool.start_preparation(id, *preparation),
            (_, Some(moved)) if moved.bytes() > work::INLINE_BYTES.min(self.turn_bytes) => {
                self.pool.start_move(id, &moved);
            }
            (_, moved) => {
                if let Some(moved) = moved {
                    self.turn_bytes -= moved.bytes();
                    moved.run();
                }
                self.engine.handle(self.clock, Input::WorkDone(id));
            }
        }
    }

    pub(super) fn call(&mut self, request: CallRequest, reply: oneshot::Sender<Result<Stats, Failure>>) {
        let token = self.token(Reply::Called(reply));
        let request = request.map(|buffer| self.memories.register(token, buffer));
        self.handle(Input::Call { token, request });
    }

    pub(super) fn transfer(
        &mut self,
        request: TransferRequest,
        reply: oneshot::Sender<Result<Stats, Failure>>,
    ) {
        let token = self.token(Reply::Called(reply));
        let request = request.map(|buffer| self.memories.register(token, buffer));
        self.handle(Input::Transfer { token, request });
    }

    pub(super) fn cancel(&mut self, group: u64, rank: u32, id: u64) {
        self.handle(Input::Cancel { group, rank, id });
    }

    pub(super) fn watch(&mut self, request: CallRequest, reply: oneshot::Sender<Result<bool, Failure>>) {
        let token = self.token(Reply::Watched(reply));
        let request = request.map(|buffer| self.memories.register(token, buffer));
        self.handle(Input::Call { token, request });
    }

    /// Ranks of a group carry out calls in a segment.
    pub(super) fn share(&mut self, group: u64, segment: Arc<SharedSegment>) {
        self.segments.insert(group, segment);
        if self.engine.has_failed(group) {
            self.end_sharing(group);
        }
    }

    /// Nothing can be called on a group any more: who waits in its segment wakes, and asks why.
    fn end_sharing(&mut self, group: u64) {
        if let Some(segment) = self.segments.remove(&group) {
            segment.fail();
        }
    }

    /// The name under which the engine answers.
    fn token(&mut self, reply: Reply) -> u64 {
        self.last_token += 1;
        self.calls.insert(self.last_token, reply);
        self.last_token
    }

    pub(super) fn make_group(&mut self, spec: &GroupSpec, reply: GroupReply) {
        let pace = pace(spec.host_bytes_per_second, &spec.cost_model.costs);
        let keyed = spec.keyed.clone().map(|key| (spec.epoch, key));
        self.making.insert(spec.id, Making { reply, pace, keyed, proves: spec.on_demand });
        self.handle(Input::MakeGroup(spec));
    }

    fn group_made(&mut self, group: u64, made: Result<MadeGroup, cool_engine::GroupError>) {
        let Some(Making { reply, pace, keyed, proves }) = self.making.remove(&group) else { return };
        let result = made.map_err(GroupError::from).and_then(|MadeGroup { place, nodes, trees }| {
            self.paces.insert(group, pace);
            if let Some((epoch, key)) = keyed {
                if proves {
                    self.security.groups.insert((group, epoch), key.key.clone());
                }
                self.tagger.insert((group, epoch), key, (place, nodes));
            }
            self.set_pace();
            self.join_trees(group, trees)
        });
        // Whoever asked may have gone; the group stays until it is released.
        let _ = reply.send(result);
    }

    fn join_trees(&mut self, group: u64, trees: Vec<SocketAddr>) -> Result<(), GroupError> {
        for address in trees {
            if let Err(error) = self.join_tree(group, address) {
                self.engine.handle(self.clock, Input::ReleaseGroup { group });
                let (address, reason) = (address.ip(), error.to_string());
                return Err(GroupError::Multicast { group, address, ip: self.ip, reason });
            }
        }
        Ok(())
    }

    fn join_tree(&mut self, group: u64, address: SocketAddr) -> io::Result<()> {
        if let Some(tree) = self.trees.get_mut(&address) {
            tree.groups.insert(group);
            return Ok(());
        }
        let socket = udp::listen(address, self.ip)?;
        self.trees.insert(address, Tree { groups: BTreeSet::from([group]), socket });
        Ok(())
    }

    fn group_forgotten(&mut self, group: u64) {
        self.end_sharing(group);
        self.trees.retain(|_, tree| {
            tree.groups.remove(&group);
            !tree.groups.is_empty()
        });
        self.tagger.remove(group);
        self.security.groups.release(group);
        self.paces.remove(&group);
        self.set_pace();
    }

    /// Groups share connections, so the fastest counts.
    fn set_pace(&self) {
        if let Some(pace) = self.paces.values().max() {
            self.link.set_pace(*pace);
        }
    }

    pub(super) fn lost_ranks(&self, group: u64) -> Vec<u32> {
        self.engine.lost_ranks(group)
    }

    pub(super) fn trace(&self, last: usize, group: Option<u64>) -> Trace {
        // The clock may have been set since the engine started: what it says now counts.
        let origin = SystemTime::now().checked_sub(self.elapsed()).unwrap_or(UNIX_EPOCH);
        Trace { origin, records: self.engine.trace(last, group) }
    }

    /// Takes a connection, which was made or accepted.
    pub(super) fn connect(&mut self, stream: TcpStream, records: Option<Records>) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        self.connections.insert(id, Connection::new(id, (stream, records), &self.link, &self.events));
        id
    }

    /// A connection has ended.
    pub(super) fn closed(&mut self, connection: ConnectionId, why: String) {
        self.connections.remove(&connection);
        self.handle(Input::Closed { connection, why });
    }
}
