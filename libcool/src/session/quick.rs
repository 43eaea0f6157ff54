//! Quick calls as the session has them: who takes part in them on this node, and how. The ranks of a node meet in their segment, and their
//! leader goes out for all ([`leader_calls`]); where each rank has a node of its own, each is a leader. When a call takes long the agent
//! watches, as it does over calls in a segment.

mod leader_calls;

use super::Session;
use super::account::CallAccount;
use super::calls::Course;
use super::watch::{Looks, Waiting, Watch};
use crate::collective::Checked;
use crate::error::Error;
use crate::segment::{Described, Descriptions, NodeRanks, SegmentCalls, Stop};
use cool_collective::{Layout, RankPlace, Rank};
use cool_proto::local::{self, Attached};
use cool_quick::{WaitAction, NodeLeaders, WaitPolicy, QuickSchedule, WaitState};
use cool_shm::segment::Segment;
use cool_shm::segment::records::{self, RankPlan};
use cool_types::Call;
use leader_calls::LeaderCalls;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Schedules that are kept: programs repeat the same few calls.
const SCHEDULES: usize = 64;

/// A rank's quick calls: one at a time.
#[derive(Debug)]
pub(super) struct Quick {
    segment: Arc<Segment>,
    /// The ranks of this node, ascending.
    ranks: Vec<u32>,
    /// Where this one is among them; the first is the leader.
    index: usize,
    looks: Looks,
    calls: Mutex<Calls>,
}

#[derive(Debug)]
struct Calls {
    descriptions: Descriptions,
    leaders: NodeLeaders,
    /// The number of this node's leader.
    leader: usize,
    /// The latest kinds of calls, and how leaders carry them out if they are quick.
    schedules: VecDeque<(Call, Option<Planned>)>,
    /// It is known that all can.
    ready: bool,
    /// The part in what the ranks of this node do, if they are several.
    within: Option<SegmentCalls>,
    /// The part in what leaders do, if this is one.
    between: Option<LeaderCalls>,
}

/// A leader's part in a call, and by what name the plan of all is told.
type Planned = (Arc<QuickSchedule>, RankPlan);

/// The ranks that are on the node of one.
pub(super) fn ranks_of_node(attached: &Attached, rank: usize) -> Vec<u32> {
    let node = attached.places.get(rank).map(|place| place.node);
    let here = (0..).zip(&attached.places).filter(|(_, place)| Some(place.node) == node);
    here.map(|(rank, _)| rank).collect()
}

impl Quick {
    /// A rank's quick calls, as its agent has told of them, with the ranks of its node, and a socket if it is their leader; `None` if that makes no sense.
    pub(super) fn new(
        told: &local::Quick,
        attached: &Attached,
        (rank, ranks): (usize, Vec<u32>),
        segment: Segment,
        socket: Option<OwnedFd>,
    ) -> Option<Quick> {
        let places = attached.places.iter().map(|place| RankPlace { rack: place.rack, node: place.node });
        let leaders = NodeLeaders::for_group(&Layout::new(&places.collect::<Vec<RankPlace>>()).ok()?)?;
        let leader = leaders.leader_of(Rank(rank as u32));
        let segment = Arc::new(segment);
        let (index, size) = (ranks.iter().position(|here| *here as usize == rank)?, ranks.len());
        let between = match socket {
            Some(socket) => Some(LeaderCalls::new(told, attached.group, (&leaders, leader), size, socket)?),
            None => None,
        };
        let calls = Calls {
            descriptions: Descriptions::default(),
            leaders,
            leader,
            schedules: VecDeque::new(),
            ready: false,
            within: (size > 1).then(|| SegmentCalls::new(Arc::clone(&segment), index, size)),
            between,
        };
        Some(Quick { segment, ranks, index, looks: Looks::among(size), calls: Mutex::new(calls) })
    }

    /// All calls fail from now on: the agent knows why.
    pub(super) fn fail(&self) {
        self.segment.fail();
    }
}

impl Session {
    /// Carries a call out by datagrams, if it is a quick one.
    pub(super) fn carry_out_quick(
        &self,
        checked: &mut Checked<'_, '_>,
        timeout: Duration,
    ) -> Result<Course, Error> {
        let usable = self.quick.as_ref().filter(|quick| quick.segment.is_usable());
        let Some(quick) = usable else { return Ok(Course::ByAgent(None)) };
        let (begun, begun_at) = (Instant::now(), records::now());
        let mut calls = quick.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let call = calls.descriptions.describe(checked);
        let Some((schedule, plan)) = calls.schedule(&call.call) else { return Ok(Course::ByAgent(None)) };
        let number = self.wire().next_number();
        let part = quick.segment.rank(quick.index);
        let watch =
            Watch { session: self, part, name: checked.name, number, call: &call, counts: None, timeout };
        let quick = QuickCall { watch, quick, begun };
        let carried = quick.meet(&mut calls).and_then(|all| match all {
            true => quick.carry_out(&mut calls, &schedule, checked),
            false => Err(Stop::ByAgent),
        });
        let account = CallAccount { part, number, call: &call, plan, begun: begun_at };
        let exchanged = calls.between.as_mut().map(LeaderCalls::exchanged).unwrap_or_default();
        Course::of(self, (checked.name, number), account.close(exchanged, carried))
    }
}

