//! What comes of a copy, node by node, as it is heard: a bar while it runs, then a table or JSON.

use super::join::LateMember;
use super::progress::CopyProgress;
use super::said::Said;
use crate::error::Error;
use crate::own_ranks;
use crate::units;
use cool_proto::control::{Group, Output};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Nodes in the table: the last ones.
const SHOWN: usize = 16;
/// Members that one that comes late may ask.
const CONTACTS: usize = 8;
const NOT_SAID: &str = "it did not say how it ended";

/// A node's copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeOutcome {
    node: String,
    /// From the start of its rank to the copy in its place.
    seconds: Option<f64>,
    error: Option<String>,
    /// As the command heard it, from when it began: so that nodes can be compared.
    progress: CopyProgress,
}

/// A member of a swarm that sent wrong bytes.
#[derive(Debug, Serialize)]
pub(super) struct ExpelledNode<'a> {
    pub(super) node: &'a str,
    /// Who say so: each has compared the bytes itself, and takes no other's word.
    pub(super) by: Vec<&'a str>,
}

/// How far a rank is.
#[derive(Debug, PartialEq)]
enum RankState {
    Runs,
    /// Its node has a copy since then, or has none for a reason that stays.
    Ended(f64, Option<String>),
    Lost,
    /// It came late, or its job has failed: it may come again.
    Missed(String),
}

/// What is known of a rank. A node may have one after another.
struct RankOutcome {
    node: String,
    state: RankState,
    progress: CopyProgress,
    /// Bytes.
    lacks: Option<u64>,
    /// Its rack in the swarm, and where it listens.
    member: Option<(u32, SocketAddr)>,
    /// Whether it takes part in broadcasts.
    admitted: bool,
}

/// What is known of a copy.
pub(crate) struct Outcome {
    from: String,
    /// Nodes that have it, and are to have no copy.
    serving: BTreeSet<String>,
    began: Instant,
    bar: ProgressBar,
    /// Of the first job, then of nodes that came late, in that order.
    ranks: Vec<RankOutcome>,
    /// Who could have none when it began, and why.
    absent: Vec<(String, String)>,
    nodes: Vec<NodeOutcome>,
    /// Of each rack of the swarm, how many slots were given away.
    slots: BTreeMap<u32, u32>,
    /// Of each node that sent wrong bytes, who say so.
    expelled: BTreeMap<String, BTreeSet<String>>,
    given_up: Option<String>,
    bytes: u64,
    sent: u64,
    via: String,
    /// Bytes that a node lacks, once the source sends them.
    sending: Option<u64>,
}

/// All of it in numbers.
#[derive(Debug, Serialize)]
struct Document<'a> {
    seconds: f64,
    bytes: u64,
    sent: u64,
    via: &'a str,
    nodes: &'a [NodeOutcome],
    expelled: Vec<ExpelledNode<'a>>,
}

