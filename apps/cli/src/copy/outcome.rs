//! The outcome of a copy, node by node, from the events of its ranks: a progress bar while the copy
//! runs, then a table or JSON.

use super::progress::CopyProgress;
use crate::cool_rank_job;
use crate::error::Error;
use crate::progress_bar::progress_bar;
use crate::terminal_text::printable;
use crate::units;
use cool_content::Digest;
use cool_copy::{Contact, CopyEvent, LateMember, parse_event, without_os_code};
use cool_proto::control::{Group, Output};
use indicatif::ProgressBar;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum number of nodes in the table, which are the slowest ones.
const SHOWN: usize = 16;
/// Maximum number of addresses of other members that a late member receives.
const CONTACTS: usize = 8;
const NO_RESULT: &str = "its rank ended without a result";

/// The outcome of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct NodeOutcome {
    node: String,
    /// Time from the start of its rank until the copy was in place or had failed, in seconds.
    seconds: Option<f64>,
    error: Option<String>,
    /// Missing bytes over time, by the clock of the command, so that nodes can be compared.
    progress: CopyProgress,
}

/// A member of a swarm that sent wrong bytes.
#[derive(Debug, Serialize)]
pub(super) struct ExpelledMember<'a> {
    pub(super) node: &'a str,
    /// The nodes that reported it. Each has compared the bytes itself.
    pub(super) by: Vec<&'a str>,
}

#[derive(Debug, PartialEq)]
enum RankState {
    Running,
    /// Seconds until the node had its copy, or until it was clear why it cannot have one.
    Ended(f64, Option<String>),
    Lost,
    /// The rank was too late, or its job failed. Another one may be started.
    Missed(String),
}

/// The state of a rank. A node may have several ranks one after the other.
struct RankProgress {
    node: String,
    state: RankState,
    progress: CopyProgress,
    /// Total size of the missing blocks, in bytes.
    missing: Option<u64>,
    /// The number of its rack in the swarm, and how late nodes reach it.
    member: Option<(u32, Contact)>,
    /// Whether it takes part in broadcasts.
    admitted: bool,
}

/// The outcome of a copy.
pub(crate) struct CopyOutcome {
    from: String,
    /// Nodes that have the source and get no copy.
    serving: BTreeSet<String>,
    began: Instant,
    bar: ProgressBar,
    /// The ranks of the first job, then those of late nodes in the order of their start.
    ranks: Vec<RankProgress>,
    /// The nodes that were not ready at the start, with the reason.
    absent: Vec<(String, String)>,
    nodes: Vec<NodeOutcome>,
    /// Number of slots in use, by rack of the swarm.
    slots: BTreeMap<u32, u32>,
    /// Nodes that sent wrong bytes, with the nodes that reported it.
    expelled: BTreeMap<String, BTreeSet<String>>,
    source_error: Option<String>,
    bytes: u64,
    /// Identity of the source's manifest, once the source's rank has reported it.
    identity: Option<Digest>,
    sent: u64,
    via: String,
    /// Total size of the blocks that the source sends, in bytes; `None` until it starts.
    sending: Option<u64>,
}

#[derive(Debug, Serialize)]
struct CopyDocument<'a> {
    seconds: f64,
    bytes: u64,
    sent: u64,
    via: &'a str,
    nodes: &'a [NodeOutcome],
    expelled: Vec<ExpelledMember<'a>>,
}

impl RankProgress {
    /// Returns the state of a rank that has just started, one of `ranks` ranks.
    fn new(node: &str, ranks: usize) -> RankProgress {
        let (node, progress) = (node.to_owned(), CopyProgress::of_one_in(ranks));
        RankProgress {
            node,
            state: RankState::Running,
            progress,
            missing: None,
            member: None,
            admitted: false,
        }
    }

    fn has_missed(&self) -> bool {
        matches!(self.state, RankState::Missed(_))
    }
}

