//! The configuration of an agent's engine, and the reasons why an engine cannot start.

use crate::loss_injector::Losses;
use cool_engine::DEFAULT_PEER_TIMEOUT;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The configuration of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The node's name, unique among the agents of a network.
    pub node: String,
    /// The address of the data interface, which is used for multicast in both directions.
    pub ip: IpAddr,
    /// The UDP port for multicast and repair; 0 chooses a free port.
    pub udp_port: u16,
    /// The TCP port for unicast messages; 0 chooses a free port.
    pub tcp_port: u16,
    /// How long a node may be silent while calls wait for it, before it is lost.
    pub peer_timeout: Duration,
    /// Whether all connections to other agents must be encrypted.
    pub encrypt: bool,
    /// The datagrams to drop on arrival, for tests.
    pub losses: Option<Losses>,
}

impl EngineConfig {
    /// Returns the configuration for a node on this machine's loopback interface, with free ports.
    pub fn on_loopback(node: &str) -> EngineConfig {
        EngineConfig {
            node: node.to_owned(),
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port: 0,
            tcp_port: 0,
            peer_timeout: DEFAULT_PEER_TIMEOUT,
            encrypt: false,
            losses: None,
        }
    }
}

/// The reasons why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot use {protocol} {address}: {source}; is another agent running, or the interface down?")]
    Bind {
        /// UDP or TCP.
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system has no random numbers for the agent's key.
    #[error("cannot make a key for this agent: {0}")]
    Random(getrandom::Error),
    /// The engine's thread cannot be started.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
}
