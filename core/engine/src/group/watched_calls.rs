//! Watched calls: calls that the ranks execute themselves, in shared memory or by datagrams, and in
//! which some ranks have to wait. The engine moves no data for them. It only records which ranks
//! wait in which calls, so that it can reply to them if the group fails, if a rank is lost that
//! must take part, or if other ranks request the same call from the engine; then all ranks must
//! request it.

use super::Group;
use super::call_matching::{is_by_agent, mismatch};
use super::call_queue::PendingCall;
use super::running_calls::ANNOUNCE_AFTER;
use crate::api::WatchReport;
use crate::call_signature::{CallSignature, invalid};
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, CallStats};
use cool_machine::{Duration, Time};
use cool_transport::unicast::Notice;
use cool_types::fnv;
use std::collections::BTreeMap;

/// Time without a report after which a rank counts as stopped. Ranks report every 200 ms.
const SILENT: Duration = Duration::from_millis(1500);

/// A rank that waits.
#[derive(Debug)]
pub(super) struct WatchedRank {
    token: u64,
    signature: CallSignature,
    begun: Time,
    /// When the rank last reported that it waits.
    last_report: Time,
    /// Whether the other nodes have been notified.
    announced: bool,
    /// If the rank has waited until its timeout: the missing ranks, and the length of its wait.
    overdue: Option<(Vec<u32>, Duration)>,
}

impl WatchedRank {
    /// Returns the digest and the text of the call for other agents. No call that agents execute
    /// has this digest.
    fn called(&self) -> (u64, String) {
        let text = self.signature.to_string();
        (fnv(text.bytes()), text)
    }
}

/// The waiting ranks, by call and rank.
#[derive(Debug, Default)]
pub(super) struct WatchedCalls(BTreeMap<(u64, u32), WatchedRank>);

impl WatchedCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a rank waits in a call or a later one.
    pub(super) fn has_any_from(&self, call: u64) -> bool {
        self.0.range((call, 0)..).next().is_some()
    }

    /// Returns the ranks that wait in a call.
    pub(super) fn in_call(&self, call: u64) -> impl Iterator<Item = (u32, &WatchedRank)> {
        self.0.range((call, 0)..=(call, u32::MAX)).map(|((_, rank), watched)| (*rank, watched))
    }

    /// Returns the text of the call in which a rank waits.
    pub(super) fn text(&self, call: u64, rank: u32) -> Option<String> {
        self.0.get(&(call, rank)).map(|watched| watched.signature.to_string())
    }

    /// Returns the ranks that have stopped reporting although they have not waited for too long.
    pub(super) fn silent(&self, now: Time) -> impl Iterator<Item = u32> {
        let silent =
            move |watched: &WatchedRank| watched.overdue.is_none() && watched.last_report + SILENT < now;
        self.0.iter().filter(move |(_, watched)| silent(watched)).map(|((_, rank), _)| *rank)
    }

    /// Returns the earliest time at which one of the waiting ranks began to wait.
    pub(super) fn since(&self) -> Option<Time> {
        self.0.values().map(|watched| watched.begun).min()
    }

    /// Removes a rank. Returns the token of its call, or `None` if the rank was not waiting.
    fn take(&mut self, call: u64, rank: u32) -> Option<u64> {
        self.0.remove(&(call, rank)).map(|watched| watched.token)
    }

    /// Removes all ranks. Returns the tokens and ranks.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (u64, u32)> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|((_, rank), watched)| (watched.token, rank))
    }
}

