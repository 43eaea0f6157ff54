//! A group on this node: its ranks' calls from beginning to end. The actions of a call, its streams and
//! messages, and whether the ranks agree on it, are each in a module below.

mod actions;
mod call_matching;
mod departures;
mod failure_detector;
mod messages;
mod plan_selection;
mod point_to_point;
mod streams;
mod wait_for_graph;

use crate::api::{CallRequest, DEFAULT_TIMEOUT, TransferRequest};
use crate::buffered_packets::BufferedPackets;
use crate::call_signature::{CallSignature, invalid};
use crate::failure::{Failure, FailureKind, Traffic};
use crate::machine::WorkId;
use crate::members::Members;
use crate::memory::{MemoryId, MemoryRange};
use crate::peers::NodeId;
use crate::program::{Compiled, Run};
use crate::shared::{Context, Shared, TimerKey};
use crate::stream::Stream;
use crate::trace::{CallRecord, Notes, RankTimes};
use actions::LocalWork;
use call_matching::CallMatching;
use cool_collective::{CostModel, Planner};
use cool_machine::{Duration, Time};
use cool_transport::unicast::Notice;
use cool_transport::{StreamId, Timers};
use cool_types::limits::OPEN_CALLS;
use departures::Departures;
use failure_detector::{FailureDetector, LocalWaits};
use messages::Messages;
use plan_selection::Waiting;
use point_to_point::PointToPoint;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddrV4;
use std::sync::Arc;

/// Compiled schedules that a group keeps: programs repeat the same few calls.
const SCHEDULES_MAX: usize = 32;

/// A rank of this node.
#[derive(Debug, Default)]
struct LocalRank {
    /// Calls it has made.
    calls: u64,
    /// Those that are not done.
    open_calls: usize,
    /// It went away.
    gone: bool,
    /// It has been told why the group failed.
    told: bool,
    /// What its streams cost after their calls were done: the next call's account has it.
    afterwards: Traffic,
}

impl LocalRank {
    /// The answer to what it asks of a group that has failed: the first time, why.
    fn tell(&mut self, group: u64, failed: &Failure) -> Failure {
        if std::mem::replace(&mut self.told, true) { aborted(group, failed) } else { failed.clone() }
    }
}

/// One collective while ranks of this node are in it.
#[derive(Debug)]
struct Call {
    signature: CallSignature,
    digest: u64,
    compiled: Arc<Compiled>,
    runs: BTreeMap<u32, Run>,
    begun: Time,
    /// When anything last moved.
    progress: Time,
    /// How long nothing may move.
    timeout: Duration,
    /// Work of it that was given out and is not done.
    works: usize,
    /// Whether the other agents have been told that it has begun here.
    announced: bool,
    notes: Notes,
}

impl Call {
    /// What is to be remembered of it.
    fn record(self, group: (u64, u32), call: u64, failure: Option<Arc<str>>) -> CallRecord {
        let (words, plan) = self.compiled.text.clone();
        let Notes { ranks, arrivals, traffic } = self.notes;
        CallRecord { group, call, words, plan, ranks, arrivals, traffic, failure }
    }
}

#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) members: Members,
    ranks: BTreeMap<u32, LocalRank>,
    calls: BTreeMap<u64, Call>,
    schedules: VecDeque<(CallSignature, Arc<Compiled>)>,
    planner: Planner,
    /// Calls of local ranks that cannot begin before a plan is found, in order.
    waiting: VecDeque<Waiting>,
    /// The preparation of the first of these.
    preparing: Option<WorkId>,
    /// Actions that may start: call, rank, action.
    ready: VecDeque<(u64, u32, u32)>,
    /// Ranks, by call, whose next multicast may start.
    multicasters: VecDeque<(u64, u32)>,
    /// Work of calls that was given out.
    works: BTreeMap<WorkId, LocalWork>,
    streams: BTreeMap<StreamId, Stream>,
    buffered: BufferedPackets,
    messages: Messages,
    point_to_point: PointToPoint,
    matching: CallMatching,
    departures: Departures,
    failure_detector: FailureDetector,
    /// Streams of calls in progress that are over.
    over: BTreeSet<StreamId>,
    failed: Option<Failure>,
    /// The retry timer that the last stream has measured.
    retry_timer: Duration,
    /// Streams in a row that needed no repair.
    loss_free: u32,
}

