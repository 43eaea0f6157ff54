//! Watched calls: the ranks carry them out themselves, in memory that they share on this node or by datagrams, and some have to wait in
//! them. Nothing is moved for them here. All that is known of them is who waits in which, so that these are told if the group fails, if a
//! rank is gone that is to take part, and if others have the same call carried out here: then all do.

use super::Group;
use super::call_matching::mismatch;
use super::call_queue::PendingCall;
use super::running_calls::ANNOUNCE_AFTER;
use crate::api::WatchReport;
use crate::call_signature::{CallSignature, invalid};
use crate::failure::{CallFailure, CallStats};
use crate::shared::{GroupContext, SharedState, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::unicast::Notice;
use cool_types::fnv;
use std::collections::BTreeMap;

/// A rank that has not said for so long that it waits does not: it is stopped. Ranks say so every 200 ms.
const SILENT: Duration = Duration::from_millis(1500);

/// A rank that waits.
#[derive(Debug)]
pub(super) struct WatchedRank {
    token: u64,
    signature: CallSignature,
    begun: Time,
    /// When its rank has said last that it waits.
    last_report: Time,
    /// The other nodes have been told.
    announced: bool,
    /// It has waited for as long as it may: for whom, and for how long.
    overdue: Option<(Vec<u32>, Duration)>,
}

impl WatchedRank {
    /// What it has called, as others are told: nothing that agents carry out has this digest.
    fn called(&self) -> (u64, String) {
        let text = self.signature.to_string();
        (fnv(text.bytes()), text)
    }
}

/// Who waits, by call and rank.
#[derive(Debug, Default)]
pub(super) struct WatchedCalls(BTreeMap<(u64, u32), WatchedRank>);

impl WatchedCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether anybody waits in a call or a later one.
    pub(super) fn has_any_from(&self, call: u64) -> bool {
        self.0.range((call, 0)..).next().is_some()
    }

    /// The ranks that wait in a call.
    pub(super) fn in_call(&self, call: u64) -> impl Iterator<Item = (u32, &WatchedRank)> {
        self.0.range((call, 0)..=(call, u32::MAX)).map(|((_, rank), watched)| (*rank, watched))
    }

    /// What a rank has called that waits.
    pub(super) fn text(&self, call: u64, rank: u32) -> Option<String> {
        self.0.get(&(call, rank)).map(|watched| watched.signature.to_string())
    }

    /// The ranks that have not said for long that they wait, though it is not yet time for what they wait for.
    pub(super) fn silent(&self, now: Time) -> impl Iterator<Item = u32> {
        let silent =
            move |watched: &WatchedRank| watched.overdue.is_none() && watched.last_report + SILENT < now;
        self.0.iter().filter(move |(_, watched)| silent(watched)).map(|((_, rank), _)| *rank)
    }

    /// Since when somebody waits.
    pub(super) fn since(&self) -> Option<Time> {
        self.0.values().map(|watched| watched.begun).min()
    }

    /// A rank waits no more: its token, if it did.
    fn take(&mut self, call: u64, rank: u32) -> Option<u64> {
        self.0.remove(&(call, rank)).map(|watched| watched.token)
    }

    /// Nobody waits any more: tokens and ranks of those who did.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = (u64, u32)> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|((_, rank), watched)| (watched.token, rank))
    }
}

