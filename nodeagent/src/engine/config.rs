//! The configuration of an agent's engine, and the reasons why an engine cannot start.

use crate::loss_injector::Losses;
use cool_engine::DEFAULT_PEER_TIMEOUT;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Where an agent moves data.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The node's name, unique among the agents of a network.
    pub node: String,
    /// Address of the data interface; multicast leaves and enters by it.
    pub ip: IpAddr,
    /// Port for repair and for multicast that the agent sends; 0 takes a free one.
    pub udp_port: u16,
    /// Port for unicast steps; 0 takes a free one.
    pub tcp_port: u16,
    /// How long a node may be silent while calls wait; then it is gone.
    pub peer_timeout: Duration,
    /// Whether it speaks with other agents only over encrypted connections.
    pub encrypt: bool,
    /// Which datagrams are thrown away as they come, in tests.
    pub losses: Option<Losses>,
}

impl EngineConfig {
    /// A node of this machine alone, on free ports.
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

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot use {protocol} {address}: {source}; is another agent running, or the interface down?")]
    Bind {
        /// UDP or TCP.
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system has no random number for the agent's key.
    #[error("cannot make a key for this agent: {0}")]
    Random(getrandom::Error),
    /// The engine's thread cannot be made.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
}
