//! Quick calls of a session.
//!
//! The ranks of a node exchange data in their segment, and their leader communicates with other
//! nodes by datagrams ([`leader_calls`]). If each rank has its own node, each is a leader. If a
//! call takes long, the agent watches it, as it watches calls in a segment.

mod leader_calls;

use super::RankSession;
use super::agent_requests::RankAttempt;
use super::begun_call::BegunRankCall;
use super::call_account::CallAccount;
use super::segment_wait::SegmentWait;
use super::spin_policy::SpinPolicy;
use super::watched_call::WatchedCall;
use crate::call::CheckedCollective;
use crate::error::Error;
use crate::segment::{BegunCall, DescriptionCache, Interrupted, NodeRanks, SegmentCalls};
use cool_collective::{Layout, Rank, RankPlace};
use cool_proto::local::{self, Attached};
use cool_quick::{
    CallData, CallLimits, NodeLeaders, QuickSchedule, ReportTimer, WaitAction, WaitPolicy, WaitState,
};
use cool_shm::segment::Segment;
use cool_shm::segment::records::{self, RankPlan};
use cool_types::{Call, Operation};
use leader_calls::LeaderCalls;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of cached schedules, because programs repeat the same few calls.
const SCHEDULES: usize = 64;

/// A rank's quick calls, of which it executes one at a time.
#[derive(Debug)]
pub(super) struct QuickSession {
    segment: Arc<Segment>,
    /// The ranks of this node, ascending.
    ranks: Vec<u32>,
    /// Index of this rank among them; the first one is the leader.
    index: usize,
    spins: SpinPolicy,
    calls: Mutex<QuickState>,
}

#[derive(Debug)]
struct QuickState {
    descriptions: DescriptionCache,
    leaders: NodeLeaders,
    /// Index of this node's leader.
    leader: usize,
    limits: CallLimits,
    /// Schedules of the latest kinds of calls; `None` if the leaders cannot execute the call as a
    /// quick one.
    schedules: VecDeque<(Call, Option<PlannedSchedule>)>,
    /// Whether it is known that all ranks can execute quick calls.
    ready: bool,
    /// This rank's part in the exchange within its node, if the node has several ranks.
    within: Option<SegmentCalls>,
    /// This rank's part in the exchange between leaders, if it is a leader.
    between: Option<LeaderCalls>,
}

/// A leader's schedule of a call, and the plan to report for it.
type PlannedSchedule = (Arc<QuickSchedule>, RankPlan);

/// Returns the ranks on the node of a rank.
pub(super) fn ranks_of_node(attached: &Attached, rank: usize) -> Vec<u32> {
    let node = attached.places.get(rank).map(|place| place.node);
    let here = (0..).zip(&attached.places).filter(|(_, place)| Some(place.node) == node);
    here.map(|(rank, _)| rank).collect()
}

impl QuickSession {
    /// Returns a rank's quick calls, given the agent's configuration, the ranks of its node and,
    /// for a leader, its socket. Returns `None` if the configuration is invalid.
    pub(super) fn new(
        config: &local::Quick,
        attached: &Attached,
        (rank, ranks): (usize, Vec<u32>),
        segment: Segment,
        socket: Option<OwnedFd>,
    ) -> Option<QuickSession> {
        let places = attached.places.iter().map(|place| RankPlace { rack: place.rack, node: place.node });
        let leaders = NodeLeaders::for_group(&Layout::new(&places.collect::<Vec<RankPlace>>()).ok()?)?;
        let leader = leaders.leader_of(Rank(rank as u32));
        let segment = Arc::new(segment);
        let (index, size) = (ranks.iter().position(|here| *here as usize == rank)?, ranks.len());
        let between = match socket {
            Some(socket) => Some(LeaderCalls::new(config, attached.group, (&leaders, leader), size, socket)?),
            None => None,
        };
        let limits = CallLimits::for_group(config.datagram_bytes as usize, &leaders);
        let calls = QuickState {
            descriptions: DescriptionCache::default(),
            leaders,
            leader,
            limits,
            schedules: VecDeque::new(),
            ready: false,
            within: (size > 1).then(|| SegmentCalls::new(Arc::clone(&segment), index, size)),
            between,
        };
        Some(QuickSession { segment, ranks, index, spins: SpinPolicy::among(size), calls: Mutex::new(calls) })
    }

