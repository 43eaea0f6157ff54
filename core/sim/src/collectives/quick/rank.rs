//! One such rank: its calls as it makes them, and how it waits in them.

use super::kept::KeptByLeader;
use cool_collective::{Layout, Rank, RankPlace};
use cool_engine::testing::Buffer;
use cool_engine::{CallFailure, CallRequest, CallStats, GroupSpec, WatchReport};
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use cool_quick::{
    BeginCall, Input, NakResponder, Output, QuickCalls, QuickSchedule, SendTo, WaitAction, WaitPolicy,
    WaitState,
};
use cool_types::{Call, CallDescription, Operation};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a datagram takes in a socket's buffer beside its bytes.
const OVERHEAD: usize = 700;

/// Schedules that a rank keeps.
const SCHEDULES: usize = 64;

/// What a rank does, for the cluster to see to.
#[derive(Debug)]
pub(super) enum Effect {
    /// It sends a datagram.
    Send(SendTo, Vec<u8>),
    /// It has its agent carry out a call, or watch it, under this token.
    Call(u64, CallRequest<Buffer>),
    /// It tells its agent what has become of a watched call, by its number.
    Watched(u64, WatchReport),
    /// A call has come to its end.
    Answer(u64, Result<CallStats, CallFailure>),
}

/// A call as its rank makes it.
#[derive(Debug)]
pub(in super::super) struct RankCall {
    pub(in super::super) token: u64,
    pub(in super::super) request: CallRequest<Buffer>,
    /// The rank waits for it, and makes no other call meanwhile.
    pub(in super::super) waits: bool,
}

/// What others compare of a call.
#[derive(Clone, Debug)]
struct Described {
    call: Call,
    digest: u64,
    text: String,
}

impl Described {
    fn of(request: &CallRequest<Buffer>) -> Described {
        let operation = request.operation;
        let element = (operation != Operation::Barrier).then_some(request.element);
        let bytes = element.map_or(0, |element| element.bytes() as u64);
        let root = Rank(if operation.rooted() { request.root } else { 0 });
        let call = Call::new(operation, root, request.count * bytes, bytes.max(1) as u32);
        let reduce = request.reduce.filter(|_| operation.combines());
        let words = CallDescription { call: &call, element, reduce };
        let (digest, text) = (words.digest(format_args!("")), words.to_string());
        Described { call, digest, text }
    }
}

/// What a rank waits for that has nothing more to say about a watched call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// It has what it waited for.
    Through,
    /// It has not, and its agent knows why.
    Stopped,
}

/// A call or a part of it that the agent watches.
#[derive(Debug)]
struct Watch {
    token: u64,
    answer: Option<Result<CallStats, CallFailure>>,
    ending: Option<Ending>,
}

/// A quick call that is under way.
#[derive(Debug)]
struct OpenCall {
    token: u64,
    request: CallRequest<Buffer>,
    number: u64,
    described: Described,
    schedule: Arc<QuickSchedule>,
    begun: Time,
    /// It is known that all can, and the call has begun.
    carries: bool,
    watch: Option<Watch>,
}

/// A rank, as a process.
#[derive(Debug)]
pub(in super::super) struct QuickRank {
    pub(super) node: u16,
    /// The start of its node's agent to which it is attached.
    pub(super) life: u32,
    /// The node of each rank.
    pub(super) nodes: Vec<u16>,
    /// How its agent answers for it.
    pub(super) answering: NakResponder,
    pub(super) kept: KeptByLeader,
    rank: Rank,
    layout: Layout,
    machine: QuickCalls,
    schedules: VecDeque<(Call, Option<Arc<QuickSchedule>>)>,
    /// It has come: its socket is there; and whether it can carry out quick calls.
    able: Option<bool>,
    /// Whether all can, once that is known.
    all: Option<bool>,
    /// The group has failed.
    pub(super) failed: bool,
    /// It is gone, or has nobody to call.
    pub(super) over: bool,
    next_number: u64,
    /// The number behind the last call that it has carried out.
    through: u64,
    /// Calls that it makes when it no longer stands still.
    asked: VecDeque<RankCall>,
    call: Option<OpenCall>,
    /// Datagrams that it has not read, with room for as many bytes.
    inbox: VecDeque<Arc<[u8]>>,
    room: usize,
    /// It stands still until then.
    pub(super) still_until: Time,
    /// When the last thing that it has told its agent gets there.
    pub(super) told: Time,
    /// When it looks again.
    pub(super) wake: Option<Time>,
    /// The earliest alarm that is set for that.
    pub(super) alarm: Option<Time>,
    watches: u64,
}

