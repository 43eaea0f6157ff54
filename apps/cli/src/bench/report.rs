//! What a benchmark found, as a table or as JSON.

use super::limit::{Cluster, limit};
use super::plan::{Case, Measured, Op};
use crate::{size, units};
use cool::Operation;
use cool_proto::control::Group;
use serde::Serialize;
use std::collections::BTreeSet;

/// Who took part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Participants {
    pub(crate) ranks: usize,
    pub(crate) cluster: Cluster,
}

impl Participants {
    /// The members of a group.
    pub(crate) fn of(group: &Group) -> Participants {
        let nodes: BTreeSet<&str> = group.members.iter().map(|m| m.node.as_str()).collect();
        let racks: BTreeSet<u32> = group.members.iter().map(|m| m.rack).collect();
        let (host, uplink) = (group.host_bytes_per_second, group.uplink_bytes_per_second);
        let cluster = Cluster { nodes: nodes.len(), racks: racks.len(), host, uplink };
        Participants { ranks: group.members.len(), cluster }
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let Cluster { nodes, racks, host, uplink } = self.cluster;
        let rate = |rate| units::rate(rate).unwrap_or_else(|| "of unknown rate".to_owned());
        format!(
            "{} on {} in {}, host links {}, rack uplinks {}",
            units::count(self.ranks, "rank"),
            units::count(nodes, "node"),
            units::count(racks, "rack"),
            rate(host),
            rate(uplink)
        )
    }
}

/// One case's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Figures {
    op: Op,
    /// As asked for.
    bytes: u64,
    /// Of the message, the vector, or the whole array: whole elements and parts.
    bytes_moved: u64,
    /// By which it went.
    plan: String,
    reps: usize,
    seconds: Vec<f64>,
    median: f64,
    /// By the group's cost model.
    predicted: Option<f64>,
    min: f64,
    max: f64,
    limit: Option<f64>,
    over_limit: Option<f64>,
    idle: Option<f64>,
    chunks_repaired: u64,
}

impl Figures {
    /// What was measured of a case; `None` if nothing was.
    pub(crate) fn new(
        case: Case,
        measured: Measured,
        predicted: Option<f64>,
        participants: &Participants,
    ) -> Option<Figures> {
        let Measured { seconds, plan, idle, chunks_repaired } = measured;
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = (low + high) / 2.0;
        let bytes_moved = case.moved(participants.ranks as u64);
        let limit = limit(case.op, bytes_moved, &participants.cluster);
        Some(Figures {
            op: case.op,
            bytes: case.bytes,
            bytes_moved,
            plan,
            reps: seconds.len(),
            seconds,
            median,
            predicted,
            min,
            max,
            limit,
            over_limit: limit.map(|limit| median / limit),
            idle,
            chunks_repaired,
        })
    }

    /// The titles over [`Figures::row`].
    pub(crate) fn titles() -> String {
        let titles = [
            "operation",
            "bytes",
            "median",
            "predicted",
            "min",
            "max",
            "limit",
            "over limit",
            "idle",
            "repaired",
            "plan",
        ];
        columns(titles.map(str::to_owned))
    }

    /// As a line of the table.
    pub(crate) fn row(&self) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        columns([
            self.op.to_string(),
            if self.op.operation == Operation::Barrier { "-".to_owned() } else { size::show(self.bytes) },
            units::seconds(self.median),
            or_dash(self.predicted.map(units::seconds)),
            units::seconds(self.min),
            units::seconds(self.max),
            or_dash(self.limit.map(units::seconds)),
            or_dash(self.over_limit.map(|x| format!("{x:.2}"))),
            or_dash(self.idle.map(|x| format!("{:.0} %", 100.0 * x))),
            self.chunks_repaired.to_string(),
            self.plan.clone(),
        ])
    }
}

fn columns(cells: [String; 11]) -> String {
    let [op, figures @ .., plan] = cells;
    figures.iter().fold(format!("{op:<15}"), |line, cell| line + &format!("{cell:>11}")) + "  " + &plan
}

/// The whole as one JSON document.
pub(crate) fn document(participants: &Participants, root: usize, warmup: u32, results: &[Figures]) -> String {
    let known = |rate: u64| (rate > 0).then_some(rate);
    let cluster = &participants.cluster;
    let document = serde_json::json!({
        "ranks": participants.ranks,
        "nodes": cluster.nodes,
        "racks": cluster.racks,
        "host_bytes_per_second": known(cluster.host),
        "uplink_bytes_per_second": known(cluster.uplink),
        "root": root,
        "warmup": warmup,
        "results": results,
    });
    format!("{document:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Member;

    fn participants() -> Participants {
        let member =
            |rank: u32| Member { rank, node: format!("h{}", rank / 2), rack: rank / 4, ..Member::default() };
        let group = Group {
            members: (0..8).map(member).collect(),
            host_bytes_per_second: 2_500_000,
            uplink_bytes_per_second: 2_500_000,
            ..Group::default()
        };
        Participants::of(&group)
    }

    fn figures(op: &str, seconds: &[f64]) -> Figures {
        let op = op.parse().unwrap();
        let measured = Measured {
            seconds: seconds.to_vec(),
            plan: "multicast".to_owned(),
            idle: Some(0.25),
            chunks_repaired: 3,
        };
        Figures::new(Case { op, bytes: 1 << 20 }, measured, Some(1.25), &participants()).unwrap()
    }

    #[test]
    fn the_median_is_quoted_over_the_limit() {
        let f = figures("bcast", &[3.0, 1.0, 2.0, 0.5]);
        assert_eq!((f.min, f.median, f.max), (0.5, 1.5, 3.0));
        let limit = f64::from(1 << 20) / 2.5e6;
        assert_eq!((f.limit, f.over_limit), (Some(limit), Some(1.5 / limit)));
        let row = "bcast                   1M     1.50 s     1.25 s     500 ms     3.00 s     419 ms       3.58       25 %          3  multicast";
        assert_eq!(f.row(), row);
        assert_eq!(Figures::titles().find("plan"), row.find("multicast"));
    }

    #[test]
    fn nothing_measured_gives_no_figures() {
        let measured = Measured { seconds: Vec::new(), plan: String::new(), idle: None, chunks_repaired: 0 };
        let op = "barrier".parse().unwrap();
        assert_eq!(Figures::new(Case { op, bytes: 0 }, measured, None, &participants()), None);
    }

    #[test]
    fn the_document_has_every_repetition() {
        let text = document(&participants(), 1, 2, &[figures("barrier", &[0.5, 0.25])]);
        let v: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (v["ranks"].as_u64(), v["nodes"].as_u64(), v["racks"].as_u64()),
            (Some(8), Some(4), Some(2))
        );
        let result = &v["results"][0];
        assert_eq!((result["op"].as_str(), result["reps"].as_u64()), (Some("barrier"), Some(2)));
        assert_eq!(result["seconds"], serde_json::json!([0.5, 0.25]));
        assert_eq!((result["limit"].is_null(), result["chunks_repaired"].as_u64()), (true, Some(3)));
    }

    #[test]
    fn participants_are_told_in_words() {
        let text = "8 ranks on 4 nodes in 2 racks, host links 20 Mbit/s, rack uplinks 20 Mbit/s";
        assert_eq!(participants().describe(), text);
    }
}
