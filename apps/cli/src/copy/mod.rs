//! `cool copy`: submits a job whose ranks are this same program (`rank`), one on each node, and shows what comes of it.

mod admission;
mod fault;
mod flight;
mod group;
mod join;
mod late;
mod options;
mod outcome;
mod pipeline;
mod private;
mod progress;
mod rank;
mod rates;
mod reader;
mod said;
mod scan;
mod secret;
mod source;
mod spool;
mod stage;
mod stored;
mod stream;
pub(crate) mod swarm;
mod target;
mod verify;
mod work;
mod writer;

pub(crate) use options::{Chosen, CopyReport, CopyWay, NAME_SOURCE, NodeChoice, node_named};
pub(crate) use outcome::Outcome;
pub(crate) use rank::{RankError, RankOptions, rank};
pub(crate) use said::CopyVia;
pub(crate) use spool::SpoolError;
pub(crate) use stage::{StageOptions, stage};
pub(crate) use stored::{PutTask, StoreTask};
pub(crate) use stream::{StreamRankOptions, rank as stream_rank};
pub(crate) use verify::damages;

use crate::error::Error;
use crate::job::Signals;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use late::LateNodes;
use outcome::ExpelledNode;
use rates::LinkRates;
use said::Task;
use secret::Secret;
use spool::Spool;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// Bytes of the longest pieces, which are a broadcast each.
const PIECE_MAX: u64 = 8 << 20;
/// Seconds between two pieces of a source that is slowed down.
const PIECE_SECONDS: u64 = 2;
/// Nodes that say in a second how far they are; fewer say it more often, up to ten times.
const TELLERS: u64 = 64;
const TELL_EVERY_MS_MIN: u64 = 100;

/// Copy a file or a folder to many nodes
///
/// What each node lacks is read once and broadcast to all: over multicast trees where there are any, else along the chain;
/// or nodes pass it on to each other (--via swarm).
/// Nodes that have blocks of it already, in an older copy at DEST or from a copy that was interrupted, do not get them
/// again, and what no node lacks is not sent. A copy comes into being beside its DEST, and takes its place when it is whole and every
/// byte is checked. It is written as you, with the modes and times of the source. Nodes that cannot have it are named,
/// each with the reason, and the others go on. Nodes whose agents come while it is under way, or come back, get theirs, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    nodes: NodeChoice,

    /// The node that has SOURCE [default: this machine's]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    way: CopyWay,

    /// Remove what a folder at DEST has and SOURCE has not; else such a folder is left as it is, and named
    #[arg(long)]
    delete: bool,

    /// Send what comes by standard input (SOURCE -) while it comes, in order, and keep it nowhere on its way; DEST may be a pipe
    #[arg(long, conflicts_with_all = ["from", "user", "delete", "compress", "verify", "limit"])]
    stream: bool,

    #[command(flatten)]
    report: CopyReport,

    /// A file or a folder on its node; - is what comes to this command by standard input
    source: PathBuf,

    /// The copy's path on every node; with / at its end, the folder that it is in. {node} stands for the node's name
    dest: PathBuf,
}

impl Options {
    /// Whether SOURCE is standard input.
    fn is_of_input(&self) -> bool {
        self.source == Path::new("-")
    }

    /// To copy what is at a path.
    fn order(&self, nodes: &[Node], source: &Path) -> Result<CopyOrder<'_>, Error> {
        Ok(CopyOrder {
            from: node_named(nodes, self.from.as_deref(), NAME_SOURCE)?,
            to: self.nodes.clone(),
            what: CopyPaths::new(source, Some(&self.dest))?,
            store: None,
            delete: self.delete,
            way: &self.way,
        })
    }
}