impl QuickRank {
    /// A rank of a group, by the nodes of its ranks and the start of its node's agent; none where ranks cannot meet.
    pub(super) fn of(spec: &GroupSpec, rank: u32, nodes: Vec<u16>, life: u32) -> Option<QuickRank> {
        let places = spec.members.iter().map(|member| {
            let node = nodes[member.rank as usize];
            RankPlace { rack: member.rack, node: node.into() }
        });
        let layout = Layout::new(&places.collect::<Vec<RankPlace>>()).ok()?;
        let (group, rank) = ((spec.id, spec.epoch), Rank(rank));
        let key = spec.keyed.as_ref()?.key.derive(b"quick calls");
        Some(QuickRank {
            node: nodes[rank.0 as usize],
            life,
            nodes,
            answering: NakResponder { key: key.clone(), group, leader: rank },
            kept: KeptByLeader::default(),
            rank,
            machine: QuickCalls::new(key, group, rank, layout.clone())?,
            layout,
            schedules: VecDeque::new(),
            able: None,
            all: None,
            failed: false,
            over: false,
            next_number: 0,
            through: 0,
            asked: VecDeque::new(),
            call: None,
            inbox: VecDeque::new(),
            room: 0,
            still_until: Time::ZERO,
            told: Time::ZERO,
            wake: None,
            alarm: None,
            watches: 0,
        })
    }

    /// The rank has come, and whether it can carry out quick calls; its socket has room for as many bytes.
    pub(super) fn comes(&mut self, able: bool, room: usize) {
        (self.able, self.room) = (Some(able), room);
    }

    /// It is known whether all can.
    pub(super) fn learn(&mut self, all: bool) {
        self.all = Some(all);
    }

    /// It ends: the number behind the last call that it carried out, if it carries out any.
    pub(super) fn ends(&mut self) -> Option<u64> {
        self.over = true;
        (self.able == Some(true)).then_some(self.through)
    }

    /// What a datagram finds: no room, if the rank has not read for long.
    pub(super) fn datagram(&mut self, bytes: &Arc<[u8]>) {
        let taken: usize = self.inbox.iter().map(|waiting| waiting.len() + OVERHEAD).sum();
        if self.able == Some(true) && !self.over && taken < self.room {
            self.inbox.push_back(Arc::clone(bytes));
        }
    }

    /// Its agent has answered a watched call.
    pub(super) fn answered(&mut self, token: u64, answer: Result<CallStats, CallFailure>) {
        let watch = self.call.as_mut().and_then(|call| call.watch.as_mut());
        if let Some(watch) = watch.filter(|watch| watch.token == token) {
            watch.answer = Some(answer);
        }
    }

    /// It is to make a call.
    pub(super) fn ask(&mut self, call: RankCall) {
        self.asked.push_back(call);
    }

    fn make(&mut self, now: Time, call: RankCall, effects: &mut Vec<Effect>) {
        let RankCall { token, mut request, waits } = call;
        if self.able != Some(true) {
            return effects.push(Effect::Call(token, request));
        }
        let number = self.next_number;
        self.next_number += 1;
        request.call_number = Some(number);
        let described = Described::of(&request);
        let quick = waits && !self.failed && self.all != Some(false) && request.plan.is_empty();
        let sensible = request.counts.is_none() && described.call.check(self.layout.size()).is_ok();
        let schedule = if quick && sensible { self.schedule(&described.call) } else { None };
        let Some(schedule) = schedule else { return effects.push(Effect::Call(token, request)) };
        let (begun, carries, watch) = (now, false, None);
        self.call = Some(OpenCall { token, request, number, described, schedule, begun, carries, watch });
    }

