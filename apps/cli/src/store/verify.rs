//! `cool verify`: reads the stores of nodes again, and lists the damage.

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

/// Read the stores of nodes again, and list the damage
///
/// On all nodes unless some are named, all files of each object are read from the disk and compared
/// with their hashes. Damage is listed by node and file. `cool put` of the same content repairs it,
/// too.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyOptions {
    #[command(flatten)]
    stores: StoreSelection,

    /// Remove damaged objects, with all their names; the next `cool put NAME` restores them from a
    /// node that has them intact
    #[arg(long)]
    drop: bool,

    /// Print one JSON document instead of the line
    #[arg(long)]
    json: bool,

    /// Only the object of this name
    #[arg(value_parser = name)]
    name: Option<StoreName>,
}

#[derive(Serialize)]
struct VerifiedDocument<'a> {
    /// Number of intact objects, counted on each node.
    whole: usize,
    /// Their total size, in bytes.
    bytes: u64,
    /// Nodes that have replied.
    nodes: usize,
    damaged: Vec<ListedDamage<'a>>,
}

/// Damage on a node: the name, the file and what is wrong.
#[derive(Serialize)]
struct ListedDamage<'a> {
    node: &'a str,
    what: String,
}

/// Verifies the stores, and prints how much is intact.
pub(crate) async fn verify(client: ControllerClient<Channel>, options: &VerifyOptions) -> Result<(), Error> {
    let operation = StoreOperation::Verify { drop: options.drop };
    let result = options.stores.query(client, options.name.as_ref(), operation).await?;
    let intact: Vec<u64> = result
        .replies
        .iter()
        .filter_map(|(_, reply)| match reply {
            StoreReply::Intact { bytes } => Some(*bytes),
            _ => None,
        })
        .collect();
    let replied = result.requested - result.failed.len();
    let bytes = intact.iter().sum();
    if options.json {
        let damaged = result.damages().map(|(node, what)| ListedDamage { node, what }).collect();
        let document = VerifiedDocument { whole: intact.len(), bytes, nodes: replied, damaged };
        std::io::stdout().write_all(cool_rank_job::document(&document)?.as_bytes())?;
    } else {
        let (objects, nodes) = (units::count(intact.len(), "object"), units::count(replied, "node"));
        println!("{objects} on {nodes} intact, {}", units::bytes(bytes));
    }
    match result.check() {
        Err(Error::DamagedContents(_)) if options.drop => Err(Error::Dropped),
        checked => checked,
    }
}
