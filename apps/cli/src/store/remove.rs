//! `cool rm`: removes a name from the stores of nodes.

use super::options::{StoreSelection, name};
use crate::cool_rank_job;
use crate::error::Error;
use crate::units;
use cool_copy::{StoreOperation, StoreReply};
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use serde::Serialize;
use std::io::Write;
use tonic::transport::Channel;

/// Remove an object from the stores of nodes
///
/// From all nodes unless some are named. The name is removed at once, and with the last name of an
/// object its files. Copies that are reading them can still complete.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveOptions {
    #[command(flatten)]
    stores: StoreSelection,

    /// Print one JSON document instead of the line
    #[arg(long)]
    json: bool,

    /// Name of the object
    #[arg(value_parser = name)]
    name: StoreName,
}

/// The nodes from which the name was removed.
#[derive(Serialize)]
struct RemovedDocument<'a> {
    name: &'a StoreName,
    nodes: Vec<&'a str>,
}

/// Removes the name, and prints from how many nodes.
pub(crate) async fn remove(client: ControllerClient<Channel>, options: &RemoveOptions) -> Result<(), Error> {
    let result = options.stores.query(client, Some(&options.name), StoreOperation::Remove).await?;
    let removals = result.replies.iter().filter(|(_, reply)| *reply == StoreReply::Removed);
    let nodes: Vec<&str> = removals.map(|(node, _)| node.as_str()).collect();
    let removed = nodes.len();
    if options.json {
        let document = RemovedDocument { name: &options.name, nodes };
        std::io::stdout().write_all(cool_rank_job::document(&document)?.as_bytes())?;
    } else if removed > 0 {
        println!("removed {} from {}", options.name, units::count(removed, "node"));
    }
    result.check()?;
    if removed > 0 { Ok(()) } else { Err(Error::NotStored(options.name.to_string())) }
}
