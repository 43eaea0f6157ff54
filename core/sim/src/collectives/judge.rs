//! What may be answered to a call: bytes that are right, or, where somebody is gone or has erred, a failure that says who.

use super::scenario::Fault;
use cool_engine::{CallFailure, CallFailureKind};

/// What is known of a group when one of its calls fails.
#[derive(Debug)]
pub(super) struct Blame {
    /// The kind of the first failure that each rank may be told.
    pub(super) kind: CallFailureKind,
    /// The ranks that may be named, at least one of which must be.
    pub(super) ranks: Vec<u32>,
}

/// Whom failures of a group, by its place among the groups and the nodes of its ranks, may name; nobody if it may not fail.
pub(super) fn blame(fault: &Fault, index: usize, places: &[u16]) -> Option<Blame> {
    let one = |group: usize, kind, rank: u32| (group == index).then(|| Blame { kind, ranks: vec![rank] });
    match fault {
        Fault::Crash { nodes, .. } | Fault::PowerOff { nodes, .. } => {
            let ranks = (0..).zip(places).filter(|(_, node)| nodes.contains(node)).map(|(rank, _)| rank);
            let ranks: Vec<u32> = ranks.collect();
            (!ranks.is_empty()).then_some(Blame { kind: CallFailureKind::Lost, ranks })
        }
        Fault::Leave { group, rank, .. } => one(*group, CallFailureKind::Lost, *rank),
        Fault::Absent { group, rank, .. } => one(*group, CallFailureKind::Timeout, *rank),
        Fault::Mismatch { group, rank, .. } => one(*group, CallFailureKind::Mismatch, *rank),
        Fault::Revoke { group, rank, .. } => one(*group, CallFailureKind::Revoked, *rank),
        Fault::None | Fault::Senseless { .. } => None,
    }
}

impl Blame {
    /// Whether a failure is one of this group's, of the first kind or of what follows.
    pub(super) fn permits(&self, failure: &CallFailure) -> bool {
        let named = |rank| failure.ranks.contains(rank);
        match (self.kind, failure.kind) {
            (CallFailureKind::Lost, CallFailureKind::Lost | CallFailureKind::Aborted) => {
                !failure.ranks.is_empty() && failure.ranks.iter().all(|rank| self.ranks.contains(rank))
            }
            // Of a mismatch both sides are named, and which of them is wrong nobody knows; of those that do not come, all
            // that do not wait: some may be through.
            (first, kind) => {
                (kind == first || kind == CallFailureKind::Aborted) && self.ranks.iter().all(named)
            }
        }
    }

    /// Whether a failure is that of a call that somebody else has called otherwise, as it looks where that is not seen: nobody else comes.
    pub(super) fn is_unseen(&self, failure: &CallFailure) -> bool {
        let kinds = [CallFailureKind::Timeout, CallFailureKind::Aborted];
        self.kind == CallFailureKind::Mismatch && kinds.contains(&failure.kind) && !failure.ranks.is_empty()
    }
}