/// Copies, and tells what came of it.
pub(crate) async fn run(mut client: ControllerClient<Channel>, options: &Options) -> Result<(), Error> {
    let mut nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    if options.stream {
        let outcome = stream::stream(client, &nodes, options).await?;
        return report(&outcome, &options.report);
    }
    let mut order = options.order(&nodes, &options.source)?;
    // Gone with the end of this function.
    let kept;
    if options.is_of_input() {
        (kept, nodes) = keep_input(&mut client, options).await?;
        order = options.order(&nodes, &kept.path())?;
    }
    let outcome = carry_out(client, &nodes, order).await?;
    report(&outcome, &options.report)
}

/// Standard input as a file, and which nodes there are when it has come.
async fn keep_input(
    client: &mut ControllerClient<Channel>,
    options: &Options,
) -> Result<(Spool, Vec<Node>), Error> {
    if options.from.is_some() {
        return Err(SpoolError::From.into());
    }
    if options.way.user.is_some() {
        return Err(SpoolError::User.into());
    }
    if names_folder(&options.dest) {
        return Err(SpoolError::NoName(options.dest.clone()).into());
    }
    let mut signals = Signals::new().map_err(Error::Runtime)?;
    let spool = Spool::of_input(signals.ending()).await?;
    tokio::select! {
        topology = client.get_topology(TopologyRequest {}) => Ok((spool, topology?.into_inner().nodes)),
        signal = signals.ending() => Err(SpoolError::Interrupted { signal }.into()),
    }
}

/// What is copied where.
pub(crate) struct CopyOrder<'a> {
    /// The node that has the source.
    pub(crate) from: String,
    /// The nodes that get it.
    pub(crate) to: NodeChoice,
    pub(crate) what: CopyPaths,
    /// If it is out of stores, or into them.
    pub(crate) store: Option<StoreTask>,
    pub(crate) delete: bool,
    pub(crate) way: &'a CopyWay,
}

/// Whether a destination is the folder that the copy is in.
pub(crate) fn names_folder(dest: &Path) -> bool {
    dest.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// From where on its node to where on each node.
pub(crate) struct CopyPaths {
    source: String,
    dest: String,
}

impl CopyPaths {
    /// Both from this working directory; without a destination it is the source's path.
    pub(crate) fn new(source: &Path, dest: Option<&Path>) -> Result<CopyPaths, Error> {
        let absolute = |path: &Path| std::path::absolute(path).map_err(Error::Runtime);
        let from = absolute(source)?;
        let mut to = dest.map_or_else(|| Ok(from.clone()), absolute)?;
        if dest.is_some_and(names_folder) {
            to.push(from.file_name().unwrap_or_default());
        }
        let text = |path: PathBuf| {
            path.into_os_string().into_string().map_err(|path| Error::NotUtf8(path.display().to_string()))
        };
        Ok(CopyPaths { source: text(from)?, dest: text(to)? })
    }

    /// Into stores: to no path, so that ranks that know of no stores write nowhere.
    pub(crate) fn into_stores(source: &Path) -> Result<CopyPaths, Error> {
        Ok(CopyPaths { dest: String::new(), ..CopyPaths::new(source, None)? })
    }
}

/// Copies by a job; what came of it, unless the source could not be read.
pub(crate) async fn carry_out(
    client: ControllerClient<Channel>,
    nodes: &[Node],
    order: CopyOrder<'_>,
) -> Result<Outcome, Error> {
    order.way.check()?;
    let to = order.to.clone();
    let chosen = to.of(nodes)?;
    let names = chosen.iter().map(|(name, _)| name.clone()).collect();
    let from = order.from.clone();
    let by_swarm = order.way.is_by_swarm();
    let others = order.store.as_ref().filter(|_| by_swarm).map_or(&[][..], |stored| &stored.others);
    let Hosts { all, serving, absent } = Hosts::of(chosen, &from, others);
    let user = order.way.user.clone();
    let task = task(order, nodes, (!serving.contains(&from), &all))?;
    let secret = Secret::new().map_err(Error::Runtime)?;
    let spec = late::spec(&task, all, user.clone(), secret)?;
    let mut outcome = Outcome::new(from, serving, absent);
    let late = LateNodes { to: &to, chosen: names, task, secret, user };
    let ended = late::run(client, spec, &late, &mut outcome).await;
    concluded(outcome, ended)
}

/// Where a copy's ranks run.
struct Hosts {
    /// The chosen nodes that are there, and those that have it.
    all: Vec<String>,
    /// Those that have it and were not chosen.
    serving: BTreeSet<String>,
    /// The others that were chosen, each with the reason.
    absent: Vec<(String, String)>,
}

impl Hosts {
    fn of(chosen: Vec<Chosen>, from: &str, others: &[String]) -> Hosts {
        let (ready, absent): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|(_, absent)| absent.is_none());
        let mut all: Vec<String> = ready.into_iter().map(|(name, _)| name).collect();
        let having = others.iter().cloned().chain([from.to_owned()]);
        let serving: BTreeSet<String> = having.filter(|name| !all.contains(name)).collect();
        all.extend(serving.iter().cloned());
        let absent = absent.into_iter().map(|(name, why)| (name, why.unwrap_or_default().to_owned()));
        Hosts { all, serving, absent: absent.collect() }
    }
}

