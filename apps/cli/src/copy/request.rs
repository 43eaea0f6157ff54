//! A copy as a command requests it: from which node to which nodes, and how it is executed and
//! reported.

use super::late::{self, LateNodes};
use super::options::{ChosenNode, NodeChoice, ReportOptions, TransferOptions};
use super::outcome::{CopyOutcome, ExpelledMember};
use crate::error::Error;
use crate::node_names::failure_lines;
use crate::terminal_text::printable;
use cool_copy::{CopySecret, CopyTask, NodeLinkRates, StoreTask, without_os_code};
use cool_proto::control::Node;
use cool_proto::control::controller_client::ControllerClient;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// Maximum length of a piece, in bytes. Each piece is a broadcast.
const PIECE_MAX_BYTES: u64 = 8 << 20;
/// Time that a piece may take if the source has a limit, in seconds.
const PIECE_SECONDS: u64 = 2;
/// Progress reports of all nodes together per second. With few nodes, each reports up to ten times
/// per second.
const REPORTS_PER_SECOND: u64 = 64;
const REPORT_INTERVAL_MIN_MS: u64 = 100;

/// A request to copy a source to nodes.
pub(crate) struct CopyRequest<'a> {
    /// The node that has the source.
    pub(crate) from: String,
    /// The nodes that get a copy.
    pub(crate) to: NodeChoice,
    pub(crate) paths: CopyPaths,
    /// How the ranks use the stores, for copies out of stores or into them.
    pub(crate) store: Option<StoreTask>,
    pub(crate) delete: bool,
    pub(crate) transfer: &'a TransferOptions,
}

/// Returns whether a destination is the directory to copy into, rather than the path of the copy:
/// it ends with `/`, or it is `.` or `..` or ends with one of them, as for `cp`.
pub(crate) fn names_directory(dest: &Path) -> bool {
    let last = dest.as_os_str().as_encoded_bytes().rsplit(|byte| *byte == b'/').next();
    matches!(last, Some(b"" | b"." | b".."))
}

/// Refuses a path with an unknown placeholder, such as {host}, because it would be taken literally.
pub(crate) fn check_placeholders(path: &str) -> Result<(), Error> {
    let mut rest = path;
    while let Some((_, after)) = rest.split_once('{') {
        let Some((word, behind)) = after.split_once('}') else { break };
        let is_placeholder = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
        if is_placeholder && word != "node" {
            let placeholder = format!("{{{word}}}");
            return Err(Error::Placeholder { path: path.to_owned(), placeholder });
        }
        rest = behind;
    }
    Ok(())
}

/// Absolute paths of the source on its node and of the copy on every node.
pub(crate) struct CopyPaths {
    pub(crate) source: String,
    pub(crate) dest: String,
}

impl CopyPaths {
    /// Makes the paths absolute, relative to this process's working directory. Without a
    /// destination, copies have the path of the source.
    pub(crate) fn new(source: &Path, dest: Option<&Path>) -> Result<CopyPaths, Error> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(Error::Runtime);
        let from = absolute(source)?;
        let mut to = dest.map_or_else(|| Ok(from.clone()), absolute)?;
        if let Some(dest) = dest {
            check_placeholders(&dest.to_string_lossy())?;
            if names_directory(dest) {
                // Without a name, DEST itself would be replaced.
                to.push(from.file_name().ok_or_else(|| Error::NoSourceName(source.to_owned()))?);
            }
        }
        let text = |path: PathBuf| {
            path.into_os_string().into_string().map_err(|path| Error::NotUtf8(path.display().to_string()))
        };
        Ok(CopyPaths { source: text(from)?, dest: text(to)? })
    }

    /// Returns the paths of a copy into stores. The destination is empty, so that ranks of a
    /// release without stores write nothing.
    pub(crate) fn into_stores(source: &Path) -> Result<CopyPaths, Error> {
        Ok(CopyPaths { dest: String::new(), ..CopyPaths::new(source, None)? })
    }
}

/// Copies by a job, and returns the outcome for every node.
///
/// # Errors
/// If the source cannot be read, or the job cannot run.
pub(crate) async fn copy(
    client: ControllerClient<Channel>,
    nodes: &[Node],
    request: CopyRequest<'_>,
) -> Result<CopyOutcome, Error> {
    request.transfer.check()?;
    let to = request.to.clone();
    let chosen = to.choose(nodes)?;
    let names = chosen.iter().map(|(name, _)| name.clone()).collect();
    let from = request.from.clone();
    let by_swarm = request.transfer.is_by_swarm();
    let others = request.store.as_ref().filter(|_| by_swarm).map_or(&[][..], |stored| &stored.others);
    let JobNodes { all, serving, absent } = JobNodes::new(chosen, &from, others);
    let user = request.transfer.user.clone();
    let task = task(request, nodes, (!serving.contains(&from), &all))?;
    let secret = CopySecret::new().map_err(Error::Runtime)?;
    let spec = late::spec(&task, all, user.clone(), secret)?;
    let mut outcome = CopyOutcome::new(from, serving, absent);
    let late = LateNodes { to: &to, chosen: names, task, secret, user };
    let ended = late::run(client, spec, &late, &mut outcome).await;
    conclude(outcome, ended)
}

/// The nodes of a copy's job.
pub(super) struct JobNodes {
    /// All nodes with a rank: those that were chosen and are ready, and those that have the source.
    pub(super) all: Vec<String>,
    /// The nodes that have the source and were not chosen.
    pub(super) serving: BTreeSet<String>,
    /// The chosen nodes that are not ready, each with the reason.
    pub(super) absent: Vec<(String, String)>,
}

