//! Whether all ranks make the same calls, have come at all, and are still there; and what to say when
//! not. Agents tell each other what their ranks called only when something seems wrong: a digest that
//! differs, or a call that takes long.

use super::{Call, Group, departures};
use crate::call_signature::fnv;
use crate::failure::{Failure, FailureKind};
use crate::peers::NodeId;
use crate::shared::{Context, Shared, TimerKey};
use cool_machine::{Duration, Time};
use cool_transport::unicast::Notice;
use std::collections::{BTreeMap, BTreeSet};

/// After this time, or half its timeout, a call tells the other agents that it has begun here.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(1);

/// Calls that are over whose texts are remembered: other ranks may still be in them.
const PAST_MAX: usize = 64;

/// The most entries about ranks of other nodes that came to calls.
const CAME_MAX: usize = 16 * 1024;

/// What the ranks of this node called.
#[derive(Debug)]
struct Called {
    digest: u64,
    /// The call as text.
    text: String,
    /// The first to call.
    rank: u32,
}

#[derive(Debug, Default)]
pub(super) struct CallMatching {
    /// By call. Of calls that are over, the last few.
    called: BTreeMap<u64, Called>,
    /// Calls to which ranks of other nodes have come: the digest, and the text if it was told.
    came: BTreeMap<(u64, u32), (u64, Option<String>)>,
    /// Whom we have told, by call and node, that its digest differs.
    asked: BTreeSet<(u64, usize)>,
}

impl CallMatching {
    pub(super) fn forget(&mut self, call: u64) {
        self.came.retain(|(number, _), _| *number != call);
        while self.called.len() > PAST_MAX && self.called.first_key_value().is_some_and(|(n, _)| *n < call) {
            self.called.pop_first();
        }
        if let Some((oldest, _)) = self.called.first_key_value() {
            self.asked = self.asked.split_off(&(*oldest, 0));
        }
    }
}

impl Group {
    /// A local rank is about to take part in a call: as the other local ranks do, and with ranks that are
    /// still there?
    pub(super) fn match_locally(
        &mut self,
        call: u64,
        rank: u32,
        text: &str,
        digest: u64,
    ) -> Result<(), Failure> {
        self.departures.check_call(&self.members, call)?;
        let called = self.matching.called.entry(call);
        let called = called.or_insert_with(|| Called { digest, text: text.to_owned(), rank });
        if called.digest == digest {
            return Ok(());
        }
        let (other, theirs) = (called.rank, called.text.clone());
        Err(self.mismatch(call, (other, &theirs), (rank, text)))
    }

    /// A local rank was refused a call, which ranks that call something else do not know yet: they are told.
    ///
    /// # Errors
    /// If others are known to have called something else.
    pub(super) fn match_refused(
        &mut self,
        now: Time,
        shared: &mut Shared,
        call: u64,
        rank: u32,
        refused: &Failure,
    ) -> Result<(), Failure> {
        // The reason without who was refused, which it begins with: the same for all who are refused alike.
        let message = &refused.message;
        let reason = message.split_once(" cannot call ").map_or(message.as_str(), |(_, reason)| reason);
        let text = format!("something that makes no sense ({reason})");
        self.match_locally(call, rank, &text, fnv(text.bytes()))?;
        self.match_with_others(now, shared, call, rank)?;
        self.announce(now, shared, call);
        Ok(())
    }

    /// The same with what other nodes have sent so far.
    pub(super) fn match_with_others(
        &mut self,
        now: Time,
        shared: &mut Shared,
        call: u64,
        rank: u32,
    ) -> Result<(), Failure> {
        let Some(called) = self.matching.called.get(&call) else { return Ok(()) };
        let digest = called.digest;
        let ours = called.text.clone();
        let of_call = self.matching.came.range((call, 0)..=(call, u32::MAX));
        let told = of_call.filter(|(_, (theirs, _))| *theirs != digest);
        for ((_, other), (_, text)) in told {
            if let Some(text) = text {
                return Err(self.mismatch(call, (*other, text), (rank, &ours)));
            }
        }
        let by_packet = self.buffered.digests(call).into_iter().map(|(node, d)| (usize::from(node), d));
        let by_message = self.messages.came(call).into_iter();
        let by_message = by_message.filter_map(|(rank, d)| Some((self.members.node_of(rank)?, d)));
        let differing: BTreeSet<usize> = by_packet
            .chain(by_message)
            .filter(|(_, theirs)| *theirs != digest)
            .map(|(node, _)| node)
            .collect();
        for node in differing {
            self.tell_call(now, shared, call, node);
        }
        if self.calls.get(&call).is_some_and(|c| c.announced) {
            self.announce(now, shared, call);
        }
        Ok(())
    }

