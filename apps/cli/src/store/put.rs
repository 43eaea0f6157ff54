//! `cool put`: copies a file or directory into the stores of nodes.

use super::holders::StoreHolder;
use super::options::{StoreOptions, name};
use super::search::StoreSearch;
use crate::copy::options::{NAME_SOURCE, NodeChoice, ReportOptions, TransferOptions, node_named};
use crate::copy::request::{CopyPaths, CopyRequest, copy, report};
use crate::error::Error;
use crate::size;
use cool_copy::{PutTask, StoreTask, unix_ms};
use cool_proto::control::TopologyRequest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tonic::transport::Channel;

/// Put a file or directory into the stores of many nodes, under a name
///
/// It is sent and verified as by `cool copy`, to all nodes unless some are named. Blocks of the
/// object that has this name already are not sent again. Objects with the same content are kept
/// once, even if they have several names. On each node the name is set once the object is complete
/// there; the object that had the name before is then removed. If a quota is exceeded, the least
/// recently used objects are removed, except those that are being read or written.
#[derive(Debug, clap::Args)]
pub(crate) struct PutOptions {
    #[command(flatten)]
    nodes: NodeChoice,

    /// Node that has SOURCE [default: this machine's]; without SOURCE, a node with NAME in its
    /// store [default: any that has it]
    #[arg(long, value_name = "NODE")]
    from: Option<String>,

    #[command(flatten)]
    transfer: TransferOptions,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    store: StoreOptions,

    /// Quota of the stores in bytes from now on, such as 200G; 0 for none [default: unchanged]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    quota: Option<u64>,

    /// Name of the object
    #[arg(value_parser = name)]
    name: StoreName,

    /// File or directory to put [default: the object NAME in a node's store]
    source: Option<PathBuf>,
}

/// Copies, and prints the outcome.
pub(crate) async fn put(mut client: ControllerClient<Channel>, options: &PutOptions) -> Result<(), Error> {
    let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
    // Checks the named nodes before any store is queried.
    let chosen = options.nodes.choose(&nodes)?;
    let store = options.store.location()?;
    let request = |from, source: &Path, (object, put_ms), others| {
        let put = Some(PutTask { put_ms, quota: options.quota });
        Ok(CopyRequest {
            from,
            to: options.nodes.clone(),
            paths: CopyPaths::into_stores(source)?,
            store: Some(StoreTask { store: store.clone(), name: options.name.clone(), object, put, others }),
            delete: false,
            transfer: &options.transfer,
        })
    };
    let outcome = match &options.source {
        Some(source) => {
            let from = node_named(&nodes, options.from.as_deref(), NAME_SOURCE)?;
            let new = (None, unix_ms(SystemTime::now()));
            copy(client, &nodes, request(from, source, new, Vec::new())?).await?
        }
        None => {
            let search = StoreSearch { store: &store, name: &options.name, from: options.from.as_deref() };
            let user = options.transfer.user.clone();
            let holders = search.run(client.clone(), &nodes, &chosen, user).await?;
            let existing = |StoreHolder { node, object }: StoreHolder, others| {
                request(node, &object.tree, (Some(object.id), object.put_ms), others)
            };
            holders.copy(client, existing).await?
        }
    };
    report(&outcome, &options.report)
}
