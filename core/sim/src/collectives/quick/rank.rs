//! A rank with quick calls: the calls that it makes, and how it waits for them.

use super::retained::RetainedByLeader;
use crate::collectives::cipher::Checksum;
use cool_collective::{Layout, Rank, RankPlace};
use cool_engine::testing::Buffer;
use cool_engine::{CallFailure, CallFailureKind, CallRequest, CallStats, GroupSpec, WatchReport};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_quick::{
    BeginCall, CallData, CallKey, CallLimits, Input, NakResponder, NodeLeaders, Output, QuickCalls,
    QuickSchedule, SendTo, WaitAction, WaitPolicy, WaitState,
};
use cool_types::{Call, CallDescription, Operation};
use std::collections::VecDeque;
use std::sync::Arc;

/// This bit is set in tokens of watched calls.
pub(in super::super) const WATCHES: u64 = 1 << 63;

/// Number of bytes that a datagram occupies in a socket's buffer in addition to its content.
const OVERHEAD: usize = 700;

/// Maximum number of schedules that a rank caches.
const SCHEDULES: usize = 64;

/// An action of a rank that the cluster executes.
#[derive(Debug)]
pub(super) enum Effect {
    /// Send a datagram.
    Send(SendTo, Vec<u8>),
    /// Request the agent to execute a call, or to watch it, under this token.
    Call(u64, CallRequest<Buffer>),
    /// Report to the agent on a watched call, with the number of the call.
    Watched(u64, WatchReport),
    /// Request the agent to revoke the group.
    Revoke,
    /// A call has completed.
    Answer(u64, Result<CallStats, CallFailure>),
}

/// A call as its rank makes it.
#[derive(Debug)]
pub(in super::super) struct RankCall {
    pub(in super::super) token: u64,
    pub(in super::super) request: CallRequest<Buffer>,
    /// Whether the rank waits for it and makes no other call in the meantime.
    pub(in super::super) waits: bool,
    /// Number of steps after which the rank leaves the call with an error, if it does and executes
    /// the call itself.
    pub(in super::super) fails_after: Option<u32>,
}

/// The description of a call that ranks compare.
#[derive(Clone, Debug)]
struct CallFingerprint {
    call: Call,
    digest: u64,
    text: String,
}

impl CallFingerprint {
    fn of(request: &CallRequest<Buffer>) -> CallFingerprint {
        let operation = request.operation;
        let element = (operation != Operation::Barrier).then_some(request.element);
        let bytes = element.map_or(0, |element| element.bytes() as u64);
        let root = Rank(if operation.rooted() { request.root } else { 0 });
        let call = Call::new(operation, root, request.count * bytes, bytes.max(1) as u32);
        let reduce = request.reduce.filter(|_| operation.combines());
        let words = CallDescription { call: &call, element, reduce };
        let (digest, text) = (words.digest(format_args!("")), words.to_string());
        CallFingerprint { call, digest, text }
    }
}

/// Why a rank that has sent its last report on a watched call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// The rank has completed the watched part and waits for the agent's confirmation.
    Completed,
    /// The rank has stopped. The agent knows the reason.
    Stopped,
}

/// A call, or a part of one, that the agent watches.
#[derive(Debug)]
struct Watch {
    token: u64,
    answer: Option<Result<CallStats, CallFailure>>,
    ending: Option<EndReason>,
}

/// A quick call in progress.
#[derive(Debug)]
struct OpenCall {
    token: u64,
    request: CallRequest<Buffer>,
    number: u64,
    described: CallFingerprint,
    schedule: Arc<QuickSchedule>,
    begun: Time,
    /// Whether the call has begun, because all ranks are known to be able to execute quick calls.
    executing: bool,
    /// The rank's data, once the call has begun.
    input: Vec<u8>,
    output: Vec<u8>,
    watch: Option<Watch>,
    /// Number of steps after which the rank leaves the call with an error, if it does.
    fails_after: Option<u32>,
}

