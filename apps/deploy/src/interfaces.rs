//! The choice of the data interface.

use crate::error::DeployError;
use pnet::datalink::{self, NetworkInterface};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

/// An address of a block for documentation (RFC 5737). No packet is sent to it.
const SOMEWHERE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 9);

/// A network interface with the address at which other machines reach this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataInterface {
    /// Its name.
    pub name: String,
    /// Its address.
    pub ip: IpAddr,
}

impl DataInterface {
    /// Returns the interface called `name`, or that with the IP address `name`. Without a name,
    /// returns that of the default route, or the only one if there is no such route.
    ///
    /// # Errors
    /// If there is no such interface with a suitable address, or no name and several candidates.
    pub fn find(name: Option<&str>) -> Result<DataInterface, DeployError> {
        match name.map(str::parse) {
            Some(Ok(ip)) => DataInterface::with_address(ip),
            _ => choose(&candidates(), name, default_source()),
        }
    }

    /// Returns TCP ports of the interface's address that no program uses.
    ///
    /// # Errors
    /// If there are none.
    pub fn free_ports<const N: usize>(&self) -> Result<[u16; N], DeployError> {
        let failed = |source| DeployError::Port { ip: self.ip, source };
        // All are open at the same time, so they differ.
        let listeners = [(); N].map(|()| TcpListener::bind((self.ip, 0)));
        let mut ports = [0; N];
        for (port, listener) in ports.iter_mut().zip(&listeners) {
            let listener = listener.as_ref().map_err(|e| failed(e.kind().into()))?;
            *port = listener.local_addr().map_err(failed)?.port();
        }
        Ok(ports)
    }

    /// Returns the interface that has an address of this machine.
    ///
    /// # Errors
    /// If no interface has it.
    pub fn with_address(ip: IpAddr) -> Result<DataInterface, DeployError> {
        let has = |interface: &NetworkInterface| interface.ips.iter().any(|network| network.ip() == ip);
        match datalink::interfaces().into_iter().find(has) {
            Some(interface) => Ok(DataInterface { name: interface.name, ip }),
            None => Err(DeployError::NoInterface { name: ip.to_string(), present: names(&candidates()) }),
        }
    }
}

/// Returns the interfaces that may carry data, with their addresses: the first IPv4 address, or the
/// first IPv6 address that is not link-local, as an agent chooses it.
fn candidates() -> Vec<DataInterface> {
    let suitable = |interface: NetworkInterface| {
        let addresses = interface.ips.iter().map(|network| network.ip());
        let reached = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if !ip.is_unicast_link_local());
        let ip = addresses.clone().find(IpAddr::is_ipv4).or_else(|| addresses.clone().find(reached))?;
        (interface.is_up() && !interface.is_loopback()).then_some(DataInterface { name: interface.name, ip })
    };
    datalink::interfaces().into_iter().filter_map(suitable).collect()
}

/// Returns the address from which packets to distant hosts are sent, or `None` without a default
/// route.
fn default_source() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(SOMEWHERE).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn choose(
    candidates: &[DataInterface],
    name: Option<&str>,
    default: Option<IpAddr>,
) -> Result<DataInterface, DeployError> {
    if let Some(name) = name {
        let named = candidates.iter().find(|candidate| candidate.name == name).cloned();
        return named
            .ok_or_else(|| DeployError::NoInterface { name: name.to_owned(), present: names(candidates) });
    }
    let routed = candidates.iter().find(|candidate| Some(candidate.ip) == default);
    match (routed, candidates) {
        (Some(interface), _) | (None, [interface]) => Ok(interface.clone()),
        _ => Err(DeployError::Interface(names(candidates))),
    }
}

fn names(candidates: &[DataInterface]) -> Vec<String> {
    candidates.iter().map(|candidate| candidate.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_its_address_and_has_free_ports() {
        let loopback = DataInterface::find(Some("127.0.0.1")).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.ip), ("lo", Ipv4Addr::LOCALHOST.into()));
        let [first, second] = loopback.free_ports().unwrap();
        assert!(first != second && TcpListener::bind((loopback.ip, first)).is_ok());
        assert!(DataInterface::find(Some("192.0.2.1")).unwrap_err().to_string().contains("192.0.2.1"));
    }

    #[test]
    fn the_interface_is_named_routed_or_the_only_one() {
        let interface = |name: &str, ip: [u8; 4]| DataInterface { name: name.to_owned(), ip: ip.into() };
        let both = [interface("eth0", [10, 0, 0, 1]), interface("eth1", [10, 1, 0, 1])];
        let chosen = |candidates, name, default| choose(candidates, name, default).map(|found| found.name);
        let routed = Some([10, 1, 0, 1].into());
        assert_eq!(chosen(&both, Some("eth0"), routed).unwrap(), "eth0");
        assert_eq!(chosen(&both, None, routed).unwrap(), "eth1");
        assert_eq!(chosen(&both[..1], None, None).unwrap(), "eth0");
        for (candidates, name, part) in [
            (&both[..], None, "eth0, eth1"),
            (&both, Some("wlan0"), "eth0, eth1"),
            (&[], None, "no interfaces"),
        ] {
            let error = chosen(candidates, name, None).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("--interface"), "{error}");
        }
    }
}
