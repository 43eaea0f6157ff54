//! The engine's driver: its thread, sockets and timers.

use crate::engine::{EngineConfig, StartError};
use std::net::SocketAddrV4;
use tokio::sync::mpsc;

/// The ports that were bound.
pub(crate) struct Bound {
    pub(crate) udp_port: u16,
    pub(crate) tcp_port: u16,
}

pub(crate) fn start(
    config: EngineConfig,
    _commands: mpsc::UnboundedReceiver<crate::engine::Command>,
) -> Result<Bound, StartError> {
    let bind = |protocol, port, e| StartError::Bind {
        protocol,
        address: SocketAddrV4::new(config.ip, port),
        source: e,
    };
    let udp = std::net::UdpSocket::bind((config.ip, config.udp_port)).map_err(|e| bind("UDP", config.udp_port, e))?;
    let tcp = std::net::TcpListener::bind((config.ip, config.tcp_port)).map_err(|e| bind("TCP", config.tcp_port, e))?;
    let port = |a: std::io::Result<std::net::SocketAddr>| a.map(|a| a.port());
    Ok(Bound {
        udp_port: port(udp.local_addr()).map_err(|e| bind("UDP", config.udp_port, e))?,
        tcp_port: port(tcp.local_addr()).map_err(|e| bind("TCP", config.tcp_port, e))?,
    })
}
