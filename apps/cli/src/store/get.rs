//! `cool get`: copies an object out of stores to a path on nodes.

use super::holders::StoreHolder;
use super::options::{StoreOptions, name};
use super::search::StoreSearch;
use crate::copy::options::{NodeChoice, ReportOptions, TransferOptions, node_named};
use crate::copy::request::{CopyPaths, CopyRequest, names_directory, report};
use crate::error::Error;
use cool_copy::StoreTask;
use cool_proto::control::TopologyRequest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use std::path::PathBuf;
use tonic::transport::Channel;

/// Copy an object out of the nodes' stores to a path
///
/// The object goes to this machine's node, or to the nodes that are named. If the store of such a
/// node has it, it is copied from there; otherwise from other nodes, among those that have the
/// object that was put last. A single node receives it from up to four nodes together (by swarm),
/// several nodes receive it from one, and from the next if that one fails. Blocks that a node has
/// in its store or at DEST are not sent. The copies are verified and written as by `cool copy`.
#[derive(Debug, clap::Args)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// Copy from the store of this node only [default: any nodes that have it]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    transfer: TransferOptions,

    /// Remove files of a directory at DEST that are not in the object; without this option such a
    /// directory is reported and left as it is
    #[arg(long)]
    delete: bool,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    store: StoreOptions,

    /// Name of the object
    #[arg(value_parser = name)]
    name: StoreName,

    /// Path of the copy on every node; if it ends with /, the directory of the copy, which has the
    /// object's name. {node} stands for the name of the node
    dest: PathBuf,
}

/// Copies, and prints the outcome.
pub(crate) async fn get(mut client: ControllerClient<Channel>, options: &GetOptions) -> Result<(), Error> {
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    let to = if options.nodes.is_open() {
        let here = node_named(&nodes, None, "the nodes that get it with --nodes")?;
        NodeChoice { nodes: vec![here], ..NodeChoice::default() }
    } else {
        options.nodes.clone()
    };
    let chosen = to.choose(&nodes)?;
    let store = options.store.location()?;
    let search = StoreSearch { store: &store, name: &options.name, from: options.from.as_deref() };
    let holders = search.run(client.clone(), &nodes, &chosen, options.transfer.user.clone()).await?;
    let dest = std::path::absolute(&options.dest).map_err(Error::Runtime)?;
    let dest = if names_directory(&options.dest) { dest.join(options.name.as_str()) } else { dest };
    let transfer = holders.transfer_options(&options.transfer);
    let outcome = holders.copy(client, |StoreHolder { node, object }, others| {
        Ok(CopyRequest {
            from: node,
            to: to.clone(),
            paths: CopyPaths::new(&object.tree, Some(&dest))?,
            store: Some(StoreTask {
                store: store.clone(),
                name: options.name.clone(),
                object: Some(object.id),
                put: None,
                others,
            }),
            delete: options.delete,
            transfer: &transfer,
        })
    });
    report(&outcome.await?, &options.report)
}
