//! The results of a benchmark, as a table or as JSON.

use super::limit::{BenchCluster, limit};
use super::plan::{BenchCase, BenchOp, CaseMeasurement};
use crate::{cluster, size, terminal_text, units};
use cool::Operation;
use cool_proto::control::Group;
use serde::Serialize;
use std::collections::BTreeSet;

/// Share of repaired chunks above which a note below the table explains them.
const NOTABLE_LOSS: f64 = 0.01;

/// The ranks of a benchmark and their network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Participants {
    pub(crate) ranks: usize,
    pub(crate) cluster: BenchCluster,
    /// Bytes that pass an idle link at once. Less data can be faster than the limit.
    burst: u64,
    chunk_bytes: u64,
}

impl Participants {
    /// Returns the members of a group.
    pub(crate) fn from_group(group: &Group) -> Participants {
        let nodes: BTreeSet<&str> = group.members.iter().map(|m| m.node.as_str()).collect();
        let racks: BTreeSet<u32> = group.members.iter().map(|m| m.rack).collect();
        let (host, uplink) = (group.host_bytes_per_second, group.uplink_bytes_per_second);
        let cluster = BenchCluster { nodes: nodes.len(), racks: racks.len(), host, uplink };
        let burst = cluster::cost_model(&group.cost_model).map_or(0, |model| model.burst);
        let chunk_bytes = group.chunk_bytes.into();
        Participants { ranks: group.members.len(), cluster, burst, chunk_bytes }
    }

