//! Proofs that multicasts reach all nodes of a group, for networks without OpenFlow switches.
//!
//! Once all nodes have made the group, each multicasts probes over its trees, and reports those of
//! others that do not arrive. A tree with a missing probe is withdrawn from all nodes. The group is
//! ready only then, so that no rank makes a call before all nodes know which trees they use.

use super::failed_paths::FailedPaths;
use super::member_place::{MemberPlace, by_node};
use crate::agents::Session;
use cool_daemon::clock::Clock;
use cool_fabric::TreeGrant;
use cool_proto::control::{ProveTrees, TreesProbed, TreesProven, controller_message::Body};
use cool_types::name_list;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tracing::warn;

/// Number of the only proof of a group.
const PROOF_NUMBER: u64 = 1;

/// Maximum time until probes must have arrived. It is longer than a second, within which a host
/// repeats a lost membership report (RFC 3376, 8.11).
const PROOF_TIME_MS: u32 = 2500;

/// The maximum time if no probe at all has arrived in the latest proof, so that a network without
/// multicast delays further groups less.
const REPEATED_PROOF_TIME_MS: u32 = 400;

/// The proofs in progress, and the results of earlier ones.
#[derive(Debug)]
pub struct TreeProofs {
    clock: Clock,
    state: Mutex<ProofState>,
}

#[derive(Debug, Default)]
struct ProofState {
    /// Of each group the reports, and the sessions of its nodes.
    running: BTreeMap<u64, (ProofReports, Vec<Arc<Session>>)>,
    failed_paths: FailedPaths,
    /// Whether no probe has arrived at any node in the latest proof.
    nothing_arrived: bool,
}

/// The reports of the nodes in the proof of a group's trees.
#[derive(Debug, Default)]
struct ProofReports {
    nodes: BTreeSet<String>,
    trees: BTreeSet<IpAddr>,
    /// The nodes that have not made the group yet.
    unready: BTreeSet<String>,
    /// The nodes that have not reported yet.
    unreported: BTreeSet<String>,
    /// The trees with missing probes.
    failed: BTreeSet<IpAddr>,
    /// The receivers and senders of missing probes.
    failed_paths: BTreeSet<(String, String)>,
    /// Number of probes that have arrived.
    received: u64,
}

/// The result of a proof, with the sessions of all nodes. They are now ready for the group.
#[derive(Debug)]
pub struct ProvenTrees {
    pub(super) sessions: Vec<Arc<Session>>,
    /// Addresses of the trees that must not be used.
    pub(super) withdrawn: BTreeSet<IpAddr>,
}

impl ProofReports {
    fn new(nodes: BTreeSet<String>, trees: BTreeSet<IpAddr>) -> ProofReports {
        let (unready, unreported) = (nodes.clone(), nodes.clone());
        ProofReports { nodes, trees, unready, unreported, ..ProofReports::default() }
    }

    /// Records that a node has made the group. Returns whether all have now, so that the proof can
    /// begin.
    fn record_ready(&mut self, node: &str) -> bool {
        self.unready.remove(node) && self.unready.is_empty()
    }

    /// Records the report of a node. Returns whether all have reported now.
    fn record_report(&mut self, receiver: &str, report: &TreesProbed) -> bool {
        if !self.unready.is_empty() || !self.unreported.remove(receiver) {
            return false;
        }
        self.received += u64::from(report.received);
        for missing in &report.missing {
            let Some(tree) = missing.tree.parse().ok().filter(|tree| self.trees.contains(tree)) else {
                continue;
            };
            self.failed.insert(tree);
            let senders = missing.from.iter().filter(|sender| self.nodes.contains(*sender));
            self.failed_paths.extend(senders.map(|sender| (receiver.to_owned(), sender.clone())));
        }
        self.unreported.is_empty()
    }
}

impl Default for TreeProofs {
    fn default() -> TreeProofs {
        TreeProofs { clock: Clock::start(), state: Mutex::default() }
    }
}

impl TreeProofs {
    /// Returns whether a proof for a group on these places may succeed.
    pub(super) fn is_promising(&self, places: &[MemberPlace]) -> bool {
        let nodes = places.iter().map(|place| place.session.agent.name.as_str()).collect();
        !self.state.lock().failed_paths.separate(self.clock.now(), &nodes)
    }

    /// Prepares the proof of a group's trees, if they need one. Must be called before the group is
    /// announced to its nodes.
    pub(super) fn prepare(&self, group: u64, places: &[MemberPlace], trees: &[TreeGrant]) {
        let trees: BTreeSet<IpAddr> =
            trees.iter().filter(|tree| tree.needs_proof).map(|tree| tree.address).collect();
        if trees.is_empty() {
            return;
        }
        let sessions: Vec<Arc<Session>> = by_node(places).into_values().map(|(session, _)| session).collect();
        let nodes = sessions.iter().map(|session| session.agent.name.clone()).collect();
        self.state.lock().running.insert(group, (ProofReports::new(nodes, trees), sessions));
    }