    /// Makes all later calls fail. The agent reports the reason.
    pub(super) fn fail(&self) {
        self.segment.fail();
    }

    /// Returns the segment and the number of ranks of this node, if there are several and they
    /// would execute this call themselves. Returns `None` while this rank executes another call.
    pub(super) fn usable(&self, checked: &CheckedCollective<'_, '_>) -> Option<(&Segment, usize)> {
        if self.ranks.len() == 1 || !self.segment.is_usable() {
            return None;
        }
        let mut calls = self.calls.try_lock().ok()?;
        let call = calls.descriptions.describe(checked);
        calls.schedule(&call.call).map(|_| (&*self.segment, self.ranks.len()))
    }

    /// Returns this rank's index among the ranks of its node.
    pub(super) fn index(&self) -> usize {
        self.index
    }
}

impl RankSession {
    /// Executes a call by datagrams, if it is a quick call. It has the given number, or the next
    /// one.
    pub(super) fn execute_quick(
        &self,
        checked: &mut CheckedCollective<'_, '_>,
        timeout: Duration,
        number: Option<u64>,
    ) -> Result<RankAttempt, Error> {
        let usable = self.quick.as_ref().filter(|quick| quick.segment.is_usable());
        let Some(quick) = usable else { return Ok(RankAttempt::ByAgent(number)) };
        let (begun, begun_at) = (Instant::now(), records::now());
        let mut calls = quick.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let call = calls.descriptions.describe(checked);
        let Some((schedule, plan)) = calls.schedule(&call.call) else {
            return Ok(RankAttempt::ByAgent(number));
        };
        let number = number.unwrap_or_else(|| self.call_sender().next_call_number());
        let begun_call = BegunRankCall::new(self, &quick.segment, (checked.name, number));
        let part = quick.segment.rank(quick.index);
        let watch = WatchedCall {
            session: self,
            part,
            name: checked.name,
            number,
            call: &call,
            counts: None,
            timeout,
        };
        let quick = QuickCall { watch, quick, begun, reports: Cell::default() };
        let carried = quick.wait_until_ready(&mut calls).and_then(|all| match all {
            true => quick.execute_on_node(&mut calls, &schedule, checked),
            false => Err(Interrupted::Fallback),
        });
        if matches!(carried, Err(Interrupted::Fallback)) {
            calls.between.iter_mut().for_each(|between| between.abandon(number));
        }
        let account = CallAccount { part, number, call: &call, plan, begun: begun_at };
        let exchanged = calls.between.as_mut().map(LeaderCalls::take_traffic).unwrap_or_default();
        let (carried, ranks) = (account.close(exchanged, carried), &quick.quick.ranks);
        begun_call.settle(RankAttempt::from_result(self, (checked.name, number), ranks, carried))
    }
}

impl QuickState {
    /// Returns the leaders' schedule of a call, if it is a quick one.
    fn schedule(&mut self, call: &Call) -> Option<PlannedSchedule> {
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| known == call) {
            return known.clone();
        }
        let of = |call: &Call| {
            QuickSchedule::for_call(call, self.leaders.layout(), Rank(self.leader as u32), self.limits)
        };
        let schedule = self.leaders.leader_call(call).and_then(|call| of(&call)).and_then(|schedule| {
            let plan = RankPlan::quick(&schedule.plan().to_string())?;
            Some((Arc::new(schedule), plan))
        });
        self.schedules.truncate(SCHEDULES - 1);
        self.schedules.push_front((call.clone(), schedule.clone()));
        schedule
    }
}

/// A quick call that is being executed.
struct QuickCall<'a> {
    watch: WatchedCall<'a>,
    quick: &'a QuickSession,
    begun: Instant,
    /// When to report to the agent that the rank still waits.
    reports: Cell<ReportTimer>,
}

