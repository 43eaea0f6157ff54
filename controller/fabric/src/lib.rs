//! The network under the controller: switches over OpenFlow 1.3, discovery, forwarding and
//! multicast trees.
//!
//! ```text
//!   switch ==TCP== connection (channel) --events--> network --updates--> connection (reconciler) ==> switch
//!                                                    ^ |
//!                                     Fabric (requests) | v snapshots
//! ```
//!
//! Each switch has one task (`connection`) around one pure machine (`channel`). One task (`run`)
//! holds the rest of the state, and computes only the consequences of a change. It never waits for
//! a switch: updates that a switch has not received yet are merged into one difference, not queued.
//! Imports point one way: `network` uses `switch`, both use `intent`, and all use `api`. Jobs,
//! ranks and gRPC belong to the rest of the controller.

mod api;
mod frames;
mod intent;
mod network;
mod observation;
mod request;
mod run;
mod switch;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod trees;

pub use api::{
    DatapathId, FabricConfig, FabricError, GroupRequest, HostLimits, HostView, Key, Link, LinkView,
    LldpNeighbor, Location, MacAddr, MulticastModel, MulticastView, NetworkMode, NodeRegistration, NodeView,
    NotAdmitted, Pipeline, Port, RackSource, RackTable, ReportedRack, SwitchView, TableCapacity,
    TopologySnapshot, TreeGrant, TreeScope, Unicast,
};
pub use intent::addresses::examination_address;
pub use intent::tables::RuleCounts;
pub use observation::{
    MeterDemand, Observation, ObservedPort, ObservedSwitch, PlannedFlows, PortPeer, SwitchInventory,
    WithheldChanges,
};
pub use telemetry::counters::PortCounters;
pub use telemetry::{
    BrokenConnections, Histogram, Measurements, PortLoad, RECENT, RejectedSwitch, SwitchLoad,
};

use request::{FabricRequest, RequestReply};

use cool_daemon::listen::ClientListener;
use network::Network;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use telemetry::Telemetry;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

/// Maximum number of queued requests. Further callers must wait.
const REQUESTS: usize = 256;
/// Time within which a snapshot of the network contains a registered node. It is usually a
/// millisecond.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(1);

/// The network under the controller, as agents, groups and jobs use it: a [`FabricHandle`], or a
/// stand-in in tests.
#[tonic::async_trait]
pub trait Fabric: Send + Sync + 'static {
    /// Registers a node. It is located as soon as a switch receives its LLDP or, depending on
    /// [`NetworkMode`], by its agent's report. Registering a name again replaces the earlier
    /// registration. Returns once the snapshot of the network contains the node, because its ranks
    /// may request groups at once.
    ///
    /// # Errors
    /// Fails if another node has the address, or if the name or address is invalid.
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError>;

    /// Records to which port of an ordinary switch a node is connected; `None` if that is no longer
    /// known. The rack of the node may change, while its groups keep their plans. An unknown node
    /// is ignored.
    ///
    /// # Errors
    /// Fails only if the fabric has stopped.
    async fn set_neighbor(&self, node: &str, neighbor: Option<LldpNeighbor>) -> Result<(), FabricError>;

    /// Unregisters a node. Its groups keep their trees between the other members.
    ///
    /// # Errors
    /// Fails only if the fabric has stopped. An unknown name is not an error.
    async fn unregister(&self, name: &str) -> Result<(), FabricError>;

    /// Returns the current snapshot of the network.
    fn topology(&self) -> Arc<TopologySnapshot>;

    /// Returns a receiver of snapshots, which is notified of each change.
    fn watch(&self) -> watch::Receiver<Arc<TopologySnapshot>>;

    /// Returns the current measurements.
    fn measurements(&self) -> Measurements;

    /// Returns what was found out about the switches and what would be installed in them; `None`
    /// unless this controller only observes ([`FabricConfig::observes`]).
    ///
    /// # Errors
    /// Fails only if the fabric has stopped.
    async fn observation(&self) -> Result<Option<Observation>, FabricError>;

    /// Makes the trees of a group; none if the group uses no multicast ([`NetworkMode`]). They are
    /// one or more over all its nodes, one over the leaders of its racks, and one in each rack.
    /// Several trees over all nodes share no link between switches, and together they fill a node's
    /// link. Trees of fewer than two nodes are left out. Returns when every switch concerned has
    /// acknowledged its entries by a barrier, at the latest after [`FabricConfig::ack_timeout`].
    /// The trees follow changes of the topology until the group is released, which the caller must
    /// do. If no OpenFlow switch locates the nodes, trees are addresses only, and the nodes must
    /// prove that they work ([`TreeGrant::needs_proof`], [`MulticastModel`]).
    ///
    /// # Errors
    /// After an error the group does not exist. After [`FabricError::NotLocated`] or
    /// [`FabricError::Partitioned`] the group can only use chains for now.
    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError>;

    /// Adopts a group that an earlier controller made and that is still in use. Its trees, which
    /// have these addresses, remain unchanged until the network around them is known, and then
    /// follow it. Does nothing if the group is known.
    ///
    /// # Errors
    /// Fails only if the fabric has stopped.
    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, IpAddr)>,
    ) -> Result<(), FabricError>;

    /// Returns the current trees of a group. Addresses never change, while links and rates follow
    /// the topology.
    ///
    /// # Errors
    /// Fails if the group is unknown.
    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError>;

    /// Removes the trees of a group, without waiting for the switches.
    ///
    /// # Errors
    /// Fails if the group is unknown.
    async fn release_group(&self, group: u64) -> Result<(), FabricError>;
}