impl Calls {
    /// How leaders carry a call out, if it is a quick one.
    fn schedule(&mut self, call: &Call) -> Option<Planned> {
        if let Some((_, known)) = self.schedules.iter().find(|(known, _)| known == call) {
            return known.clone();
        }
        let of = |call: &Call| QuickSchedule::for_call(call, self.leaders.layout(), Rank(self.leader as u32));
        let schedule = self.leaders.call(call).and_then(|call| of(&call)).and_then(|schedule| {
            let plan = RankPlan::quick(&schedule.plan().to_string())?;
            Some((Arc::new(schedule), plan))
        });
        self.schedules.truncate(SCHEDULES - 1);
        self.schedules.push_front((call.clone(), schedule.clone()));
        schedule
    }
}

/// A quick call that is under way.
struct QuickCall<'a> {
    watch: Watch<'a>,
    quick: &'a Quick,
    begun: Instant,
}

impl QuickCall<'_> {
    /// Waits until it is known whether all ranks can carry out quick calls.
    fn meet(&self, calls: &mut Calls) -> Result<bool, Stop<Error>> {
        let (segment, watch) = (&*self.quick.segment, &self.watch);
        let is_known = || segment.is_ready() || segment.is_declined();
        let mut watched = None;
        while !calls.ready && !is_known() {
            let left = self.look(&mut watched, || {
                let own = self.quick.ranks[self.quick.index];
                (0..calls.leaders.size() as u32).filter(|rank| *rank != own).collect()
            })?;
            let awaited =
                || is_known() || segment.has_failed() || watched.is_some_and(|id| watch.is_answered(id));
            watch.part.sleep(awaited, left);
        }
        watched.map_or(Ok(()), |id| watch.through(id))?;
        calls.ready |= segment.is_ready();
        Ok(!segment.is_declined())
    }

    fn carry_out(
        &self,
        calls: &mut Calls,
        schedule: &Arc<QuickSchedule>,
        checked: &mut Checked<'_, '_>,
    ) -> Result<(), Stop<Error>> {
        let Watch { number, part, call, .. } = self.watch;
        let Calls { leaders, leader, within, between, .. } = calls;
        let mut out = |given: &[u8]| match between {
            Some(between) => between.carry_out(self, leaders, schedule, given),
            None => Ok(Vec::new()),
        };
        let Some(within) = within else {
            let came = out(checked.input().unwrap_or_default())?;
            if checked.output().is_some() {
                checked.buffers().output(0..came.len()).copy_from_slice(&came);
            }
            part.leave(number + 1);
            return Ok(());
        };
        let Quick { segment, ranks, looks, .. } = self.quick;
        let Described { digest, text, .. } = call;
        part.enter(number, *digest, text)?;
        let mut waiting = Waiting { watch: self.watch, segment, ranks, looks: *looks };
        let node = NodeRanks { leaders, leader: *leader };
        let buffers = &mut checked.buffers();
        let carried = within.carry_out_over_nodes((number, call), node, buffers, &mut waiting, out);
        if let Err(Stop::ByAgent) = carried {
            // What some have published of this call would be taken for the next one's.
            segment.decline();
        }
        carried
    }

    /// Looks after the call while the rank waits: how long it may wait until the next look.
    fn look(
        &self,
        watched: &mut Option<u64>,
        awaited: impl FnOnce() -> Vec<u32>,
    ) -> Result<Duration, Stop<Error>> {
        let watch = &self.watch;
        loop {
            let seen = WaitState {
                watched: watched.is_some(),
                answered: watched.is_some_and(|id| watch.is_answered(id)),
                failed: self.quick.segment.has_failed(),
            };
            match (WaitPolicy(watch.timeout).next_action(self.begun.elapsed(), seen), *watched) {
                (WaitAction::Wait(left), None) => return Ok(left),
                (WaitAction::Wait(left), Some(id)) => return watch.still_waits(id).map(|()| left),
                (WaitAction::Ended, Some(id)) => return watch.ended(id).map(|()| Duration::ZERO),
                (WaitAction::Overdue, Some(id)) => return watch.overdue(id, awaited()).map(|()| Duration::ZERO),
                (WaitAction::Watch, _) => *watched = Some(watch.open()?),
                (WaitAction::ByAgent | WaitAction::Ended | WaitAction::Overdue, _) => return Err(Stop::ByAgent),
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
