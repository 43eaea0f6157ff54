//! Proofs that multicasts reach all nodes of a group, for networks without OpenFlow switches.
//!
//! Once all nodes have made the group, each multicasts probes over its trees, and reports those of
//! others that do not arrive. A tree with a missing probe is withdrawn from all nodes. The group is
//! ready only then. While it is in use, its trees are proven again if a node receives nothing from
//! one, and as long as one is withdrawn. Nodes may learn the result at different times, because
//! streams arrive also where their ends disagree about the tree.

use super::failed_paths::FailedPaths;
use super::group_keys;
use super::member_place::{MemberPlace, by_node};
use super::proof_schedule::ProofSchedule;
use crate::agents::Session;
use cool_daemon::clock::Clock;
use cool_fabric::TreeGrant;
use cool_machine::{Duration, Time};
use cool_proto::control::{ProveTrees, TreesProbed, TreesProven, controller_message::Body};
use cool_proto::features;
use cool_types::name_list;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;
use tracing::{info, warn};

/// Maximum time until probes must have arrived. It is longer than a second, within which a host
/// repeats a lost membership report (RFC 3376, 8.11).
const PROOF_TIME: Duration = Duration::from_millis(2500);

/// The maximum time before a group is ready if no probe at all has arrived in the latest proof, so
/// that a network without multicast delays further groups less.
const HOPELESS_PROOF_TIME: Duration = Duration::from_millis(400);

/// Time after which a proof of a group in use ends without a result if some node, which may have
/// lost its connection, has not reported.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of groups in use that prove their trees at a time, so that probes take little of
/// the network.
const CONCURRENT_PROOFS: usize = 8;

/// The proofs of all groups that need some.
#[derive(Debug)]
pub struct TreeProofs {
    clock: Clock,
    state: Mutex<ProofState>,
    changed: Notify,
}

#[derive(Debug)]
struct ProofState {
    groups: BTreeMap<u64, ProvenGroup>,
    /// Number of the latest proof of any group.
    last_number: u64,
    failed_paths: FailedPaths,
    /// Whether no probe has arrived at any node in the latest proof.
    nothing_arrived: bool,
}

/// The state of a group that must prove its trees.
#[derive(Debug)]
struct ProvenGroup {
    sessions: Vec<Arc<Session>>,
    trees: BTreeSet<IpAddr>,
    /// The trees that the nodes do not use.
    withdrawn: BTreeSet<IpAddr>,
    /// The nodes that have not made the group yet.
    unready: BTreeSet<String>,
    /// Whether the trees are withdrawn at first, because multicasts between these nodes have failed
    /// lately.
    begins_withdrawn: bool,
    /// Whether the group is ready, so that its ranks may be running.
    is_ready: bool,
    /// Whether all agents can prove the trees of a group in use.
    can_repeat: bool,
    running: Option<ProofReports>,
    schedule: ProofSchedule,
}

/// The reports of the nodes in one proof.
#[derive(Debug, Default)]
struct ProofReports {
    number: u64,
    nodes: BTreeSet<String>,
    trees: BTreeSet<IpAddr>,
    /// When the proof ends without a result.
    until: Option<Time>,
    /// The nodes that have not reported yet.
    unreported: BTreeSet<String>,
    /// The trees with missing probes.
    failed: BTreeSet<IpAddr>,
    /// The receivers and senders of missing probes.
    failed_paths: BTreeSet<(String, String)>,
    /// Number of probes that have arrived.
    received: u64,
}

impl ProofReports {
    fn new(
        number: u64,
        nodes: BTreeSet<String>,
        trees: BTreeSet<IpAddr>,
        until: Option<Time>,
    ) -> ProofReports {
        let unreported = nodes.clone();
        ProofReports { number, nodes, trees, until, unreported, ..ProofReports::default() }
    }

