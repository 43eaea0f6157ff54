//! `cool copy`: submits a job whose ranks are this same program (`rank`), one on each node, and shows what comes of it.

mod fault;
mod flight;
mod outcome;
mod pipeline;
mod progress;
mod rank;
mod reader;
mod said;
mod scan;
mod source;
mod spool;
mod swarm;
mod target;
mod writer;

pub(crate) use rank::{RankError, RankOptions, rank};
pub(crate) use spool::SpoolError;

use crate::error::Error;
use crate::job::{self, Heard, Signals};
use crate::size;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{JobSpec, Node, TopologyRequest};
use outcome::Outcome;
use said::{Task, Via};
use spool::Spool;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tonic::transport::Channel;

/// Bytes of the longest pieces, which are a broadcast each.
const PIECE_MAX: u64 = 8 << 20;
/// Seconds between two pieces of a source that is slowed down.
const PIECE_SECONDS: u64 = 2;
/// The slowest source: a block does not take longer than others wait for it.
const LIMIT_MIN: u64 = 64 << 10;
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
/// each with the reason, and the others go on.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only to these nodes, as h1,h7
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with_all = ["racks", "all"])]
    nodes: Vec<String>,

    /// Only to nodes of these racks, by the numbers of `cool topology`
    #[arg(long, value_name = "RACK,..", value_delimiter = ',', conflicts_with = "all")]
    racks: Vec<u32>,

    /// To all nodes, as without --nodes and --racks
    #[arg(long)]
    all: bool,

    /// The node that has SOURCE [default: this machine's]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    /// How it goes
    #[arg(long, value_enum, value_name = "WAY", default_value = "auto")]
    via: Via,

    /// Bytes in a second that the source sends at most, over some seconds, as in 200M; by swarm, that each node sends
    #[arg(long, value_name = "SIZE", value_parser = limit)]
    limit: Option<u64>,

    /// Compress what is broadcast, where that makes it smaller; a swarm sends it as it is
    #[arg(long)]
    compress: bool,

    /// Remove what a folder at DEST has and SOURCE has not; else such a folder is left as it is, and named
    #[arg(long)]
    delete: bool,

    /// Read every copy again from the disk before it takes its place
    #[arg(long)]
    verify: bool,

    /// Succeed if as many nodes as this have a copy: a number, or as in 95% [default: 100%]
    #[arg(long, value_name = "P", default_value = "100%", hide_default_value = true)]
    quorum: Quorum,

    /// Write the copies as this user, by name or number: for operators, whose certificates name no user [default: you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Print one JSON document at the end, in place of the table: with what each node lacked at which time, too
    #[arg(long)]
    json: bool,

    /// A file or a folder on its node; - is what comes to this command by standard input
    source: PathBuf,

    /// The copy's path on every node; with / at its end, the folder that it is in. {node} stands for the node's name
    dest: PathBuf,
}

fn limit(text: &str) -> Result<u64, String> {
    let limit = size::parse(text)?;
    if limit >= LIMIT_MIN {
        Ok(limit)
    } else {
        Err(format!("less than {} makes others wait too long", size::named(LIMIT_MIN)))
    }
}

impl Options {
    /// Whether SOURCE is standard input.
    fn is_of_input(&self) -> bool {
        self.source == Path::new("-")
    }

    /// Whether DEST is the folder that the copy is in.
    fn names_folder(&self) -> bool {
        self.dest.as_os_str().as_encoded_bytes().ends_with(b"/")
    }
}

/// How many nodes are to have a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quorum {
    Nodes(usize),
    Percent(f64),
}

impl Quorum {
    /// Of some nodes.
    fn of(self, nodes: usize) -> usize {
        match self {
            Quorum::Nodes(count) => count,
            // No more than there are.
            Quorum::Percent(percent) => (percent / 100.0 * nodes as f64).ceil() as usize,
        }
    }
}

impl FromStr for Quorum {
    type Err = String;

    fn from_str(text: &str) -> Result<Quorum, String> {
        let wrong = || format!("{text:?} is neither a number of nodes nor a percentage from 0% to 100%");
        match text.strip_suffix('%') {
            None => text.parse().map(Quorum::Nodes).map_err(|_| wrong()),
            Some(percent) => match percent.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(Quorum::Percent(percent)),
                _ => Err(wrong()),
            },
        }
    }
}

/// Copies, and tells what came of it.
pub(crate) async fn run(mut client: ControllerClient<Channel>, options: &Options) -> Result<(), Error> {
    let mut ends = Ends::find(&mut client, options).await?;
    let mut source = options.source.clone();
    // Gone with the end of this function.
    let kept;
    if options.is_of_input() {
        (kept, ends) = keep_input(&mut client, options).await?;
        source = kept.path();
    }
    let task = task(options, &ends, &source)?;
    let spec = JobSpec { hosts: ends.hosts, ..spec(&task, options)? };
    let mut outcome = Outcome::new(ends.from.clone(), ends.own, ends.absent);
    let ended = job::run(client, spec, |heard| match heard {
        Heard::Started(group) => {
            outcome.started(&group);
            Ok(())
        }
        Heard::Line(output) => outcome.hear(&output),
    })
    .await;
    match ended {
        Ok(()) | Err(Error::Failed { .. }) => {}
        Err(other) => return Err(other),
    }
    if let Some(reason) = outcome.source_fault() {
        return Err(Error::CopySource { node: ends.from, reason });
    }
    outcome.end(ended.as_ref().err());
    report(&outcome, options)
}

