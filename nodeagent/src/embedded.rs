//! A cluster with all of its agents in this process, on loopback, without root, controller or
//! switches. The ranks connect through Unix sockets as everywhere. Because there are no switches
//! and thus no multicast trees, data is sent along chains only. The agents send their requests to a
//! registrar in this process instead of a controller.

mod registrar;

use crate::agent::Agent;
use crate::blocking_threads;
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

/// Number of events of each agent that may wait for the registrar.
const EVENTS: usize = 64;

/// The reasons why a cluster cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The directory for the sockets or the threads could not be made.
    #[error("no {what}: {source}")]
    System {
        /// The resource that could not be made.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// An engine cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A socket cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The group cannot be made.
    #[error(transparent)]
    Group(#[from] MakeGroupError),
}

/// Running agents with one group that spans all of them. Dropping it stops them, except in a forked
/// process, which has none of the agents' threads.
#[derive(Debug)]
pub struct EmbeddedCluster {
    /// The process that runs the agents.
    process: u32,
    parts: Arc<ClusterParts>,
}

/// The parts of a cluster, which only the process that started it may drop.
#[derive(Debug)]
struct ClusterParts {
    /// The socket of each rank's agent.
    sockets: Vec<PathBuf>,
    agents: Vec<Agent>,
    registrar: Arc<EmbeddedRegistrar>,
    // The fields are dropped in this order: the servers remove their sockets before the directory
    // is removed.
    runtime: Runtime,
    _directory: tempfile::TempDir,
}

impl EmbeddedCluster {
    /// The group of all ranks.
    pub const GROUP: u64 = 1;

    /// Starts an agent for each node. Rank `i` is on node `nodes[i]`, and node `n` is in rack
    /// `racks[n]`.
    ///
    /// # Errors
    /// Returns an error if a rank's node does not exist, or if the system cannot make sockets or
    /// threads.
    pub fn start(nodes: &[usize], racks: &[u32]) -> Result<EmbeddedCluster, ClusterError> {
        let system = |what| move |source| ClusterError::System { what, source };
        let directory = tempfile::Builder::new()
            .prefix("cool-")
            .tempdir()
            .map_err(system("temporary directory for the agents' sockets"))?;
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = blocking_threads::build(builder.thread_name("cool-agents"), 2)
            .map_err(system("threads for the agents"))?;
        let path = |node: usize| directory.path().join(format!("n{node}.sock"));
        let mut agents = Vec::with_capacity(racks.len());
        let mut queues = Vec::with_capacity(racks.len());
        for (node, rack) in racks.iter().enumerate() {
            let (events, queue) = mpsc::channel(EVENTS);
            agents
                .push(EmbeddedNode { agent: start_agent(&runtime, node, &path(node), events)?, rack: *rack });
            queues.push(queue);
        }
        if let Some((rank, node)) = nodes.iter().enumerate().find(|(_, node)| **node >= racks.len()) {
            let reason = format!("rank {rank} is on node {node}, but there are {} nodes", racks.len());
            let invalid = cool_engine::GroupError::Invalid { group: EmbeddedCluster::GROUP, reason };
            return Err(MakeGroupError::from(invalid).into());
        }
        let all = agents.iter().map(|node| node.agent.clone()).collect();
        let registrar =
            runtime.block_on(EmbeddedRegistrar::start(agents, (EmbeddedCluster::GROUP, nodes)))?;
        for (node, queue) in queues.into_iter().enumerate() {
            runtime.spawn(Arc::clone(&registrar).serve(node, queue));
        }
        runtime.spawn(Arc::clone(&registrar).watch());
        let sockets = nodes.iter().map(|node| path(*node)).collect();
        let parts = ClusterParts { sockets, agents: all, registrar, runtime, _directory: directory };
        Ok(EmbeddedCluster { process: std::process::id(), parts: Arc::new(parts) })
    }

    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Waits until the ranks have left all groups that they joined, but at most this long. Returns
    /// whether they have. In a forked process, returns true at once, because the agents run in
    /// another process.
    pub fn wait_until_unused(&self, at_most: Duration) -> bool {
        let ClusterParts { runtime, registrar, .. } = &*self.parts;
        let unused = || async { timeout(at_most, registrar.until_unused()).await.is_ok() };
        self.is_forked() || runtime.block_on(unused())
    }

    /// Returns the socket of each rank's agent, in rank order.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.parts.sockets.iter().map(PathBuf::as_path)
    }

    /// Returns the agents' records of calls, in the form in which a controller reports them.
    pub fn trace(&self) -> Vec<TraceEvent> {
        let of = |agent: &Agent| {
            let records = self.parts.runtime.block_on(traces::all(agent));
            TraceEvent { node: agent.node().to_owned(), records, silent: Vec::new() }
        };
        self.parts.agents.iter().map(of).collect()
    }
}

impl Drop for EmbeddedCluster {
    fn drop(&mut self) {
        if self.is_forked() {
            // Dropping the runtime would wait forever for its threads, and dropping the directory
            // would remove the sockets of the process that runs the agents. Therefore this process
            // leaks its copy.
            std::mem::forget(Arc::clone(&self.parts));
        }
    }
}

/// Starts the agent of one node, and serves its socket.
fn start_agent(
    runtime: &Runtime,
    node: usize,
    socket: &Path,
    events: mpsc::Sender<Body>,
) -> Result<Agent, ClusterError> {
    let name = format!("n{node}");
    let engine = EngineHandle::start(EngineConfig::on_loopback(&name))?;
    let agent = Agent::new(&name, engine, events);
    // Tokio's sockets must be made within its runtime.
    let _inside = runtime.enter();
    let server = LocalServer::bind(socket, UserLimits::NONE)?;
    runtime.spawn(server.serve(agent.clone()));
    Ok(agent)
}
