//! Contents that stay on nodes by name: `cool put`, `get`, `ls`, `stat`, `rm` and `verify`. What is copied goes as `cool copy` goes;
//! what is asked of stores is a job whose ranks are this same program (`rank`), one on each node.

mod ask;
mod get;
mod holders;
mod list;
mod put;
mod rank;
mod remove;
mod said;
mod verify;

pub(crate) use get::{GetOptions, get};
pub(crate) use list::{ListOptions, StatOptions, list, stat};
pub(crate) use put::{PutOptions, put};
pub(crate) use rank::{StoreRankOptions, rank};
pub(crate) use remove::{RemoveOptions, remove};
pub(crate) use verify::{VerifyOptions, verify};

use crate::copy::NodeChoice;
use crate::error::Error;
use ask::Answers;
use cool_proto::control::TopologyRequest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::{Store, StoreName};
use said::{StoreDeed, StoreQuestion};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::transport::Channel;

/// Where stores are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreChoice {
    /// The store's folder on each node, yours alone; {node} stands for the node's name [default: /var/tmp/cool-store-UID]
    #[arg(long, env = "COOL_STORE", value_name = "DIR")]
    store: Option<PathBuf>,
}

impl StoreChoice {
    /// As ranks are told.
    fn place(&self) -> Result<StorePlace, Error> {
        let Some(folder) = &self.store else { return Ok(StorePlace(None)) };
        let folder = std::path::absolute(folder).map_err(Error::Runtime)?.into_os_string();
        let folder = folder.into_string().map_err(|path| Error::NotUtf8(path.display().to_string()))?;
        Ok(StorePlace(Some(folder)))
    }
}

/// Whose stores are asked, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoresAsked {
    #[command(flatten)]
    nodes: NodeChoice,

    #[command(flatten)]
    store: StoreChoice,

    /// Of this user's stores: for operators, whose certificates name no user [default: you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl StoresAsked {
    async fn ask(
        &self,
        mut client: ControllerClient<Channel>,
        name: Option<&StoreName>,
        deed: StoreDeed,
    ) -> Result<Answers, Error> {
        let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
        let question = StoreQuestion { store: self.store.place()?, name: name.cloned(), deed };
        ask::ask(client, self.nodes.of(&nodes)?, self.user.clone(), &question).await
    }
}

/// The stores' folder, with {node} for a node's name; none: where a user's is if nothing is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StorePlace(Option<String>);

impl StorePlace {
    /// A folder of each node.
    #[cfg(test)]
    pub(crate) fn new(folder: String) -> StorePlace {
        StorePlace(Some(folder))
    }

    /// On this node.
    pub(crate) fn on(&self, node: &str) -> PathBuf {
        match &self.0 {
            Some(folder) => folder.replace("{node}", node).into(),
            None => Store::default_folder(),
        }
    }
}

/// A name on the command line.
fn name(text: &str) -> Result<StoreName, cool_store::StoreError> {
    text.parse()
}

/// In milliseconds since 1970.
fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
