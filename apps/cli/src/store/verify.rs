//! `cool verify`: reads the stores of nodes again, and names what is damaged.

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

    /// Print one JSON document in place of the line
    #[arg(long)]
    json: bool,

    /// Only what this name stands for
    #[arg(value_parser = name)]
    name: Option<StoreName>,
}

/// What was found.
#[derive(Serialize)]
struct VerifiedDocument<'a> {
    /// Contents that are whole, those of each node counted, and their bytes.
    whole: usize,
    bytes: u64,
    /// Nodes that have answered.
    nodes: usize,
    damaged: Vec<DamageListed<'a>>,
}

/// Something that is not as it was put: the name, the file and what is wrong.
#[derive(Serialize)]
struct DamageListed<'a> {
    node: &'a str,
    what: String,
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
    let bytes = whole.iter().sum();
    if options.json {
        let damaged = answers.damages().map(|(node, what)| DamageListed { node, what }).collect();
        let document = VerifiedDocument { whole: whole.len(), bytes, nodes: answered, damaged };
        std::io::stdout().write_all(own_ranks::document(&document)?.as_bytes())?;
    } else {
        let (contents, nodes) = (units::count(whole.len(), "content"), units::count(answered, "node"));
        println!("{contents} on {nodes} whole, of {}", units::bytes(bytes));
    }
    match answers.check() {
        Err(Error::DamagedContents(_)) if options.drop => Err(Error::Dropped),
        checked => checked,
    }
}
