//! What comes of a copy, node by node, as it is heard: a bar while it runs, then a table or JSON.

use super::said::Said;
use crate::error::Error;
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

impl Outcome {
    /// Of a copy from a node; `absent` are nodes that cannot have one, each with the reason.
    pub(super) fn new(from: String, own: bool, absent: Vec<(String, String)>) -> Outcome {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        // The template is a constant; a wrong one would only lose the style.
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left {msg}")
        {
            bar.set_style(style);
        }
        let nodes =
            absent.into_iter().map(|(node, why)| NodeOutcome { node, seconds: None, error: Some(why) });
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
        }
    }

    /// The ranks run.
    pub(super) fn started(&mut self, group: &Group) {
        self.names = group.members.iter().map(|member| member.node.clone()).collect();
    }

    /// A line of a rank; whatever else it prints is passed on.
    pub(super) fn hear(&mut self, output: &Output) -> Result<(), Error> {
        let said = if output.stderr { None } else { serde_json::from_slice(&output.line).ok() };
        let Some(said) = said else {
            let node = self.names.get(output.rank as usize).map_or("?", String::as_str);
            self.bar.suspend(|| eprintln!("{node}: {}", String::from_utf8_lossy(&output.line)));
            return Ok(());
        };
        match said {
            Said::Source { bytes } => self.bytes = bytes,
            Said::Sending { bytes } => {
                self.sending = bytes;
                self.lacks.clear();
                self.bar.set_length(bytes);
                self.bar.enable_steady_tick(Duration::from_millis(500));
            }
            Said::Sent { bytes, via } => (self.sent, self.via) = (bytes, via),
            Said::GivesUp { reason } => self.given_up = Some(reason),
            Said::Lost { nodes } => {
                self.bar.suspend(|| eprintln!("cool: lost {}; the others go on", nodes.join(", ")));
                self.lost.extend(nodes);
            }
            Said::Lacks { bytes } => {
                self.lacks.insert(output.rank, bytes);
                self.show();
            }
            Said::Ended { seconds, error } => {
                self.ended.insert(output.rank, (seconds, error));
            }
        }
        Ok(())
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
            self.nodes.push(NodeOutcome { node: name.clone(), seconds, error });
        }
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
        Ok(serde_json::to_string(&document).map_err(std::io::Error::from)? + "\n")
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
