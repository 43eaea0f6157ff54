//! The engine's driver: its thread, sockets and timers, and a pool of threads for long operations.
//! It moves bytes and provides the time; [`cool_engine`] interprets the bytes.
//!
//! ```text
//! driver             waits for sockets, commands, events and timers
//! engine_host        passes them to the engine, and executes its outputs: memory, UDP, TCP
//! tcp, stream_sets   connect to other agents, with one TCP stream or several
//! agent_connection   reads and writes such a connection, whose bytes a division spreads
//! cpu_costs          measures what the work of the engine costs on this machine
//! work               threads that copy, combine and prepare calls, and report by events
//! ```

mod agent_connection;
pub mod cpu_costs;
mod division;
mod driver;
mod engine_host;
mod handshake;
mod keyring;
mod link_pace;
mod memory_pool;
mod memory_table;
mod port_conflict;
mod stream_sets;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
mod tree_membership;
pub(crate) mod udp;
mod udp_outbox;
mod work;

use crate::blocking_threads;
use crate::datagram_faults::DatagramFaults;
use crate::engine::{
    EngineConfig, MakeGroupError, QueuedCommand, RefusalCounters, StartError, TrafficCounters,
};
use crate::loss_injector::LossInjector;
use cool_engine::{AgentConnectionId, AgentId, NodeId, PreparedCall, WorkId};
use cool_types::Key;
use driver::EngineDriver;
use engine_host::{EngineCounters, EngineHost};
use handshake::{LinkSecurity, RecordCiphers};
use keyring::Keyring;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

/// Number of events that may wait for the engine. If there are more, connections and work must
/// wait.
const EVENTS: usize = 64;

/// An engine with its bound ports.
pub(crate) struct BoundEngine {
    pub(crate) udp_port: u16,
    pub(crate) tcp_port: u16,
    pub(crate) incarnation: u64,
    /// The agent's own key.
    pub(crate) key: Key,
    /// The runtime of the engine's thread.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) traffic: Arc<TrafficCounters>,
    pub(crate) refusals: Arc<RefusalCounters>,
    pub(crate) faults: Arc<DatagramFaults>,
}

/// An event from the tasks of the sockets, or from the threads of the pool.
enum DriverEvent {
    /// An agent has connected all streams of a connection, and may have proved its identity.
    Accepted {
        streams: Vec<TcpStream>,
        records: Option<RecordCiphers>,
        from: IpAddr,
        proven: Option<AgentId>,
    },
    Connected {
        node: NodeId,
        streams: Vec<TcpStream>,
        records: Option<RecordCiphers>,
    },
    Unreachable {
        node: NodeId,
        why: String,
    },
    /// Data has arrived over a connection.
    Readable(AgentConnectionId),
    Written {
        connection: AgentConnectionId,
        /// The index of the stream.
        stream: usize,
        bytes: u64,
    },
    /// One of several streams of a connection has failed. Data that arrived before may be unread.
    StreamFailed {
        connection: AgentConnectionId,
        why: String,
    },
    Closed {
        connection: AgentConnectionId,
        why: String,
    },
    /// A group's trees have been joined, or cannot be.
    TreesJoined {
        group: u64,
        reply: GroupReply,
        joined: Vec<(SocketAddr, io::Result<udp::Socket>)>,
    },
    /// Whether the datagrams of a group's quick calls arrive at this node.
    QuickProbed {
        group: u64,
        passed: bool,
    },
    WorkDone(WorkId),
    Prepared(WorkId, Box<PreparedCall>),
    /// A thread of the pool has panicked, so its work will never complete.
    WorkPanicked,
}

/// The channel on which the outcome of making a group is reported.
type GroupReply = oneshot::Sender<Result<(), MakeGroupError>>;

type DriverEvents = mpsc::Sender<DriverEvent>;

/// The runtime of the engine's thread. A task of another runtime may drop it, because the engine
/// may fail to start; Tokio's own runtime panics then.
struct EngineRuntime(Option<Runtime>);

impl Drop for EngineRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Binds the sockets and starts the engine's thread, which ends when all senders of commands have
/// been dropped.
pub(crate) fn start(
    config: EngineConfig,
    commands: mpsc::UnboundedReceiver<QueuedCommand>,
) -> Result<BoundEngine, StartError> {
    let failed = |protocol, port| {
        let address = SocketAddr::new(config.ip, port);
        move |source| StartError::Bind { protocol, address, source }
    };
    let udp::BoundPort { socket: udp, guard, number: udp_port } =
        udp::bind(config.ip, config.udp_port).map_err(failed("UDP", config.udp_port))?;
    let (tcp, tcp_port) = tcp::bind(config.ip, config.tcp_port).map_err(failed("TCP", config.tcp_port))?;
    let runtime =
        blocking_threads::build(&mut Builder::new_current_thread(), 0).map_err(StartError::Thread)?;
    let (handle, runtime) = (runtime.handle().clone(), EngineRuntime(Some(runtime)));
    // Tokio's sockets must be made within its runtime.
    let inside = handle.enter();
    let udp = udp::Socket::new(udp, config.ip).map_err(failed("UDP", udp_port))?;
    let tcp = TcpListener::from_std(tcp).map_err(failed("TCP", tcp_port))?;
    drop(inside);
    let (events, queue) = mpsc::channel(EVENTS);
    let traffic = Arc::<TrafficCounters>::default();
    let incarnation = incarnation();
    let me = AgentId { node: config.node.clone(), incarnation };
    let (key, refusals) = (key()?, Arc::<RefusalCounters>::default());
    let faults = Arc::<DatagramFaults>::default();
    let shared = EngineCounters {
        traffic: Arc::clone(&traffic),
        refusals: Arc::clone(&refusals),
        faults: Arc::clone(&faults),
    };
    let security = LinkSecurity {
        me: me.clone(),
        key: key.clone(),
        groups: Keyring::default(),
        encrypt: config.encrypt,
    };
    let host =
        EngineHost::new((me, security), &config, udp, events.clone(), shared).map_err(StartError::Thread)?;
    let driver = EngineDriver::new(host, config.losses.map(LossInjector::new), events, queue);
    // The driver runs as a task, because waking a task from another task of the thread is cheaper
    // than waking the future of `block_on`.
    let run = move || {
        let _held = guard;
        let driver = async { tokio::spawn(driver.run(commands, tcp)).await };
        runtime.0.as_ref().map(|runtime| runtime.block_on(driver))
    };
    std::thread::Builder::new().name("cool-engine".to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok(BoundEngine { udp_port, tcp_port, incarnation, key, runtime: handle, traffic, refusals, faults })
}

/// Returns a new random key for this agent.
fn key() -> Result<Key, StartError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(StartError::Random)?;
    Ok(bytes.into())
}

/// Returns the incarnation of an agent that starts now: the time in nanoseconds, so that a later
/// agent has a larger number. If the clock was set back in between, other agents learn from pings
/// instead of greetings that the earlier agent has ended.
fn incarnation() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // The number fits into 64 bits until the year 2554.
    now.as_nanos() as u64
}