impl CopyOutcome {
    /// Returns the outcome of a copy that is about to start. `absent` are nodes that are not ready,
    /// with the reason.
    pub(super) fn new(from: String, serving: BTreeSet<String>, absent: Vec<(String, String)>) -> CopyOutcome {
        CopyOutcome {
            from,
            serving,
            began: Instant::now(),
            bar: progress_bar("{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}"),
            ranks: Vec::new(),
            absent,
            nodes: Vec::new(),
            slots: BTreeMap::new(),
            expelled: BTreeMap::new(),
            source_error: None,
            bytes: 0,
            identity: None,
            sent: 0,
            via: String::new(),
            sending: None,
        }
    }

    /// Records the start of the first job.
    pub(super) fn on_started(&mut self, group: &Group) {
        let ranks = group.members.len();
        let first = |node: &str| RankProgress { admitted: true, ..RankProgress::new(node, ranks) };
        self.ranks = group.members.iter().map(|member| first(&member.node)).collect();
    }

    /// Records the start of a job of late nodes. `first` is the number of its first rank.
    pub(super) fn on_started_late(&mut self, first: usize, group: &Group) {
        for (rank, member) in self.ranks.iter_mut().skip(first).zip(&group.members) {
            rank.node.clone_from(&member.node);
        }
    }

    /// Handles a line of a rank. `first` is the number of the first rank of its job. Lines that are
    /// not events are printed.
    pub(super) fn on_line(&mut self, first: usize, output: &Output) {
        let number = first + output.rank as usize;
        let Some(rank) = self.ranks.get_mut(number) else { return };
        let Some(event) = parse_event(output) else {
            let line = without_os_code(&String::from_utf8_lossy(&output.line));
            let line = printable(&line);
            return self.bar.suspend(|| eprintln!("{}: {line}", rank.node));
        };
        let now = self.began.elapsed().as_secs_f64();
        let is_source = rank.node == self.from;
        match event {
            // Another node must not end the copy for all.
            CopyEvent::Source { .. }
            | CopyEvent::Sending { .. }
            | CopyEvent::Sent { .. }
            | CopyEvent::SourceFailed { .. }
                if !is_source => {}
            CopyEvent::Source { bytes, identity } => (self.bytes, self.identity) = (bytes, identity),
            CopyEvent::Sending { bytes } => {
                self.sending = Some(bytes);
                self.bar.set_length(bytes);
                self.bar.enable_steady_tick(Duration::from_millis(500));
            }
            CopyEvent::Sent { bytes, via } => (self.sent, self.via) = (bytes, via),
            CopyEvent::SourceFailed { reason } => self.source_error = Some(reason),
            CopyEvent::Lost { nodes } => self.on_lost(&nodes),
            CopyEvent::Member { rack, slot, contact: address, key } => {
                // A late node cannot recognize a member without a key.
                rank.member = key.map(|key| (rack, Contact { address, key }));
                let slots = self.slots.entry(rack).or_default();
                *slots = (*slots).max(slot.saturating_add(1));
            }
            CopyEvent::Expelled { node } => {
                self.expelled.entry(node).or_default().insert(rank.node.clone());
            }
            CopyEvent::Admitted => rank.admitted = true,
            CopyEvent::Missed { reason } => rank.state = RankState::Missed(reason),
            CopyEvent::Missing { bytes } => {
                rank.missing = Some(bytes);
                rank.progress.record(now, bytes);
                self.show_slowest();
            }
            CopyEvent::Ended { seconds, error } => {
                if error.is_none() {
                    rank.progress.end(now);
                }
                rank.state = RankState::Ended(seconds, error);
            }
        }
    }

    /// Records lost nodes of the first job. A node that has its copy keeps it.
    fn on_lost(&mut self, nodes: &[String]) {
        self.bar.suspend(|| eprintln!("cool: lost {}; the others continue", nodes.join(", ")));
        for rank in self.ranks.iter_mut().filter(|rank| nodes.contains(&rank.node)) {
            // A lost node must not count as the slowest, and late members must not receive its
            // address.
            (rank.missing, rank.member) = (None, None);
            if rank.state == RankState::Running {
                rank.state = RankState::Lost;
            }
        }
    }

