//! Options that the store commands share.

use super::query::{StoreReplies, query};
use crate::copy::options::NodeChoice;
use crate::copy::request::check_placeholders;
use crate::error::Error;
use cool_copy::{StoreLocation, StoreOperation, StoreRequest};
use cool_proto::control::TopologyRequest;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use std::path::PathBuf;
use tonic::transport::Channel;

/// Where stores are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreOptions {
    /// Directory of the store on each node, which must belong to you; {node} stands for the name of
    /// the node [default: /var/tmp/cool-store-UID]
    #[arg(long, env = "COOL_STORE", value_name = "DIR")]
    store: Option<PathBuf>,
}

impl StoreOptions {
    /// Returns the location for the ranks.
    pub(super) fn location(&self) -> Result<StoreLocation, Error> {
        let Some(directory) = &self.store else { return Ok(StoreLocation::new(None)) };
        let directory = std::path::absolute(directory).map_err(Error::Runtime)?.into_os_string();
        let directory = directory.into_string().map_err(|path| Error::NotUtf8(path.display().to_string()))?;
        check_placeholders(&directory)?;
        Ok(StoreLocation::new(Some(directory)))
    }
}

/// The stores to which a request is sent.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreSelection {
    #[command(flatten)]
    nodes: NodeChoice,

    #[command(flatten)]
    store: StoreOptions,

    /// Stores of this user; for operators only, because their certificates name no user [default:
    /// you]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl StoreSelection {
    /// Sends a request to the stores, and returns their replies.
    pub(super) async fn query(
        &self,
        mut client: ControllerClient<Channel>,
        name: Option<&StoreName>,
        operation: StoreOperation,
    ) -> Result<StoreReplies, Error> {
        let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
        let request = StoreRequest { store: self.store.location()?, name: name.cloned(), operation };
        query(client, self.nodes.choose(&nodes)?, self.user.clone(), &request).await
    }
}

/// Parses a name on the command line.
pub(super) fn name(text: &str) -> Result<StoreName, cool_store::StoreError> {
    text.parse()
}