/// A rank, as a process.
#[derive(Debug)]
pub(in super::super) struct QuickRank {
    pub(super) node: u16,
    /// The incarnation of the node's agent to which it is attached.
    pub(super) life: u32,
    /// The node of each rank.
    pub(super) nodes: Vec<u16>,
    /// How the agent replies to NAKs for it.
    pub(super) answering: NakResponder,
    pub(super) retained: RetainedByLeader,
    rank: Rank,
    layout: Layout,
    machine: QuickCalls,
    limits: CallLimits,
    /// Length of the datagrams into which it divides messages; 0 if it does not.
    pub(super) datagram_bytes: usize,
    schedules: VecDeque<(Call, Option<Arc<QuickSchedule>>)>,
    /// Whether the rank can execute quick calls. Unknown until its process has started and its
    /// socket is open.
    able: Option<bool>,
    /// Whether all ranks can execute quick calls, if that is known.
    all: Option<bool>,
    /// Whether the group has failed.
    pub(super) failed: bool,
    /// Whether the process or its agent has ended.
    pub(super) over: bool,
    next_number: u64,
    /// One more than the number of the last call that it executed.
    through: u64,
    /// Calls that it makes once it is no longer paused.
    pending_calls: VecDeque<RankCall>,
    call: Option<OpenCall>,
    /// Datagrams that it has not read, and the size of the socket's buffer in bytes.
    inbox: VecDeque<Arc<[u8]>>,
    room: usize,
    /// The rank is paused until then.
    pub(super) still_until: Time,
    /// When its last message reaches the agent.
    pub(super) last_delivery: Time,
    /// When it must run again.
    pub(super) wake: Option<Time>,
    /// The earliest alarm that is set for that.
    pub(super) alarm: Option<Time>,
    watches: u64,
}

impl QuickRank {
    /// Returns a rank of a group, given the nodes of the ranks and the incarnation of its agent, or
    /// none if the group's ranks cannot execute quick calls.
    pub(super) fn of(spec: &GroupSpec, rank: u32, nodes: Vec<u16>, life: u32) -> Option<QuickRank> {
        let places = spec.members.iter().map(|member| {
            let node = nodes[member.rank as usize];
            RankPlace { rack: member.rack, node: node.into() }
        });
        let layout = Layout::new(&places.collect::<Vec<RankPlace>>()).ok()?;
        let (group, rank) = ((spec.id, spec.epoch), Rank(rank));
        let key = spec.keyed.as_ref()?.key.derive(b"quick calls");
        let key = CallKey::new::<Checksum>(key);
        let limits =
            CallLimits::for_group(spec.quick_datagram_bytes.into(), &NodeLeaders::for_group(&layout)?);
        Some(QuickRank {
            node: nodes[rank.0 as usize],
            life,
            nodes,
            answering: NakResponder { key: key.clone(), group, leader: rank },
            retained: RetainedByLeader::default(),
            rank,
            machine: QuickCalls::new(key, group, rank, layout.clone(), limits)?,
            limits,
            datagram_bytes: spec.quick_datagram_bytes.into(),
            layout,
            schedules: VecDeque::new(),
            able: None,
            all: None,
            failed: false,
            over: false,
            next_number: 0,
            through: 0,
            pending_calls: VecDeque::new(),
            call: None,
            inbox: VecDeque::new(),
            room: 0,
            still_until: Time::ZERO,
            last_delivery: Time::ZERO,
            wake: None,
            alarm: None,
            watches: 0,
        })
    }

    /// Starts the process. `able` states whether it can execute quick calls, and `room` is the size
    /// of its socket's buffer in bytes.
    pub(super) fn start_process(&mut self, able: bool, room: usize) {
        (self.able, self.room) = (Some(able), room);
    }

    /// Records whether all ranks can execute quick calls.
    pub(super) fn record_all_able(&mut self, all: bool) {
        self.all = Some(all);
    }

    /// Ends the process. Returns one more than the number of the last call that it executed, if it
    /// can execute quick calls.
    pub(super) fn end_process(&mut self) -> Option<u64> {
        self.over = true;
        (self.able == Some(true)).then_some(self.through)
    }

    /// Receives a datagram. It is dropped if the socket's buffer is full because the rank has not
    /// read for a while.
    pub(super) fn datagram(&mut self, bytes: &Arc<[u8]>) {
        let taken: usize = self.inbox.iter().map(|waiting| waiting.len() + OVERHEAD).sum();
        if self.able == Some(true) && !self.over && taken < self.room {
            self.inbox.push_back(Arc::clone(bytes));
        }
    }

    /// Records the agent's result of a watched call.
    pub(super) fn answered(&mut self, token: u64, answer: Result<CallStats, CallFailure>) {
        let watch = self.call.as_mut().and_then(|call| call.watch.as_mut());
        if let Some(watch) = watch.filter(|watch| watch.token == token) {
            watch.answer = Some(answer);
        }
    }

    /// Adds a call that the rank must make.
    pub(super) fn add_call(&mut self, call: RankCall) {
        self.pending_calls.push_back(call);
    }