    /// Shows the progress of the slowest node.
    fn show_slowest(&self) {
        let ranks = self.ranks.iter().filter_map(|rank| Some((rank.missing?, &rank.node)));
        let Some((missing, node)) = ranks.max_by_key(|(missing, _)| *missing) else { return };
        self.bar.set_position(self.sending.unwrap_or(0).saturating_sub(missing));
        self.bar.set_message(format!("(slowest: {node})"));
    }

    /// Returns whether late nodes can still join a swarm.
    pub(super) fn has_members(&self) -> bool {
        self.via.is_empty() && self.ranks.iter().any(|rank| rank.member.is_some())
    }

    /// Returns whether late nodes can still be admitted to broadcasts: the source is sending, and
    /// no other late ranks are waiting.
    pub(super) fn can_admit(&self) -> bool {
        let sends = |rank: &RankProgress| rank.node == self.from && rank.state != RankState::Lost;
        let waits = |rank: &RankProgress| !rank.admitted && rank.state == RankState::Running;
        let (open, source) = (self.via.is_empty() && self.sending.is_some(), self.ranks.iter().any(sends));
        open && source && !self.ranks.iter().any(waits)
    }

    /// Returns the nodes with a rank that is running or has ended, which need no other rank.
    pub(super) fn served(&self) -> impl Iterator<Item = &str> {
        let served = |rank: &&RankProgress| matches!(rank.state, RankState::Running | RankState::Ended(..));
        self.ranks.iter().filter(served).map(|rank| rank.node.as_str())
    }

    /// Adds ranks for late nodes that are to be admitted together. Returns the number of the first
    /// rank and the nodes that get one. Nodes that have failed before are tried one by one, because
    /// all ranks of a job fail together.
    pub(super) fn admit(&mut self, mut nodes: Vec<String>) -> (usize, Vec<String>) {
        let failed =
            |node: &String| self.ranks.iter().filter(|rank| rank.node == *node && rank.has_missed()).count();
        let fewest = nodes.iter().map(failed).min().unwrap_or(0);
        nodes.retain(|node| failed(node) == fewest);
        if fewest > 0 {
            nodes.truncate(1);
        }
        let first = self.ranks.len();
        self.ranks.extend(nodes.iter().map(|node| RankProgress::new(node, first + nodes.len())));
        (first, nodes)
    }

    /// Adds a rank for a late node that joins a swarm. Returns its number and how it joins.
    /// `same_rack` must return whether a node is in the rack of the late node.
    pub(super) fn join(&mut self, node: &str, same_rack: impl Fn(&str) -> bool) -> (usize, LateMember) {
        let members = || self.ranks.iter().filter_map(|rank| Some((&rank.node, rank.member?)));
        let rack = members().find(|(other, _)| same_rack(other)).map(|(_, (rack, _))| rack);
        let rack =
            rack.unwrap_or_else(|| self.slots.keys().next_back().map_or(0, |last| last.saturating_add(1)));
        let contacts = members().map(|(_, (_, contact))| contact).take(CONTACTS).collect();
        let slots = self.slots.entry(rack).or_default();
        let slot = *slots;
        *slots = slots.saturating_add(1);
        self.ranks.push(RankProgress::new(node, self.ranks.len()));
        (self.ranks.len() - 1, LateMember { rack, slot, contacts, identity: self.identity })
    }

    /// Records the end of a job of late nodes, with its error if it failed.
    pub(super) fn on_late_job_ended(&mut self, ranks: Range<usize>, error: Option<Error>) {
        let reason = error.map_or_else(|| NO_RESULT.to_owned(), |error| error.to_string());
        for rank in self.ranks.get_mut(ranks).unwrap_or_default() {
            rank.member = None;
            if rank.state == RankState::Running {
                rank.state = RankState::Missed(reason.clone());
            }
        }
    }