impl Group {
    pub(crate) fn new(members: Members, cost_model: CostModel) -> Group {
        let planner = Planner::new(cost_model, members.layout.clone());
        let ranks = members.my_ranks().iter().map(|rank| (rank.0, LocalRank::default())).collect();
        Group {
            members,
            ranks,
            calls: BTreeMap::new(),
            schedules: VecDeque::new(),
            planner,
            waiting: VecDeque::new(),
            preparing: None,
            ready: VecDeque::new(),
            multicasters: VecDeque::new(),
            works: BTreeMap::new(),
            streams: BTreeMap::new(),
            buffered: BufferedPackets::default(),
            messages: Messages::default(),
            point_to_point: PointToPoint::default(),
            matching: CallMatching::default(),
            departures: Departures::default(),
            failure_detector: FailureDetector::default(),
            over: BTreeSet::new(),
            failed: None,
            retry_timer: Timers::default().initial_rto,
            loss_free: streams::LOSS_FREE,
        }
    }

    /// The group as messages name it.
    pub(crate) fn key(&self) -> (u64, u32) {
        self.members.key()
    }

    /// Whether nothing here is of use to anyone any more.
    pub(crate) fn quiet(&self) -> bool {
        self.calls.is_empty()
            && self.streams.is_empty()
            && self.waiting.is_empty()
            && self.point_to_point.is_idle()
    }

