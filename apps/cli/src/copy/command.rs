//! The command `cool copy`.

use super::options::{NAME_SOURCE, NodeChoice, ReportOptions, TransferOptions, node_named};
use super::request::{CopyPaths, CopyRequest, copy, names_directory, report};
use super::spool::Spool;
use super::stream::{InputStream, stream};
use crate::error::{Error, SpoolError};
use crate::signals::Signals;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use std::path::{Path, PathBuf};
use tonic::transport::Channel;

/// Copy a file or directory to many nodes
///
/// The source is read once, and the blocks that nodes are missing are broadcast to all of them:
/// over multicast trees where there are any, otherwise along a chain of nodes. With `--via swarm`,
/// nodes pass blocks on to each other.
///
/// Blocks that a node has already, from an older copy at DEST or an interrupted one, are not sent
/// again. Each copy is written next to DEST and renamed into place once it is complete and
/// verified. It belongs to you (or to --user) and has the modes and times of the source. Nodes on
/// which the copy fails are listed with the reason, and the others continue. A node whose agent
/// connects or reconnects while the source is still sending (by swarm: while members remain)
/// receives a copy too.
#[derive(Debug, clap::Args)]
pub(crate) struct CopyOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// Node that has SOURCE [default: the node with an address of this machine]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    transfer: TransferOptions,

    /// Remove files of a directory at DEST that are not in SOURCE; without this option such a
    /// directory is reported and left as it is
    #[arg(long)]
    delete: bool,

    /// Send standard input (SOURCE `-`) in order while it is being read, without spooling it; DEST
    /// may be a pipe or device
    #[arg(long, conflicts_with_all = ["from", "user", "delete", "compress", "verify", "limit"])]
    stream: bool,

    #[command(flatten)]
    report: ReportOptions,

    /// File or directory to copy; `-` reads standard input
    source: PathBuf,

    /// Path of the copy on every node; if it ends with /, the directory of the copy. {node} stands
    /// for the name of the node
    dest: PathBuf,
}

impl CopyOptions {
    fn reads_input(&self) -> bool {
        self.source == Path::new("-")
    }

    /// Returns the request to copy the file or directory at a path.
    fn request(&self, nodes: &[Node], source: &Path) -> Result<CopyRequest<'_>, Error> {
        Ok(CopyRequest {
            from: node_named(nodes, self.from.as_deref(), NAME_SOURCE)?,
            to: self.nodes.clone(),
            paths: CopyPaths::new(source, Some(&self.dest))?,
            store: None,
            delete: self.delete,
            transfer: &self.transfer,
        })
    }
}

/// Copies, and prints the outcome.
pub(crate) async fn run(mut client: ControllerClient<Channel>, options: &CopyOptions) -> Result<(), Error> {
    let mut nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    if options.stream {
        if !options.reads_input() {
            return Err(SpoolError::Stream(options.source.clone()).into());
        }
        let input = InputStream { to: &options.nodes, transfer: &options.transfer, dest: &options.dest };
        let outcome = stream(client, &nodes, input).await?;
        return report(&outcome, &options.report);
    }
    let mut request = options.request(&nodes, &options.source)?;
    // The file is removed at the end of this function.
    let spool;
    if options.reads_input() {
        (spool, nodes) = spool_input(&mut client, options).await?;
        request = options.request(&nodes, &spool.path())?;
    }
    let outcome = copy(client, &nodes, request).await?;
    report(&outcome, &options.report)
}

/// Spools standard input to a file, and returns it with the nodes that are known at the end of the
/// input.
async fn spool_input(
    client: &mut ControllerClient<Channel>,
    options: &CopyOptions,
) -> Result<(Spool, Vec<Node>), Error> {
    if options.from.is_some() {
        return Err(SpoolError::From.into());
    }
    if options.transfer.user.is_some() {
        return Err(SpoolError::User.into());
    }
    if names_directory(&options.dest) {
        return Err(SpoolError::NoName(options.dest.clone()).into());
    }
    let mut signals = Signals::new().map_err(Error::Runtime)?;
    let spool = Spool::from_stdin(signals.ending()).await?;
    tokio::select! {
        topology = client.get_topology(TopologyRequest {}) => Ok((spool, topology?.into_inner().nodes)),
        signal = signals.ending() => Err(SpoolError::Interrupted { signal }.into()),
    }
}
