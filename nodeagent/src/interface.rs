//! The node's data interface: its addresses and its MTU, which are read once when the agent starts.

use cool_topology::MacAddr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// The data interface, as it is reported to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The address at which the agents of other nodes reach this one: the first IPv4 address, or
    /// the first suitable IPv6 address if there is none or if IPv6 was requested.
    pub ip: IpAddr,
    /// Its Ethernet address.
    pub mac: MacAddr,
    /// The maximum size of an IP packet in bytes.
    pub mtu: u32,
}

/// The reasons why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// There is no interface with this name.
    #[error("there is no interface {name}; --interface must be one of: {}", .present.join(", "))]
    Missing {
        /// The name.
        name: String,
        /// The existing interfaces.
        present: Vec<String>,
    },
    /// It has no suitable address.
    #[error("interface {name} has no {what}; {remedy}")]
    NoAddress {
        /// The interface.
        name: String,
        /// The kind of the missing address.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The system does not report its MTU.
    #[error("cannot read the MTU of interface {name}: {source}")]
    Mtu {
        /// The interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Interface {
    /// Reads the interface called `name`. If `ipv6` is set or there is no IPv4 address, the IPv6
    /// address is used.
    ///
    /// # Errors
    /// Returns an error if the interface does not exist, or has no suitable IP address or no
    /// Ethernet address.
    pub fn read(name: &str, ipv6: bool) -> Result<Interface, InterfaceError> {
        let all = pnet::datalink::interfaces();
        let Some(found) = all.iter().find(|i| i.name == name) else {
            let present = all.into_iter().map(|i| i.name).collect();
            return Err(InterfaceError::Missing { name: name.to_owned(), present });
        };
        let no = |what, remedy| InterfaceError::NoAddress { name: name.to_owned(), what, remedy };
        let addresses = found.ips.iter().map(|network| network.ip());
        let ip = address(addresses, ipv6);
        let needed = if ipv6 { "IPv6 address" } else { "IP address" };
        Ok(Interface {
            name: name.to_owned(),
            ip: ip.ok_or_else(|| {
                no(needed, "give it one with `ip address add`, beside any that begins with fe80")
            })?,
            mac: found.mac.ok_or_else(|| no("Ethernet address", "the data network must be Ethernet"))?,
            mtu: mtu(found.index).map_err(|source| InterfaceError::Mtu { name: name.to_owned(), source })?,
        })
    }
}

/// Returns the address at which other nodes reach the agent, or `None` if none is suitable. If
/// `ipv6` is set, IPv4 addresses are ignored. A link-local IPv6 address is not suitable, because it
/// does not identify the interface.
fn address(all: impl Iterator<Item = IpAddr> + Clone, ipv6: bool) -> Option<IpAddr> {
    let reached = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if !ip.is_unicast_link_local());
    let v4 = all.clone().find(IpAddr::is_ipv4).filter(|_| !ipv6);
    v4.or_else(|| all.clone().find(reached))
}

/// Returns the index of the interface with an address.
pub(crate) fn index_of(ip: Ipv6Addr) -> io::Result<u32> {
    let has =
        |i: &pnet::datalink::NetworkInterface| i.ips.iter().any(|network| network.ip() == IpAddr::V6(ip));
    let found = pnet::datalink::interfaces().into_iter().find(has);
    found.map(|i| i.index).ok_or_else(|| {
        io::Error::new(io::ErrorKind::AddrNotAvailable, format!("no interface has the address {ip} any more"))
    })
}

/// Returns the current MTU of the interface called `name`.
///
/// # Errors
/// Returns an error if there is no such interface, or if the system does not report its MTU.
pub(crate) fn read_mtu(name: &str) -> io::Result<u32> {
    let found = pnet::datalink::interfaces().into_iter().find(|interface| interface.name == name);
    mtu(found.ok_or(io::ErrorKind::NotFound)?.index)
}

/// Returns the MTU of an interface from rtnetlink(7), because /sys may show the interfaces of
/// another network namespace.
fn mtu(index: u32) -> io::Result<u32> {
    Ok(read_link(index)?.mtu)
}

