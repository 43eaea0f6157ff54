//! A group on this node: its ranks' calls from beginning to end. The actions of a call, its streams and
//! messages, and whether the ranks agree on it, are each in a module below.

mod actions;
mod agreement;
mod direct;
mod inquiry;
mod messages;
mod picks;
mod streams;
mod vigil;

use super::api::{CallRequest, DEFAULT_TIMEOUT, failure};
use super::early::Early;
use super::engine::{Shared, TimerKey};
use super::members::Members;
use super::program::{Compiled, Run};
use super::stream::Stream;
use super::trace::{CallRecord, Notes, RankTimes};
use super::what::What;
use agreement::Agreement;
use cool_collective::{CostModel, Plan, Planner, Rank, compile};
use cool_machine::{Duration, Time};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_transport::unicast::{MessageName, Notice};
use cool_transport::{StreamId, Timers};
use cool_types::limits::OPEN_CALLS;
use direct::Direct;
use inquiry::Inquiry;
use messages::Messages;
use picks::Waiting;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use vigil::Vigil;

/// Compiled schedules that a group keeps: programs repeat the same few calls.
const SCHEDULES_MAX: usize = 32;

/// A rank of this node.
#[derive(Debug, Default)]
struct LocalRank {
    /// Calls it has made.
    calls: u64,
    /// Those that are not done.
    open: usize,
    /// It went away.
    gone: bool,
    /// It has been told why the group failed.
    told: bool,
    /// What its streams cost after their calls were done: the next call's account has it.
    afterwards: Stats,
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
    what: What,
    digest: u64,
    compiled: Arc<Compiled>,
    runs: BTreeMap<u32, Run>,
    begun: Time,
    /// When anything last moved.
    progress: Time,
    /// How long nothing may move.
    timeout: Duration,
    /// Whether the other agents have been told that it has begun here.
    announced: bool,
    notes: Notes,
}

impl Call {
    /// What is to be remembered of it.
    fn record(self, group: (u64, u32), call: u64, failure: Option<Arc<str>>) -> CallRecord {
        let (words, plan) = self.compiled.words.clone();
        let Notes { ranks, arrivals, stats } = self.notes;
        CallRecord { group, call, words, plan, ranks, arrivals, stats, failure }
    }
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) members: Members,
    ranks: BTreeMap<u32, LocalRank>,
    calls: BTreeMap<u64, Call>,
    schedules: VecDeque<(What, Arc<Compiled>)>,
    planner: Planner,
    /// Calls of local ranks that cannot begin before a plan is found, in order.
    waiting: VecDeque<Waiting>,
    /// Whether a plan is being looked for.
    picking: bool,
    /// Actions that may start: call, rank, action.
    ready: VecDeque<(u64, u32, u32)>,
    /// Ranks, by call, whose next multicast may start.
    multicasters: VecDeque<(u64, u32)>,
    streams: BTreeMap<StreamId, Stream>,
    early: Early,
    messages: Messages,
    direct: Direct,
    agreement: Agreement,
    inquiry: Option<Inquiry>,
    vigil: Vigil,
    /// Streams of calls in progress that are over.
    over: BTreeSet<StreamId>,
    failed: Option<Failure>,
    /// The retry timer that the last stream has measured.
    retry_timer: Duration,
    /// Streams in a row that needed no repair.
    calm: u32,
}

impl Group {
    pub(super) fn new(members: Members, cost_model: CostModel) -> Group {
        let planner = Planner::new(cost_model, members.layout.clone());
        let ranks = members.my_ranks().iter().map(|rank| (rank.0, LocalRank::default())).collect();
        Group {
            members,
            ranks,
            calls: BTreeMap::new(),
            schedules: VecDeque::new(),
            planner,
            waiting: VecDeque::new(),
            picking: false,
            ready: VecDeque::new(),
            multicasters: VecDeque::new(),
            streams: BTreeMap::new(),
            early: Early::default(),
            messages: Messages::default(),
            direct: Direct::default(),
            agreement: Agreement::default(),
            inquiry: None,
            vigil: Vigil::default(),
            over: BTreeSet::new(),
            failed: None,
            retry_timer: Timers::default().initial_rto,
            calm: streams::CALM,
        }
    }

    /// The group as messages name it.
    pub(super) fn key(&self) -> (u64, u32) {
        (self.members.id, self.members.epoch)
    }

    /// Whether nothing here is of use to anyone any more.
    pub(super) fn quiet(&self) -> bool {
        self.calls.is_empty() && self.streams.is_empty() && self.waiting.is_empty() && self.direct.is_idle()
    }