    /// A local rank calls. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn call(
        &mut self,
        now: Time,
        shared: &mut Shared,
        token: u64,
        request: CallRequest,
    ) -> Result<(), Failure> {
        let id = self.members.id;
        let Some(rank) = self.ranks.get_mut(&request.rank) else {
            let message = format!("rank {} of group {id} is not on this node", request.rank);
            let failed = Failure::new(FailureKind::Invalid, message, vec![request.rank]);
            shared.done(token, Err(failed));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(rank.tell(id, failed)));
            return Ok(());
        }
        let size = self.members.layout.size();
        let signature = if rank.open_calls + self.point_to_point.open_of(request.rank) >= OPEN_CALLS {
            Err(invalid(&request, &format_args!("it has {OPEN_CALLS} calls open; wait for some")))
        } else {
            CallSignature::of(&request).and_then(|call| call.check(&request, size).map(|()| call))
        };
        rank.open_calls += 1;
        self.waiting.push_back(Waiting { token, at: now, request, signature });
        self.begin_waiting(now, shared)
    }

    /// A call that is prepared, or makes no sense, has its turn.
    fn take_turn(
        &mut self,
        now: Time,
        shared: &mut Shared,
        waiting: &Waiting,
        prepared: Result<(CallSignature, Arc<Compiled>), Failure>,
    ) -> Result<(), Failure> {
        let rank = waiting.request.rank;
        let local = self.ranks.entry(rank).or_default();
        let number = local.calls;
        local.calls += 1;
        let (signature, compiled) = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => return self.refuse(now, shared, (number, rank, waiting.token), refused),
        };
        if let Err(failed) = self.begin(now, shared, number, waiting, signature, compiled) {
            // Its run may not have been made, so that it would not be told with the others.
            if !self.calls.get(&number).is_some_and(|call| call.runs.contains_key(&rank)) {
                self.ranks.entry(rank).or_default().told = true;
                shared.done(waiting.token, Err(failed.clone()));
            }
            return Err(failed);
        }
        self.run(now, shared)
    }

    /// A call makes no sense. Where all ranks call alike all are refused alike, and the group goes on; where others call
    /// something else, they find by its digest that this rank's call is another.
    fn refuse(
        &mut self,
        now: Time,
        shared: &mut Shared,
        (number, rank, token): (u64, u32, u64),
        refused: Failure,
    ) -> Result<(), Failure> {
        let matched = self.match_refused(now, shared, number, rank, &refused);
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.open_calls -= 1;
        }
        shared.done(token, Err(refused));
        self.retire(shared, number);
        matched
    }

    fn begin(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
        Waiting { token, at, request, .. }: &Waiting,
        signature: CallSignature,
        compiled: Arc<Compiled>,
    ) -> Result<(), Failure> {
        self.match_locally(number, request.rank, &signature.with_plan(&compiled.plan), compiled.digest)?;
        let timeout = request.timeout.unwrap_or(DEFAULT_TIMEOUT).max(Duration::from_millis(1));
        let call = self.calls.entry(number).or_insert_with(|| Call {
            signature,
            digest: compiled.digest,
            compiled,
            runs: BTreeMap::new(),
            begun: now,
            progress: now,
            timeout,
            works: 0,
            announced: false,
            notes: Notes::default(),
        });
        call.timeout = call.timeout.min(timeout);
        call.progress = now;
        let scratch = shared.out.allocate(call.compiled.program(request.rank).scratch);
        let or_none = |buffer: Option<MemoryRange>| buffer.unwrap_or(MemoryRange::EMPTY);
        let buffers = (or_none(request.input), or_none(request.output), scratch);
        let run = Run::new(Arc::clone(&call.compiled), request.rank, buffers, *token, *at);
        let first = run.first();
        let finished = run.finished();
        call.runs.insert(request.rank, run);
        self.ready.extend(first.into_iter().map(|action| (number, request.rank, action)));
        self.match_with_others(now, shared, number, request.rank)?;
        self.arm(now, shared, number);
        self.failure_detector.watch(&mut Context { now, members: &self.members, shared });
        if finished {
            self.finish(now, shared, number, request.rank);
        }
        Ok(())
    }

    /// There is no memory of this name.
    ///
    /// # Errors
    /// If it is the working memory of a call here.
    pub(crate) fn allocation_failed(&self, memory: MemoryId) -> Result<(), Failure> {
        for call in self.calls.values() {
            let run = call.runs.iter().find(|(_, run)| run.scratch.len > 0 && run.scratch.memory == memory);
            if let Some((rank, run)) = run {
                let (bytes, call) = (run.scratch.len, &call.signature);
                let message = format!(
                    "rank {rank} cannot call {call}: this node has no {bytes} bytes of working memory; use a smaller message"
                );
                return Err(Failure::new(FailureKind::Invalid, message, vec![*rank]));
            }
        }
        Ok(())
    }

    /// An action is done: what waited for it may start, or the rank is through.
    fn complete(&mut self, now: Time, shared: &mut Shared, number: u64, rank: u32, action: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.progress = now;
        let Some(run) = call.runs.get_mut(&rank) else { return };
        if let Some(from) = run.compiled().source(rank, action) {
            call.notes.arrived(now, from.0);
        }
        let ready = run.complete(action);
        self.ready.extend(ready.into_iter().map(|action| (number, rank, action)));
        self.leave_if_finished(now, shared, number, rank);
    }

    fn leave_if_finished(&mut self, now: Time, shared: &mut Shared, number: u64, rank: u32) {
        if self.calls.get(&number).and_then(|c| c.runs.get(&rank)).is_some_and(Run::finished) {
            self.finish(now, shared, number, rank);
        }
    }

    fn finish(&mut self, now: Time, shared: &mut Shared, number: u64, rank: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let Some(run) = call.runs.remove(&rank) else { return };
        shared.out.free(run.scratch);
        let times = RankTimes { rank, came: run.begun, ended: now };
        call.notes.ended(times, &run.stats.traffic);
        let mut stats = run.stats;
        stats.plan = call.compiled.plan.to_string();
        stats.nanoseconds = u64::try_from((now - run.begun).as_nanos()).unwrap_or(u64::MAX);
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.open_calls -= 1;
            stats.traffic += std::mem::take(&mut local.afterwards);
        }
        shared.done(run.token, Ok(stats));
        self.retire(shared, number);
    }

    /// Forgets a call once all ranks of this node are through it.
    fn retire(&mut self, shared: &mut Shared, number: u64) {
        let running = self.calls.get(&number).is_some_and(|call| !call.runs.is_empty());
        let to_come = self.ranks.values().any(|rank| rank.calls <= number && !rank.gone);
        if running || to_come {
            return;
        }
        if let Some(call) = self.calls.remove(&number) {
            shared.ring.push(call.record(self.key(), number, None));
        }
        shared.timers.set(TimerKey::Call(self.members.id, number), None);
        self.buffered.forget(number, &mut shared.out);
        self.over.retain(|id| id.call != number);
        self.matching.forget(number);
    }

    /// The smallest call that not all ranks of this node are through.
    fn oldest_open(&self) -> u64 {
        let next = self.ranks.values().map(|rank| rank.calls).min().unwrap_or(0);
        self.calls.keys().next().map_or(next, |call| next.min(*call))
    }

    /// Fails all that is open, and the group. The other agents are told if they do not know.
    pub(crate) fn fail(&mut self, now: Time, shared: &mut Shared, failed: &Failure, tell: bool) {
        if self.failed.is_some() {
            return;
        }
        let (group, epoch) = self.key();
        tracing::warn!(group, epoch, kind = ?failed.kind, "{}", failed.message);
        let why: Arc<str> = failed.message.as_str().into();
        for (number, mut call) in std::mem::take(&mut self.calls) {
            shared.timers.set(TimerKey::Call(group, number), None);
            for (rank, run) in std::mem::take(&mut call.runs) {
                shared.out.free(run.scratch);
                call.notes.ended(RankTimes { rank, came: run.begun, ended: now }, &run.stats.traffic);
                self.refuse_open(shared, run.token, rank, failed);
            }
            shared.ring.push(call.record((group, epoch), number, Some(why.clone())));
        }
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse_open(shared, waiting.token, waiting.request.rank, failed);
        }
        for (token, rank) in self.point_to_point.clear(group, shared) {
            self.refuse_open(shared, token, rank, failed);
        }
        self.forget_all(now, shared);
        self.failed = Some(failed.clone());
        for node in self.members.others() {
            let peer = self.members.nodes[node].id;
            if tell {
                self.tell_failed(now, shared, peer);
            }
            shared.peers.leave(now, peer, (group, epoch));
        }
    }

    /// A rank is told of the group's failure.
    fn refuse_open(&mut self, shared: &mut Shared, token: u64, rank: u32, failed: &Failure) {
        shared.done(token, Err(failed.clone()));
        self.ranks.entry(rank).or_default().told = true;
    }

    /// Gives back all that calls have used.
    fn forget_all(&mut self, now: Time, shared: &mut Shared) {
        for (id, stream) in std::mem::take(&mut self.streams) {
            shared.forget_stream(&id, stream);
        }
        for work in std::mem::take(&mut self.works).into_values() {
            work.bounce.into_iter().for_each(|buffer| shared.give_back(buffer));
        }
        self.preparing = None;
        self.ready.clear();
        self.multicasters.clear();
        self.messages.clear(shared);
        self.buffered.clear(&mut shared.out);
        self.failure_detector.stop(&mut Context { now, members: &self.members, shared });
    }

    /// Tells an agent why the group has failed, if it has.
    pub(crate) fn tell_failed(&self, now: Time, shared: &mut Shared, peer: NodeId) {
        if let Some(failed) = &self.failed {
            let (group, epoch) = self.key();
            let (kind, ranks, text) = (failed.kind.code(), failed.ranks.clone(), failed.message.clone());
            shared.peers.notify(now, peer, Notice::Abort { group, epoch, kind, ranks, text });
        }
    }

    /// The ranks by whose loss it has failed.
    pub(crate) fn lost_ranks(&self) -> Vec<u32> {
        let lost = self.failed.as_ref().filter(|failed| failed.kind == FailureKind::Lost);
        lost.map_or(Vec::new(), |failed| failed.ranks.clone())
    }

    /// The group is released: calls that are open fail. Streams go on for those who need them.
    pub(crate) fn close(&mut self, now: Time, shared: &mut Shared) {
        if !(self.calls.is_empty() && self.waiting.is_empty() && self.point_to_point.is_idle()) {
            let message = format!("group {} was released while calls were open", self.members.id);
            self.fail(now, shared, &Failure::new(FailureKind::Aborted, message, Vec::new()), true);
        }
    }

    /// Gives back everything, before it is forgotten.
    pub(crate) fn leave(mut self, now: Time, shared: &mut Shared) {
        self.forget_all(now, shared);
        self.point_to_point.clear(self.members.id, shared);
        for node in self.members.others() {
            shared.peers.leave(now, self.members.nodes[node].id, self.key());
        }
    }

    /// A local rank sends or receives. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn transfer(
        &mut self,
        now: Time,
        shared: &mut Shared,
        token: u64,
        request: TransferRequest,
    ) -> Result<(), Failure> {
        let (id, rank) = (self.members.id, request.rank);
        let beyond = request.peer.filter(|peer| self.members.node_of(*peer).is_none());
        let Some(local) = self.ranks.get_mut(&rank).filter(|_| beyond.is_none()) else {
            let peer = request.peer.unwrap_or_default();
            let message = format!("rank {rank} of group {id} cannot send to or receive from rank {peer}");
            shared.done(token, Err(Failure::new(FailureKind::Invalid, message, vec![rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(local.tell(id, failed)));
            return Ok(());
        }
        let mut context = Context { now, members: &self.members, shared };
        self.failure_detector.watch(&mut context);
        self.point_to_point.begin(&mut context, token, request, &self.departures)
    }

    /// It is time to look after a message outside of calls.
    ///
    /// # Errors
    /// If it has waited for too long.
    pub(crate) fn transfer_due(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
    ) -> Result<(), Failure> {
        let mut context = Context { now, members: &self.members, shared };
        let Some(moved) = self.point_to_point.overdue(&mut context, number) else { return Ok(()) };
        let key = TimerKey::PointToPoint(self.members.id, number);
        if !self.failure_detector.inquired(&mut context, key, moved) {
            return Ok(());
        }
        let Some(late) = self.point_to_point.late(number) else { return Ok(()) };
        let others: Vec<u32> =
            self.members.layout.ranks().map(|rank| rank.0).filter(|rank| *rank != late.rank).collect();
        let awaited = late.peer.map_or_else(|| others.clone(), |peer| vec![peer]);
        let blamed = match self.suspects(&awaited) {
            none if none.is_empty() => awaited,
            suspects => suspects,
        };
        Err(late.failure(&self.members, blamed, &others))
    }

    /// It is time to look after the other nodes. Answers with those who are gone.
    pub(crate) fn failure_detector_due(&mut self, now: Time, shared: &mut Shared) -> Vec<NodeId> {
        let moved = self.moved(now);
        let gone = self.failure_detector.due(&mut Context { now, members: &self.members, shared }, moved);
        gone.into_iter().map(|node| self.members.nodes[node].id).collect()
    }

    /// Since when nothing has moved in one of the calls and messages; `None` if there are none. What is worked on moves.
    fn moved(&self, now: Time) -> Option<Time> {
        let calls = self.calls.values().filter(|call| !call.runs.is_empty());
        let calls = calls.map(|call| if call.works > 0 { now } else { call.progress });
        calls.chain(self.point_to_point.progress(now)).min()
    }

    /// The failure of a group that has lost nodes, at least one.
    pub(crate) fn nodes_lost(&self, nodes: &[NodeId], why: &str) -> Failure {
        let nodes: Vec<usize> = nodes.iter().filter_map(|node| self.members.place_of(*node)).collect();
        failure_detector::nodes_lost(&self.members, &nodes, why)
    }

    /// The ranks on a node.
    pub(crate) fn ranks_of(&self, node: NodeId) -> Vec<u32> {
        self.members.place_of(node).map_or(Vec::new(), |place| self.members.ranks_of(place).collect())
    }

    /// Someone at an address answered, who did not need to know the group.
    pub(crate) fn answered(&mut self, from: SocketAddrV4) {
        self.failure_detector.answered(&self.members, from);
    }

    /// Bytes came from an agent.
    pub(crate) fn heard_from(&mut self, peer: NodeId) {
        if let Some(node) = self.members.place_of(peer) {
            self.failure_detector.heard(node);
        }
    }

    /// Of ranks that are waited for, and those for whom they wait, those that do not wait themselves; none if they all do.
    fn suspects(&self, ranks: &[u32]) -> Vec<u32> {
        self.failure_detector.suspects(&self.members, ranks, &self.who_waits())
    }

    /// Who waits here.
    fn who_waits(&self) -> LocalWaits {
        let (mut ranks, mut messages) = (Vec::new(), Vec::new());
        for (rank, local) in &self.ranks {
            let peers = self.point_to_point.awaited_by(*rank);
            if local.open_calls == 0 && peers.is_empty() {
                continue;
            }
            match peers.into_iter().collect::<Option<BTreeSet<u32>>>() {
                Some(peers) if local.open_calls == 0 => {
                    messages.extend(peers.into_iter().map(|peer| (*rank, peer)));
                }
                _ => ranks.push(*rank),
            }
        }
        (ranks, messages)
    }
}

fn aborted(group: u64, failed: &Failure) -> Failure {
    if failed.kind == FailureKind::Revoked {
        return failed.clone();
    }
    let message = format!(
        "group {group} failed before and cannot be used any more, except to shrink it: {}",
        failed.message
    );
    Failure::new(FailureKind::Aborted, message, failed.ranks.clone())
}