/// Returns the link-local IPv6 address of an interface, if it has one.
pub(crate) fn link_local(name: &str) -> Option<Ipv6Addr> {
    let interface = pnet::datalink::interfaces().into_iter().find(|interface| interface.name == name)?;
    interface.ips.iter().find_map(|network| match network.ip() {
        IpAddr::V6(ip) => ip.is_unicast_link_local().then_some(ip),
        IpAddr::V4(_) => None,
    })
}

/// Returns the indices of an interface and of those below it: the members of a bridge or bond, and
/// the interface of a VLAN. Some links may have changed meanwhile, and are left out.
pub(crate) fn with_lower(name: &str) -> Vec<u32> {
    let all = pnet::datalink::interfaces();
    let index = all.iter().find(|interface| interface.name == name).map(|interface| interface.index);
    let links: Vec<(u32, LinkAttributes)> = all
        .iter()
        .filter_map(|interface| Some((interface.index, read_link(interface.index).ok()?)))
        .collect();
    index.map_or(Vec::new(), |index| lower(index, &links))
}

/// Returns the indices of an interface and of those below it among `links`.
fn lower(index: u32, links: &[(u32, LinkAttributes)]) -> Vec<u32> {
    let mut found = vec![index];
    let mut at = 0;
    while let Some(&upper) = found.get(at) {
        let below = links.iter().filter(|(_, link)| link.master == Some(upper)).map(|(index, _)| *index);
        let beneath = links.iter().filter(|(index, _)| *index == upper).filter_map(|(_, link)| link.lower);
        for index in below.chain(beneath) {
            if !found.contains(&index) {
                found.push(index);
            }
        }
        at += 1;
    }
    found
}

/// Attributes of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkAttributes {
    mtu: u32,
    /// The bridge or bond to which the interface belongs.
    master: Option<u32>,
    /// The interface that carries its frames, as that of a VLAN.
    lower: Option<u32>,
}

fn read_link(index: u32) -> io::Result<LinkAttributes> {
    // Protocol 0, the default, is NETLINK_ROUTE.
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(5)))?;
    rustix::net::send(&socket, &link_request(index), SendFlags::empty())?;
    let mut reply = vec![0; 64 << 10];
    let (len, _) = rustix::net::recv(&socket, &mut reply[..], RecvFlags::empty())?;
    parse_link(&reply[..len])
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLM_F_REQUEST: u16 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
/// The lower interface is in another network namespace, as the other end of a pair of virtual
/// interfaces.
const IFLA_LINK_NETNSID: u16 = 37;
/// The sizes of nlmsghdr, and of nlmsghdr together with ifinfomsg.
const HEADER: usize = 16;
const PREAMBLE: usize = 32;

