//! `cool rm`: takes a name away from the stores of nodes.

use super::said::{StoreAnswer, StoreDeed};
use super::{StoresAsked, name};
use crate::error::Error;
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use tonic::transport::Channel;

/// Remove a content from the stores of nodes
///
/// From all nodes unless some are named. The name is gone at once, and with the last name of a content its bytes; who is reading
/// them still can.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveOptions {
    #[command(flatten)]
    stores: StoresAsked,

    /// What it is called by
    #[arg(value_parser = name)]
    name: StoreName,
}

/// Removes, and tells from how many nodes.
pub(crate) async fn remove(client: ControllerClient<Channel>, options: &RemoveOptions) -> Result<(), Error> {
    let answers = options.stores.ask(client, Some(&options.name), StoreDeed::Remove).await?;
    let removed = answers.said.iter().filter(|(_, answer)| *answer == StoreAnswer::Removed).count();
    if removed > 0 {
        println!("{} is removed from {}", options.name, units::count(removed, "node"));
    }
    answers.check()?;
    if removed > 0 { Ok(()) } else { Err(Error::NotStored(options.name.to_string())) }
}