    fn make(&mut self, now: Time, call: RankCall, effects: &mut Vec<Effect>) {
        let RankCall { token, mut request, waits, fails_after } = call;
        if self.able != Some(true) {
            return effects.push(Effect::Call(token, request));
        }
        let number = self.next_number;
        self.next_number += 1;
        request.call_number = Some(number);
        let described = CallFingerprint::of(&request);
        let quick = waits && !self.failed && self.all != Some(false) && request.plan.is_empty();
        let sensible = request.counts.is_none() && described.call.check(self.layout.size()).is_ok();
        let schedule = if quick && sensible { self.schedule(&described.call) } else { None };
        let Some(schedule) = schedule else { return effects.push(Effect::Call(token, request)) };
        let (begun, executing, watch) = (now, false, None);
        self.call = Some(OpenCall {
            token,
            request,
            number,
            described,
            schedule,
            begun,
            executing,
            input: Vec::new(),
            output: Vec::new(),
            watch,
            fails_after,
        });
    }

    fn schedule(&mut self, call: &Call) -> Option<Arc<QuickSchedule>> {
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| known == call) {
            return known.clone();
        }
        let schedule = QuickSchedule::for_call(call, &self.layout, self.rank, self.limits).map(Arc::new);
        self.schedules.truncate(SCHEDULES - 1);
        self.schedules.push_front((call.clone(), schedule.clone()));
        schedule
    }

    /// Does everything that is possible now. `agent` states whether its agent is running.
    pub(super) fn run(&mut self, now: Time, agent: bool, effects: &mut Vec<Effect>) {
        self.wake = None;
        if now < self.still_until {
            let has_calls = self.call.is_some() || !self.pending_calls.is_empty();
            self.wake = has_calls.then_some(self.still_until);
            return;
        }
        while !self.over && self.step(now, agent, effects) {}
    }

    /// Executes the next step. Returns whether another one may follow.
    fn step(&mut self, now: Time, agent: bool, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = &mut self.call else {
            let next = self.pending_calls.pop_front();
            return next.map(|call| self.make(now, call, effects)).is_some();
        };
        if let Some(left) = &mut call.fails_after {
            if *left == 0 {
                self.leave_incomplete(effects);
                return true;
            }
            *left -= 1;
        }
        if call.watch.is_some() && !agent {
            self.over = true;
            return false;
        }
        if let Some(Watch { ending: Some(ending), answer, .. }) = &call.watch {
            let (ending, Some(answer)) = (*ending, answer.clone()) else { return false };
            self.ended(now, ending, answer, effects);
            return true;
        }
        match call.executing {
            false if self.all.is_some() => {
                self.through(now, effects);
                true
            }
            false => self.look(now, None, effects),
            true => self.execute(now, effects),
        }
    }

    /// Leaves the call because a step of it has failed, for example a system call. The rank may
    /// have sent messages that it has not accounted for, so it makes the group fail, as libcool
    /// does.
    fn leave_incomplete(&mut self, effects: &mut Vec<Effect>) {
        let Some(call) = self.call.take() else { return };
        if !self.failed {
            self.failed = true;
            effects.push(Effect::Revoke);
        }
        let failure = CallFailure::new(CallFailureKind::Revoked, "a step has failed", vec![self.rank.0]);
        effects.push(Effect::Answer(call.token, Err(failure)));
    }

    fn execute(&mut self, now: Time, effects: &mut Vec<Effect>) -> bool {
        match self.machine.poll(now) {
            Poll::Output(Output::Send(message)) => {
                let sent = (0..message.copies).map(|_| Effect::Send(message.to, message.bytes.clone()));
                effects.extend(sent);
                self.retained.keep(message);
            }
            Poll::Output(Output::Nak { to, bytes }) => effects.push(Effect::Send(SendTo::AgentOf(to), bytes)),
            Poll::Output(Output::Mismatch { rank, text, .. }) => {
                self.watch(effects);
                self.stop(Some(WatchReport::Differs { rank, text }), effects);
            }
            Poll::Output(Output::Done) => self.through(now, effects),
            Poll::Idle(next) => return self.look(now, next, effects),
        }
        true
    }

    /// Handles that an awaited message has not arrived yet.
    fn look(&mut self, now: Time, next: Option<Time>, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = &mut self.call else { return false };
        let seen = WaitState {
            watched: call.watch.is_some(),
            answered: call.watch.as_ref().is_some_and(|watch| watch.answer.is_some()),
            failed: self.failed,
        };
        let timeout = call.request.timeout.unwrap_or(Duration::MAX);
        match WaitPolicy(timeout).next_action(now - call.begun, seen) {
            WaitAction::Wait(left) => {
                if call.executing
                    && let Some(bytes) = self.inbox.pop_front()
                {
                    let data = CallData { input: &call.input, output: &mut call.output };
                    self.machine.handle(now, Input::Datagram(&bytes, data));
                    return true;
                }
                if call.watch.is_some() {
                    effects.push(Effect::Watched(call.number, WatchReport::StillWaits));
                }
                self.wake = earliest(next, Some(now + left));
                return false;
            }
            WaitAction::Watch => self.watch(effects),
            WaitAction::AwaitAnswer => self.stop(None, effects),
            WaitAction::ReportOverdue => {
                let ranks = match call.executing {
                    true => self.machine.awaited().map(|rank| rank.0).collect(),
                    false => (0..self.layout.size() as u32).filter(|rank| *rank != self.rank.0).collect(),
                };
                self.stop(Some(WatchReport::Overdue { ranks, timeout }), effects);
            }
            WaitAction::HandToAgent => self.by_agent(effects),
        }
        true
    }

    /// Requests the agent to watch the call, unless it already does.
    fn watch(&mut self, effects: &mut Vec<Effect>) {
        let Some(call) = self.call.as_mut().filter(|call| call.watch.is_none()) else { return };
        self.watches += 1;
        let token = WATCHES | self.answering.group.0 << 40 | u64::from(self.rank.0) << 32 | self.watches;
        call.watch = Some(Watch { token, answer: None, ending: None });
        let request = CallRequest { input: None, output: None, watch: true, ..call.request.clone() };
        effects.push(Effect::Call(token, request));
    }

    /// Stops the call, so that the rank waits only for the agent's result.
    fn stop(&mut self, report: Option<WatchReport>, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        effects.extend(report.map(|report| Effect::Watched(call.number, report)));
        call.watch.iter_mut().for_each(|watch| watch.ending = Some(EndReason::Stopped));
    }

    /// Handles that everything awaited has arrived.
    fn through(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        match &mut call.watch {
            Some(watch) => {
                watch.ending = Some(EndReason::Completed);
                effects.push(Effect::Watched(call.number, WatchReport::Completed));
            }
            None => self.advance(now, effects),
        }
    }

    /// Handles the agent's result, once nothing else is awaited.
    fn ended(
        &mut self,
        now: Time,
        ending: EndReason,
        answer: Result<CallStats, CallFailure>,
        effects: &mut Vec<Effect>,
    ) {
        match answer {
            Err(failure) => {
                let token = self.call.take().map(|call| call.token);
                effects.extend(token.map(|token| Effect::Answer(token, Err(failure))));
            }
            Ok(stats) if stats.by_agent || ending == EndReason::Stopped => self.by_agent(effects),
            Ok(_) => {
                self.call.iter_mut().for_each(|call| call.watch = None);
                self.advance(now, effects);
            }
        }
    }

    fn by_agent(&mut self, effects: &mut Vec<Effect>) {
        if let Some(call) = self.call.take() {
            effects.push(Effect::Call(call.token, call.request));
        }
    }

    /// Continues after a part of the call has completed.
    fn advance(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        if !call.executing && self.all != Some(true) {
            return self.by_agent(effects);
        }
        if !call.executing {
            call.executing = true;
            return self.begin(now);
        }
        if let Some(output) = &call.request.output {
            output.with(|bytes| bytes[..call.output.len()].copy_from_slice(&call.output));
        }
        self.through = call.number + 1;
        let stats = CallStats { plan: format!("quick {}", call.schedule.plan()), ..CallStats::default() };
        effects.push(Effect::Answer(call.token, Ok(stats)));
        self.call = None;
    }

    fn begin(&mut self, now: Time) {
        let Some(OpenCall { request, number, described, schedule, input, output, .. }) = &mut self.call
        else {
            return;
        };
        let CallFingerprint { call, digest, text } = described;
        self.retained.enter(*number, *digest, text);
        let is_message = call.operation == Operation::Bcast && call.root == self.rank;
        let given = if is_message { &request.output } else { &request.input };
        *input = given.as_ref().map(Buffer::bytes).unwrap_or_default();
        *output = vec![0; schedule.output_bytes(self.rank, self.layout.size()) as usize];
        let combining = call.operation.combines().then_some(request.element).zip(request.reduce);
        let schedule = Arc::clone(schedule);
        let begin = BeginCall { number: *number, digest: *digest, schedule, combining };
        self.machine.handle(now, Input::Retransmitted(self.retained.repaired));
        self.machine.handle(now, Input::Begin(begin, CallData { input, output }));
    }
}
