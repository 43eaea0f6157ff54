//! The network as the controller runs it: switches over OpenFlow 1.3, discovery, forwarding, trees.
//!
//! ```text
//!   switch ==TCP== connection (channel) --events--> network --updates--> connection (reconciler) ==> switch
//!                                                    ^ |
//!                                     Fabric (calls) | v snapshots
//! ```
//!
//! Each switch has one task (`connection`) around one pure machine (`channel`); one task (`run`)
//! holds everything else, and computes only what a change concerns. It never waits for a switch: what a
//! switch has not taken yet is one difference, not a queue. Jobs, ranks and gRPC are left to the rest of
//! the controller.

mod api;
mod call;
mod frames;
mod intent;
mod network;
mod run;
mod switch;
mod telemetry;
mod trees;

pub use api::{
    DatapathId, FabricConfig, FabricError, GroupRequest, HostLimits, HostView, Key, Link, LinkView, Location,
    MacAddr, NodeRegistration, NodeView, NotAdmitted, Pipeline, Port, SwitchView, TableCapacity,
    TopologySnapshot, TreeGrant, TreeScope, Unicast,
};
pub use intent::tables::RuleCounts;
pub use telemetry::counters::PortCounters;
pub use telemetry::{Histogram, Measurements, PortLoad, RECENT, RejectedSwitch, SwitchLoad};

use call::{CallReply, FabricCall};

use cool_daemon::listen::ClientListener;
use network::Network;
use std::net::IpAddr;
use std::sync::Arc;
use telemetry::Telemetry;
use tokio::sync::{mpsc, oneshot, watch};

/// Calls that wait for the core; more wait at their callers.
const CALLS: usize = 256;

/// The network under the controller, as agents, groups and jobs see it: a [`FabricHandle`], or a stand-in in tests.
#[tonic::async_trait]
pub trait Fabric: Send + Sync + 'static {
    /// Makes a node known: it is located as soon as a switch hears its LLDP. Registering a name again
    /// replaces what was known of it.
    ///
    /// # Errors
    /// If another node has the address, or the values make no node.
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError>;

    /// Forgets a node. Groups that it is in keep their trees between the others.
    ///
    /// # Errors
    /// Only if the fabric has stopped; an unknown name is no error.
    async fn unregister(&self, name: &str) -> Result<(), FabricError>;

    /// The network as it is known now.
    fn topology(&self) -> Arc<TopologySnapshot>;

    /// The network as it is known, changing when it changes.
    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>>;

    /// What is measured, as of now.
    fn measurements(&self) -> Measurements;

    /// Makes a group's trees: one over all its nodes, one over the nodes of its rack leaders, one in each
    /// rack; trees of fewer than two nodes are left out. Returns when every switch concerned has confirmed
    /// its entries by barrier, at the latest after [`FabricConfig::confirm_timeout`]. The trees follow the
    /// topology until the group is released.
    ///
    /// # Errors
    /// Then the group does not exist. [`FabricError::NotLocated`] and [`FabricError::Partitioned`] say that
    /// the group can only use chains for now.
    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError>;

    /// Takes over a group that an earlier controller made and that is in use: the trees with
    /// these addresses stay as they are until the network around them is known, and then follow it. Nothing
    /// happens if the group is known.
    ///
    /// # Errors
    /// Only if the fabric has stopped.
    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, IpAddr)>,
    ) -> Result<(), FabricError>;

    /// A group's trees as they are now; addresses never change, links and rates follow the topology.
    ///
    /// # Errors
    /// If there is no such group.
    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError>;

    /// Removes a group's trees; does not wait for the switches.
    ///
    /// # Errors
    /// If there is no such group.
    async fn release_group(&self, group: u64) -> Result<(), FabricError>;
}

/// A handle on the running fabric. It stops when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct FabricHandle {
    calls: mpsc::Sender<FabricCall>,
    generation: Arc<watch::Sender<Option<u64>>>,
    snapshots: watch::Receiver<Arc<TopologySnapshot>>,
    telemetry: Arc<Telemetry>,
}

impl FabricHandle {
    /// Serves the switches that connect to `listener`, on the current tokio runtime. The announcements of their
    /// ports are proved by `key`, which is to be a secret of this run.
    pub fn start(config: FabricConfig, key: Key, listener: ClientListener) -> FabricHandle {
        let (calls, incoming) = mpsc::channel(CALLS);
        let (publish, snapshots) = watch::channel(Arc::default());
        let telemetry = Arc::new(Telemetry::default());
        let (generation, watched) = watch::channel(config.generation);
        let network = Network::new(config, key, publish, telemetry.clone());
        tokio::spawn(run::run(network, listener, watched, incoming));
        FabricHandle { calls, generation: Arc::new(generation), snapshots, telemetry }
    }

    /// Stands by no more: asks all switches to be their master, as this generation.
    pub fn lead(&self, generation: u64) {
        self.generation.send_replace(Some(generation));
    }

    /// Comes back when the core has dealt with all that it was asked before, or has ended.
    pub async fn answers(&self) {
        // Whether there is such a group does not matter.
        let _ = self.trees(0).await;
    }

    async fn call<T>(&self, call: impl FnOnce(CallReply<T>) -> FabricCall) -> Result<T, FabricError> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(call(reply)).await.map_err(|_| FabricError::Stopped)?;
        answer.await.unwrap_or(Err(FabricError::Stopped))
    }
}

#[tonic::async_trait]
impl Fabric for FabricHandle {
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError> {
        self.call(|reply| FabricCall::Register(node, reply)).await
    }

    async fn unregister(&self, name: &str) -> Result<(), FabricError> {
        self.call(|reply| FabricCall::Unregister(name.to_owned(), reply)).await
    }

    fn topology(&self) -> Arc<TopologySnapshot> {
        self.snapshots.borrow().clone()
    }

    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>> {
        self.snapshots.clone()
    }

    fn measurements(&self) -> Measurements {
        self.telemetry.read()
    }

    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError> {
        self.call(|reply| FabricCall::CreateGroup(group, reply)).await
    }

    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, IpAddr)>,
    ) -> Result<(), FabricError> {
        self.call(|reply| FabricCall::AdoptGroup(group, trees, reply)).await
    }

    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError> {
        self.call(|reply| FabricCall::Trees(group, reply)).await
    }

    async fn release_group(&self, group: u64) -> Result<(), FabricError> {
        self.call(|reply| FabricCall::ReleaseGroup(group, reply)).await
    }
}