    /// Records the report of a node. Returns whether all have reported now.
    fn record_report(&mut self, receiver: &str, report: &TreesProbed) -> bool {
        if report.number != self.number || !self.unreported.remove(receiver) {
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

impl ProvenGroup {
    fn nodes(&self) -> BTreeSet<String> {
        self.sessions.iter().map(|session| session.agent.name.clone()).collect()
    }

    /// Sends a message to all nodes. If a session has ended, the group fails.
    fn send(&self, body: &Body) {
        for session in &self.sessions {
            let _ = session.send(body.clone());
        }
    }

    /// Begins a proof.
    fn begin(&mut self, now: Time, (group, number): (u64, u64), time_max: Duration) {
        self.schedule.begin();
        let until = self.is_ready.then_some(now + time_max + REPORTS_TIMEOUT);
        self.running = Some(ProofReports::new(number, self.nodes(), self.trees.clone(), until));
        let time_ms = u32::try_from(time_max.as_millis()).unwrap_or(u32::MAX);
        self.send(&Body::ProveTrees(ProveTrees { group, number, time_ms }));
    }

    /// Ends a proof, and makes the nodes use all trees but these. Returns the sessions of the nodes
    /// if they were not ready before.
    fn conclude(&mut self, now: Time, group: u64, withdrawn: BTreeSet<IpAddr>) -> Vec<Arc<Session>> {
        self.running = None;
        let addresses = withdrawn.iter().map(IpAddr::to_string).collect();
        self.send(&Body::TreesProven(TreesProven { group, withdrawn: addresses }));
        self.withdrawn = withdrawn;
        if self.can_repeat {
            self.schedule.end(now, !self.withdrawn.is_empty());
        }
        if std::mem::replace(&mut self.is_ready, true) { Vec::new() } else { self.sessions.clone() }
    }

    /// Returns when a proof must begin, or end.
    fn deadline(&self, may_begin: bool) -> Option<Time> {
        match &self.running {
            Some(running) => running.until,
            None => self.schedule.due().filter(|_| may_begin && self.is_ready),
        }
    }
}

impl ProofState {
    /// Returns whether one more group in use may begin a proof.
    fn may_begin(&self) -> bool {
        let running = self.groups.values().filter(|group| group.is_ready && group.running.is_some());
        running.count() < CONCURRENT_PROOFS
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Records the result of a proof, and logs it if it changes the trees in use.
    fn record_result(&mut self, now: Time, group: u64, before: &BTreeSet<IpAddr>, reports: &ProofReports) {
        self.nothing_arrived = reports.received == 0;
        for (receiver, sender) in &reports.failed_paths {
            self.failed_paths.record(now, receiver, sender);
        }
        if reports.failed.is_empty() {
            self.failed_paths.forget(&reports.nodes);
        }
        if reports.failed == *before {
            return;
        }
        if reports.failed.is_empty() {
            return info!(group, "multicasts reach all nodes again: the group uses its trees");
        }
        let receivers: BTreeSet<&str> =
            reports.failed_paths.iter().map(|(receiver, _)| receiver.as_str()).collect();
        let nodes = name_list(&Vec::from_iter(receivers));
        warn!(group, nodes, trees = ?reports.failed, "multicasts do not reach all nodes: the group uses chains");
    }
}

impl TreeProofs {
    /// Returns the state without groups. The first proof gets the number after `last`, which must
    /// not be smaller than the number of any proof of an earlier controller.
    pub(super) fn new(last: u64) -> TreeProofs {
        let state = ProofState {
            groups: BTreeMap::new(),
            last_number: last,
            failed_paths: FailedPaths::default(),
            nothing_arrived: false,
        };
        TreeProofs { clock: Clock::start(), state: Mutex::new(state), changed: Notify::new() }
    }

    /// Returns whether a group on these places can get trees that its nodes must prove: now, or
    /// while it is in use.
    pub(super) fn can_prove(&self, places: &[MemberPlace]) -> bool {
        group_keys::all_have(places, features::TREE_PROOFS)
            && (group_keys::all_have(places, features::REPEATED_PROOFS) || self.is_promising(places))
    }

    /// Returns whether a proof for a group on these places may succeed.
    fn is_promising(&self, places: &[MemberPlace]) -> bool {
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
        let begins_withdrawn =
            group_keys::all_have(places, features::REPEATED_PROOFS) && !self.is_promising(places);
        let mut proven = proven_group(places, trees);
        (proven.unready, proven.begins_withdrawn) = (proven.nodes(), begins_withdrawn);
        self.state.lock().groups.insert(group, proven);
    }

    /// Takes over a group of an earlier controller that is in use and has these trees, some of
    /// which are withdrawn.
    pub(super) fn adopt(
        &self,
        group: u64,
        places: &[MemberPlace],
        trees: BTreeSet<IpAddr>,
        withdrawn: BTreeSet<IpAddr>,
    ) {
        let mut proven = proven_group(places, trees);
        proven.is_ready = true;
        if proven.can_repeat {
            proven.schedule.end(self.clock.now(), !withdrawn.is_empty());
        }
        proven.withdrawn = withdrawn;
        self.state.lock().groups.insert(group, proven);
        self.changed.notify_one();
    }

    /// Handles a node that has made a group, and starts the proof once all have. Returns the
    /// sessions of the nodes that are ready now.
    pub(super) fn on_group_made(&self, group: u64, session: &Arc<Session>) -> Vec<Arc<Session>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let number = state.next_number();
        let time_max = if state.nothing_arrived { HOPELESS_PROOF_TIME } else { PROOF_TIME };
        let Some(proven) = state.groups.get_mut(&group) else { return vec![session.clone()] };
        if !proven.unready.remove(&session.agent.name) || !proven.unready.is_empty() {
            return Vec::new();
        }
        if proven.begins_withdrawn {
            let ready = proven.conclude(now, group, proven.trees.clone());
            self.changed.notify_one();
            return ready;
        }
        proven.begin(now, (group, number), time_max);
        Vec::new()
    }

    /// Handles the report of a node. Returns the sessions of the nodes that are ready now: of all
    /// nodes if this concludes the first proof of the group.
    pub(super) fn on_report(&self, session: &Session, report: &TreesProbed) -> Vec<Arc<Session>> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(proven) = state.groups.get_mut(&report.group) else { return Vec::new() };
        let is_last = |running: &mut ProofReports| running.record_report(&session.agent.name, report);
        let Some(reports) = proven.running.take_if(is_last) else { return Vec::new() };
        let before = proven.withdrawn.clone();
        let ready = proven.conclude(now, report.group, reports.failed.clone());
        state.record_result(now, report.group, &before, &reports);
        self.changed.notify_one();
        ready
    }

    /// Handles the report of a node that receives nothing from a tree of a group.
    pub(super) fn on_silence(&self, session: &Session, group: u64) {
        let mut state = self.state.lock();
        let Some(proven) = state.groups.get_mut(&group).filter(|proven| proven.can_repeat) else { return };
        if proven.sessions.iter().any(|member| member.number == session.number) {
            info!(group, node = session.agent.name, "multicasts do not arrive; the trees are proven again");
            proven.schedule.on_silence(self.clock.now());
            self.changed.notify_one();
        }
    }

    /// Lets groups prove their trees again when that is due. Never returns.
    pub(super) async fn run(&self) {
        loop {
            let deadline = self.poll(self.clock.now());
            tokio::select! {
                () = self.clock.wait(deadline) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Begins and ends the proofs of groups in use that are due. Returns when to call it again.
    fn poll(&self, now: Time) -> Option<Time> {
        let mut state = self.state.lock();
        loop {
            let may_begin = state.may_begin();
            let due = |(id, group): (&u64, &ProvenGroup)| Some((group.deadline(may_begin)?, *id));
            let (at, id) = state.groups.iter().filter_map(due).min()?;
            if at > now {
                return Some(at);
            }
            let number = state.next_number();
            let proven = state.groups.get_mut(&id)?;
            if let Some(running) = proven.running.take() {
                let nodes = name_list(&Vec::from_iter(running.unreported.iter().map(String::as_str)));
                warn!(group = id, nodes, "a proof of trees ends, because nodes have not reported");
                proven.conclude(now, id, proven.withdrawn.clone());
            } else {
                proven.begin(now, (id, number), PROOF_TIME);
            }
        }
    }

    /// Lets groups try multicast again at once where it has lately failed, because the network has
    /// changed.
    pub(super) fn on_network_change(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        (state.failed_paths, state.nothing_arrived) = (FailedPaths::default(), false);
        state.groups.values_mut().for_each(|group| group.schedule.on_change(now));
        self.changed.notify_one();
    }

    /// Forgets a group.
    pub(super) fn forget(&self, group: u64) {
        self.state.lock().groups.remove(&group);
        self.changed.notify_one();
    }

    /// Returns whether a group has withdrawn the tree with an address.
    pub(super) fn is_withdrawn(&self, group: u64, tree: &str) -> bool {
        let state = self.state.lock();
        let withdrawn = state.groups.get(&group).map(|group| &group.withdrawn);
        withdrawn.is_some_and(|withdrawn| tree.parse().is_ok_and(|tree| withdrawn.contains(&tree)))
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

/// Returns a group on these places that is not ready.
fn proven_group(places: &[MemberPlace], trees: BTreeSet<IpAddr>) -> ProvenGroup {
    ProvenGroup {
        sessions: by_node(places).into_values().map(|(session, _)| session).collect(),
        trees,
        withdrawn: BTreeSet::new(),
        unready: BTreeSet::new(),
        begins_withdrawn: false,
        is_ready: false,
        can_repeat: group_keys::all_have(places, features::REPEATED_PROOFS),
        running: None,
        schedule: ProofSchedule::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::MissingProbes;

    const NUMBER: u64 = 5;
    const TREES: [&str; 2] = ["239.192.0.1", "239.192.0.2"];

    fn proof() -> ProofReports {
        let trees = TREES.iter().map(|tree| tree.parse().unwrap()).collect();
        ProofReports::new(NUMBER, ["h1", "h2", "h3"].map(str::to_owned).into(), trees, None)
    }

    fn report(received: u32, missing: &[(&str, &[&str])]) -> TreesProbed {
        let missing = missing.iter().map(|(tree, from)| MissingProbes {
            tree: (*tree).to_owned(),
            from: from.iter().map(|node| (*node).to_owned()).collect(),
        });
        TreesProbed { group: 7, number: NUMBER, missing: missing.collect(), received }
    }

    #[test]
    fn a_tree_with_a_missing_probe_fails_once_all_have_reported() {
        let mut proof = proof();
        assert!(!proof.record_report("h1", &report(4, &[])));
        let missing = report(2, &[(TREES[1], &["h1", "h3"])]);
        assert!(!proof.record_report("h2", &missing) && !proof.record_report("h2", &missing));
        assert!(proof.record_report("h3", &report(4, &[])));
        assert_eq!((proof.failed, proof.received), (BTreeSet::from([TREES[1].parse().unwrap()]), 10));
        let path = |sender: &str| ("h2".to_owned(), sender.to_owned());
        assert_eq!(proof.failed_paths, BTreeSet::from([path("h1"), path("h3")]));
    }

    #[test]
    fn reports_of_strangers_and_earlier_proofs_do_not_count() {
        let mut proof = proof();
        for node in ["h1", "h2", "h3"] {
            let earlier = TreesProbed { number: NUMBER - 1, ..report(4, &[]) };
            assert!(!proof.record_report(node, &earlier));
        }
        let foreign = report(4, &[("239.192.0.9", &["h1"]), ("a tree", &["h1"]), (TREES[0], &["h9"])]);
        assert!(!proof.record_report("h9", &report(4, &[])));
        assert!(!proof.record_report("h1", &foreign) && !proof.record_report("h2", &report(4, &[])));
        assert!(proof.record_report("h3", &report(4, &[])));
        assert_eq!((proof.failed, proof.failed_paths), ([TREES[0].parse().unwrap()].into(), BTreeSet::new()));
    }
}