    /// Returns a description in one line.
    pub(crate) fn describe(&self) -> String {
        let BenchCluster { nodes, racks, host, uplink } = self.cluster;
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

/// The figures of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CaseFigures {
    op: BenchOp,
    /// Size on the command line.
    bytes: u64,
    /// Length of the message, the vector or the whole array, in whole elements and parts.
    bytes_moved: u64,
    plan: String,
    reps: usize,
    seconds: Vec<f64>,
    median: f64,
    /// Time that the simulator predicts by the group's cost model, in seconds.
    predicted: Option<f64>,
    min: f64,
    max: f64,
    limit: Option<f64>,
    over_limit: Option<f64>,
    idle: Option<f64>,
    chunks_repaired: u64,
}

impl CaseFigures {
    /// Returns the figures of a case; `None` without measurements.
    pub(crate) fn new(
        case: BenchCase,
        measured: CaseMeasurement,
        predicted: Option<f64>,
        participants: &Participants,
    ) -> Option<CaseFigures> {
        let CaseMeasurement { seconds, plan, idle, chunks_repaired } = measured;
        let mut sorted = seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = (low + high) / 2.0;
        let bytes_moved = case.moved(participants.ranks as u64);
        let limit = limit(case.op, bytes_moved, &participants.cluster);
        Some(CaseFigures {
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

    /// Returns the titles over [`CaseFigures::row`].
    pub(crate) fn titles() -> String {
        let titles = [
            "operation",
            "bytes",
            "median",
            "predicted",
            "min",
            "max",
            "limit",
            "x limit",
            "idle",
            "repaired",
            "plan",
        ];
        columns(titles.map(str::to_owned))
    }

    /// Returns a line of the table. A limit is left out if the data fits the burst of a link,
    /// because the limit would be longer than the measured time.
    pub(crate) fn row(&self, participants: &Participants) -> String {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let applies = |_: &f64| self.bytes_moved > participants.burst;
        columns([
            self.op.to_string(),
            if self.op.operation == Operation::Barrier { "-".to_owned() } else { size::show(self.bytes) },
            units::seconds(self.median),
            or_dash(self.predicted.map(units::seconds)),
            units::seconds(self.min),
            units::seconds(self.max),
            or_dash(self.limit.filter(applies).map(units::seconds)),
            or_dash(self.over_limit.filter(applies).map(|x| format!("{x:.2}"))),
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

/// Returns a line under the table if many chunks were repaired. The number of chunks is an
/// estimate: each node but one receives the data of every call once.
pub(crate) fn loss_note(participants: &Participants, calls: u32, results: &[CaseFigures]) -> Option<String> {
    let receivers = participants.cluster.nodes.saturating_sub(1) as u64;
    let chunks = |figures: &CaseFigures| {
        let chunks = figures.bytes_moved.div_ceil(participants.chunk_bytes.max(1));
        chunks * receivers * figures.reps as u64 * u64::from(calls)
    };
    let (repaired, sent) = results.iter().fold((0, 0), |(repaired, sent), figures| {
        (repaired + figures.chunks_repaired, sent + chunks(figures))
    });
    let share = repaired as f64 / sent.max(1) as f64;
    (participants.chunk_bytes > 0 && share > NOTABLE_LOSS).then(|| {
        format!(
            "about {:.0} % of the chunks were lost and repaired: see `cool doctor`",
            100.0 * share.min(1.0)
        )
    })
}

/// Returns all results as one JSON document.
pub(crate) fn document(
    participants: &Participants,
    root: usize,
    warmup: u32,
    results: &[CaseFigures],
) -> String {
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
    terminal_text::json(&document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_collective::CostModel;
    use cool_proto::control::Member;

    fn participants() -> Participants {
        let member =
            |rank: u32| Member { rank, node: format!("h{}", rank / 2), rack: rank / 4, ..Member::default() };
        let model = CostModel { burst: 16_000, ..CostModel::default() };
        let group = Group {
            members: (0..8).map(member).collect(),
            host_bytes_per_second: 2_500_000,
            uplink_bytes_per_second: 2_500_000,
            chunk_bytes: 1024,
            cost_model: serde_json::json!(model).to_string(),
            ..Group::default()
        };
        Participants::from_group(&group)
    }

    fn figures(op: &str, bytes: u64, seconds: &[f64]) -> CaseFigures {
        let op = op.parse().unwrap();
        let measured = CaseMeasurement {
            seconds: seconds.to_vec(),
            plan: "multicast".to_owned(),
            idle: Some(0.25),
            chunks_repaired: 3,
        };
        CaseFigures::new(BenchCase { op, bytes }, measured, Some(1.25), &participants()).unwrap()
    }

    #[test]
    fn the_median_is_quoted_over_the_limit() {
        let f = figures("bcast", 1 << 20, &[3.0, 1.0, 2.0, 0.5]);
        assert_eq!((f.min, f.median, f.max), (0.5, 1.5, 3.0));
        let limit = f64::from(1 << 20) / 2.5e6;
        assert_eq!((f.limit, f.over_limit), (Some(limit), Some(1.5 / limit)));
        let row = "bcast                   1M     1.50 s     1.25 s     500 ms     3.00 s     419 ms       3.58       25 %          3  multicast";
        assert_eq!(f.row(&participants()), row);
        assert_eq!(CaseFigures::titles().find("plan"), row.find("multicast"));
    }

    #[test]
    fn data_that_fits_the_burst_of_a_link_has_no_limit_in_the_table() {
        let f = figures("bcast", 1 << 10, &[0.001]);
        assert!(f.limit.is_some() && f.over_limit.is_some(), "JSON keeps it");
        assert_eq!(f.row(&participants()).matches(" - ").count(), 2);
    }

    #[test]
    fn many_repaired_chunks_are_explained_under_the_table() {
        let note = |chunks_repaired| {
            let f = CaseFigures { chunks_repaired, ..figures("bcast", 100 << 10, &[1.0]) };
            loss_note(&participants(), 1, &[f])
        };
        assert_eq!(note(3), None);
        let text = "about 7 % of the chunks were lost and repaired: see `cool doctor`";
        assert_eq!(note(21).as_deref(), Some(text));
    }

    #[test]
    fn nothing_measured_gives_no_figures() {
        let measured =
            CaseMeasurement { seconds: Vec::new(), plan: String::new(), idle: None, chunks_repaired: 0 };
        let op = "barrier".parse().unwrap();
        assert_eq!(CaseFigures::new(BenchCase { op, bytes: 0 }, measured, None, &participants()), None);
    }

    #[test]
    fn the_document_has_every_repetition() {
        let text = document(&participants(), 1, 2, &[figures("barrier", 1 << 20, &[0.5, 0.25])]);
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
    fn participants_are_described_in_one_line() {
        let text = "8 ranks on 4 nodes in 2 racks, host links 20 Mbit/s, rack uplinks 20 Mbit/s";
        assert_eq!(participants().describe(), text);
    }
}
