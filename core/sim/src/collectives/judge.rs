//! Decides which results of a call are permitted: the right bytes or, if a rank is lost or at
//! fault, a failure that names it.

use super::scenario::{FailedStep, Fault};
use cool_engine::{CallFailure, CallFailureKind};

/// The failure that the calls of a group may report.
#[derive(Debug)]
pub(super) struct PermittedFailure {
    /// The kind of the first failure that may be reported to each rank.
    pub(super) kind: CallFailureKind,
    /// The ranks that may be named. At least one of them must be.
    pub(super) ranks: Vec<u32>,
}

/// Returns the failures that a group's calls may report, given the group's index and the nodes of
/// its ranks, or none if no call may fail.
pub(super) fn permitted_failure(fault: &Fault, index: usize, places: &[u16]) -> Option<PermittedFailure> {
    let one = |group: usize, kind, rank: u32| {
        (group == index).then(|| PermittedFailure { kind, ranks: vec![rank] })
    };
    match fault {
        Fault::Crash { nodes, .. } | Fault::PowerOff { nodes, .. } => {
            let ranks = (0..).zip(places).filter(|(_, node)| nodes.contains(node)).map(|(rank, _)| rank);
            let ranks: Vec<u32> = ranks.collect();
            (!ranks.is_empty()).then_some(PermittedFailure { kind: CallFailureKind::Lost, ranks })
        }
        Fault::Leave { group, rank, .. } => one(*group, CallFailureKind::Lost, *rank),
        Fault::Absent { group, rank, .. } => one(*group, CallFailureKind::Timeout, *rank),
        Fault::Mismatch { group, rank, .. } => one(*group, CallFailureKind::Mismatch, *rank),
        Fault::Started { group, rank, .. } => one(*group, CallFailureKind::Mismatch, *rank),
        Fault::IncompleteCall { group, rank, .. } => one(*group, CallFailureKind::Revoked, *rank),
        Fault::Revoke { group, rank, .. } => one(*group, CallFailureKind::Revoked, *rank),
        Fault::Step { node, step, .. } => failed_step(*node, *step, places),
        Fault::None | Fault::Senseless { .. } => None,
    }
}

/// Returns the failures that a group's calls may report if a step of a node fails.
fn failed_step(node: u16, step: FailedStep, places: &[u16]) -> Option<PermittedFailure> {
    let mine: Vec<u32> = (0..).zip(places).filter(|(_, at)| **at == node).map(|(rank, _)| rank).collect();
    if mine.is_empty() {
        return None;
    }
    match step {
        FailedStep::Allocation => Some(PermittedFailure { kind: CallFailureKind::Invalid, ranks: mine }),
        // Agents at both ends of a connection report the other one as lost.
        FailedStep::Connect | FailedStep::Write => {
            let ranks = (0..places.len() as u32).collect();
            Some(PermittedFailure { kind: CallFailureKind::Lost, ranks })
        }
        // Agents execute the calls in place of the ranks.
        FailedStep::Probe => None,
    }
}

impl PermittedFailure {
    /// Returns whether a failure is of the permitted kind, or a consequence of one.
    pub(super) fn permits(&self, failure: &CallFailure) -> bool {
        let named = |rank| failure.ranks.contains(rank);
        match (self.kind, failure.kind) {
            (CallFailureKind::Lost, CallFailureKind::Lost | CallFailureKind::Aborted)
            | (CallFailureKind::Invalid, CallFailureKind::Invalid | CallFailureKind::Aborted) => {
                !failure.ranks.is_empty() && failure.ranks.iter().all(|rank| self.ranks.contains(rank))
            }
            // A mismatch must name both sides, because it is unknown which is wrong. A timeout must
            // name all ranks that do not wait; some of these may have completed the call.
            (first, kind) => {
                (kind == first || kind == CallFailureKind::Aborted) && self.ranks.iter().all(named)
            }
        }
    }

    /// Returns whether a mismatch was reported as a timeout. That is how it appears to ranks that
    /// do not detect it, because no other rank joins their call.
    pub(super) fn is_unseen(&self, failure: &CallFailure) -> bool {
        let kinds = [CallFailureKind::Timeout, CallFailureKind::Aborted];
        self.kind == CallFailureKind::Mismatch && kinds.contains(&failure.kind) && !failure.ranks.is_empty()
    }
}
