//! The nodes on which a job may run.

use crate::jobs::allocation::CandidateNode;
use crate::jobs::errors::SubmitError;
use crate::natural_order::natural;
use std::collections::BTreeSet;

/// The nodes on which a job may run. Empty lists permit all.
#[derive(Clone, Copy)]
pub(super) struct NodeFilter<'a> {
    pub(super) nodes: &'a [String],
    pub(super) racks: &'a [u32],
}

impl NodeFilter<'_> {
    /// Returns whether a job may use the node.
    pub(super) fn allows(&self, host: &CandidateNode) -> bool {
        (self.nodes.is_empty() || self.nodes.contains(&host.name))
            && (self.racks.is_empty() || self.racks.contains(&host.rack))
    }

    /// Checks that all named nodes and racks are ready.
    pub(super) fn check(&self, ready: &[CandidateNode], drained: &[String]) -> Result<(), SubmitError> {
        let (names, racks): (BTreeSet<_>, BTreeSet<_>) =
            ready.iter().map(|host| (host.name.as_str(), host.rack)).unzip();
        let unknown = self.nodes.iter().filter(|host| !names.contains(host.as_str()));
        let state = |host: &String| if drained.contains(host) { " (drained)" } else { "" };
        let unknown: Vec<_> = unknown.map(|host| format!("{host}{}", state(host))).collect();
        if !unknown.is_empty() {
            let mut ready: Vec<String> = names.into_iter().map(str::to_owned).collect();
            ready.sort_by(|a, b| natural(a, b));
            return Err(SubmitError::Hosts { unknown, ready });
        }
        let empty: Vec<u32> = self.racks.iter().filter(|rack| !racks.contains(rack)).copied().collect();
        if empty.is_empty() { Ok(()) } else { Err(SubmitError::Racks(empty)) }
    }
}