    /// Sums up all nodes after the last job has ended. `job` is the error of the first job.
    pub(super) fn end(&mut self, job: Option<&Error>) {
        self.bar.finish_and_clear();
        let absent = self.absent.iter().map(|(node, _)| node);
        let mut names: Vec<String> =
            absent.chain(self.ranks.iter().map(|rank| &rank.node)).cloned().collect();
        let mut known = BTreeSet::new();
        names.retain(|name| !self.serving.contains(name) && known.insert(name.clone()));
        self.nodes = names.into_iter().map(|node| self.node_outcome(node, job)).collect();
    }

    fn node_outcome(&self, node: String, job: Option<&Error>) -> NodeOutcome {
        let ranks = || self.ranks.iter().rev().filter(|rank| rank.node == node);
        let has_copy = |rank: &&RankProgress| matches!(rank.state, RankState::Ended(_, None));
        let Some(rank) = ranks().find(has_copy).or_else(|| ranks().next()) else {
            let reason = self.absent.iter().find(|(absent, _)| *absent == node).map(|(_, why)| why.clone());
            return NodeOutcome { node, seconds: None, error: reason, progress: CopyProgress::of_one_in(1) };
        };
        let (seconds, error) = match &rank.state {
            RankState::Ended(seconds, error) => (Some(*seconds), error.clone()),
            RankState::Lost => (None, Some("it was lost during the copy".to_owned())),
            RankState::Missed(reason) => (None, Some(reason.clone())),
            RankState::Running => {
                let reason = job.map_or_else(String::new, |job| format!(": {job}"));
                (None, Some(format!("{NO_RESULT}{reason}")))
            }
        };
        NodeOutcome { node, seconds, error, progress: rank.progress.clone() }
    }

    /// Returns the node that has the source.
    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// Returns whether nodes have no copy because the source's node was lost or cannot read its own
    /// content.
    pub(crate) fn is_missing_source(&self) -> bool {
        let is_lost = |rank: &RankProgress| rank.node == self.from && rank.state == RankState::Lost;
        let lost = self.ranks.iter().any(is_lost);
        self.failed().any(|(node, _)| lost || node == self.from)
    }

    /// Returns the error if the source cannot be read.
    pub(super) fn source_error(&self) -> Option<String> {
        self.source_error.clone()
    }