    fn schedule(&mut self, call: &Call) -> Option<Arc<QuickSchedule>> {
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| known == call) {
            return known.clone();
        }
        let schedule = QuickSchedule::for_call(call, &self.layout, self.rank).map(Arc::new);
        self.schedules.truncate(SCHEDULES - 1);
        self.schedules.push_front((call.clone(), schedule.clone()));
        schedule
    }

    /// Does what it can do now; `agent`: its agent is there.
    pub(super) fn run(&mut self, now: Time, agent: bool, effects: &mut Vec<Effect>) {
        self.wake = None;
        if now < self.still_until {
            let has_calls = self.call.is_some() || !self.asked.is_empty();
            self.wake = has_calls.then_some(self.still_until);
            return;
        }
        while !self.over && self.step(now, agent, effects) {}
    }

    /// The next thing; whether there may be more to do.
    fn step(&mut self, now: Time, agent: bool, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = &self.call else {
            let next = self.asked.pop_front();
            return next.map(|call| self.make(now, call, effects)).is_some();
        };
        if call.watch.is_some() && !agent {
            self.over = true;
            return false;
        }
        if let Some(Watch { ending: Some(ending), answer, .. }) = &call.watch {
            let (ending, Some(answer)) = (*ending, answer.clone()) else { return false };
            self.ended(now, ending, answer, effects);
            return true;
        }
        match call.carries {
            false if self.all.is_some() => {
                self.through(now, effects);
                true
            }
            false => self.look(now, None, effects),
            true => self.carry_out(now, effects),
        }
    }

    fn carry_out(&mut self, now: Time, effects: &mut Vec<Effect>) -> bool {
        match self.machine.poll(now) {
            Poll::Output(Output::Send(message)) => {
                let sent = (0..message.copies).map(|_| Effect::Send(message.to, message.bytes.clone()));
                effects.extend(sent);
                self.kept.keep(message);
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

    /// The rank has not got what it waits for.
    fn look(&mut self, now: Time, next: Option<Time>, effects: &mut Vec<Effect>) -> bool {
        let Some(call) = &self.call else { return false };
        let seen = WaitState {
            watched: call.watch.is_some(),
            answered: call.watch.as_ref().is_some_and(|watch| watch.answer.is_some()),
            failed: self.failed,
        };
        let timeout = call.request.timeout.unwrap_or(Duration::MAX);
        match WaitPolicy(timeout).next_action(now - call.begun, seen) {
            WaitAction::Wait(left) => {
                if call.carries
                    && let Some(bytes) = self.inbox.pop_front()
                {
                    self.machine.handle(now, Input::Datagram(&bytes));
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
                let ranks = match call.carries {
                    true => self.machine.awaited().map(|rank| rank.0).collect(),
                    false => (0..self.layout.size() as u32).filter(|rank| *rank != self.rank.0).collect(),
                };
                self.stop(Some(WatchReport::Overdue { ranks, timeout }), effects);
            }
            WaitAction::HandToAgent => self.by_agent(effects),
        }
        true
    }

    /// Has the agent watch the call, unless it does.
    fn watch(&mut self, effects: &mut Vec<Effect>) {
        let Some(call) = self.call.as_mut().filter(|call| call.watch.is_none()) else { return };
        self.watches += 1;
        let token =
            super::WATCHES | self.answering.group.0 << 40 | u64::from(self.rank.0) << 32 | self.watches;
        call.watch = Some(Watch { token, answer: None, ending: None });
        let request = CallRequest { input: None, output: None, watch: true, ..call.request.clone() };
        effects.push(Effect::Call(token, request));
    }

    /// Waits for nothing but the agent's answer.
    fn stop(&mut self, report: Option<WatchReport>, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        effects.extend(report.map(|report| Effect::Watched(call.number, report)));
        call.watch.iter_mut().for_each(|watch| watch.ending = Some(Ending::Stopped));
    }

    /// What was waited for is there.
    fn through(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        match &mut call.watch {
            Some(watch) => {
                watch.ending = Some(Ending::Through);
                effects.push(Effect::Watched(call.number, WatchReport::Completed));
            }
            None => self.go_on(now, effects),
        }
    }

    /// The agent has answered, and nothing else is waited for.
    fn ended(
        &mut self,
        now: Time,
        ending: Ending,
        answer: Result<CallStats, CallFailure>,
        effects: &mut Vec<Effect>,
    ) {
        match answer {
            Err(failure) => {
                let token = self.call.take().map(|call| call.token);
                effects.extend(token.map(|token| Effect::Answer(token, Err(failure))));
            }
            Ok(stats) if stats.by_agent || ending == Ending::Stopped => self.by_agent(effects),
            Ok(_) => {
                self.call.iter_mut().for_each(|call| call.watch = None);
                self.go_on(now, effects);
            }
        }
    }

    fn by_agent(&mut self, effects: &mut Vec<Effect>) {
        if let Some(call) = self.call.take() {
            effects.push(Effect::Call(call.token, call.request));
        }
    }

    /// A part of the call is over.
    fn go_on(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(call) = &mut self.call else { return };
        if !call.carries && self.all != Some(true) {
            return self.by_agent(effects);
        }
        if !call.carries {
            call.carries = true;
            return self.begin(now);
        }
        let came = self.machine.take_output();
        if let Some(output) = &call.request.output {
            output.with(|bytes| bytes[..came.len()].copy_from_slice(&came));
        }
        self.through = call.number + 1;
        let stats = CallStats { plan: format!("quick {}", call.schedule.plan()), ..CallStats::default() };
        effects.push(Effect::Answer(call.token, Ok(stats)));
        self.call = None;
    }

    fn begin(&mut self, now: Time) {
        let Some(OpenCall { request, number, described, schedule, .. }) = &self.call else { return };
        let Described { call, digest, text } = described;
        self.kept.enter(*number, *digest, text);
        let is_message = call.operation == Operation::Bcast && call.root == self.rank;
        let given = if is_message { &request.output } else { &request.input };
        let input = given.as_ref().map(Buffer::bytes).unwrap_or_default();
        let combining = call.operation.combines().then_some(request.element).zip(request.reduce);
        let begin = BeginCall { number: *number, digest: *digest, schedule, combining, input: &input };
        self.machine.handle(now, Input::Retransmitted(self.kept.repaired));
        self.machine.handle(now, Input::Begin(begin));
    }
}