    /// Whether a message's digest is another than that of the call here.
    pub(super) fn differs(&self, call: u64, digest: u64) -> bool {
        self.matching.called.get(&call).is_some_and(|called| called.digest != digest)
    }

    /// A message from a rank shows that it has come to a call.
    pub(super) fn heard_of(&mut self, call: u64, rank: u32, digest: u64) {
        if call >= self.oldest_open() && self.matching.came.len() < CAME_MAX {
            self.matching.came.entry((call, rank)).or_insert((digest, None));
        }
    }

    /// A node's digest of a call differs: tells it what was called here, so that it can say who differs.
    pub(super) fn tell_call(&mut self, now: Time, shared: &mut Shared, call: u64, node: usize) {
        if !self.matching.asked.insert((call, node)) {
            return;
        }
        if let Some(notice) = self.what_we_called(call).filter(|_| node < self.members.nodes.len()) {
            Context { now, members: &self.members, shared }.notify(node, notice);
        }
    }

    fn announce(&mut self, now: Time, shared: &mut Shared, call: u64) {
        if let Some(notice) = self.what_we_called(call) {
            Context { now, members: &self.members, shared }.notify_others(&notice);
        }
    }

    fn what_we_called(&self, call: u64) -> Option<Notice> {
        let called = self.matching.called.get(&call)?;
        let (group, epoch) = self.key();
        let came = self.ranks.iter().filter(|(_, local)| local.calls > call);
        let ranks = came.map(|(rank, _)| *rank).collect();
        Some(Notice::Came { group, epoch, call, digest: called.digest, ranks, text: called.text.clone() })
    }

    /// Another agent tells something about the group.
    pub(crate) fn notice(
        &mut self,
        now: Time,
        shared: &mut Shared,
        peer: NodeId,
        notice: Notice,
    ) -> Result<(), Failure> {
        let Some(node) = self.members.place_of(peer) else { return Ok(()) };
        let is_theirs = |rank: u32| self.members.node_of(rank) == Some(node);
        match notice {
            // Told by the engine, which knows that the others need not be told again.
            Notice::Abort { .. } => Ok(()),
            Notice::Came { call, digest, ranks, text, .. } => {
                let ranks: Vec<u32> = ranks.into_iter().filter(|rank| is_theirs(*rank)).collect();
                let Some(first) = ranks.first() else { return Ok(()) };
                if self.differs(call, digest) {
                    let called = &self.matching.called[&call];
                    return Err(self.mismatch(call, (called.rank, &called.text), (*first, &text)));
                }
                for rank in ranks {
                    self.heard_of(call, rank, digest);
                    if let Some(entry) = self.matching.came.get_mut(&(call, rank)) {
                        *entry = (digest, Some(text.clone()));
                    }
                }
                Ok(())
            }
            Notice::Gone { call, rank, text, .. } if is_theirs(rank) => self.rank_gone(rank, call, text),
            Notice::Gone { .. } => Ok(()),
            Notice::WhoWaits { .. } => {
                let ((group, epoch), (ranks, messages)) = (self.key(), self.who_waits());
                let notice = Notice::Waits { group, epoch, ranks, messages };
                shared.peers.notify(now, peer, notice);
                Ok(())
            }
            Notice::Waits { ranks, messages, .. } => {
                let mut context = Context { now, members: &self.members, shared };
                self.failure_detector.told(&mut context, node, &(ranks, messages));
                Ok(())
            }
        }
    }

    /// A local rank is gone.
    pub(crate) fn lose_rank(
        &mut self,
        now: Time,
        shared: &mut Shared,
        rank: u32,
        why: String,
    ) -> Result<(), Failure> {
        let Some(local) = self.ranks.get_mut(&rank).filter(|local| !local.gone) else { return Ok(()) };
        local.gone = true;
        let (calls, open) = (local.calls, local.open_calls + self.point_to_point.open_of(rank));
        if self.failed.is_some() {
            return Ok(());
        }
        if open > 0 {
            return Err(departures::failure(&self.members, rank, &why));
        }
        let ((group, epoch), text) = (self.key(), why.clone());
        let notice = Notice::Gone { group, epoch, call: calls, rank, text };
        Context { now, members: &self.members, shared }.notify_others(&notice);
        self.rank_gone(rank, calls, why)?;
        let over: Vec<u64> = self.calls.iter().filter(|(_, c)| c.runs.is_empty()).map(|(n, _)| *n).collect();
        over.into_iter().for_each(|number| self.retire(shared, number));
        Ok(())
    }