/// A bar for people who look at a terminal.
pub(super) fn bar(template: &str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    // The template is a constant; a wrong one would only lose the style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

impl RankOutcome {
    /// Of a rank that runs, one of `of` ranks.
    fn new(node: &str, of: usize) -> RankOutcome {
        let (node, state, progress) = (node.to_owned(), RankState::Runs, CopyProgress::of_one_in(of));
        RankOutcome { node, state, progress, lacks: None, member: None, admitted: false }
    }

    fn has_missed(&self) -> bool {
        matches!(self.state, RankState::Missed(_))
    }
}

impl Outcome {
    /// Of a copy from a node; `absent` are nodes that cannot have one, each with the reason.
    pub(super) fn new(from: String, serving: BTreeSet<String>, absent: Vec<(String, String)>) -> Outcome {
        let bar = bar("{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}");
        Outcome {
            from,
            serving,
            began: Instant::now(),
            bar,
            ranks: Vec::new(),
            absent,
            nodes: Vec::new(),
            slots: BTreeMap::new(),
            expelled: BTreeMap::new(),
            given_up: None,
            bytes: 0,
            sent: 0,
            via: String::new(),
            sending: None,
        }
    }

    /// The ranks of the first job run.
    pub(super) fn started(&mut self, group: &Group) {
        let of = group.members.len();
        let first = |node: &str| RankOutcome { admitted: true, ..RankOutcome::new(node, of) };
        self.ranks = group.members.iter().map(|member| first(&member.node)).collect();
    }

    /// The ranks of a later job run, the first of which has this number.
    pub(super) fn started_late(&mut self, first: usize, group: &Group) {
        for (rank, member) in self.ranks.iter_mut().skip(first).zip(&group.members) {
            rank.node.clone_from(&member.node);
        }
    }

    /// A line of a rank, of the job whose first rank has that number; whatever else it prints is passed on.
    pub(super) fn hear(&mut self, first: usize, output: &Output) {
        let number = first + output.rank as usize;
        let Some(rank) = self.ranks.get_mut(number) else { return };
        let Some(said) = own_ranks::answer(output) else {
            return self
                .bar
                .suspend(|| eprintln!("{}: {}", rank.node, String::from_utf8_lossy(&output.line)));
        };
        let now = self.began.elapsed().as_secs_f64();
        match said {
            Said::Source { bytes } => self.bytes = bytes,
            Said::Sending { bytes } => {
                self.sending = Some(bytes);
                self.bar.set_length(bytes);
                self.bar.enable_steady_tick(Duration::from_millis(500));
            }
            Said::Sent { bytes, via } => (self.sent, self.via) = (bytes, via),
            Said::GivesUp { reason } => self.given_up = Some(reason),
            Said::Lost { nodes } => self.lose(&nodes),
            Said::Member { rack, slot, contact } => {
                rank.member = Some((rack, contact));
                let slots = self.slots.entry(rack).or_default();
                *slots = (*slots).max(slot.saturating_add(1));
            }
            Said::Expelled { node } => {
                self.expelled.entry(node).or_default().insert(rank.node.clone());
            }
            Said::Admitted => rank.admitted = true,
            Said::Missed { reason } => rank.state = RankState::Missed(reason),
            Said::Lacks { bytes } => {
                rank.lacks = Some(bytes);
                rank.progress.hear(now, bytes);
                self.show();
            }
            Said::Ended { seconds, error } => {
                if error.is_none() {
                    rank.progress.end(now);
                }
                rank.state = RankState::Ended(seconds, error);
            }
        }
    }

    /// Nodes of the first job are lost; one that has its copy keeps it.
    fn lose(&mut self, nodes: &[String]) {
        self.bar.suspend(|| eprintln!("cool: lost {}; the others go on", nodes.join(", ")));
        for rank in self.ranks.iter_mut().filter(|rank| nodes.contains(&rank.node)) {
            // The slowest is one of the others, and nobody asks it.
            (rank.lacks, rank.member) = (None, None);
            if rank.state == RankState::Runs {
                rank.state = RankState::Lost;
            }
        }
    }

    /// How far the slowest node is.
    fn show(&self) {
        let ranks = self.ranks.iter().filter_map(|rank| Some((rank.lacks?, &rank.node)));
        let Some((lacks, node)) = ranks.max_by_key(|(lacks, _)| *lacks) else { return };
        self.bar.set_position(self.sending.unwrap_or(0).saturating_sub(lacks));
        self.bar.set_message(format!("(slowest: {node})"));
    }

    /// Whether nodes that come may still get a copy by swarm.
    pub(super) fn has_members(&self) -> bool {
        self.via.is_empty() && self.ranks.iter().any(|rank| rank.member.is_some())
    }

    /// Whether they may still get one by broadcasts: the source sends, and others wait for it no longer.
    pub(super) fn admits(&self) -> bool {
        let sends = |rank: &RankOutcome| rank.node == self.from && rank.state != RankState::Lost;
        let waits = |rank: &RankOutcome| !rank.admitted && rank.state == RankState::Runs;
        let (open, source) = (self.via.is_empty() && self.sending.is_some(), self.ranks.iter().any(sends));
        open && source && !self.ranks.iter().any(waits)
    }

    /// Nodes with a rank that runs or has ended: they need no other one.
    pub(super) fn served(&self) -> impl Iterator<Item = &str> {
        let served = |rank: &&RankOutcome| matches!(rank.state, RankState::Runs | RankState::Ended(..));
        self.ranks.iter().filter(served).map(|rank| rank.node.as_str())
    }

    /// Nodes are there that need ranks, which come to broadcasts: the number of the first, and which of them it is tried with. All
    /// come or none, so those that have failed before are tried one by one.
    pub(super) fn admit(&mut self, mut nodes: Vec<String>) -> (usize, Vec<String>) {
        let failed =
            |node: &String| self.ranks.iter().filter(|rank| rank.node == *node && rank.has_missed()).count();
        let fewest = nodes.iter().map(failed).min().unwrap_or(0);
        nodes.retain(|node| failed(node) == fewest);
        if fewest > 0 {
            nodes.truncate(1);
        }
        let first = self.ranks.len();
        self.ranks.extend(nodes.iter().map(|node| RankOutcome::new(node, first + nodes.len())));
        (first, nodes)
    }

    /// A node is there that needs a rank: its number, and how it comes to the swarm. `neighbours` are nodes of its rack.
    pub(super) fn join(&mut self, node: &str, neighbours: impl Fn(&str) -> bool) -> (usize, LateMember) {
        let members = || self.ranks.iter().filter_map(|rank| Some((&rank.node, rank.member?)));
        let rack = members().find(|(of, _)| neighbours(of)).map(|(_, (rack, _))| rack);
        let rack = rack.unwrap_or_else(|| self.slots.keys().next_back().map_or(0, |last| last + 1));
        let contacts = members().map(|(_, (_, contact))| contact).take(CONTACTS).collect();
        let slots = self.slots.entry(rack).or_default();
        let slot = *slots;
        *slots += 1;
        self.ranks.push(RankOutcome::new(node, self.ranks.len()));
        (self.ranks.len() - 1, LateMember { rack, slot, contacts })
    }

    /// The job of these ranks, that came late, has ended, if not well for this reason.
    pub(super) fn ended(&mut self, ranks: Range<usize>, why: Option<Error>) {
        let why = why.map_or_else(|| NOT_SAID.to_owned(), |why| why.to_string());
        for rank in self.ranks.get_mut(ranks).unwrap_or_default() {
            rank.member = None;
            if rank.state == RankState::Runs {
                rank.state = RankState::Missed(why.clone());
            }
        }
    }

    /// All has ended, the first job if not well for this reason.
    pub(super) fn end(&mut self, job: Option<&Error>) {
        self.bar.finish_and_clear();
        let absent = self.absent.iter().map(|(node, _)| node);
        let mut names: Vec<String> =
            absent.chain(self.ranks.iter().map(|rank| &rank.node)).cloned().collect();
        let mut known = BTreeSet::new();
        names.retain(|name| !self.serving.contains(name) && known.insert(name.clone()));
        self.nodes = names.into_iter().map(|node| self.of_node(node, job)).collect();
    }

    fn of_node(&self, node: String, job: Option<&Error>) -> NodeOutcome {
        let ranks = || self.ranks.iter().rev().filter(|rank| rank.node == node);
        let has_copy = |rank: &&RankOutcome| matches!(rank.state, RankState::Ended(_, None));
        let Some(rank) = ranks().find(has_copy).or_else(|| ranks().next()) else {
            let why = self.absent.iter().find(|(absent, _)| *absent == node).map(|(_, why)| why.clone());
            return NodeOutcome { node, seconds: None, error: why, progress: CopyProgress::of_one_in(1) };
        };
        let (seconds, error) = match &rank.state {
            RankState::Ended(seconds, error) => (Some(*seconds), error.clone()),
            RankState::Lost => (None, Some("it was lost while it copied".to_owned())),
            RankState::Missed(why) => (None, Some(why.clone())),
            RankState::Runs => {
                let why = job.map_or_else(String::new, |job| format!(": {job}"));
                (None, Some(format!("{NOT_SAID}{why}")))
            }
        };
        NodeOutcome { node, seconds, error, progress: rank.progress.clone() }
    }

    /// The node that has the source.
    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// Whether nodes have no copy because the source's node was lost, or could not even read its own.
    pub(crate) fn lacks_source(&self) -> bool {
        let is_lost = |rank: &RankOutcome| rank.node == self.from && rank.state == RankState::Lost;
        let lost = self.ranks.iter().any(is_lost);
        self.failed().any(|(node, _)| lost || node == self.from)
    }

    /// Why the source could not be sent, if that was why.
    pub(super) fn source_fault(&self) -> Option<String> {
        self.given_up.clone()
    }

    /// Nodes without a copy, each with the reason.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().filter_map(|node| Some((node.node.as_str(), node.error.as_deref()?)))
    }

    /// Members of a swarm that sent wrong bytes.
    pub(super) fn expelled(&self) -> impl Iterator<Item = ExpelledNode<'_>> {
        self.expelled
            .iter()
            .map(|(node, by)| ExpelledNode { node, by: by.iter().map(String::as_str).collect() })
    }

    /// How many were to have a copy.
    pub(super) fn asked(&self) -> usize {
        self.nodes.len()
    }

    /// As JSON.
    pub(super) fn json(&self) -> Result<String, Error> {
        let Outcome { bytes, sent, via, nodes, .. } = self;
        let expelled = self.expelled().collect();
        let seconds = self.began.elapsed().as_secs_f64();
        let document = Document { seconds, bytes: *bytes, sent: *sent, via, nodes, expelled };
        own_ranks::document(&document)
    }

    /// For people.
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
        let more = if more == 0 { String::new() } else { format!("and {more} that were faster\n") };
        let by = if self.via.is_empty() { String::new() } else { format!(" by {}", self.via) };
        format!(
            "{} on {} in {}; {} sent{by}\n{}{more}",
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

    /// Of ranks on n0, n1 and n2, of which n0 has the source and is not to have a copy.
    fn outcome() -> Outcome {
        let mut outcome = Outcome::new(
            "n0".to_owned(),
            BTreeSet::from(["n0".to_owned()]),
            vec![("n3".to_owned(), "it is away".to_owned())],
        );
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        outcome.started(&Group { members: ["n0", "n1", "n2"].map(member).to_vec(), ..Group::default() });
        outcome
    }

    fn hear(outcome: &mut Outcome, rank: u32, said: &Said) {
        let line = serde_json::to_vec(said).unwrap();
        outcome.hear(0, &Output { rank, line, ..Output::default() });
    }

    /// The bytes that each node lacked, one after the other; times only grow.
    fn lacked(document: &serde_json::Value) -> Vec<(String, Vec<u64>)> {
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
    fn the_document_tells_what_each_node_lacked_until_it_had_its_copy() {
        let mut outcome = outcome();
        for rank in [1, 2] {
            hear(&mut outcome, rank, &Said::Lacks { bytes: 300 });
        }
        hear(&mut outcome, 0, &Said::Sending { bytes: 300 });
        hear(&mut outcome, 2, &Said::Lacks { bytes: 100 });
        hear(&mut outcome, 0, &Said::Ended { seconds: 1.0, error: None });
        hear(&mut outcome, 1, &Said::Ended { seconds: 1.5, error: Some("no room".to_owned()) });
        hear(&mut outcome, 2, &Said::Ended { seconds: 1.5, error: None });
        outcome.end(None);
        let document = serde_json::from_str(&outcome.json().unwrap()).unwrap();
        let named = |name: &str, bytes: &[u64]| (name.to_owned(), bytes.to_vec());
        assert_eq!(lacked(&document), [named("n3", &[]), named("n1", &[300]), named("n2", &[300, 100, 0])]);
    }

    #[test]
    fn the_document_names_who_sent_wrong_bytes_and_who_says_so() {
        let mut outcome = outcome();
        for rank in [2, 1, 2] {
            hear(&mut outcome, rank, &Said::Expelled { node: "n0".to_owned() });
        }
        outcome.end(None);
        let document: serde_json::Value = serde_json::from_str(&outcome.json().unwrap()).unwrap();
        assert_eq!(document["expelled"], serde_json::json!([{ "node": "n0", "by": ["n1", "n2"] }]));
    }

    #[test]
    fn nodes_that_come_late_are_served_once_and_what_becomes_of_them_counts() {
        let mut outcome = outcome();
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        assert!(!outcome.has_members());
        for (rank, slot) in [(0, 0), (1, 1), (2, 2)] {
            hear(&mut outcome, rank, &Said::Member { rack: 0, slot, contact: at(slot as u16) });
        }
        assert!(outcome.has_members() && outcome.served().eq(["n0", "n1", "n2"]));
        hear(&mut outcome, 2, &Said::Ended { seconds: 1.0, error: None });
        hear(&mut outcome, 0, &Said::Lost { nodes: vec!["n1".to_owned(), "n2".to_owned()] });
        assert!(outcome.served().eq(["n0", "n2"]), "one has its copy");
        let (first, late) = outcome.join("n1", |of| of == "n0");
        assert_eq!((first, late.rack, late.slot, late.contacts), (3, 0, 3, vec![at(0)]));
        assert!(outcome.served().eq(["n0", "n2", "n1"]));
        outcome.ended(3..4, None);
        // Once more, and another one in a rack of its own.
        let (again, late) = outcome.join("n1", |of| of == "n0");
        assert_eq!((again, late.slot), (4, 4));
        let (other, late) = outcome.join("n3", |_| false);
        assert_eq!((other, late.rack, late.slot), (5, 1, 0));
        let said = |said: &Said| Output { line: serde_json::to_vec(said).unwrap(), ..Output::default() };
        outcome.hear(again, &said(&Said::Ended { seconds: 2.5, error: None }));
        outcome.hear(other, &said(&Said::Missed { reason: "too late".to_owned() }));
        outcome.end(None);
        let nodes: Vec<_> =
            outcome.nodes.iter().map(|n| (&n.node[..], n.seconds, n.error.as_deref())).collect();
        assert_eq!(nodes, [("n3", None, Some("too late")), ("n1", Some(2.5), None), ("n2", Some(1.0), None)]);
    }

    #[test]
    fn newcomers_of_broadcasts_come_together_unless_one_has_failed_before() {
        let mut outcome = outcome();
        let nodes = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(!outcome.admits(), "the source does not send yet");
        hear(&mut outcome, 0, &Said::Sending { bytes: 300 });
        assert!(outcome.admits());
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (3, nodes(&["n3", "n4"])));
        assert!(!outcome.admits(), "they are not admitted yet");
        outcome.ended(3..5, None);
        assert!(outcome.admits());
        assert_eq!(outcome.admit(nodes(&["n3", "n4", "n5"])), (5, nodes(&["n5"])));
        outcome.hear(5, &Output { line: serde_json::to_vec(&Said::Admitted).unwrap(), ..Output::default() });
        assert!(outcome.admits());
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (6, nodes(&["n3"])));
        outcome.ended(6..7, None);
        assert_eq!(outcome.admit(nodes(&["n3", "n4"])), (7, nodes(&["n4"])));
        outcome.ended(7..8, None);
        hear(&mut outcome, 1, &Said::Lost { nodes: vec!["n0".to_owned()] });
        assert!(!outcome.admits(), "nobody sends any more");
    }

    #[test]
    fn a_node_that_is_lost_is_not_the_slowest_and_others_stay_where_they_are() {
        let mut outcome = outcome();
        hear(&mut outcome, 1, &Said::Lacks { bytes: 300 });
        hear(&mut outcome, 2, &Said::Lacks { bytes: 100 });
        hear(&mut outcome, 0, &Said::Lost { nodes: vec!["n1".to_owned()] });
        // The next pass.
        hear(&mut outcome, 0, &Said::Sending { bytes: 100 });
        let lacks: Vec<Option<u64>> = outcome.ranks.iter().map(|rank| rank.lacks).collect();
        assert_eq!(lacks, [None, None, Some(100)]);
    }
}
