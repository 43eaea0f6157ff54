//! `cool trace`: shows how long recent collectives took, from the records of all nodes.

mod call;
mod timeline;

use crate::error::Error;
use crate::{terminal_text, units};
use call::{TracedCall, TracedCalls};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{CallRecord, TraceRequest};
use cool_proto::{job_ids, trace_file};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use tonic::transport::Channel;

/// Show the slowest of the recent collectives, and the ranks that were late
///
/// Each agent records its last 4096 calls, and of the quick calls that ranks execute themselves the
/// last 1024 of each group. Times are those of the nodes' clocks, which must differ by less than
/// the duration of a call: otherwise the late rank cannot be determined.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceOptions {
    /// Request the last N calls of each node; 0 for all
    #[arg(long, default_value_t = 1000, value_name = "N")]
    last: u32,

    /// Only calls of the group with this number, as this table or `cool groups` shows it
    #[arg(long)]
    group: Option<u64>,

    /// Show the N slowest
    #[arg(long, default_value_t = 20, value_name = "N")]
    slowest: usize,

    /// Write all calls to a file for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,

    /// Show the trace of a run in one process (libcool's embedded mode with COOL_TRACE=FILE),
    /// without a controller
    #[arg(long, value_name = "FILE", conflicts_with = "last")]
    file: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl TraceOptions {
    /// Returns whether a file is shown, without a controller.
    pub(crate) fn reads_file(&self) -> bool {
        self.file.is_some()
    }
}

/// Prints the trace in a file.
pub(crate) fn show_file(options: &TraceOptions) -> Result<(), Error> {
    let Some(path) = &options.file else { return Ok(()) };
    let failed = |reason: String| Error::TraceFile { path: path.display().to_string(), reason };
    let bytes = std::fs::read(path).map_err(|e| failed(format!("cannot be read: {e}")))?;
    let mut calls = TracedCalls::default();
    for event in trace_file::decode(&bytes).map_err(|e| failed(e.to_string()))? {
        let is_requested = |record: &CallRecord| {
            options.group.is_none_or(|group| [record.group, job_ids::short(record.group)].contains(&group))
        };
        event.records.into_iter().filter(is_requested).for_each(|record| calls.add(&event.node, record));
    }
    print(&calls, options)
}

/// Requests the records, and prints them.
pub(crate) async fn show(mut client: ControllerClient<Channel>, options: &TraceOptions) -> Result<(), Error> {
    let request = TraceRequest { id: 0, last: options.last, group: options.group.unwrap_or(0) };
    let mut events = client.trace(request).await?.into_inner();
    let mut calls = TracedCalls::default();
    while let Some(event) = events.message().await? {
        event.records.into_iter().for_each(|record| calls.add(&event.node, record));
        if !event.silent.is_empty() {
            eprintln!("cool: no answer from {}", event.silent.join(", "));
        }
    }
    print(&calls, options)
}

fn print(calls: &TracedCalls, options: &TraceOptions) -> Result<(), Error> {
    if let Some(path) = &options.perfetto {
        let failed = |reason| Error::Timeline { path: path.display().to_string(), reason };
        std::fs::write(path, timeline::document(calls).to_string()).map_err(failed)?;
    }
    let mut slowest: Vec<&TracedCall> = calls.iter().collect();
    slowest.sort_by_key(|call| Reverse(call.nanoseconds()));
    slowest.truncate(options.slowest);
    let text = if options.json {
        terminal_text::json(
            &json!({ "calls": slowest.iter().map(|call| call.document()).collect::<Vec<_>>() }),
        )
    } else if slowest.is_empty() {
        "no calls\n".to_owned()
    } else {
        table(&slowest)
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Explains the columns of the table.
const LEGEND: &str = "\nlast caller: the rank that called last, its node, and how long after the first rank\n\
                      after it: time from then until the last rank had its result\n\
                      last data: the rank whose data arrived last, and where\n";

const TITLES: [&str; 8] =
    ["group", "call", "time", "last caller", "after it", "last data", "repaired", "operation"];

fn table(calls: &[&TracedCall]) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    let groups: BTreeSet<u64> = calls.iter().map(|call| call.record().group).collect();
    rows.extend(calls.iter().map(|call| row(call, &groups)));
    units::columns(&rows) + LEGEND
}

/// Returns the row of a call in a table of calls of these groups.
fn row(call: &TracedCall, groups: &BTreeSet<u64>) -> [String; 8] {
    let time = |nanoseconds: u64| units::seconds(nanoseconds as f64 / 1e9);
    let record = call.record();
    let failed = if record.failure.is_empty() { String::new() } else { format!(": {}", record.failure) };
    let late = call.last_caller();
    [
        job_ids::shown(record.group, groups.iter().copied()).to_string(),
        record.call.to_string(),
        time(call.nanoseconds()),
        late.map_or("-".into(), |late| format!("{} on {}, {}", late.rank, late.node, time(call.lateness()))),
        time(call.nanoseconds().saturating_sub(call.lateness())),
        call.last_data().map_or("-".into(), |data| format!("{} at {}", data.rank, data.node)),
        call.repaired().to_string(),
        format!("{} by {}{failed}", record.words, record.plan),
    ]
}

#[cfg(test)]
mod tests {
    use super::call::tests::{MILLISECOND, calls};
    use super::*;

    #[test]
    fn a_row_has_the_late_rank_and_the_last_data() {
        let calls = calls();
        let call = calls.iter().next().unwrap();
        assert_eq!(call.nanoseconds(), 10 * MILLISECOND);
        let row = row(call, &BTreeSet::from([3]));
        assert_eq!(row[..4], ["3", "7", "10.0 ms", "2 on h2, 6.00 ms"]);
        assert_eq!(row[4..], ["4.00 ms", "2 at h1", "5", "barrier by flat:binomial: rank 9 is gone"]);
    }
}