    fn rank_gone(&mut self, rank: u32, calls: u64, why: String) -> Result<(), Failure> {
        let waiting = self.calls.iter().any(|(number, call)| *number >= calls && !call.runs.is_empty());
        let gone = self.departures.add(&self.members, rank, calls, why);
        let alone = self.departures.check_any_left(&self.members).is_err();
        if waiting || self.point_to_point.needs(rank, alone) { Err(gone) } else { Ok(()) }
    }

    /// Sets the next time to look after a call.
    pub(super) fn arm(&self, now: Time, shared: &mut Shared, number: u64) {
        let Some(call) = self.calls.get(&number) else { return };
        let at = if call.announced { call.deadline() } else { call.announce_at().min(call.deadline()) };
        shared.timers.set(TimerKey::Call(self.members.id, number), Some(at.max(now)));
    }

    /// It is time to look after a call: to tell others that it runs, or to give it up.
    pub(crate) fn call_due(&mut self, now: Time, shared: &mut Shared, number: u64) -> Result<(), Failure> {
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        if call.runs.is_empty() {
            // The ranks of this node that have come are through. Those to come set the timer again.
            return Ok(());
        }
        if call.works > 0 {
            // What is being worked on moves.
            call.progress = now;
        }
        if call.deadline() <= now {
            let (key, moved) = (TimerKey::Call(self.members.id, number), call.progress);
            let mut context = Context { now, members: &self.members, shared };
            let known = self.failure_detector.inquired(&mut context, key, moved);
            return if known { Err(self.timed_out(number)) } else { Ok(()) };
        }
        if !call.announced && call.announce_at() <= now {
            call.announced = true;
            self.announce(now, shared, number);
        }
        self.arm(now, shared, number);
        Ok(())
    }

    fn timed_out(&self, number: u64) -> Failure {
        let call = &self.calls[&number];
        let came = |rank: &u32| {
            self.ranks.get(rank).is_some_and(|local| local.calls > number)
                || self.matching.came.contains_key(&(number, *rank))
        };
        let missing: Vec<u32> = self.members.layout.ranks().map(|r| r.0).filter(|rank| !came(rank)).collect();
        let (ranks, reason) = if missing.is_empty() {
            let awaited = self.awaited(number);
            let text = format!("all ranks came; data is missing from {}", self.members.name(&awaited));
            (awaited, text)
        } else {
            match self.suspects(&missing) {
                none if none.is_empty() => {
                    let text =
                        format!("{} did not make this call, and wait in others", self.members.name(&missing));
                    (missing, text)
                }
                suspects => {
                    let text = format!(
                        "{} did not make this call, or cannot be reached",
                        self.members.name(&suspects)
                    );
                    (suspects, text)
                }
            }
        };
        let text = format!(
            "{} (call {number} of group {}) made no progress for {:?} at {}: {reason}; \
             look after them, or give the call more time",
            call.signature,
            self.members.id,
            call.timeout,
            self.members.name(&call.runs.keys().copied().collect::<Vec<_>>()),
        );
        Failure::new(FailureKind::Timeout, text, ranks)
    }

    /// The ranks from which a call here waits for data.
    fn awaited(&self, number: u64) -> Vec<u32> {
        let receives = self.messages.receives.keys().filter(|m| m.call == number).map(|m| m.from);
        let streams = self.streams.iter().filter(|(id, s)| id.call == number && s.is_receiver());
        let sources = streams.flat_map(|(id, _)| self.members.layout.ranks_of_node(id.source.into()));
        receives.chain(sources.map(|r| r.0)).collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// The failure of a group that a rank has revoked.
    pub(crate) fn revoked(&self, rank: u32) -> Failure {
        let text = format!(
            "{} has revoked group {}; go on with agree and shrink",
            self.members.name(&[rank]),
            self.members.id
        );
        Failure::new(FailureKind::Revoked, text, vec![rank])
    }

    fn mismatch(&self, call: u64, (a, a_called): (u32, &str), (b, b_called): (u32, &str)) -> Failure {
        let text = format!(
            "rank {a} called {a_called}, but rank {b} called {b_called} (call {call} of group {}); all ranks must \
             make the same calls in the same order",
            self.members.id
        );
        Failure::new(FailureKind::Mismatch, text, vec![a, b])
    }
}

impl Call {
    fn announce_at(&self) -> Time {
        self.begun + ANNOUNCE_AFTER.min(self.timeout / 2)
    }

    fn deadline(&self) -> Time {
        self.progress + self.timeout
    }
}
