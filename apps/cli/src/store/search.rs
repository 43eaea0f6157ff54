//! Finds the nodes that have an object in their stores.

use super::holders::{Holders, StoreHolder};
use super::query::query;
use crate::copy::options::{ChosenNode, NodeChoice};
use crate::error::Error;
use cool_copy::{StoreLocation, StoreOperation, StoreRequest};
use cool_proto::control::Node;
use cool_proto::control::controller_client::ControllerClient;
use cool_store::StoreName;
use tonic::transport::Channel;

/// The object to find.
pub(super) struct StoreSearch<'a> {
    pub(super) store: &'a StoreLocation,
    pub(super) name: &'a StoreName,
    /// The only node to search; `None` for all nodes.
    pub(super) from: Option<&'a str>,
}

impl StoreSearch<'_> {
    /// Returns the nodes that have the object that was put last, preferably nodes in `to`, which
    /// get it.
    ///
    /// # Errors
    /// If no node has an object of this name.
    pub(super) async fn run(
        &self,
        client: ControllerClient<Channel>,
        nodes: &[Node],
        to: &[ChosenNode],
        user: Option<String>,
    ) -> Result<Holders, Error> {
        let named = self.from.map(str::to_owned).into_iter().collect();
        let among = NodeChoice { nodes: named, ..NodeChoice::default() }.choose(nodes)?;
        let request = StoreRequest {
            store: self.store.clone(),
            name: Some(self.name.clone()),
            operation: StoreOperation::List,
        };
        let replies = query(client, among, user, &request).await?;
        let Some((_, last)) = replies.objects().max_by_key(|(_, object)| object.put_ms) else {
            replies.check()?;
            return Err(Error::NotStored(self.name.to_string()));
        };
        let (put_ms, id) = (last.put_ms, last.id);
        let holders = replies
            .objects()
            .filter(|(_, object)| (object.put_ms, object.id) == (put_ms, id))
            .map(|(node, object)| StoreHolder { node: node.to_owned(), object: object.clone() });
        Ok(Holders::new(holders.collect(), nodes, to))
    }
}
