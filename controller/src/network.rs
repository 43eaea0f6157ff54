//! What agents, groups and jobs need of the network: the [`Fabric`], or a stand-in in tests.

use crate::fabric::{
    Fabric, FabricError, GroupRequest, Measured, NodeRegistration, TopologySnapshot, TreeGrant, TreeScope,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::sync::watch;

/// The network under the controller; see [`Fabric`] for what each call does.
#[tonic::async_trait]
pub trait Network: Send + Sync + 'static {
    /// Makes a node known.
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError>;
    /// Forgets a node.
    async fn unregister(&self, name: &str) -> Result<(), FabricError>;
    /// The network as it is known now.
    fn topology(&self) -> Arc<TopologySnapshot>;
    /// The network as it is known, changing when it changes.
    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>>;
    /// What is measured, as of now.
    fn measured(&self) -> Measured;
    /// Makes a group's trees.
    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError>;
    /// Takes over a group that an earlier life of the controller made.
    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, Ipv4Addr)>,
    ) -> Result<(), FabricError>;
    /// A group's trees as they are now.
    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError>;
    /// Removes a group's trees.
    async fn release_group(&self, group: u64) -> Result<(), FabricError>;
}

#[tonic::async_trait]
impl Network for Fabric {
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError> {
        Fabric::register(self, node).await
    }

    async fn unregister(&self, name: &str) -> Result<(), FabricError> {
        Fabric::unregister(self, name).await
    }

    fn topology(&self) -> Arc<TopologySnapshot> {
        Fabric::topology(self)
    }

    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>> {
        Fabric::watch(self)
    }

    fn measured(&self) -> Measured {
        Fabric::measured(self)
    }

    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError> {
        Fabric::create_group(self, group).await
    }

    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, Ipv4Addr)>,
    ) -> Result<(), FabricError> {
        Fabric::adopt_group(self, group, trees).await
    }

    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError> {
        Fabric::trees(self, group).await
    }

    async fn release_group(&self, group: u64) -> Result<(), FabricError> {
        Fabric::release_group(self, group).await
    }
}
