//! Whether all ranks make the same calls. Agents tell each other what their ranks called only when something seems
//! wrong: a digest that differs, or a call that takes long.

use crate::failure::{CallFailure, CallFailureKind};
use crate::members::Members;
use crate::shared::GroupContext;
use cool_transport::unicast::Notice;
use cool_types::fnv;
use std::collections::{BTreeMap, BTreeSet};

/// Calls that are over whose texts are remembered: other ranks may still be in them.
const PAST_MAX: usize = 64;

/// The most entries about ranks of other nodes that came to calls.
const REMOTE_CALLS_MAX: usize = 16 * 1024;

/// What the ranks of this node called.
#[derive(Debug)]
struct LocalCall {
    digest: u64,
    /// The call as text.
    text: String,
    /// The first to call.
    rank: u32,
}

/// What the ranks of another node called, as their agent tells it.
#[derive(Debug)]
pub(super) struct RemoteCall {
    pub(super) digest: u64,
    pub(super) ranks: Vec<u32>,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct CallMatching {
    /// By call. Of calls that are over, the last few.
    called: BTreeMap<u64, LocalCall>,
    /// Calls to which ranks of other nodes have come: the digest, and the text if it was reported.
    remote: BTreeMap<(u64, u32), (u64, Option<String>)>,
    /// Whom we have told, by call and node, that its digest differs.
    notified: BTreeSet<(u64, usize)>,
}

impl CallMatching {
    /// A local rank is about to take part in a call.
    ///
    /// # Errors
    /// If another local rank called something else.
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

    /// Whether a local rank has taken part in a call, or was refused it.
    pub(super) fn is_called(&self, call: u64) -> bool {
        self.called.contains_key(&call)
    }

    /// As [`CallMatching::call`], of a call that was refused, which ranks that call something else do not know yet.
    ///
    /// # Errors
    /// If another local rank called something else.
    pub(super) fn refuse(
        &mut self,
        members: &Members,
        (call, rank): (u64, u32),
        refused: &CallFailure,
    ) -> Result<(), CallFailure> {
        // The reason without who was refused, which it begins with: the same for all who are refused alike.
        let message = &refused.message;
        let reason = message.split_once(" cannot call ").map_or(message.as_str(), |(_, reason)| reason);
        let text = format!("something that makes no sense ({reason})");
        self.compare_local(members, (call, rank), &text, fnv(text.bytes()))
    }

    /// Whether a local rank called as others did, as far as they have told; the nodes whose digests are others, of those
    /// that have `arrived`, with the places of their nodes.
    ///
    /// # Errors
    /// If others are known to have called something else.
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

    /// Whether a digest is another than that of the call here.
    pub(super) fn differs(&self, call: u64, digest: u64) -> bool {
        self.called.get(&call).is_some_and(|called| called.digest != digest)
    }

    /// A rank of another node that has told that it called something else, and what.
    pub(super) fn differing(&self, call: u64, digest: u64) -> Option<(u32, &str)> {
        let mut reported = self.remote.range((call, 0)..=(call, u32::MAX));
        reported.find_map(|((_, rank), (theirs, text))| {
            Some((*rank, text.as_deref()?)).filter(|_| *theirs != digest)
        })
    }

    /// A message from a rank shows that it has come to a call.
    pub(super) fn record_arrival(&mut self, call: u64, rank: u32, digest: u64) {
        if self.remote.len() < REMOTE_CALLS_MAX {
            self.remote.entry((call, rank)).or_insert((digest, None));
        }
    }

    /// Whether a rank of another node is known to have come to a call.
    pub(super) fn has_joined(&self, call: u64, rank: u32) -> bool {
        self.remote.contains_key(&(call, rank))
    }

    /// Another agent tells what its ranks called. Of calls that are over here it is compared and forgotten.
    ///
    /// # Errors
    /// If ranks here called something else.
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

    /// A node's digest of a call differs: tells it, once, what was called here and by whom, so that it can say who differs.
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

    /// Tells all other nodes.
    pub(super) fn announce(&self, context: &mut GroupContext<'_>, call: u64, joined: Vec<u32>) {
        if let Some(notice) = self.notice(context.members, call, joined) {
            context.notify_others(&notice);
        }
    }

    fn notice(&self, members: &Members, call: u64, ranks: Vec<u32>) -> Option<Notice> {
        let called = self.called.get(&call)?;
        let (group, epoch) = members.key();
        Some(Notice::RanksArrived {
            group,
            epoch,
            call,
            digest: called.digest,
            ranks,
            text: called.text.clone(),
        })
    }

    /// Nothing comes any more of what others have told of calls before this one.
    pub(super) fn forget_before(&mut self, call: u64) {
        self.remote = self.remote.split_off(&(call, 0));
    }

    /// A call is over.
    pub(super) fn forget(&mut self, call: u64) {
        self.remote.retain(|(number, _), _| *number != call);
        while self.called.len() > PAST_MAX && self.called.first_key_value().is_some_and(|(n, _)| *n < call) {
            self.called.pop_first();
        }
        if let Some((oldest, _)) = self.called.first_key_value() {
            self.notified = self.notified.split_off(&(*oldest, 0));
        }
    }
}

/// The failure of two ranks that called different things.
pub(super) fn mismatch(
    members: &Members,
    call: u64,
    (a, a_called): (u32, &str),
    (b, b_called): (u32, &str),
) -> CallFailure {
    let text = format!(
        "rank {a} called {a_called}, but rank {b} called {b_called} (call {call} of group {}); all ranks must \
         make the same calls in the same order",
        members.id
    );
    CallFailure::new(CallFailureKind::Mismatch, text, vec![a, b])
}
