//! Checks that all ranks make the same calls. Agents exchange the calls of their ranks only if
//! something seems wrong: if a digest differs, or if a call takes long.

use crate::engine_resources::GroupContext;
use crate::failure::{CallFailure, CallFailureKind};
use crate::members::Members;
use cool_transport::unicast::Notice;
use cool_types::fnv;
use std::collections::{BTreeMap, BTreeSet};

/// Number of completed calls of which the texts are kept, because other ranks may still be in them.
const PAST_MAX: usize = 64;

/// Maximum number of entries about ranks of other nodes.
const REMOTE_CALLS_MAX: usize = 16 * 1024;

/// The call of this node's ranks.
#[derive(Debug)]
struct LocalCall {
    digest: u64,
    /// The call, as text.
    text: String,
    /// The first local rank that made the call.
    rank: u32,
}

/// The call of another node's ranks, as their agent reported it.
#[derive(Debug)]
pub(super) struct RemoteCall {
    pub(super) digest: u64,
    pub(super) ranks: Vec<u32>,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct CallMatching {
    /// The local calls by number, including the last few completed ones.
    called: BTreeMap<u64, LocalCall>,
    /// The records of all local calls from this number on have been kept.
    kept_from: u64,
    /// The calls that ranks of other nodes have joined: the digest, and the text if it was
    /// reported.
    remote: BTreeMap<(u64, u32), (u64, Option<String>)>,
    /// The nodes that have been notified of a mismatch, by call.
    notified: BTreeSet<(u64, usize)>,
}

impl CallMatching {
    /// Compares the call that a local rank is about to join with those of other local ranks.
    ///
    /// # Errors
    /// Returns an error if another local rank made a different call.
    pub(super) fn compare_local(
        &mut self,
        members: &Members,
        (call, rank): (u64, u32),
        text: &str,
        digest: u64,
    ) -> Result<(), CallFailure> {
        let new = || LocalCall { digest, text: text.to_owned(), rank };
        let called = self.called.entry(call).or_insert_with(new);
        if called.digest == digest {
            return Ok(());
        }
        Err(mismatch(members, call, (called.rank, &called.text), (rank, text)))
    }

    /// Returns whether a local rank has made a call, including a call that was refused.
    pub(super) fn is_called(&self, call: u64) -> bool {
        self.called.contains_key(&call)
    }

    /// Compares a refused call like [`CallMatching::compare_local`], for ranks that may make a
    /// different call later.
    ///
    /// # Errors
    /// Returns an error if another local rank made a different call.
    pub(super) fn refuse(
        &mut self,
        members: &Members,
        (call, rank): (u64, u32),
        refused: &CallFailure,
    ) -> Result<(), CallFailure> {
        // The message begins with the refused rank. The reason after it is the same for all ranks
        // that are refused alike.
        let message = &refused.message;
        let reason = message.split_once(" cannot call ").map_or(message.as_str(), |(_, reason)| reason);
        let text = format!("an invalid call ({reason})");
        self.compare_local(members, (call, rank), &text, fnv(text.bytes()))
    }

    /// Compares a local rank's call with the reports of other agents and with `arrived`: nodes from
    /// which data of the call has arrived, with the digests in it. Returns the nodes in `arrived`
    /// with another digest.
    ///
    /// # Errors
    /// Returns an error if another rank is known to have made a different call.
    pub(super) fn compare(
        &self,
        members: &Members,
        (call, rank): (u64, u32),
        arrived: impl Iterator<Item = (usize, u64)>,
    ) -> Result<BTreeSet<usize>, CallFailure> {
        let Some(LocalCall { digest, text: ours, .. }) = self.called.get(&call) else {
            return Ok(BTreeSet::new());
        };
        let of_call = self.remote.range((call, 0)..=(call, u32::MAX));
        let mut reported = of_call.filter(|(_, (theirs, _))| theirs != digest);
        let differing = reported.find_map(|((_, other), (_, text))| Some((*other, text.as_ref()?)));
        match differing {
            Some((other, text)) => Err(mismatch(members, call, (other, text), (rank, ours))),
            None => Ok(arrived.filter(|(_, theirs)| theirs != digest).map(|(node, _)| node).collect()),
        }
    }

    /// Returns whether no local rank has requested a call from its agent. This is certain only for
    /// calls whose record cannot have been dropped; `false` is returned for others.
    pub(super) fn is_surely_not_called(&self, call: u64) -> bool {
        call >= self.kept_from && !self.called.contains_key(&call)
    }

    /// Returns the calls before `end` that the agents of other nodes have reported to execute and
    /// that no local rank has requested from its agent, with the rank and text of each.
    pub(super) fn executed_elsewhere(&self, end: u64) -> impl Iterator<Item = (u64, u32, &str)> {
        let reported = self.remote.range(..(end, 0)).filter_map(|((call, rank), (digest, text))| {
            let text = text.as_deref().filter(|text| is_by_agent(*digest, text))?;
            Some((*call, *rank, text))
        });
        reported.filter(|(call, ..)| self.is_surely_not_called(*call))
    }

    /// Returns whether a digest differs from that of the local call.
    pub(super) fn differs(&self, call: u64, digest: u64) -> bool {
        self.called.get(&call).is_some_and(|called| called.digest != digest)
    }

