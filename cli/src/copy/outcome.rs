//! What comes of a copy, node by node, as it is heard: a bar while it runs, then a table or JSON.

use super::progress::CopyProgress;
use super::said::Said;
use crate::error::Error;
use crate::own_ranks;
use crate::units;
use cool_proto::control::{Group, Output};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Nodes in the table: the last ones.
const SHOWN: usize = 16;

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

/// What is known of a copy.
pub(crate) struct Outcome {
    from: String,
    /// Whether the source's node is to have a copy.
    own: bool,
    began: Instant,
    bar: ProgressBar,
    /// Of each rank.
    names: Vec<String>,
    nodes: Vec<NodeOutcome>,
    ended: BTreeMap<u32, (f64, Option<String>)>,
    lost: Vec<String>,
    given_up: Option<String>,
    bytes: u64,
    sent: u64,
    via: String,
    sending: u64,
    /// Bytes that each rank lacks.
    lacks: BTreeMap<u32, u64>,
    progress: BTreeMap<u32, CopyProgress>,
}

/// All of it in numbers.
#[derive(Debug, Serialize)]
struct Document<'a> {
    seconds: f64,
    bytes: u64,
    sent: u64,
    via: &'a str,
    nodes: &'a [NodeOutcome],
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

impl Outcome {
    /// Of a copy from a node; `absent` are nodes that cannot have one, each with the reason.
    pub(super) fn new(from: String, own: bool, absent: Vec<(String, String)>) -> Outcome {
        let bar = bar("{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}");
        let nodes = absent.into_iter().map(|(node, why)| {
            let (error, progress) = (Some(why), CopyProgress::of_one_in(1));
            NodeOutcome { node, seconds: None, error, progress }
        });
        Outcome {
            from,
            own,
            began: Instant::now(),
            bar,
            names: Vec::new(),
            nodes: nodes.collect(),
            ended: BTreeMap::new(),
            lost: Vec::new(),
            given_up: None,
            bytes: 0,
            sent: 0,
            via: String::new(),
            sending: 0,
            lacks: BTreeMap::new(),
            progress: BTreeMap::new(),
        }
    }

    /// The ranks run.
    pub(super) fn started(&mut self, group: &Group) {
        self.names = group.members.iter().map(|member| member.node.clone()).collect();
    }

    /// A line of a rank; whatever else it prints is passed on.
    pub(super) fn hear(&mut self, output: &Output) -> Result<(), Error> {
        let Some(said) = own_ranks::answer(output) else {
            let node = self.names.get(output.rank as usize).map_or("?", String::as_str);
            self.bar.suspend(|| eprintln!("{node}: {}", String::from_utf8_lossy(&output.line)));
            return Ok(());
        };
        match said {
            Said::Source { bytes } => self.bytes = bytes,
            Said::Sending { bytes } => {
                self.sending = bytes;
                self.bar.set_length(bytes);
                self.bar.enable_steady_tick(Duration::from_millis(500));
            }
            Said::Sent { bytes, via } => (self.sent, self.via) = (bytes, via),
            Said::GivesUp { reason } => self.given_up = Some(reason),
            Said::Lost { nodes } => {
                self.bar.suspend(|| eprintln!("cool: lost {}; the others go on", nodes.join(", ")));
                self.lost.extend(nodes);
                // The slowest is one of the others.
                self.lacks.retain(|rank, _| {
                    self.names.get(*rank as usize).is_none_or(|name| !self.lost.contains(name))
                });
            }
            Said::Lacks { bytes } => {
                self.lacks.insert(output.rank, bytes);
                let now = self.began.elapsed().as_secs_f64();
                self.progress(output.rank).hear(now, bytes);
                self.show();
            }
            Said::Ended { seconds, error } => {
                if error.is_none() {
                    let now = self.began.elapsed().as_secs_f64();
                    self.progress(output.rank).end(now);
                }
                self.ended.insert(output.rank, (seconds, error));
            }
        }
        Ok(())
    }

    fn progress(&mut self, rank: u32) -> &mut CopyProgress {
        let ranks = self.names.len();
        self.progress.entry(rank).or_insert_with(|| CopyProgress::of_one_in(ranks))
    }

    /// How far the slowest node is.
    fn show(&self) {
        let Some((rank, lacks)) = self.lacks.iter().max_by_key(|(_, lacks)| **lacks) else { return };
        self.bar.set_position(self.sending.saturating_sub(*lacks));
        let name = self.names.get(*rank as usize).map_or("", String::as_str);
        self.bar.set_message(format!("(slowest: {name})"));
    }

    /// The job has ended, if not well for this reason.
    pub(super) fn end(&mut self, job: Option<&Error>) {
        self.bar.finish_and_clear();
        for (rank, name) in (0..).zip(&self.names) {
            if *name == self.from && !self.own {
                continue;
            }
            let (seconds, error) = match self.ended.remove(&rank) {
                Some((seconds, error)) => (Some(seconds), error),
                None if self.lost.contains(name) => (None, Some("it was lost while it copied".to_owned())),
                None => {
                    let why = job.map_or_else(String::new, |job| format!(": {job}"));
                    (None, Some(format!("it did not say how it ended{why}")))
                }
            };
            let progress = self.progress.remove(&rank).unwrap_or_else(|| CopyProgress::of_one_in(1));
            self.nodes.push(NodeOutcome { node: name.clone(), seconds, error, progress });
        }
    }

    /// The node that has the source.
    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// Why the source could not be sent, if that was why.
    pub(super) fn source_fault(&self) -> Option<String> {
        self.given_up.clone()
    }

    /// Nodes without a copy, each with the reason.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().filter_map(|node| Some((node.node.as_str(), node.error.as_deref()?)))
    }

    /// How many were to have a copy.
    pub(super) fn asked(&self) -> usize {
        self.nodes.len()
    }

    /// As JSON.
    pub(super) fn json(&self) -> Result<String, Error> {
        let Outcome { bytes, sent, via, nodes, .. } = self;
        let document =
            Document { seconds: self.began.elapsed().as_secs_f64(), bytes: *bytes, sent: *sent, via, nodes };
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
        let mut outcome =
            Outcome::new("n0".to_owned(), false, vec![("n3".to_owned(), "it is away".to_owned())]);
        let member = |node: &str| Member { node: node.to_owned(), ..Member::default() };
        outcome.started(&Group { members: ["n0", "n1", "n2"].map(member).to_vec(), ..Group::default() });
        outcome
    }

    fn hear(outcome: &mut Outcome, rank: u32, said: &Said) {
        let line = serde_json::to_vec(said).unwrap();
        outcome.hear(&Output { rank, line, ..Output::default() }).unwrap();
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
    fn a_node_that_is_lost_is_not_the_slowest_and_others_stay_where_they_are() {
        let mut outcome = outcome();
        hear(&mut outcome, 1, &Said::Lacks { bytes: 300 });
        hear(&mut outcome, 2, &Said::Lacks { bytes: 100 });
        hear(&mut outcome, 0, &Said::Lost { nodes: vec!["n1".to_owned()] });
        // The next pass.
        hear(&mut outcome, 0, &Said::Sending { bytes: 100 });
        assert_eq!(outcome.lacks, BTreeMap::from([(2, 100)]));
    }
}