impl Group {
    /// A local rank waits in a call that the ranks carry out themselves.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(super) fn watch(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        pending: PendingCall,
    ) -> Result<(), CallFailure> {
        let Some(call_number) = self.assign_number(shared, &pending) else { return Ok(()) };
        let PendingCall { token, request, signature, .. } = pending;
        let rank = request.rank;
        let signature = match signature {
            Ok(signature) => signature,
            Err(refused) => return self.refuse(now, shared, (call_number, rank, token), refused),
        };
        if self.watched_calls.0.contains_key(&(call_number, rank)) {
            self.ranks.on_answered(rank);
            shared
                .done(token, Err(invalid(&request, &format_args!("it waits in call {call_number} already"))));
            return Ok(());
        }
        let watched =
            WatchedRank { token, signature, begun: now, last_report: now, announced: false, overdue: None };
        self.watched_calls.0.insert((call_number, rank), watched);
        let mut context = GroupContext { now, members: &self.members, shared };
        self.failure_detector.watch(&mut context);
        if self.members.nodes.len() > 1 {
            // What was told of calls before this one, which the rank is through, is of no use any more.
            self.matching.forget_before(call_number);
            context.set_timer(TimerKey::Call(self.members.id, call_number), Some(now + ANNOUNCE_AFTER));
        }
        self.departures.check_call(&self.members, call_number)?;
        self.match_remote(call_number)?;
        if self.matching.is_called(call_number) {
            self.take_over(shared, call_number);
        }
        self.match_watched(call_number, rank)
    }

    /// Whether ranks of other nodes, as far as they have told, have called the same as those who wait here in a call.
    ///
    /// # Errors
    /// If one has not: it may have its agent carry out what others carry out themselves, too. That is no mistake where those who wait have
    /// yet to see that not all can.
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

    /// Tells other nodes of a call in which somebody has waited for long: who has yet to see whether all can will call another way, if not.
    fn announce_watched(&mut self, now: Time, shared: &mut SharedState, call_number: u64) {
        if !self.quick_calls.all_can() {
            return;
        }
        let (group, epoch) = self.members.key();
        let late = self.watched_calls.0.range_mut((call_number, 0)..=(call_number, u32::MAX));
        for ((_, rank), watched) in late.filter(|(_, watched)| !watched.announced) {
            watched.announced = true;
            let (digest, text) = watched.called();
            let notice =
                Notice::RanksArrived { group, epoch, call: call_number, digest, ranks: vec![*rank], text };
            GroupContext { now, members: &self.members, shared }.notify_others(&notice);
        }
    }

    /// Whether all who wait in a call have called the same.
    fn match_watched(&self, call_number: u64, rank: u32) -> Result<(), CallFailure> {
        let Some(ours) = self.watched_calls.0.get(&(call_number, rank)) else { return Ok(()) };
        let differing =
            self.watched_calls.in_call(call_number).find(|(_, theirs)| theirs.signature != ours.signature);
        differing.map_or(Ok(()), |(other, theirs)| {
            let texts = (theirs.signature.to_string(), ours.signature.to_string());
            Err(mismatch(&self.members, call_number, (other, &texts.0), (rank, &texts.1)))
        })
    }

    /// A call is carried out here: who waits in it as a watched one is to call again. Whether it has called the same is seen then.
    pub(super) fn take_over(&mut self, shared: &mut SharedState, call_number: u64) {
        let waiting: Vec<u32> = self.watched_calls.in_call(call_number).map(|(rank, _)| rank).collect();
        for rank in waiting {
            self.end_watch(shared, (call_number, rank), CallStats { by_agent: true, ..CallStats::default() });
        }
    }

    /// A local rank reports what has become of a watched call.
    ///
    /// # Errors
    /// If the group fails by it.
    pub(crate) fn on_watch_report(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        (call_number, rank): (u64, u32),
        report: WatchReport,
    ) -> Result<(), CallFailure> {
        // It may have been answered meanwhile.
        let Some(watched) = self.watched_calls.0.get_mut(&(call_number, rank)) else { return Ok(()) };
        match report {
            WatchReport::StillWaits => {
                watched.last_report = now;
                Ok(())
            }
            WatchReport::Completed => {
                self.end_watch(shared, (call_number, rank), CallStats::default());
                Ok(())
            }
            WatchReport::Overdue { ranks, timeout } => {
                watched.overdue = Some((ranks, timeout));
                self.on_watched_timer(now, shared, call_number)
            }
            WatchReport::Differs { rank: other, text: theirs } => {
                let text = watched.signature.to_string();
                Err(mismatch(&self.members, call_number, (rank, &text), (other, &theirs)))
            }
        }
    }

    /// Looks after a rank that has waited for as long as it may: once others have told who waits there, if they do, it is given up.
    ///
    /// # Errors
    /// If it is.
    pub(super) fn on_watched_timer(
        &mut self,
        now: Time,
        shared: &mut SharedState,
        call_number: u64,
    ) -> Result<(), CallFailure> {
        self.announce_watched(now, shared, call_number);
        let overdue = self.watched_calls.in_call(call_number).find_map(|(rank, watched)| {
            watched.overdue.clone().map(|overdue| (rank, watched.begun, overdue))
        });
        let Some((rank, begun, (missing, timeout))) = overdue else { return Ok(()) };
        let key = TimerKey::Call(self.members.id, call_number);
        let mut context = GroupContext { now, members: &self.members, shared };
        match self.failure_detector.has_inquired(&mut context, key, begun) {
            true => Err(self.watched_too_long(now, (call_number, rank), missing, timeout)),
            false => Ok(()),
        }
    }

    fn end_watch(&mut self, shared: &mut SharedState, (call_number, rank): (u64, u32), stats: CallStats) {
        if let Some(token) = self.watched_calls.take(call_number, rank) {
            self.ranks.on_answered(rank);
            shared.done(token, Ok(stats));
        }
    }
}
