//! `cool put`: a file or folder into the stores of nodes.

use super::get::Wanted;
use super::holders::StoreHolder;
use super::{StoreChoice, milliseconds, name};
use crate::copy::{
    CopyOrder, CopyPaths, CopyReport, CopyWay, NAME_SOURCE, NodeChoice, PutTask, StoreTask, carry_out,
    node_named, report,
};
use crate::error::Error;
use crate::size;
use cool_proto::control::TopologyRequest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tonic::transport::Channel;

/// Put a file or a folder into the stores of many nodes, where it stays by a name
///
/// It goes and is checked as by `cool copy`, to all nodes unless some are named. Blocks of what has the name already are not sent, and
/// the same content is kept once, whatever names it has. It has its name on a node when it is whole there; what had the name
/// before goes then. What does not fit into a quota lets contents go that were used longest ago, but none that is being read or written.
#[derive(Debug, clap::Args)]
pub(crate) struct PutOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// The node that has SOURCE [default: this machine's]; without SOURCE, whose store has NAME [default: any that have it]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    way: CopyWay,

    #[command(flatten)]
    report: CopyReport,

    #[command(flatten)]
    store: StoreChoice,

    /// Bytes that all contents of a store may have from now on, as in 200G; 0: any [default: as before]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    quota: Option<u64>,

    /// What it is to be called by
    #[arg(value_parser = name)]
    name: StoreName,

    /// A file or a folder on its node [default: what a node's store has as NAME]
    source: Option<PathBuf>,
}

/// Copies, and tells what came of it.
pub(crate) async fn put(mut client: ControllerClient<Channel>, options: &PutOptions) -> Result<(), Error> {
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    // Before anything is asked: whether there are such nodes.
    let chosen = options.nodes.of(&nodes)?;
    let store = options.store.place()?;
    let order = |from, source: &Path, (object, put_ms), others| {
        let put = Some(PutTask { put_ms, quota: options.quota });
        Ok(CopyOrder {
            from,
            to: options.nodes.clone(),
            what: CopyPaths::into_stores(source)?,
            store: Some(StoreTask { store: store.clone(), name: options.name.clone(), object, put, others }),
            delete: false,
            way: &options.way,
        })
    };
    let outcome = match &options.source {
        Some(source) => {
            let from = node_named(&nodes, options.from.as_deref(), NAME_SOURCE)?;
            let new = (None, milliseconds(SystemTime::now()));
            carry_out(client, &nodes, order(from, source, new, Vec::new())?).await?
        }
        None => {
            let wanted = Wanted { store: &store, name: &options.name, from: options.from.as_deref() };
            let holders = wanted.find(client.clone(), &nodes, &chosen, options.way.user.clone()).await?;
            let again = |StoreHolder { node, content }: StoreHolder, others| {
                order(node, &content.tree, (Some(content.id), content.put_ms), others)
            };
            holders.copy(client, again).await?
        }
    };
    report(&outcome, &options.report)
}
