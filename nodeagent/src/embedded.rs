//! All agents of a cluster in this process, on loopback: no root, no controller, no switches. The ranks
//! connect through the same unix sockets as anywhere. Without switches there are no trees: the chain
//! alone carries the data. What agents else ask the controller, they ask the registrar of this process.

mod registrar;

use crate::agent::Agent;
use crate::engine::{EngineConfig, EngineHandle, MakeGroupError, StartError};
use crate::local::{LocalServer, ServeError, UserLimits};
use crate::traces;
use cool_proto::control::TraceEvent;
use cool_proto::control::agent_message::Body;
use registrar::{EmbeddedNode, EmbeddedRegistrar};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// What waits to be told to the registrar, for each agent.
const EVENTS: usize = 64;

/// Why a cluster does not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No directory for the sockets, or no threads.
    #[error("no {what}: {source}")]
    System {
        /// What was asked of the system.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// An engine does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A socket cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The group cannot be made.
    #[error(transparent)]
    Group(#[from] MakeGroupError),
}

/// Running agents with one group over them. They stop when it is dropped.
#[derive(Debug)]
pub struct EmbeddedCluster {
    /// The socket of each rank's agent.
    sockets: Vec<PathBuf>,
    agents: Vec<Agent>,
    registrar: Arc<EmbeddedRegistrar>,
    // Dropped in this order: the servers remove their sockets, then the directory goes.
    runtime: Runtime,
    _directory: tempfile::TempDir,
}

/// The former name of [`EmbeddedCluster`].
pub type Cluster = EmbeddedCluster;

impl EmbeddedCluster {
    /// The group that all ranks are in.
    pub const GROUP: u64 = 1;

    /// Starts an agent for each node; rank `i` is on node `nodes[i]`, and node `n` is in rack `racks[n]`.
    ///
    /// # Errors
    /// If a rank's node does not exist, or the system gives no sockets or threads.
    pub fn start(nodes: &[usize], racks: &[u32]) -> Result<EmbeddedCluster, ClusterError> {
        let system = |what| move |source| ClusterError::System { what, source };
        let directory = tempfile::Builder::new()
            .prefix("cool-")
            .tempdir()
            .map_err(system("temporary directory for the agents' sockets"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("cool-agents")
            .enable_all()
            .build()
            .map_err(system("threads for the agents"))?;
        let path = |node: usize| directory.path().join(format!("n{node}.sock"));
        let mut agents = Vec::with_capacity(racks.len());
        let mut told = Vec::with_capacity(racks.len());
        for (node, rack) in racks.iter().enumerate() {
            let (events, queue) = mpsc::channel(EVENTS);
            agents
                .push(EmbeddedNode { agent: start_agent(&runtime, node, &path(node), events)?, rack: *rack });
            told.push(queue);
        }
        if let Some((rank, node)) = nodes.iter().enumerate().find(|(_, node)| **node >= racks.len()) {
            let reason = format!("rank {rank} is on node {node}, but there are {} nodes", racks.len());
            let invalid = cool_engine::GroupError::Invalid { group: EmbeddedCluster::GROUP, reason };
            return Err(MakeGroupError::from(invalid).into());
        }
        let all = agents.iter().map(|node| node.agent.clone()).collect();
        let registrar =
            runtime.block_on(EmbeddedRegistrar::start(agents, (EmbeddedCluster::GROUP, nodes)))?;
        for (node, queue) in told.into_iter().enumerate() {
            runtime.spawn(Arc::clone(&registrar).serve(node, queue));
        }
        runtime.spawn(Arc::clone(&registrar).watch());
        let sockets = nodes.iter().map(|node| path(*node)).collect();
        Ok(EmbeddedCluster { sockets, agents: all, registrar, runtime, _directory: directory })
    }

    /// Waits until the ranks of all groups that they have joined have left them, but not for longer than this: whether they
    /// have.
    pub fn wait_until_unused(&self, at_most: Duration) -> bool {
        self.runtime.block_on(async { timeout(at_most, self.registrar.until_unused()).await.is_ok() })
    }

    /// The socket of each rank's agent, in rank order.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }

    /// What the agents remember of calls, as a controller would tell it.
    pub fn trace(&self) -> Vec<TraceEvent> {
        let of = |agent: &Agent| {
            let records = self.runtime.block_on(traces::all(agent));
            TraceEvent { node: agent.node().to_owned(), records, silent: Vec::new() }
        };
        self.agents.iter().map(of).collect()
    }
}

/// The agent of one node, serving its socket.
fn start_agent(
    runtime: &Runtime,
    node: usize,
    socket: &Path,
    events: mpsc::Sender<Body>,
) -> Result<Agent, ClusterError> {
    let name = format!("n{node}");
    let engine = EngineHandle::start(EngineConfig::on_loopback(&name))?;
    let agent = Agent::new(&name, engine, events);
    // A socket of tokio's is made within its runtime.
    let _inside = runtime.enter();
    let server = LocalServer::bind(socket, UserLimits::NONE)?;
    runtime.spawn(server.serve(agent.clone()));
    Ok(agent)
}
