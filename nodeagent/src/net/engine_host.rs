//! The host of the engine: executes each of its outputs in order, without ever waiting.

mod joined_trees;

use super::agent_connection::AgentConnection;
use super::handshake::{LinkSecurity, RecordCiphers};
use super::link_pace::pace;
use super::memory_table::MemoryTable;
use super::tcp::{self, ConnectParams};
use super::udp::Socket;
use super::udp_outbox::DatagramOutbox;
use super::work::{self, MoveWork, WorkPool};
use super::{DriverEvent, DriverEvents, GroupReply};
use crate::datagram_faults::DatagramFaults;
use crate::engine::{
    EngineConfig, EngineReply, EngineTrace, GroupKey, RankRequest, RefusalCounters, RefusalReason,
    SharedSlice, TrafficCounters, TreeProofReply,
};
use crate::shared_segment::SharedSegment;
use cool_cipher::AesGcm;
use cool_engine::{
    AgentConnectionId, AgentId, Engine, GroupSpec, Input, MadeGroup, MemoryId, MemoryRange, Output,
    RankCommand, Work, WorkId,
};
use cool_machine::{Machine, Poll, Time};
use cool_tcp::LinkEstimate;
use cool_transport::packet::DATA_HEADER;
use cool_transport::tagged::Tagger;
use cool_types::limits::BOUNCE_BYTES;
use joined_trees::JoinedTree;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// A group that is being made.
struct PendingGroup {
    reply: GroupReply,
    /// The rate at which connections may send for this group; see [`pace`].
    pace: u32,
    /// The group's epoch and its key, if it has one.
    keyed: Option<(u32, GroupKey)>,
    /// Whether the group's key proves the identities of its agents.
    proves: bool,
}

/// Counters and records that other threads read.
pub(super) struct EngineCounters {
    pub(super) traffic: Arc<TrafficCounters>,
    pub(super) refusals: Arc<RefusalCounters>,
    pub(super) faults: Arc<DatagramFaults>,
}

pub(super) struct EngineHost {
    engine: Engine,
    me: AgentId,
    /// The requirements for connections to this agent.
    security: LinkSecurity,
    tagger: Tagger<AesGcm>,
    ip: IpAddr,
    peer_timeout: Duration,
    origin: Instant,
    /// The latest time that was passed to the engine.
    clock: Time,
    /// When the engine must be polled again, if there is no earlier event.
    deadline: Option<Instant>,
    memories: MemoryTable,
    pool: WorkPool,
    /// The number of bytes that this thread may still move in this turn.
    turn_bytes: u64,
    udp: Socket,
    outbox: DatagramOutbox,
    trees: BTreeMap<SocketAddr, JoinedTree>,
    /// The number of datagrams that sockets of trees dropped before the node left the trees.
    dropped_before: u64,
    connections: BTreeMap<AgentConnectionId, AgentConnection>,
    last_connection: u64,
    link: LinkEstimate,
    /// The rate at which connections may send for each group; see [`pace`].
    paces: BTreeMap<u64, u32>,
    pending_groups: BTreeMap<u64, PendingGroup>,
    /// The proofs of trees in progress, by group, each with its number.
    tree_proofs: BTreeMap<u64, (u64, TreeProofReply)>,
    /// Where groups with silent trees are reported, if anywhere.
    silent_trees: Option<mpsc::Sender<u64>>,
    calls: BTreeMap<u64, EngineReply>,
    /// The segments in which ranks execute calls, by group. A group that has failed has no entry.
    segments: BTreeMap<u64, Arc<SharedSegment>>,
    last_token: u64,
    counters: EngineCounters,
    events: DriverEvents,
}