impl QuickCall<'_> {
    /// Waits until it is known whether all ranks can execute quick calls, and returns whether they
    /// can.
    fn wait_until_ready(&self, calls: &mut QuickState) -> Result<bool, Interrupted<Error>> {
        let (segment, watch) = (&*self.quick.segment, &self.watch);
        let is_known = || segment.is_ready() || segment.is_declined();
        let mut watched = None;
        while !calls.ready && !is_known() {
            let left = self.next_wait(&mut watched, || {
                let own = self.quick.ranks[self.quick.index];
                (0..calls.leaders.size() as u32).filter(|rank| *rank != own).collect()
            })?;
            let awaited =
                || is_known() || segment.has_failed() || watched.is_some_and(|id| watch.has_reply(id));
            watch.part.sleep(awaited, left);
        }
        watched.map_or(Ok(()), |id| watch.completed(id))?;
        calls.ready |= segment.is_ready();
        Ok(!segment.is_declined())
    }

    fn execute_on_node(
        &self,
        calls: &mut QuickState,
        schedule: &Arc<QuickSchedule>,
        checked: &mut CheckedCollective<'_, '_>,
    ) -> Result<(), Interrupted<Error>> {
        let WatchedCall { number, part, call, .. } = self.watch;
        let QuickState { leaders, leader, within, between, .. } = calls;
        let output_bytes = schedule.output_bytes(Rank(*leader as u32), leaders.layout().size()) as usize;
        let Some(within) = within else {
            if let Some(between) = between {
                let mut buffers = checked.buffers();
                match buffers.apart(output_bytes) {
                    Some((input, output)) => {
                        between.execute_between_leaders(self, leaders, schedule, CallData { input, output })
                    }
                    None => between.execute_in_place(self, leaders, schedule, (&mut buffers, output_bytes)),
                }?;
            }
            part.complete(number + 1);
            return Ok(());
        };
        let out = |input: &[u8]| {
            let Some(between) = between else { return Ok(Vec::new()) };
            let mut output = vec![0; output_bytes];
            let data = CallData { input, output: &mut output };
            between.execute_between_leaders(self, leaders, schedule, data)?;
            // The leader of the root's node passes the message on to its ranks.
            let is_at_root = call.call.operation == Operation::Bcast && !input.is_empty();
            Ok(if is_at_root { input.to_vec() } else { output })
        };
        let QuickSession { segment, ranks, spins, .. } = self.quick;
        let mut waiting = SegmentWait { watch: self.watch, segment, ranks, spins: *spins };
        let node = NodeRanks { leaders, leader: *leader };
        let carried = match within.enter(number, call, &mut waiting) {
            Ok(BegunCall::ByRanks) => {
                let buffers = &mut checked.buffers();
                within.execute_over_nodes((number, call), node, buffers, &mut waiting, out)
            }
            Ok(BegunCall::ByAgent | BegunCall::Declined) => Err(Interrupted::Fallback),
            Err(stop) => Err(stop),
        };
        if matches!(carried, Err(Interrupted::Fallback)) && within.must_decline() {
            segment.decline();
        }
        carried
    }

    /// Checks the call while the rank waits. Returns how long it may wait before the next check.
    fn next_wait(
        &self,
        watched: &mut Option<u64>,
        awaited: impl FnOnce() -> Vec<u32>,
    ) -> Result<Duration, Interrupted<Error>> {
        let watch = &self.watch;
        loop {
            let seen = WaitState {
                watched: watched.is_some(),
                answered: watched.is_some_and(|id| watch.has_reply(id)),
                failed: self.quick.segment.has_failed(),
            };
            match (WaitPolicy(watch.timeout).next_action(self.begun.elapsed(), seen), *watched) {
                (WaitAction::Wait(left), None) => return Ok(left),
                (WaitAction::Wait(left), Some(id)) => {
                    let (mut reports, waited) = (self.reports.get(), self.begun.elapsed());
                    if reports.take_due(waited) {
                        self.reports.set(reports);
                        watch.still_waits(id)?;
                    }
                    return Ok(left.min(reports.until_due(waited)));
                }
                (WaitAction::AwaitAnswer, Some(id)) => return watch.ended(id).map(|()| Duration::ZERO),
                (WaitAction::ReportOverdue, Some(id)) => {
                    return watch.overdue(id, awaited()).map(|()| Duration::ZERO);
                }
                (WaitAction::Watch, _) => *watched = Some(watch.open()?),
                (WaitAction::HandToAgent | WaitAction::AwaitAnswer | WaitAction::ReportOverdue, _) => {
                    return Err(Interrupted::Fallback);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_words_for_all_plans_of_quick_calls() {
        assert!(cool_quick::quick_plans().all(|plan| RankPlan::quick(plan).is_some()));
    }
}