impl Group {
    /// Starts a watched call of a local rank.
    ///
    /// # Errors
    /// Returns an error if the call makes the group fail.
    pub(super) fn watch(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        pending: PendingCall,
    ) -> Result<(), CallFailure> {
        let Some(call_number) = self.assign_number(resources, &pending) else { return Ok(()) };
        let PendingCall { token, request, signature, .. } = pending;
        let rank = request.rank;
        let signature = match signature {
            Ok(signature) => signature,
            Err(refused) => return self.refuse(now, resources, (call_number, rank, token), refused),
        };
        if self.watched_calls.0.contains_key(&(call_number, rank)) {
            self.ranks.on_answered(rank);
            resources
                .done(token, Err(invalid(&request, &format_args!("it waits in call {call_number} already"))));
            return Ok(());
        }
        let watched =
            WatchedRank { token, signature, begun: now, last_report: now, announced: false, overdue: None };
        self.watched_calls.0.insert((call_number, rank), watched);
        self.match_executed_elsewhere(call_number)?;
        let mut context = GroupContext { now, members: &self.members, resources };
        self.failure_detector.watch(&mut context);
        if self.members.nodes.len() > 1 {
            // The rank has completed all earlier calls, so reports on them cannot matter any more.
            self.matching.forget_before(call_number);
            context.set_timer(TimerKey::Call(self.members.id, call_number), Some(now + ANNOUNCE_AFTER));
        }
        self.lost_rank_table.check_call(&self.members, call_number)?;
        self.match_remote(call_number)?;
        if self.matching.is_called(call_number) {
            self.take_over(resources, call_number);
        }
        self.match_watched(call_number, rank)
    }

    /// Compares the reports of other agents with the call in which local ranks wait.
    ///
    /// # Errors
    /// Returns an error if a rank of another node has made a different call. A rank may request a
    /// call from its agent that others execute themselves; that is not a mismatch as long as the
    /// waiting ranks have yet to learn that not all can execute quick calls.
    pub(super) fn match_remote(&self, call_number: u64) -> Result<(), CallFailure> {
        if !self.quick_calls.all_can() {
            return Ok(());
        }
        let Some((rank, watched)) = self.watched_calls.in_call(call_number).next() else { return Ok(()) };
        let (digest, text) = watched.called();
        match self.matching.differing(call_number, digest) {
            Some((other, theirs)) => {
                Err(mismatch(&self.members, call_number, (other, theirs), (rank, &text)))
            }
            None => Ok(()),
        }
    }

    /// Compares the reports of other agents with the calls before `end` that local ranks have
    /// executed themselves.
    ///
    /// # Errors
    /// Returns an error if an agent of another node executes such a call, because that call cannot
    /// complete.
    pub(super) fn match_executed_elsewhere(&self, end: u64) -> Result<(), CallFailure> {
        self.matching.executed_elsewhere(end).try_for_each(|theirs| self.match_executed(theirs))
    }

    /// Compares another agent's report on a rank, with the digest and text of its call, with the
    /// local ranks that have executed the call themselves.
    ///
    /// # Errors
    /// Returns an error as [`Group::match_executed_elsewhere`] does.
    pub(super) fn match_reported(
        &self,
        call: u64,
        (rank, digest, text): (u32, u64, &str),
    ) -> Result<(), CallFailure> {
        if is_by_agent(digest, text) && self.matching.is_surely_not_called(call) {
            self.match_executed((call, rank, text))
        } else {
            Ok(())
        }
    }

    fn match_executed(&self, (call, other, text): (u64, u32, &str)) -> Result<(), CallFailure> {
        // A rank may have requested the call before it waited in a later one, if the call's
        // schedule is not compiled yet.
        match self.ranks.passed(call).find(|rank| !self.call_queue.has_call(call, *rank)) {
            Some(rank) => Err(mismatch(&self.members, call, (other, text), (rank, text))),
            None => Ok(()),
        }
    }