impl EngineHost {
    pub(super) fn new(
        (me, security): (AgentId, LinkSecurity),
        config: &EngineConfig,
        udp: Socket,
        events: DriverEvents,
        counters: EngineCounters,
    ) -> io::Result<EngineHost> {
        Ok(EngineHost {
            engine: Engine::new(me.clone(), BOUNCE_BYTES, config.peer_timeout),
            me,
            security,
            tagger: Tagger::default(),
            ip: config.ip,
            peer_timeout: config.peer_timeout,
            origin: Instant::now(),
            clock: Time::ZERO,
            deadline: None,
            memories: MemoryTable::default(),
            pool: WorkPool::start(events.clone())?,
            turn_bytes: work::INLINE_COPY_BYTES_PER_TURN,
            udp,
            outbox: DatagramOutbox::default(),
            trees: BTreeMap::new(),
            dropped_before: 0,
            connections: BTreeMap::new(),
            last_connection: 0,
            link: LinkEstimate::new(false),
            paces: BTreeMap::new(),
            pending_groups: BTreeMap::new(),
            tree_proofs: BTreeMap::new(),
            silent_trees: None,
            calls: BTreeMap::new(),
            segments: BTreeMap::new(),
            last_token: 0,
            counters,
            events,
        })
    }

    /// Returns the sockets on which datagrams arrive.
    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.udp).chain(self.trees.values().map(|tree| &tree.socket))
    }

    pub(super) fn connection(&mut self, id: AgentConnectionId) -> Option<&mut AgentConnection> {
        self.connections.get_mut(&id)
    }

    /// Returns the memory of a range; see [`MemoryTable::get`].
    pub(super) fn memory(&self, range: MemoryRange) -> Option<SharedSlice> {
        self.memories.get(range)
    }

    /// Returns the requirements for connections to this agent.
    pub(super) fn security(&self) -> &LinkSecurity {
        &self.security
    }

    /// Returns the counters of refused data.
    pub(super) fn refusals(&self) -> Arc<RefusalCounters> {
        Arc::clone(&self.counters.refusals)
    }

    /// Verifies the tag of a datagram, if it has one. Returns the length of its packets and the
    /// group that the tag proves, or `None` if the tag is invalid.
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

    /// Returns when the engine must be polled again, if there is no earlier event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time since the engine was made.
    pub(super) fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Passes an input that occurred just now to the engine, and executes the outputs.
    pub(super) fn handle(&mut self, input: Input<'_>) {
        let now = self.elapsed();
        self.handle_at(now, input);
    }

    /// Passes an input to the engine that occurred this long after the engine was made, and
    /// executes the outputs.
    pub(super) fn handle_at(&mut self, age: Duration, input: Input<'_>) {
        let bytes = match &input {
            Input::Datagram { bytes, .. } | Input::Bytes { bytes, .. } => bytes,
            _ => &[][..],
        };
        let now = self.time(age);
        self.engine.handle(now, input);
        self.perform(bytes);
    }

    /// Ends a turn: handles the timers that have expired at this age of the engine, sends the
    /// datagrams that wait for others like them, and publishes the counters.
    pub(super) fn end_turn(&mut self, age: Duration) {
        self.time(age);
        self.perform(&[]);
        self.flush();
        self.counters.traffic.set(self.engine.traffic());
        self.counters.refusals.set(RefusalReason::Unproven, self.engine.refused());
        self.turn_bytes = work::INLINE_COPY_BYTES_PER_TURN;
    }

    /// Sends datagrams that wait for others like them.
    pub(super) fn flush(&mut self) {
        self.outbox.flush(&self.udp);
    }

    /// Completes when the system has room for datagrams again; never if none is waiting for room.
    pub(super) async fn room(&self) {
        if !self.outbox.is_blocked() || self.udp.writable().await.is_err() {
            std::future::pending().await
        }
    }

    /// Sends the datagrams for which the system had no room.
    pub(super) fn resume(&mut self) {
        self.outbox.resume(&self.udp);
    }

    fn time(&mut self, age: Duration) -> Time {
        self.clock = self.clock.max(Time::from_nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        self.clock
    }

    /// Executes the engine's outputs until it is idle. `input` must be the bytes of the last input.
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
                let memory = self.memories.get(payload);
                if memory.is_none() && bytes > 0 {
                    // Other bytes in place of the missing ones would be accepted as data.
                    return tracing::error!(?payload, "dropped a datagram, because its memory is missing");
                }
                let group = packet.id.group;
                let whole = DATA_HEADER + bytes + self.tagger.tag_bytes(group);
                let datagram = self.outbox.datagram(&self.udp, to, whole);
                let start = datagram.len();
                packet.encode(datagram);
                memory.into_iter().for_each(|memory| memory.append(0, bytes, datagram));
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
            Output::Connect { node, to, key, streams } => {
                let encrypt = self.security.encrypt;
                let (me, peer_timeout) = (self.me.clone(), self.peer_timeout);
                let approach = ConnectParams { me, key, encrypt, streams, peer_timeout };
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
            Output::TreesProbed { group, number, missing, received } => {
                if let Some((_, reply)) =
                    self.tree_proofs.remove(&group).filter(|(proof, _)| *proof == number)
                {
                    // The caller may have stopped waiting.
                    let _ = reply.send((missing, received));
                }
            }
            Output::RenewTrees { trees } => self.renew_trees(&trees),
            Output::TreesSilent { group, trees, renewals } => self.trees_silent(group, &trees, renewals),
            Output::JoinSource { group, tree, source } => self.join_source(group, tree, source),
            Output::LeaveSource { group, tree, source } => self.leave_source(group, tree, source),
            Output::SourceProbed { tree, missing, .. } => self.source_probed(tree, &missing),
            Output::ProbeQuick { group } => self.probe_quick(group),
            Output::Quick { group, all } => {
                self.segments.get(&group).into_iter().for_each(|segment| segment.quick(all));
            }
            Output::LongPacketsLost { from, bytes } => self.counters.faults.record_length(from, bytes),
            Output::GroupForgotten { group } => self.group_forgotten(group),
        }
    }

    /// Starts the test of a group's datagrams, which reports its result as an event.
    fn probe_quick(&mut self, group: u64) {
        let (segment, events) = (self.segments.get(&group).map(Arc::clone), self.events.clone());
        let probe = segment.and_then(|segment| segment.take_probe().map(|probe| (segment, probe)));
        let (report, passed) = oneshot::channel();
        if let Some((segment, probe)) = probe {
            tokio::spawn(async move { probe.run(|| segment.is_decided(), report).await });
        }
        tokio::spawn(async move {
            // Without a result the datagrams count as lost.
            let passed = passed.await.unwrap_or(false);
            let _ = events.send(DriverEvent::QuickProbed { group, passed }).await;
        });
    }

    fn write(&mut self, id: AgentConnectionId, head: Vec<u8>, payload: Option<MemoryRange>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let memory = payload.and_then(|payload| self.memories.get(payload));
        if memory.is_none() && payload.is_some_and(|payload| payload.len > 0) {
            // The header has announced these bytes, and other bytes would be accepted as data.
            self.connections.remove(&id);
            let why = "memory of a message is missing".to_owned();
            return self.engine.handle(self.clock, Input::Closed { connection: id, why });
        }
        let bytes = connection.write(head, memory);
        self.engine.handle(self.clock, Input::Written { connection: id, bytes });
    }

    /// Executes work immediately if it is short and the turn allows it. Passes it to the pool
    /// otherwise.
    fn work(&mut self, id: WorkId, work: Work) {
        let moved = MoveWork::from_work(&work, &self.memories);
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

    /// Passes a rank's request to the engine, with a token that the engine's reply will contain.
    pub(super) fn request(&mut self, request: RankRequest<SharedSlice>, reply: EngineReply) {
        self.last_token += 1;
        let token = self.last_token;
        self.calls.insert(token, reply);
        let source = request.source();
        let request = request.map(|buffer| self.memories.register(token, source, buffer));
        self.handle(Input::Request { token, request });
    }

    /// Handles memory that the system cannot provide. If it is a rank's, the rank is lost, and no
    /// other one. Returns whether it is a rank's.
    pub(super) fn on_missing_memory(&mut self, memory: MemoryId) -> bool {
        let Some((group, rank)) = self.memories.remove_missing(memory) else { return false };
        let why = "the system has no memory for the result of its call".to_owned();
        let command = RankCommand::Lost { why, completed_calls: None };
        self.handle(Input::Command { group, rank, command });
        true
    }

    /// Registers the segment in which the ranks of a group execute calls.
    pub(super) fn share(&mut self, group: u64, segment: Arc<SharedSegment>) {
        self.segments.insert(group, segment);
        if self.engine.has_failed(group) {
            self.end_sharing(group);
        }
    }

    /// Wakes the ranks that wait in a group's segment, because no call can be made on the group any
    /// more. They then ask the engine for the reason.
    fn end_sharing(&mut self, group: u64) {
        if let Some(segment) = self.segments.remove(&group) {
            segment.fail();
        }
    }

    pub(super) fn make_group(&mut self, spec: &GroupSpec, reply: GroupReply) {
        let pace = pace(spec.host_bytes_per_second, &spec.cost_model.costs);
        let keyed = spec.keyed.clone().map(|key| (spec.epoch, key));
        self.pending_groups.insert(spec.id, PendingGroup { reply, pace, keyed, proves: spec.on_demand });
        self.handle(Input::MakeGroup(spec));
    }

    fn group_made(&mut self, group: u64, made: Result<MadeGroup, cool_engine::GroupError>) {
        let Some(PendingGroup { reply, pace, keyed, proves }) = self.pending_groups.remove(&group) else {
            return;
        };
        let MadeGroup { place, nodes, trees } = match made {
            Ok(made) => made,
            // The caller may have stopped waiting.
            Err(error) => return drop(reply.send(Err(error.into()))),
        };
        self.paces.insert(group, pace);
        if let Some((epoch, key)) = keyed {
            if proves {
                self.security.groups.insert((group, epoch), key.key.clone());
            }
            self.tagger.insert((group, epoch), key, (place, nodes));
        }
        self.set_pace();
        self.join_trees(group, reply, trees);
    }

    /// Starts a proof of a group's trees. The engine reports the result.
    pub(super) fn prove_trees(
        &mut self,
        (group, number): (u64, u64),
        time_max: Duration,
        reply: TreeProofReply,
    ) {
        if self.paces.contains_key(&group) {
            self.tree_proofs.insert(group, (number, reply));
            self.handle(Input::ProveTrees { group, number, time_max });
        }
    }

    pub(super) fn report_silent_trees(&mut self, groups: mpsc::Sender<u64>) {
        self.silent_trees = Some(groups);
    }

    fn trees_silent(&mut self, group: u64, trees: &[SocketAddr], renewals: u32) {
        for tree in trees.iter().map(SocketAddr::ip) {
            if renewals == 1 {
                tracing::warn!(%tree, "multicasts do not arrive although other nodes receive them; the membership is renewed");
            } else {
                self.counters.faults.record_silent_tree(tree, self.ip);
            }
        }
        self.renew_trees(trees);
        if let Some(groups) = &self.silent_trees {
            // If the channel is full, the group is reported after the next renewal.
            let _ = groups.try_send(group);
        }
    }

    fn group_forgotten(&mut self, group: u64) {
        self.end_sharing(group);
        self.leave_trees(group);
        self.tree_proofs.remove(&group);
        self.tagger.remove(group);
        self.security.groups.release(group);
        self.paces.remove(&group);
        self.set_pace();
    }

    /// Sets the rate of connections. Groups share connections, so the fastest group counts.
    fn set_pace(&self) {
        if let Some(pace) = self.paces.values().max() {
            self.link.set_rate_limit(*pace);
        }
    }

    pub(super) fn lost_ranks(&self, group: u64) -> Vec<u32> {
        self.engine.lost_ranks(group)
    }

    pub(super) fn trace(&self, last: usize, group: Option<u64>) -> EngineTrace {
        // The clock may have been set since the engine started, so the current time is used.
        let origin = SystemTime::now().checked_sub(self.elapsed()).unwrap_or(UNIX_EPOCH);
        EngineTrace { origin, records: self.engine.trace(last, group) }
    }

    /// Registers a connection that was made or accepted. Returns its new number.
    pub(super) fn connect(
        &mut self,
        streams: Vec<TcpStream>,
        records: Option<RecordCiphers>,
    ) -> AgentConnectionId {
        self.last_connection += 1;
        let id = AgentConnectionId(self.last_connection);
        self.connections.insert(id, AgentConnection::new(id, (streams, records), &self.link, &self.events));
        id
    }

    /// Removes a connection that has ended, and reports the reason to the engine.
    pub(super) fn closed(&mut self, connection: AgentConnectionId, why: String) {
        self.connections.remove(&connection);
        self.handle(Input::Closed { connection, why });
    }
}
