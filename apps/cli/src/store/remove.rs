//! `cool rm`: takes a name away from the stores of nodes.

use super::said::{StoreAnswer, StoreDeed};
use super::{StoresAsked, name};
use crate::error::Error;
use crate::own_ranks;
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use serde::Serialize;
use std::io::Write;
use tonic::transport::Channel;

/// Remove a content from the stores of nodes
///
/// From all nodes unless some are named. The name is gone at once, and with the last name of a content its bytes; who is reading
/// them still can.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveOptions {
    #[command(flatten)]
    stores: StoresAsked,

    /// Print one JSON document in place of the line
    #[arg(long)]
    json: bool,

    /// What it is called by
    #[arg(value_parser = name)]
    name: StoreName,
}

/// The nodes from which it is removed.
#[derive(Serialize)]
struct RemovedDocument<'a> {
    name: &'a StoreName,
    nodes: Vec<&'a str>,
}

/// Removes, and tells from how many nodes.
pub(crate) async fn remove(client: ControllerClient<Channel>, options: &RemoveOptions) -> Result<(), Error> {
    let answers = options.stores.ask(client, Some(&options.name), StoreDeed::Remove).await?;
    let removals = answers.said.iter().filter(|(_, answer)| *answer == StoreAnswer::Removed);
    let nodes: Vec<&str> = removals.map(|(node, _)| node.as_str()).collect();
    let removed = nodes.len();
    if options.json {
        let document = RemovedDocument { name: &options.name, nodes };
        std::io::stdout().write_all(own_ranks::document(&document)?.as_bytes())?;
    } else if removed > 0 {
        println!("{} is removed from {}", options.name, units::count(removed, "node"));
    }
    answers.check()?;
    if removed > 0 { Ok(()) } else { Err(Error::NotStored(options.name.to_string())) }
}