    /// Notifies other nodes of a call in which a rank has waited for long. Does nothing before all
    /// ranks are known to execute quick calls: if they cannot, the rank makes the call again
    /// through its agent.
    fn announce_watched(&mut self, now: Time, resources: &mut EngineResources, call_number: u64) {
        if !self.quick_calls.all_can() {
            return;
        }
        let (group, epoch) = self.members.id_and_epoch();
        let late = self.watched_calls.0.range_mut((call_number, 0)..=(call_number, u32::MAX));
        for ((_, rank), watched) in late.filter(|(_, watched)| !watched.announced) {
            watched.announced = true;
            let (digest, text) = watched.called();
            let notice =
                Notice::RanksArrived { group, epoch, call: call_number, digest, ranks: vec![*rank], text };
            GroupContext { now, members: &self.members, resources }.notify_others(&notice);
        }
    }

    /// Checks that all ranks that wait in a call have made the same call.
    fn match_watched(&self, call_number: u64, rank: u32) -> Result<(), CallFailure> {
        let Some(ours) = self.watched_calls.0.get(&(call_number, rank)) else { return Ok(()) };
        let differing =
            self.watched_calls.in_call(call_number).find(|(_, theirs)| theirs.signature != ours.signature);
        differing.map_or(Ok(()), |(other, theirs)| {
            let texts = (theirs.signature.to_string(), ours.signature.to_string());
            Err(mismatch(&self.members, call_number, (other, &texts.0), (rank, &texts.1)))
        })
    }

    /// Replies to the ranks that wait in a call that the engine now executes, so that they make the
    /// call again. Their calls are compared then.
    pub(super) fn take_over(&mut self, resources: &mut EngineResources, call_number: u64) {
        let waiting: Vec<u32> = self.watched_calls.in_call(call_number).map(|(rank, _)| rank).collect();
        for rank in waiting {
            let stats = CallStats { by_agent: true, ..CallStats::default() };
            self.end_watch(resources, (call_number, rank), stats);
        }
    }

    /// Handles a local rank's report on its watched call.
    ///
    /// # Errors
    /// Returns an error if the report makes the group fail.
    pub(crate) fn on_watch_report(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        (call_number, rank): (u64, u32),
        report: WatchReport,
    ) -> Result<(), CallFailure> {
        // The engine may have replied meanwhile.
        let Some(watched) = self.watched_calls.0.get_mut(&(call_number, rank)) else { return Ok(()) };
        match report {
            WatchReport::StillWaits => {
                watched.last_report = now;
                Ok(())
            }
            WatchReport::Completed => {
                self.end_watch(resources, (call_number, rank), CallStats::default());
                Ok(())
            }
            WatchReport::Overdue { ranks, timeout } => {
                watched.overdue = Some((ranks, timeout));
                self.on_watched_timer(now, resources, call_number)
            }
            WatchReport::Differs { rank: other, text: theirs } => {
                let text = watched.signature.to_string();
                Err(mismatch(&self.members, call_number, (rank, &text), (other, &theirs)))
            }
        }
    }

    /// Handles a rank that has waited until its timeout: once the other agents have reported which
    /// ranks wait there, the call fails.
    ///
    /// # Errors
    /// Returns an error if the call has failed.
    pub(super) fn on_watched_timer(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        call_number: u64,
    ) -> Result<(), CallFailure> {
        self.announce_watched(now, resources, call_number);
        let overdue = self.watched_calls.in_call(call_number).find_map(|(rank, watched)| {
            watched.overdue.clone().map(|overdue| (rank, watched.begun, overdue))
        });
        let Some((rank, begun, (missing, timeout))) = overdue else { return Ok(()) };
        let key = TimerKey::Call(self.members.id, call_number);
        let mut context = GroupContext { now, members: &self.members, resources };
        match self.failure_detector.has_inquired(&mut context, key, begun) {
            true => Err(self.watched_too_long(now, (call_number, rank), missing, timeout)),
            false => Ok(()),
        }
    }

    fn end_watch(
        &mut self,
        resources: &mut EngineResources,
        (call_number, rank): (u64, u32),
        stats: CallStats,
    ) {
        if let Some(token) = self.watched_calls.take(call_number, rank) {
            self.ranks.on_answered(rank);
            resources.done(token, Ok(stats));
        }
    }
}