impl JobNodes {
    pub(super) fn new(chosen: Vec<ChosenNode>, from: &str, others: &[String]) -> JobNodes {
        let (ready, absent): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|(_, absent)| absent.is_none());
        let mut all: Vec<String> = ready.into_iter().map(|(name, _)| name).collect();
        let holders = others.iter().cloned().chain([from.to_owned()]);
        let serving: BTreeSet<String> = holders.filter(|name| !all.contains(name)).collect();
        all.extend(serving.iter().cloned());
        let absent = absent.into_iter().map(|(name, why)| (name, why.unwrap_or_default().to_owned()));
        JobNodes { all, serving, absent: absent.collect() }
    }
}

/// Returns the outcome of a copy. Its job must have ended.
pub(super) fn conclude(mut outcome: CopyOutcome, ended: Result<(), Error>) -> Result<CopyOutcome, Error> {
    match ended {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    if let Some(reason) = outcome.source_error() {
        return Err(Error::CopySource { node: outcome.from().to_owned(), reason });
    }
    outcome.end(ended.as_ref().err());
    report_expelled(&outcome);
    Ok(outcome)
}

/// Prints the outcome.
///
/// # Errors
/// If too few nodes have a copy.
pub(crate) fn report(outcome: &CopyOutcome, options: &ReportOptions) -> Result<(), Error> {
    let text = if options.json { outcome.json()? } else { outcome.table() };
    std::io::stdout().write_all(text.as_bytes())?;
    let copies = report_failed(outcome);
    let requested = outcome.requested();
    if copies >= options.quorum.of(requested) { Ok(()) } else { Err(Error::Copies { copies, requested }) }
}

/// Prints the nodes without a copy, and returns the number of nodes with one.
pub(crate) fn report_failed(outcome: &CopyOutcome) -> usize {
    for line in failure_lines(outcome.failed()) {
        eprintln!("cool: {}", printable(&without_os_code(&line)));
    }
    outcome.requested() - outcome.failed().count()
}

/// Prints the nodes that sent wrong bytes, and the nodes that detected it.
fn report_expelled(outcome: &CopyOutcome) {
    for ExpelledMember { node, by } in outcome.expelled() {
        eprintln!(
            "cool: {node} sent bytes that differ from the content, although it had declared them checked; expelled by {}",
            by.join(", ")
        );
    }
}

/// Returns the task of a copy's ranks.
fn task(
    request: CopyRequest,
    nodes: &[Node],
    (copy_on_source, hosts): (bool, &[String]),
) -> Result<CopyTask, Error> {
    let CopyRequest { from, paths, transfer, store, delete, .. } = request;
    let address = nodes.iter().find(|node| node.name == from).and_then(|node| node.ip.parse().ok());
    let is_host = |node: &&Node| hosts.contains(&node.name);
    let rates = NodeLinkRates::from_nodes(nodes.iter().filter(is_host));
    let limited = |limit: u64| limit.saturating_mul(PIECE_SECONDS).min(PIECE_MAX_BYTES);
    let piece_max = transfer.limit.map_or(PIECE_MAX_BYTES, limited);
    Ok(CopyTask {
        source: paths.source.into(),
        dest: paths.dest,
        copy_on_source,
        via: transfer.via,
        // The controller knows the address of every node.
        address: address.ok_or_else(|| Error::NoNode(from.clone()))?,
        rate: rates.slowest(),
        rates,
        from,
        limit: transfer.limit,
        // The length is at most 8 MiB, so it fits.
        piece_max: piece_max as usize,
        background: transfer.background,
        compress: transfer.compress,
        delete,
        verify: transfer.verify,
        store,
        late: None,
        secret: None,
        report_interval_ms: (1000 * hosts.len() as u64 / REPORTS_PER_SECOND).max(REPORT_INTERVAL_MIN_MS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_a_name_needs_the_name_of_its_copy() {
        for source in ["..", "x/..", "/", "../"] {
            let into = CopyPaths::new(Path::new(source), Some(Path::new("/scratch/")));
            let text = into.err().unwrap().to_string();
            assert!(text.ends_with("has no name for the copies; add one to DEST"), "{text}");
            assert_eq!(
                CopyPaths::new(Path::new(source), Some(Path::new("/scratch/x"))).unwrap().dest,
                "/scratch/x"
            );
        }
        let here = CopyPaths::new(Path::new("x/."), Some(Path::new("/scratch/"))).unwrap();
        assert_eq!(here.dest, "/scratch/x");
    }

    #[test]
    fn a_destination_that_ends_with_dots_is_not_replaced() {
        let here = std::env::current_dir().unwrap().join("x").display().to_string();
        for (dest, copy) in [
            ("/scratch/.", "/scratch/x"),
            ("/scratch/./", "/scratch/x"),
            ("/scratch/..", "/scratch/../x"),
            (".", here.as_str()),
            ("/scratch/a.", "/scratch/a."),
            ("/scratch/...", "/scratch/..."),
        ] {
            assert_eq!(CopyPaths::new(Path::new("/x"), Some(Path::new(dest))).unwrap().dest, copy, "{dest}");
        }
    }

    #[test]
    fn only_the_placeholder_node_is_known() {
        for known in ["/tmp/x", "/tmp/{node}/x", "/tmp/{}/{a b}", "/{node", "}{"] {
            assert!(check_placeholders(known).is_ok(), "{known}");
        }
        let text = CopyPaths::new(Path::new("a"), Some(Path::new("/tmp/{host}"))).err().unwrap().to_string();
        let expected = "/tmp/{host}: {host} is unknown; only {node} is replaced, by the name of the node";
        assert_eq!(text, expected);
    }
}