/// What came of a copy whose job has ended.
fn concluded(mut outcome: Outcome, ended: Result<(), Error>) -> Result<Outcome, Error> {
    match ended {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    if let Some(reason) = outcome.source_fault() {
        return Err(Error::CopySource { node: outcome.from().to_owned(), reason });
    }
    outcome.end(ended.as_ref().err());
    say_expelled(&outcome);
    Ok(outcome)
}

/// Prints what came of it; an error if too few nodes have a copy.
pub(crate) fn report(outcome: &Outcome, how: &CopyReport) -> Result<(), Error> {
    let text = if how.json { outcome.json()? } else { outcome.table() };
    std::io::stdout().write_all(text.as_bytes())?;
    let copies = say_failed(outcome);
    let asked = outcome.asked();
    if copies >= how.quorum.of(asked) { Ok(()) } else { Err(Error::Copies { copies, asked }) }
}

/// Names the nodes without a copy; how many have one.
fn say_failed(outcome: &Outcome) -> usize {
    let failed = outcome.failed().inspect(|(node, why)| eprintln!("cool: {node}: {why}")).count();
    outcome.asked() - failed
}

/// Names the nodes that sent wrong bytes, and who found that.
fn say_expelled(outcome: &Outcome) {
    for ExpelledNode { node, by } in outcome.expelled() {
        eprintln!(
            "cool: {node} sent bytes that are not the content's, and had said that it had checked them; nothing more was taken of it by {}",
            by.join(", ")
        );
    }
}

/// What `hosts` are to do.
fn task(order: CopyOrder, nodes: &[Node], (own, hosts): (bool, &[String])) -> Result<Task, Error> {
    let CopyOrder { from, what, way, store, delete, .. } = order;
    let address = nodes.iter().find(|node| node.name == from).and_then(|node| node.ip.parse().ok());
    let hosts_of = |node: &&Node| hosts.contains(&node.name);
    let rates = LinkRates::of(nodes.iter().filter(hosts_of));
    let piece_max = way.limit.map_or(PIECE_MAX, |limit| limit.saturating_mul(PIECE_SECONDS).min(PIECE_MAX));
    Ok(Task {
        source: what.source.into(),
        dest: what.dest,
        own,
        via: way.via,
        // The controller knows every node's.
        address: address.ok_or_else(|| Error::NoNode(from.clone()))?,
        rate: rates.slowest(),
        rates,
        from,
        limit: way.limit,
        // No more than 8 MiB.
        piece_max: piece_max as usize,
        background: way.background,
        compress: way.compress,
        delete,
        verify: way.verify,
        store,
        late: None,
        secret: None,
        tell_every_ms: (1000 * hosts.len() as u64 / TELLERS).max(TELL_EVERY_MS_MIN),
    })
}

#[cfg(test)]
mod tests;
