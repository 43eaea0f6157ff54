//! `cool verify`: reads the stores of nodes again, and names what is damaged.

use super::said::{StoreAnswer, StoreDeed};
use super::{StoresAsked, name};
use crate::error::Error;
use crate::units;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use tonic::transport::Channel;

/// Read what is in the stores of nodes again, and name what is damaged
///
/// On all nodes unless some are named, from the disk, all files of each content. What is damaged is named with its node and file.
/// `cool put` of the same content mends it, too.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyOptions {
    #[command(flatten)]
    stores: StoresAsked,

    /// Remove contents that are damaged, with all their names; the next `cool put NAME` brings them from a node that has them whole
    #[arg(long)]
    drop: bool,

    /// Only what this name stands for
    #[arg(value_parser = name)]
    name: Option<StoreName>,
}

/// Has them read, and tells what is whole.
pub(crate) async fn verify(client: ControllerClient<Channel>, options: &VerifyOptions) -> Result<(), Error> {
    let deed = StoreDeed::Verify { drop: options.drop };
    let answers = options.stores.ask(client, options.name.as_ref(), deed).await?;
    let whole: Vec<u64> = answers
        .said
        .iter()
        .filter_map(|(_, answer)| match answer {
            StoreAnswer::Whole { bytes } => Some(*bytes),
            _ => None,
        })
        .collect();
    let answered = answers.asked - answers.failed.len();
    println!(
        "{} on {} whole, of {}",
        units::count(whole.len(), "content"),
        units::count(answered, "node"),
        units::bytes(whole.iter().sum())
    );
    match answers.check() {
        Err(Error::DamagedContents(_)) if options.drop => Err(Error::Dropped),
        checked => checked,
    }
}