    /// Handles a node that has made a group, and starts the proof once all have. Returns whether
    /// the group needs no proof, so that the node is ready.
    pub(super) fn on_group_made(&self, group: u64, session: &Session) -> bool {
        let mut state = self.state.lock();
        let ProofState { running, nothing_arrived, .. } = &mut *state;
        let Some((proof, sessions)) = running.get_mut(&group) else { return true };
        if proof.record_ready(&session.agent.name) {
            let time_ms = if *nothing_arrived { REPEATED_PROOF_TIME_MS } else { PROOF_TIME_MS };
            let request = ProveTrees { group, number: PROOF_NUMBER, time_ms };
            send_all(sessions, &Body::ProveTrees(request));
        }
        false
    }

    /// Handles the report of a node. Returns the result of the proof once all nodes have reported.
    pub(super) fn on_report(&self, session: &Session, report: &TreesProbed) -> Option<ProvenTrees> {
        let mut state = self.state.lock();
        let (proof, _) = state.running.get_mut(&report.group)?;
        if !proof.record_report(&session.agent.name, report) {
            return None;
        }
        let (proof, sessions) = state.running.remove(&report.group)?;
        state.nothing_arrived = proof.received == 0;
        for (receiver, sender) in &proof.failed_paths {
            state.failed_paths.record(self.clock.now(), receiver, sender);
        }
        if !proof.failed.is_empty() {
            let receivers: BTreeSet<&str> =
                proof.failed_paths.iter().map(|(receiver, _)| receiver.as_str()).collect();
            let nodes = name_list(&Vec::from_iter(receivers));
            warn!(group = report.group, nodes, trees = ?proof.failed, "multicasts do not reach all nodes: the group uses chains");
        }
        let (group, withdrawn) = (report.group, proof.failed.iter().map(IpAddr::to_string).collect());
        send_all(&sessions, &Body::TreesProven(TreesProven { group, withdrawn }));
        Some(ProvenTrees { sessions, withdrawn: proof.failed })
    }

    /// Forgets on which paths multicasts have not arrived.
    pub(super) fn forget_failed_paths(&self) {
        let mut state = self.state.lock();
        (state.failed_paths, state.nothing_arrived) = (FailedPaths::default(), false);
    }

    /// Forgets a group.
    pub(super) fn forget(&self, group: u64) {
        self.state.lock().running.remove(&group);
    }

    /// Returns the nodes that have lately not received multicasts, each with the senders as text.
    pub(super) fn unreached(&self) -> Vec<(String, String)> {
        let mut state = self.state.lock();
        let receivers = state.failed_paths.receivers(self.clock.now());
        receivers
            .map(|(receiver, senders)| (receiver.to_owned(), name_list(&Vec::from_iter(senders))))
            .collect()
    }
}

/// Sends a message to the nodes of a group. If a session has ended, the group fails.
fn send_all(sessions: &[Arc<Session>], body: &Body) {
    for session in sessions {
        let _ = session.send(body.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::MissingProbes;

    const TREES: [&str; 2] = ["239.192.0.1", "239.192.0.2"];

    fn proof() -> ProofReports {
        let trees = TREES.iter().map(|tree| tree.parse().unwrap()).collect();
        ProofReports::new(["h1", "h2", "h3"].map(str::to_owned).into(), trees)
    }

    fn report(received: u32, missing: &[(&str, &[&str])]) -> TreesProbed {
        let missing = missing.iter().map(|(tree, from)| MissingProbes {
            tree: (*tree).to_owned(),
            from: from.iter().map(|node| (*node).to_owned()).collect(),
        });
        TreesProbed { group: 7, number: PROOF_NUMBER, missing: missing.collect(), received }
    }

    #[test]
    fn a_tree_with_a_missing_probe_fails_once_all_have_reported() {
        let mut proof = proof();
        assert_eq!(
            ["h1", "h1", "h3", "h2"].map(|node| proof.record_ready(node)),
            [false, false, false, true]
        );
        assert!(!proof.record_report("h1", &report(4, &[])));
        let missing = report(2, &[(TREES[1], &["h1", "h3"])]);
        assert!(!proof.record_report("h2", &missing) && !proof.record_report("h2", &missing));
        assert!(proof.record_report("h3", &report(4, &[])));
        assert_eq!((proof.failed, proof.received), (BTreeSet::from([TREES[1].parse().unwrap()]), 10));
        let path = |sender: &str| ("h2".to_owned(), sender.to_owned());
        assert_eq!(proof.failed_paths, BTreeSet::from([path("h1"), path("h3")]));
    }

    #[test]
    fn reports_of_strangers_and_early_ones_do_not_count() {
        let mut proof = proof();
        assert!(!proof.record_report("h1", &report(4, &[])));
        for node in ["h1", "h2", "h3"] {
            proof.record_ready(node);
        }
        let foreign = report(4, &[("239.192.0.9", &["h1"]), ("a tree", &["h1"]), (TREES[0], &["h9"])]);
        assert!(!proof.record_report("h9", &report(4, &[])));
        assert!(!proof.record_report("h1", &foreign) && !proof.record_report("h2", &report(4, &[])));
        assert!(proof.record_report("h3", &report(4, &[])));
        assert_eq!((proof.failed, proof.failed_paths), ([TREES[0].parse().unwrap()].into(), BTreeSet::new()));
    }
}