/// Returns an nlmsghdr and an ifinfomsg that request one link, in the host's byte order.
fn link_request(index: u32) -> [u8; PREAMBLE] {
    let mut request = [0; PREAMBLE];
    request[0..4].copy_from_slice(&(PREAMBLE as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[HEADER + 4..HEADER + 8].copy_from_slice(&index.to_ne_bytes());
    request
}

/// Returns the attributes in a reply of rtnetlink(7).
fn parse_link(reply: &[u8]) -> io::Result<LinkAttributes> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "an answer that is no link");
    let u16_at = |at: usize| {
        reply.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes).ok_or_else(malformed)
    };
    if u16_at(4)? != RTM_NEWLINK {
        return Err(malformed());
    }
    let (mut mtu, mut master, mut lower, mut is_elsewhere) = (None, None, None, false);
    let mut at = PREAMBLE;
    while at < reply.len() {
        let (len, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        let value = reply.get(at + 4..at + len).ok_or_else(malformed)?;
        let number = || value.try_into().map(u32::from_ne_bytes).map_err(|_| malformed());
        match kind {
            IFLA_MTU => mtu = Some(number()?),
            IFLA_MASTER => master = Some(number()?),
            IFLA_LINK => lower = Some(number()?),
            IFLA_LINK_NETNSID => is_elsewhere = true,
            _ => {}
        }
        at += len.next_multiple_of(4);
    }
    let lower = lower.filter(|_| !is_elsewhere);
    Ok(LinkAttributes { mtu: mtu.ok_or_else(malformed)?, master, lower })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_loopback_interface_has_its_address_and_an_mtu() {
        let lo = Interface::read("lo", false).unwrap();
        assert_eq!(lo.ip, Ipv4Addr::LOCALHOST);
        assert!(lo.mtu >= 1280, "{}", lo.mtu);
        assert_eq!(Interface::read("lo", true).unwrap().ip, Ipv6Addr::LOCALHOST);
        assert!(index_of(Ipv6Addr::LOCALHOST).is_ok());
    }

    #[test]
    fn ipv4_is_preferred_and_link_local_ipv6_is_ignored() {
        let all: [IpAddr; 4] = ["fe80::1", "fd00::1", "10.0.0.1", "fd00::2"].map(|ip| ip.parse().unwrap());
        assert_eq!([false, true].map(|ipv6| address(all.into_iter(), ipv6)), [Some(all[2]), Some(all[1])]);
        assert_eq!(address(all[..2].iter().copied(), false), Some(all[1]));
        assert_eq!(address(all[..1].iter().copied(), false), None);
        assert_eq!(address(all[2..3].iter().copied(), true), None);
    }

    #[test]
    fn an_interface_that_does_not_exist_is_named_with_those_that_do() {
        let e = Interface::read("nope0", false).unwrap_err().to_string();
        assert!(e.contains("nope0") && e.contains("lo"), "{e}");
    }

    #[test]
    fn answers_cut_short_are_errors() {
        let mut reply = link_request(1).to_vec();
        reply[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        let attribute = |reply: &mut Vec<u8>, kind: u16, value: u32| {
            reply.extend(8u16.to_ne_bytes());
            reply.extend(kind.to_ne_bytes());
            reply.extend(value.to_ne_bytes());
        };
        attribute(&mut reply, 3, 7);
        attribute(&mut reply, IFLA_MTU, 1500);
        let link = LinkAttributes { mtu: 1500, master: None, lower: None };
        assert_eq!(parse_link(&reply).unwrap(), link);
        for cut in 0..reply.len() {
            assert!(parse_link(&reply[..cut]).is_err(), "{cut} bytes");
        }
        attribute(&mut reply, IFLA_MASTER, 3);
        attribute(&mut reply, IFLA_LINK, 2);
        assert_eq!(parse_link(&reply).unwrap(), LinkAttributes { master: Some(3), lower: Some(2), ..link });
        attribute(&mut reply, IFLA_LINK_NETNSID, 0);
        assert_eq!(parse_link(&reply).unwrap(), LinkAttributes { master: Some(3), ..link });
        // An attribute of length 0 must not be read forever.
        reply[PREAMBLE..PREAMBLE + 2].copy_from_slice(&0u16.to_ne_bytes());
        assert!(parse_link(&reply).is_err());
    }

    #[test]
    fn members_of_a_bridge_and_the_interface_of_a_vlan_are_below() {
        let link = |index, master, lower| (index, LinkAttributes { mtu: 1500, master, lower });
        // Bridge 9 has the member 8, a VLAN of bond 7, whose members are 1 and 2.
        let links = [
            link(1, Some(7), None),
            link(2, Some(7), None),
            link(3, None, None),
            link(7, None, None),
            link(8, Some(9), Some(7)),
            link(9, None, None),
        ];
        assert_eq!(lower(9, &links), [9, 8, 7, 1, 2]);
        assert_eq!(lower(3, &links), [3]);
        // A pair of virtual interfaces in one namespace.
        assert_eq!(lower(4, &[link(4, None, Some(5)), link(5, None, Some(4))]), [4, 5]);
        assert_eq!(with_lower("lo").len(), 1);
    }
}