    /// A local rank calls. Its answer goes out through `shared`.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(super) fn call(
        &mut self,
        now: Time,
        shared: &mut Shared,
        token: u64,
        request: CallRequest,
    ) -> Result<(), Failure> {
        let id = self.members.id;
        let Some(rank) = self.ranks.get_mut(&request.rank) else {
            let message = format!("rank {} of group {id} is not on this node", request.rank);
            shared.done(token, Err(failure(Kind::Invalid, message, vec![request.rank])));
            return Ok(());
        };
        if let Some(failed) = &self.failed {
            shared.done(token, Err(rank.tell(id, failed)));
            return Ok(());
        }
        let what = if rank.open >= OPEN_CALLS {
            let message =
                format!("rank {} has {OPEN_CALLS} calls open on group {id}; wait for some", request.rank);
            Err(failure(Kind::Invalid, message, vec![request.rank]))
        } else {
            What::of(&request, self.members.layout.size())
        };
        rank.open += 1;
        self.waiting.push_back(Waiting { token, at: now, request, what });
        self.begin_waiting(now, shared)
    }

    /// A call whose plan is known has its turn.
    fn take_turn(
        &mut self,
        now: Time,
        shared: &mut Shared,
        waiting: &Waiting,
        plan: Result<Plan, Failure>,
    ) -> Result<(), Failure> {
        let rank = waiting.request.rank;
        let local = self.ranks.entry(rank).or_default();
        let number = local.calls;
        local.calls += 1;
        match plan.and_then(|plan| self.begin(now, shared, number, waiting, plan)) {
            Ok(()) => self.run(now, shared),
            Err(failed) => {
                // Its run may not have been made, so that it would not be told with the others.
                if !self.calls.get(&number).is_some_and(|call| call.runs.contains_key(&rank)) {
                    self.ranks.entry(rank).or_default().told = true;
                    shared.done(waiting.token, Err(failed.clone()));
                }
                Err(failed)
            }
        }
    }

    fn begin(
        &mut self,
        now: Time,
        shared: &mut Shared,
        number: u64,
        Waiting { token, at, request, what }: &Waiting,
        plan: Plan,
    ) -> Result<(), Failure> {
        let what = what.as_ref().map_err(Failure::clone)?;
        let compiled = self.compile(what, plan, request.rank)?;
        self.agree_locally(number, request.rank, what, compiled.digest)?;
        let timeout = request.timeout.unwrap_or(DEFAULT_TIMEOUT).max(Duration::from_millis(1));
        self.calls.entry(number).or_insert_with(|| Call {
            what: what.clone(),
            digest: compiled.digest,
            compiled,
            runs: BTreeMap::new(),
            begun: now,
            progress: now,
            timeout,
            announced: false,
            notes: Notes::default(),
        });
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        call.timeout = call.timeout.min(timeout);
        call.progress = now;
        let buffers = (request.input.clone(), request.output.clone());
        let run = Run::new(Arc::clone(&call.compiled), request.rank, buffers, *token, *at).map_err(|e| {
            let message = format!(
                "rank {} cannot call {}: this node has no {} bytes of working memory; use a smaller message",
                request.rank,
                call.what.words(),
                e.bytes
            );
            failure(Kind::Invalid, message, vec![request.rank])
        })?;
        let first = run.first();
        let finished = run.finished();
        call.runs.insert(request.rank, run);
        self.ready.extend(first.into_iter().map(|action| (number, request.rank, action)));
        self.agree_with_others(now, shared, number, request.rank)?;
        self.arm(now, shared, number);
        self.keep_vigil(now, shared);
        if finished {
            self.finish(now, shared, number, request.rank);
        }
        Ok(())
    }

    fn compile(&mut self, what: &What, plan: Plan, rank: u32) -> Result<Arc<Compiled>, Failure> {
        if let Some((_, compiled)) = self.schedules.iter().find(|(known, _)| known == what) {
            return Ok(Arc::clone(compiled));
        }
        let (layout, me) = (&self.members.layout, self.members.me);
        let keep = |rank: Rank| layout.node_of(rank) == me;
        let schedule = compile(&what.call, layout, &plan, keep)
            .map_err(|e| failure(Kind::Invalid, format!("rank {rank}: {e}"), vec![rank]))?;
        let compiled = Arc::new(Compiled::new(schedule, plan, &what.words(), what.digest(&plan)));
        if self.schedules.len() >= SCHEDULES_MAX {
            self.schedules.pop_front();
        }
        self.schedules.push_back((what.clone(), Arc::clone(&compiled)));
        Ok(compiled)
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
        let times = RankTimes { rank, came: run.begun, ended: now };
        call.notes.ended(times, &run.stats);
        let mut stats = run.stats;
        stats.plan = call.compiled.plan.to_string();
        stats.nanoseconds = u64::try_from((now - run.begun).as_nanos()).unwrap_or(u64::MAX);
        if let Some(local) = self.ranks.get_mut(&rank) {
            local.open -= 1;
            let before = std::mem::take(&mut local.afterwards);
            stats.bytes_multicast += before.bytes_multicast;
            stats.chunks_resent += before.chunks_resent;
            stats.chunks_repaired += before.chunks_repaired;
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
        self.early.forget(number);
        self.over.retain(|id| id.call != number);
        self.agreement.forget(number);
    }

    /// The smallest call that not all ranks of this node are through.
    fn oldest_open(&self) -> u64 {
        let next = self.ranks.values().map(|rank| rank.calls).min().unwrap_or(0);
        self.calls.keys().next().map_or(next, |call| next.min(*call))
    }

    /// Fails all that is open, and the group. The other agents are told if they do not know.
    pub(super) fn fail(&mut self, now: Time, shared: &mut Shared, failed: &Failure, tell: bool) {
        if self.failed.is_some() {
            return;
        }
        let (group, epoch) = self.key();
        tracing::warn!(group, epoch, kind = failed.kind, "{}", failed.message);
        let why: Arc<str> = failed.message.as_str().into();
        for (number, mut call) in std::mem::take(&mut self.calls) {
            shared.timers.set(TimerKey::Call(group, number), None);
            for (rank, run) in std::mem::take(&mut call.runs) {
                call.notes.ended(RankTimes { rank, came: run.begun, ended: now }, &run.stats);
                shared.done(run.token, Err(failed.clone()));
                self.ranks.entry(rank).or_default().told = true;
            }
            shared.ring.push(call.record((group, epoch), number, Some(why.clone())));
        }
        for waiting in std::mem::take(&mut self.waiting) {
            shared.done(waiting.token, Err(failed.clone()));
            self.ranks.entry(waiting.request.rank).or_default().told = true;
        }
        for (token, rank) in self.direct.clear(group, shared) {
            shared.done(token, Err(failed.clone()));
            self.ranks.entry(rank).or_default().told = true;
        }
        for (id, stream) in std::mem::take(&mut self.streams) {
            shared.forget_stream(&id, &stream);
        }
        self.ready.clear();
        self.multicasters.clear();
        self.messages.clear(shared);
        self.early = Early::default();
        self.vigil = Vigil::default();
        shared.timers.set(TimerKey::Vigil(group), None);
        self.failed = Some(failed.clone());
        let peers: Vec<&str> = self.members.others().map(|node| node.name.as_str()).collect();
        for peer in peers {
            if tell {
                self.tell_failed(now, shared, peer);
            }
            shared.peers.leave(now, peer, (group, epoch));
        }
    }

    /// Tells an agent why the group has failed, if it has.
    pub(super) fn tell_failed(&self, now: Time, shared: &mut Shared, peer: &str) {
        if let Some(failed) = &self.failed {
            let (group, epoch) = self.key();
            // A kind is one of seven.
            let (kind, ranks, text) = (failed.kind as u8, failed.ranks.clone(), failed.message.clone());
            shared.peers.notify(now, peer, Notice::Abort { group, epoch, kind, ranks, text });
        }
    }

    /// The ranks by whose loss it has failed.
    pub(super) fn lost_ranks(&self) -> Vec<u32> {
        let lost = self.failed.as_ref().filter(|failed| failed.kind() == Kind::Lost);
        lost.map_or(Vec::new(), |failed| failed.ranks.clone())
    }

    /// The group is released: calls that are open fail. Streams go on for those who need them.
    pub(super) fn close(&mut self, now: Time, shared: &mut Shared) {
        if !(self.calls.is_empty() && self.waiting.is_empty() && self.direct.is_idle()) {
            let message = format!("group {} was released while calls were open", self.members.id);
            self.fail(now, shared, &failure(Kind::Aborted, message, Vec::new()), true);
        }
    }

    /// Gives back everything, before it is forgotten.
    pub(super) fn leave(mut self, now: Time, shared: &mut Shared) {
        for (id, stream) in std::mem::take(&mut self.streams) {
            shared.forget_stream(&id, &stream);
        }
        self.messages.clear(shared);
        self.direct.clear(self.members.id, shared);
        shared.timers.set(TimerKey::Vigil(self.members.id), None);
        for node in self.members.others() {
            shared.peers.leave(now, &node.name, self.key());
        }
    }

    /// The name of a message of this group.
    fn message(&self, call: u64, transfer: u32, from: u32, to: u32) -> MessageName {
        let (group, epoch) = self.key();
        MessageName { group, epoch, call, transfer, from, to }
    }
}

fn aborted(group: u64, failed: &Failure) -> Failure {
    if failed.kind() == Kind::Revoked {
        return failed.clone();
    }
    let message = format!(
        "group {group} failed before and cannot be used any more, except to shrink it: {}",
        failed.message
    );
    failure(Kind::Aborted, message, failed.ranks.clone())
}
