//! What may be answered to a call: bytes that are right, or, where somebody is gone or has erred, a failure that says who.

use super::scenario::Fault;
use cool_engine::{Failure, FailureKind};

/// What is known of a group when one of its calls fails.
#[derive(Debug)]
pub(super) struct Blame {
    /// The kind of the first failure that each rank may be told.
    pub(super) kind: FailureKind,
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
            (!ranks.is_empty()).then_some(Blame { kind: FailureKind::Lost, ranks })
        }
        Fault::Leave { group, rank, .. } => one(*group, FailureKind::Lost, *rank),
        Fault::Absent { group, rank, .. } => one(*group, FailureKind::Timeout, *rank),
        Fault::Mismatch { group, rank, .. } => one(*group, FailureKind::Mismatch, *rank),
        Fault::Revoke { group, rank, .. } => one(*group, FailureKind::Revoked, *rank),
        Fault::None | Fault::Senseless { .. } => None,
    }
}

impl Blame {
    /// Whether a failure is one of this group's, of the first kind or of what follows.
    pub(super) fn permits(&self, failure: &Failure) -> bool {
        let named = |rank| failure.ranks.contains(rank);
        match (self.kind, failure.kind) {
            (FailureKind::Lost, FailureKind::Lost | FailureKind::Aborted) => {
                !failure.ranks.is_empty() && failure.ranks.iter().all(|rank| self.ranks.contains(rank))
            }
            // Of a mismatch both sides are named, and which of them is wrong nobody knows; of those that do not come, all
            // that do not wait: some may be through.
            (first, kind) => (kind == first || kind == FailureKind::Aborted) && self.ranks.iter().all(named),
        }
    }

    /// Whether a failure is that of a call that somebody else has called otherwise, as it looks where that is not seen: nobody else comes.
    pub(super) fn is_unseen(&self, failure: &Failure) -> bool {
        let kinds = [FailureKind::Timeout, FailureKind::Aborted];
        self.kind == FailureKind::Mismatch && kinds.contains(&failure.kind) && !failure.ranks.is_empty()
    }
}