/// Standard input as a file, and which nodes there are when it has come.
async fn keep_input(
    client: &mut ControllerClient<Channel>,
    options: &Options,
) -> Result<(Spool, Ends), Error> {
    if options.from.is_some() {
        return Err(SpoolError::From.into());
    }
    if options.user.is_some() {
        return Err(SpoolError::User.into());
    }
    if options.names_folder() {
        return Err(SpoolError::NoName(options.dest.clone()).into());
    }
    let mut signals = Signals::new().map_err(Error::Runtime)?;
    let spool = Spool::of_input(signals.ending()).await?;
    tokio::select! {
        ends = Ends::find(client, options) => Ok((spool, ends?)),
        signal = signals.ending() => Err(SpoolError::Interrupted { signal }.into()),
    }
}

/// From which node to which ones.
struct Ends {
    nodes: Vec<Node>,
    from: String,
    /// Whether that one is to have a copy, too.
    own: bool,
    /// All that take part.
    hosts: Vec<String>,
    /// Which cannot have a copy, and why.
    absent: Vec<(String, String)>,
}

impl Ends {
    async fn find(client: &mut ControllerClient<Channel>, options: &Options) -> Result<Ends, Error> {
        let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
        let from = match &options.from {
            Some(from) => from.clone(),
            None => here(&nodes).ok_or(Error::NotHere)?,
        };
        let chosen = chosen(&nodes, options)?;
        let (ready, absent): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|(_, absent)| absent.is_none());
        let absent =
            absent.into_iter().map(|(name, why)| (name, why.unwrap_or_default().to_owned())).collect();
        let mut hosts: Vec<String> = ready.into_iter().map(|(name, _)| name).collect();
        let own = hosts.contains(&from);
        if !own {
            hosts.push(from.clone());
        }
        Ok(Ends { nodes, from, own, hosts, absent })
    }
}

/// Prints what came of it; an error if too few nodes have a copy.
fn report(outcome: &Outcome, options: &Options) -> Result<(), Error> {
    let text = if options.json { outcome.json()? } else { outcome.table() };
    std::io::stdout().write_all(text.as_bytes())?;
    let mut failed = 0;
    for (node, why) in outcome.failed() {
        eprintln!("cool: {node}: {why}");
        failed += 1;
    }
    let asked = outcome.asked();
    let copies = asked - failed;
    if copies >= options.quorum.of(asked) { Ok(()) } else { Err(Error::Copies { copies, asked }) }
}

/// The node of this machine: the one whose address is here.
fn here(nodes: &[Node]) -> Option<String> {
    let is_here = |node: &&Node| node.ip.parse::<IpAddr>().is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok());
    Some(nodes.iter().find(is_here)?.name.clone())
}

/// The nodes that are to have a copy, each with the reason why it cannot.
fn chosen(nodes: &[Node], options: &Options) -> Result<Vec<(String, Option<&'static str>)>, Error> {
    let known = |name: &&String| nodes.iter().any(|node| node.name == **name);
    if let Some(unknown) = options.nodes.iter().chain(&options.from).find(|name| !known(name)) {
        return Err(Error::NoNode(unknown.clone()));
    }
    let has = |rack: &u32| nodes.iter().any(|node| node.located && node.rack == *rack);
    if let Some(unknown) = options.racks.iter().find(|rack| !has(rack)) {
        return Err(Error::NoRack(*unknown));
    }
    let is_chosen = |node: &&Node| {
        (options.nodes.is_empty() || options.nodes.contains(&node.name))
            && (options.racks.is_empty() || (node.located && options.racks.contains(&node.rack)))
    };
    let absent = |node: &Node| match node {
        Node { away_ms: Some(_), .. } => Some("its agent is away"),
        Node { located: false, .. } => Some("the controller does not know where it is"),
        _ => None,
    };
    let chosen: Vec<_> =
        nodes.iter().filter(is_chosen).map(|node| (node.name.clone(), absent(node))).collect();
    if chosen.is_empty() { Err(Error::NoNodes) } else { Ok(chosen) }
}

/// What all that take part are to do.
fn task(options: &Options, ends: &Ends, source: &Path) -> Result<Task, Error> {
    let Ends { nodes, from, own, hosts, .. } = ends;
    let absolute = |path: &Path| std::path::absolute(path).map_err(Error::Runtime);
    let source = absolute(source)?;
    let mut dest = absolute(&options.dest)?;
    if options.names_folder() {
        dest.push(source.file_name().unwrap_or_default());
    }
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| Error::NotUtf8(path.display().to_string()))
    };
    let address = nodes.iter().find(|node| node.name == *from).and_then(|node| node.ip.parse().ok());
    let rates = nodes.iter().filter(|node| hosts.contains(&node.name)).map(|node| node.bytes_per_second);
    let piece_max =
        options.limit.map_or(PIECE_MAX, |limit| limit.saturating_mul(PIECE_SECONDS).min(PIECE_MAX));
    Ok(Task {
        source: text(source)?.into(),
        dest: text(dest)?,
        own: *own,
        via: options.via,
        // The controller knows every node's.
        address: address.ok_or_else(|| Error::NoNode(from.clone()))?,
        rate: rates.filter(|rate| *rate > 0).min().unwrap_or(0),
        from: from.clone(),
        limit: options.limit,
        // No more than 8 MiB.
        piece_max: piece_max as usize,
        compress: options.compress,
        delete: options.delete,
        verify: options.verify,
        tell_every_ms: (1000 * hosts.len() as u64 / TELLERS).max(TELL_EVERY_MS_MIN),
    })
}

fn spec(task: &Task, options: &Options) -> Result<JobSpec, Error> {
    Ok(JobSpec {
        program: job::this_program()?,
        args: vec!["copy-rank".to_owned(), serde_json::json!(task).to_string()],
        ranks_per_node: 1,
        user: options.user.clone().unwrap_or_else(job::user),
        survive: true,
        ..JobSpec::default()
    })
}

#[cfg(test)]
mod tests;
