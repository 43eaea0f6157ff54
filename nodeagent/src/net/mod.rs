//! The engine's driver: its thread, sockets and timers, and a pool of threads for what takes long. It moves bytes and tells the
//! time; what they mean is the matter of [`cool_engine`].
//!
//! ```text
//! driver        waits for sockets, commands, events, time
//! engine_host   hands them to the engine, and does its outputs: memories, udp, tcp
//! work          threads that copy, combine and prepare calls; they answer by events
//! ```

mod cipher;
mod driver;
mod engine_host;
mod handshake;
mod keyring;
mod link_pace;
mod memory_table;
mod port_conflict;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
pub(crate) mod udp;
mod udp_outbox;
mod work;

use crate::engine::{EngineCommand, EngineConfig, RefusalCounters, StartError, TrafficCounters};
use crate::loss_injector::LossInjector;
use cool_engine::{AgentConnectionId, AgentId, NodeId, PreparedCall, WorkId};
use cool_types::Key;
use driver::EngineDriver;
use engine_host::{EngineCounters, EngineHost};
use handshake::{LinkSecurity, RecordCiphers};
use keyring::Keyring;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Events that may wait for the engine; beyond it, connections and work wait.
const EVENTS: usize = 64;

/// The ports that were bound.
pub(crate) struct BoundEngine {
    pub(crate) udp_port: u16,
    pub(crate) tcp_port: u16,
    pub(crate) incarnation: u64,
    /// The agent's own.
    pub(crate) key: Key,
    /// Of the engine's thread.
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) traffic: Arc<TrafficCounters>,
    pub(crate) refusals: Arc<RefusalCounters>,
}

/// What the tasks around the sockets, and the pool's threads, tell the driver.
enum DriverEvent {
    /// Someone has connected, and perhaps proved who it is.
    Accepted {
        stream: TcpStream,
        records: Option<RecordCiphers>,
        from: IpAddr,
        proven: Option<AgentId>,
    },
    Connected {
        node: NodeId,
        stream: TcpStream,
        records: Option<RecordCiphers>,
    },
    Unreachable {
        node: NodeId,
        why: String,
    },
    /// Something has come over a connection.
    Readable(AgentConnectionId),
    Written {
        connection: AgentConnectionId,
        bytes: u64,
    },
    Closed {
        connection: AgentConnectionId,
        why: String,
    },
    WorkDone(WorkId),
    Prepared(WorkId, Box<PreparedCall>),
    /// A thread of the pool has panicked: its work will never be done.
    WorkPanicked,
}

type DriverEvents = mpsc::Sender<DriverEvent>;

/// Binds the sockets and starts the engine's thread. It ends when no more commands can come.
pub(crate) fn start(
    config: EngineConfig,
    commands: mpsc::UnboundedReceiver<EngineCommand>,
) -> Result<BoundEngine, StartError> {
    let failed = |protocol, port| {
        let address = SocketAddr::new(config.ip, port);
        move |source| StartError::Bind { protocol, address, source }
    };
    let udp::BoundPort { socket: udp, guard, number: udp_port } =
        udp::bind(config.ip, config.udp_port).map_err(failed("UDP", config.udp_port))?;
    let (tcp, tcp_port) = tcp::bind(config.ip, config.tcp_port).map_err(failed("TCP", config.tcp_port))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
    // Sockets of tokio's are made within its runtime.
    let inside = runtime.enter();
    let udp = udp::Socket::new(udp, config.ip).map_err(failed("UDP", udp_port))?;
    let tcp = TcpListener::from_std(tcp).map_err(failed("TCP", tcp_port))?;
    drop(inside);
    let handle = runtime.handle().clone();
    let (events, queue) = mpsc::channel(EVENTS);
    let traffic = Arc::<TrafficCounters>::default();
    let incarnation = incarnation();
    let me = AgentId { node: config.node.clone(), incarnation };
    let (key, refusals) = (key()?, Arc::<RefusalCounters>::default());
    let shared = EngineCounters { traffic: Arc::clone(&traffic), refusals: Arc::clone(&refusals) };
    let security = LinkSecurity {
        me: me.clone(),
        key: key.clone(),
        groups: Keyring::default(),
        encrypt: config.encrypt,
    };
    let host =
        EngineHost::new((me, security), &config, udp, events.clone(), shared).map_err(StartError::Thread)?;
    let driver = EngineDriver::new(host, config.losses.map(LossInjector::new), events, queue);
    // A task is woken by others of its thread for less than what the runtime itself runs.
    let run = move || {
        let _held = guard;
        runtime.block_on(async { tokio::spawn(driver.run(commands, tcp)).await })
    };
    std::thread::Builder::new().name("cool-engine".to_owned()).spawn(run).map_err(StartError::Thread)?;
    Ok(BoundEngine { udp_port, tcp_port, incarnation, key, runtime: handle, traffic, refusals })
}

/// A key for an agent that starts now.
fn key() -> Result<Key, StartError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(StartError::Random)?;
    Ok(bytes.into())
}

/// The incarnation of an agent that starts now: the time in nanoseconds, so that a later one has a larger number. Where the
/// clock was set back in between, others hear from pings, not from greetings, that the earlier one is gone.
fn incarnation() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Until the year 2554.
    now.as_nanos() as u64
}