    /// Returns the nodes without a copy, with the reason.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().filter_map(|node| Some((node.node.as_str(), node.error.as_deref()?)))
    }

    /// Returns the members of a swarm that sent wrong bytes.
    pub(super) fn expelled(&self) -> impl Iterator<Item = ExpelledMember<'_>> {
        self.expelled
            .iter()
            .map(|(node, by)| ExpelledMember { node, by: by.iter().map(String::as_str).collect() })
    }

    /// Returns how many nodes were to get a copy.
    pub(super) fn requested(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the outcome as JSON.
    pub(super) fn json(&self) -> Result<String, Error> {
        let CopyOutcome { bytes, sent, via, nodes, .. } = self;
        let expelled = self.expelled().collect();
        let seconds = self.began.elapsed().as_secs_f64();
        let document = CopyDocument { seconds, bytes: *bytes, sent: *sent, via, nodes, expelled };
        cool_rank_job::document(&document)
    }

    /// Returns the outcome as a table of the slowest nodes.
    pub(super) fn table(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        let mut done: Vec<(&str, f64)> = self
            .nodes
            .iter()
            .filter(|n| n.error.is_none())
            .filter_map(|n| Some((n.node.as_str(), n.seconds?)))
            .collect();
        done.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let rows: Vec<[String; 2]> = done
            .iter()
            .take(SHOWN)
            .map(|(node, seconds)| [(*node).to_owned(), units::seconds(*seconds)])
            .collect();
        let more = done.len().saturating_sub(SHOWN);
        let more = if more == 0 { String::new() } else { format!("and {more} faster nodes\n") };
        let via = if self.via.is_empty() { String::new() } else { format!(" (plan: {})", self.via) };
        format!(
            "{} on {} in {}; {} sent{via}\n{}{more}",
            units::bytes(self.bytes),
            units::count(done.len(), "node"),
            units::seconds(seconds),
            units::bytes(self.sent),
            units::columns(&rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Member;
    use std::net::SocketAddr;

    /// A copy with ranks on n0, n1 and n2, where n0 has the source and gets no copy.
    fn outcome() -> CopyOutcome {
        let mut outcome = CopyOutcome::new(
            "n0".to_owned(),
            BTreeSet::from(["n0".to_owned()]),
            vec![("n3".to_owned(), "it is away".to_owned())],
        );
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        outcome.on_started(&Group { members: ["n0", "n1", "n2"].map(member).to_vec(), ..Group::default() });
        outcome
    }

    fn send(outcome: &mut CopyOutcome, rank: u32, event: &CopyEvent) {
        let line = serde_json::to_vec(event).unwrap();
        outcome.on_line(0, &Output { rank, line, ..Output::default() });
    }

    /// Returns the missing bytes of each node over time, and checks that times do not decrease.
    fn missing(document: &serde_json::Value) -> Vec<(String, Vec<u64>)> {
        let nodes = document["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| {
                let points = node["progress"].as_array().unwrap();
                let seconds: Vec<f64> = points.iter().map(|point| point[0].as_f64().unwrap()).collect();
                assert!(seconds.is_sorted(), "{seconds:?}");
                let bytes = points.iter().map(|point| point[1].as_u64().unwrap()).collect();
                (node["node"].as_str().unwrap().to_owned(), bytes)
            })
            .collect()
    }

    #[test]
    fn the_document_has_the_missing_bytes_of_each_node_over_time() {
        let mut outcome = outcome();
        for rank in [1, 2] {
            send(&mut outcome, rank, &CopyEvent::Missing { bytes: 300 });
        }
        send(&mut outcome, 0, &CopyEvent::Sending { bytes: 300 });
        send(&mut outcome, 2, &CopyEvent::Missing { bytes: 100 });
        send(&mut outcome, 0, &CopyEvent::Ended { seconds: 1.0, error: None });
        send(&mut outcome, 1, &CopyEvent::Ended { seconds: 1.5, error: Some("no room".to_owned()) });
        send(&mut outcome, 2, &CopyEvent::Ended { seconds: 1.5, error: None });
        outcome.end(None);
        let document = serde_json::from_str(&outcome.json().unwrap()).unwrap();
        let named = |name: &str, bytes: &[u64]| (name.to_owned(), bytes.to_vec());
        assert_eq!(missing(&document), [named("n3", &[]), named("n1", &[300]), named("n2", &[300, 100, 0])]);
    }

    #[test]
    fn the_document_names_expelled_nodes_and_their_reporters() {
        let mut outcome = outcome();
        for rank in [2, 1, 2] {
            send(&mut outcome, rank, &CopyEvent::Expelled { node: "n0".to_owned() });
        }
        outcome.end(None);
        let document: serde_json::Value = serde_json::from_str(&outcome.json().unwrap()).unwrap();
        assert_eq!(document["expelled"], serde_json::json!([{ "node": "n0", "by": ["n1", "n2"] }]));
    }

    #[test]
    fn late_nodes_get_ranks_until_one_has_ended() {
        let mut outcome = outcome();
        let contact =
            |port: u16| Contact { address: SocketAddr::from(([10, 0, 0, 1], port)), key: [port as u8; 32] };
        assert!(!outcome.has_members());
        for (rank, slot) in [(0, 0), (1, 1), (2, 2)] {
            let Contact { address, key } = contact(slot as u16);
            send(&mut outcome, rank, &CopyEvent::Member { rack: 0, slot, contact: address, key: Some(key) });
        }
        assert!(outcome.has_members() && outcome.served().eq(["n0", "n1", "n2"]));
        send(&mut outcome, 2, &CopyEvent::Ended { seconds: 1.0, error: None });
        send(&mut outcome, 0, &CopyEvent::Lost { nodes: vec!["n1".to_owned(), "n2".to_owned()] });
        assert!(outcome.served().eq(["n0", "n2"]), "n2 has its copy");
        let (first, late) = outcome.join("n1", |other| other == "n0");
        assert_eq!((first, late.rack, late.slot, late.contacts), (3, 0, 3, vec![contact(0)]));
        assert!(outcome.served().eq(["n0", "n2", "n1"]));
        outcome.on_late_job_ended(3..4, None);
        // The same node again, and another one in a rack of its own.
        let (again, late) = outcome.join("n1", |other| other == "n0");
        assert_eq!((again, late.slot), (4, 4));
        let (other, late) = outcome.join("n3", |_| false);
        assert_eq!((other, late.rack, late.slot), (5, 1, 0));
        let line =
            |event: &CopyEvent| Output { line: serde_json::to_vec(event).unwrap(), ..Output::default() };
        outcome.on_line(again, &line(&CopyEvent::Ended { seconds: 2.5, error: None }));
        outcome.on_line(other, &line(&CopyEvent::Missed { reason: "too late".to_owned() }));
        outcome.end(None);
        let nodes: Vec<_> =
            outcome.nodes.iter().map(|n| (&n.node[..], n.seconds, n.error.as_deref())).collect();
        assert_eq!(nodes, [("n3", None, Some("too late")), ("n1", Some(2.5), None), ("n2", Some(1.0), None)]);
    }

    #[test]
    fn late_nodes_are_admitted_together_unless_one_has_failed() {
        let mut outcome = outcome();
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(!outcome.can_admit(), "the source does not send yet");
        send(&mut outcome, 0, &CopyEvent::Sending { bytes: 300 });
        assert!(outcome.can_admit());
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (3, nodes(&["n3", "n4"])));
        assert!(!outcome.can_admit(), "they are not admitted yet");
        outcome.on_late_job_ended(3..5, None);
        assert!(outcome.can_admit());
        assert_eq!(outcome.admit(nodes(&["n3", "n4", "n5"])), (5, nodes(&["n5"])));
        let admitted = serde_json::to_vec(&CopyEvent::Admitted).unwrap();
        outcome.on_line(5, &Output { line: admitted, ..Output::default() });
        assert!(outcome.can_admit());
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (6, nodes(&["n3"])));
        outcome.on_late_job_ended(6..7, None);
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (7, nodes(&["n4"])));
        outcome.on_late_job_ended(7..8, None);
        send(&mut outcome, 1, &CopyEvent::Lost { nodes: vec!["n0".to_owned()] });
        assert!(!outcome.can_admit(), "the source was lost");
    }

    #[test]
    fn only_the_source_can_end_the_copy_for_all_nodes() {
        let mut outcome = outcome();
        let failed = CopyEvent::SourceFailed { reason: "it changed".to_owned() };
        send(&mut outcome, 1, &failed);
        send(&mut outcome, 1, &CopyEvent::Sent { bytes: 1, via: "swarm".to_owned() });
        assert_eq!((outcome.source_error(), outcome.sent), (None, 0));
        send(&mut outcome, 0, &failed);
        assert_eq!(outcome.source_error().as_deref(), Some("it changed"));
    }

    #[test]
    fn a_lost_node_is_not_the_slowest() {
        let mut outcome = outcome();
        send(&mut outcome, 1, &CopyEvent::Missing { bytes: 300 });
        send(&mut outcome, 2, &CopyEvent::Missing { bytes: 100 });
        send(&mut outcome, 0, &CopyEvent::Lost { nodes: vec!["n1".to_owned()] });
        // The next pass.
        send(&mut outcome, 0, &CopyEvent::Sending { bytes: 100 });
        let missing: Vec<Option<u64>> = outcome.ranks.iter().map(|rank| rank.missing).collect();
        assert_eq!(missing, [None, None, Some(100)]);
    }
}