/// Handle on the running fabric, which stops when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct FabricHandle {
    requests: mpsc::Sender<FabricRequest>,
    generation: Arc<watch::Sender<Option<u64>>>,
    racks: Arc<watch::Sender<Arc<RackTable>>>,
    snapshots: watch::Receiver<Arc<TopologySnapshot>>,
    telemetry: Arc<Telemetry>,
    observes: bool,
}

impl FabricHandle {
    /// Starts the fabric on the current tokio runtime, and serves the switches that connect to
    /// `listener`. `key` authenticates the LLDP of switch ports, and must be a secret of this run.
    pub fn start(config: FabricConfig, key: Key, listener: ClientListener) -> FabricHandle {
        let (requests, incoming) = mpsc::channel(REQUESTS);
        let (publish, snapshots) = watch::channel(Arc::default());
        let telemetry = Arc::new(Telemetry::default());
        let (generation, watched) = watch::channel(config.generation);
        let (racks, changed_racks) = watch::channel(config.racks.clone());
        let observes = config.observes;
        let network = Network::new(config, key, publish, telemetry.clone());
        tokio::spawn(run::run(network, listener, watched, changed_racks, incoming));
        FabricHandle {
            requests,
            generation: Arc::new(generation),
            racks: Arc::new(racks),
            snapshots,
            telemetry,
            observes,
        }
    }

    /// Replaces the operator's table of racks.
    pub fn set_racks(&self, racks: Arc<RackTable>) {
        self.racks.send_replace(racks);
    }

    /// Ends the standby state: requests the master role at all switches, with this generation, or
    /// observes them ([`FabricConfig::observes`]).
    pub fn lead(&self, generation: u64) {
        self.generation.send_replace(Some(generation));
    }

    /// Waits until all earlier requests have been processed, or the fabric has stopped.
    pub async fn answers(&self) {
        // The result does not matter, because it only shows that earlier calls have been processed.
        let _ = self.trees(0).await;
    }

    async fn request<T>(
        &self,
        request: impl FnOnce(RequestReply<T>) -> FabricRequest,
    ) -> Result<T, FabricError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(request(reply)).await.map_err(|_| FabricError::Stopped)?;
        answer.await.unwrap_or(Err(FabricError::Stopped))
    }
}

#[tonic::async_trait]
impl Fabric for FabricHandle {
    async fn register(&self, node: NodeRegistration) -> Result<(), FabricError> {
        let name = node.name.clone();
        self.request(|reply| FabricRequest::Register(node, reply)).await?;
        let mut snapshots = self.watch();
        // The snapshot may never contain the node, if it is unregistered meanwhile.
        let _ =
            timeout(SNAPSHOT_TIMEOUT, snapshots.wait_for(|snapshot| snapshot.node(&name).is_some())).await;
        Ok(())
    }

    async fn set_neighbor(&self, node: &str, neighbor: Option<LldpNeighbor>) -> Result<(), FabricError> {
        self.request(|reply| FabricRequest::SetNeighbor(node.to_owned(), neighbor, reply)).await
    }

    async fn unregister(&self, name: &str) -> Result<(), FabricError> {
        self.request(|reply| FabricRequest::Unregister(name.to_owned(), reply)).await
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

    async fn observation(&self) -> Result<Option<Observation>, FabricError> {
        match self.observes {
            true => self.request(FabricRequest::Observation).await.map(Some),
            false => Ok(None),
        }
    }

    async fn create_group(&self, group: GroupRequest) -> Result<Vec<TreeGrant>, FabricError> {
        self.request(|reply| FabricRequest::CreateGroup(group, reply)).await
    }

    async fn adopt_group(
        &self,
        group: GroupRequest,
        trees: Vec<(TreeScope, IpAddr)>,
    ) -> Result<(), FabricError> {
        self.request(|reply| FabricRequest::AdoptGroup(group, trees, reply)).await
    }

    async fn trees(&self, group: u64) -> Result<Vec<TreeGrant>, FabricError> {
        self.request(|reply| FabricRequest::Trees(group, reply)).await
    }

    async fn release_group(&self, group: u64) -> Result<(), FabricError> {
        self.request(|reply| FabricRequest::ReleaseGroup(group, reply)).await
    }
}