    /// Returns a rank of another node that has reported a different call, with the text of that
    /// call.
    pub(super) fn differing(&self, call: u64, digest: u64) -> Option<(u32, &str)> {
        let mut reported = self.remote.range((call, 0)..=(call, u32::MAX));
        reported.find_map(|((_, rank), (theirs, text))| {
            Some((*rank, text.as_deref()?)).filter(|_| *theirs != digest)
        })
    }

    /// Records that a rank has joined a call, because a message from it has arrived.
    pub(super) fn record_arrival(&mut self, call: u64, rank: u32, digest: u64) {
        if self.remote.len() < REMOTE_CALLS_MAX {
            self.remote.entry((call, rank)).or_insert((digest, None));
        }
    }

    /// Returns whether a rank of another node is known to have joined a call.
    pub(super) fn has_joined(&self, call: u64, rank: u32) -> bool {
        self.remote.contains_key(&(call, rank))
    }

    /// Handles another agent's report on its ranks' call. If the call has ended here, the report is
    /// compared but not kept.
    ///
    /// # Errors
    /// Returns an error if local ranks made a different call.
    pub(super) fn on_remote_call(
        &mut self,
        members: &Members,
        call: u64,
        there: RemoteCall,
        is_over: bool,
    ) -> Result<(), CallFailure> {
        let RemoteCall { digest, ranks, text } = there;
        let Some(first) = ranks.first() else { return Ok(()) };
        if let Some(called) = self.called.get(&call).filter(|called| called.digest != digest) {
            return Err(mismatch(members, call, (called.rank, &called.text), (*first, &text)));
        }
        for rank in ranks {
            if !is_over {
                self.record_arrival(call, rank, digest);
            }
            if let Some(entry) = self.remote.get_mut(&(call, rank)) {
                *entry = (digest, Some(text.clone()));
            }
        }
        Ok(())
    }

    /// Notifies a node, once per call, of the call that was made here and by which ranks, so that
    /// its agent can report the mismatch.
    pub(super) fn notify_node(
        &mut self,
        context: &mut GroupContext<'_>,
        call: u64,
        joined: Vec<u32>,
        node: usize,
    ) {
        if !self.notified.insert((call, node)) {
            return;
        }
        if let Some(notice) = self.notice(context.members, call, joined) {
            context.notify(node, notice);
        }
    }

    /// Notifies all other nodes.
    pub(super) fn announce(&self, context: &mut GroupContext<'_>, call: u64, joined: Vec<u32>) {
        if let Some(notice) = self.notice(context.members, call, joined) {
            context.notify_others(&notice);
        }
    }

    fn notice(&self, members: &Members, call: u64, ranks: Vec<u32>) -> Option<Notice> {
        let called = self.called.get(&call)?;
        let (group, epoch) = members.id_and_epoch();
        Some(Notice::RanksArrived {
            group,
            epoch,
            call,
            digest: called.digest,
            ranks,
            text: called.text.clone(),
        })
    }

    /// Drops the reports on all earlier calls, because they can no longer matter.
    pub(super) fn forget_before(&mut self, call: u64) {
        self.remote = self.remote.split_off(&(call, 0));
    }

    /// Drops the reports on a call that has ended.
    pub(super) fn forget(&mut self, call: u64) {
        self.remote.retain(|(number, _), _| *number != call);
        while self.called.len() > PAST_MAX && self.called.first_key_value().is_some_and(|(n, _)| *n < call) {
            self.kept_from = self.called.pop_first().map_or(self.kept_from, |(dropped, _)| dropped + 1);
        }
        if let Some((oldest, _)) = self.called.first_key_value() {
            self.notified = self.notified.split_off(&(*oldest, 0));
        }
    }
}

/// Returns whether an agent executes the call that it has reported. If the ranks execute a call,
/// its digest is that of its text.
pub(super) fn is_by_agent(digest: u64, text: &str) -> bool {
    digest != fnv(text.bytes())
}

/// Returns the failure of two ranks that made different calls, or the same call in different ways:
/// one waits in it and executes it with others, and the other has started it, so that its agent
/// executes it.
pub(super) fn mismatch(
    members: &Members,
    call: u64,
    (a, a_called): (u32, &str),
    (b, b_called): (u32, &str),
) -> CallFailure {
    if a_called == b_called {
        let text = format!(
            "ranks {a} and {b} called {a_called} (call {call} of group {}), but one of them waits in it and the \
             other has started it; ranks on several nodes must all wait in a short call, or all start it",
            members.id
        );
        return CallFailure::new(CallFailureKind::Mismatch, text, vec![a, b]);
    }
    let text = format!(
        "rank {a} called {a_called}, but rank {b} called {b_called} (call {call} of group {}); all ranks must \
         make the same calls in the same order",
        members.id
    );
    CallFailure::new(CallFailureKind::Mismatch, text, vec![a, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_whose_record_was_dropped_may_have_been_made() {
        let mut matching = CallMatching::default();
        let last = PAST_MAX as u64 + 1;
        for call in 0..=last {
            matching.called.insert(call, LocalCall { digest: 1, text: String::new(), rank: 0 });
        }
        matching.forget(last);
        assert_eq!(matching.called.len(), PAST_MAX);
        assert_eq!(
            [0, 1, 2, last, last + 1].map(|call| matching.is_surely_not_called(call)),
            [false, false, false, false, true]
        );
    }
}
