//! All agents of a cluster in this process, on loopback: no root, no controller, no switches. The ranks
//! connect through the same unix sockets as anywhere. Without switches there are no trees: the chain
//! alone carries the data.

use crate::agent::Agent;
use crate::engine::{EngineConfig, EngineHandle, GroupError, GroupSpec, MemberSpec, StartError};
use crate::local::{LocalServer, ServeError};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// Payload of a datagram: loopback takes large ones.
const CHUNK_BYTES: u32 = 16 << 10;

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
    Group(#[from] GroupError),
}

/// Running agents with one group over them. They stop when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The socket of each rank's agent.
    sockets: Vec<PathBuf>,
    // Dropped in this order: the servers remove their sockets, then the directory goes.
    _runtime: Runtime,
    _directory: tempfile::TempDir,
}

impl Cluster {
    /// The group that all ranks are in.
    pub const GROUP: u64 = 1;

    /// Starts an agent for each node; rank `i` is on node `nodes[i]`, and node `n` is in rack `racks[n]`.
    ///
    /// # Errors
    /// If a rank's node does not exist, or the system gives no sockets or threads.
    pub fn start(nodes: &[usize], racks: &[u32]) -> Result<Cluster, ClusterError> {
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
        for node in 0..racks.len() {
            agents.push(start_agent(&runtime, node, &path(node))?);
        }

        let mut members = Vec::with_capacity(nodes.len());
        for (rank, node) in (0..).zip(nodes) {
            let (Some(agent), Some(rack)) = (agents.get(*node), racks.get(*node)) else {
                let reason = format!("rank {rank} is on node {node}, but there are {} nodes", racks.len());
                return Err(GroupError::Invalid { group: Cluster::GROUP, reason }.into());
            };
            let (udp_port, tcp_port) = agent.ports();
            let node = agent.node().to_owned();
            members.push(MemberSpec { rank, node, rack: *rack, ip: Ipv4Addr::LOCALHOST, udp_port, tcp_port });
        }
        for agent in &agents {
            runtime.block_on(agent.make_group(GroupSpec {
                id: Cluster::GROUP,
                epoch: 1,
                members: members.clone(),
                trees: Vec::new(),
                chunk_bytes: CHUNK_BYTES,
                host_bytes_per_second: 0,
                uplink_bytes_per_second: 0,
            }))?;
        }
        let sockets = nodes.iter().map(|node| path(*node)).collect();
        Ok(Cluster { sockets, _runtime: runtime, _directory: directory })
    }

    /// The socket of each rank's agent, in rank order.
    pub fn sockets(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }
}

/// The agent of one node, serving its socket.
fn start_agent(runtime: &Runtime, node: usize, socket: &Path) -> Result<Agent, ClusterError> {
    let name = format!("n{node}");
    let config = EngineConfig { node: name.clone(), ip: Ipv4Addr::LOCALHOST, udp_port: 0, tcp_port: 0 };
    let agent = Agent::new(&name, EngineHandle::start(config)?);
    // A socket of tokio's is made within its runtime.
    let _inside = runtime.enter();
    let server = LocalServer::bind(socket)?;
    runtime.spawn(server.serve(agent.clone()));
    Ok(agent)
}
