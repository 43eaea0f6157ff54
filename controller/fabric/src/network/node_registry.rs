//! The registered nodes: by name, by address, and where each was located last.

use super::neighbor_cache::{AddressResponder, NeighborCache};
use crate::api::{FabricError, MacAddr, NodeRegistration};
use crate::frames::vlan::Vlan;
use cool_machine::Time;
use cool_topology::Port;
use cool_types::{NODE_NAME_RULE, check_node_name};
use core::net::IpAddr;
use std::collections::BTreeMap;

/// The nodes whose agents have registered.
#[derive(Debug, Default)]
pub(crate) struct NodeRegistry {
    by_name: BTreeMap<String, NodeRegistration>,
    by_ip: BTreeMap<IpAddr, String>,
    by_mac: BTreeMap<MacAddr, String>,
    places: BTreeMap<String, Port>,
    /// The segments of those that are not in that of untagged frames, by what their LLDP says.
    vlans: BTreeMap<String, Vlan>,
    pub(crate) neighbors: NeighborCache,
    revision: u64,
}

impl NodeRegistry {
    /// Makes a node known, or replaces what was known of it.
    ///
    /// # Errors
    /// If another node has one of its addresses, or the values make no node.
    pub(crate) fn register(&mut self, node: NodeRegistration) -> Result<(), FabricError> {
        check(&node)?;
        let from_ips = self.by_ip.get(&node.ip).map(|holder| (holder, node.ip.to_string()));
        let of_mac = || self.by_mac.get(&node.mac).map(|holder| (holder, node.mac.to_string()));
        let other = |(holder, _): &(&String, String)| **holder != node.name;
        if let Some((holder, address)) = from_ips.filter(other).or_else(|| of_mac().filter(other)) {
            return Err(FabricError::AddressTaken { name: node.name, address, holder: holder.clone() });
        }
        if let Some(before) = self.by_name.get(&node.name) {
            self.by_ip.remove(&before.ip);
            self.by_mac.remove(&before.mac);
            if before.mac != node.mac {
                self.neighbors.forget(&node.name);
            }
        }
        self.by_mac.insert(node.mac, node.name.clone());
        self.by_ip.insert(node.ip, node.name.clone());
        self.by_name.insert(node.name.clone(), node);
        self.revision += 1;
        Ok(())
    }

    /// Forgets a node; returns whether it was known.
    pub(crate) fn unregister(&mut self, name: &str) -> bool {
        let Some(node) = self.by_name.remove(name) else { return false };
        self.by_ip.remove(&node.ip);
        self.by_mac.remove(&node.mac);
        self.places.remove(name);
        self.vlans.remove(name);
        self.neighbors.forget(name);
        self.revision += 1;
        true
    }

    /// Notes where a node is; returns whether it had been located elsewhere.
    pub(crate) fn locate(&mut self, name: &str, port: Port) -> bool {
        self.places.insert(name.to_owned(), port).is_some_and(|before| before != port)
    }

    /// Notes in which segment a node is; returns whether that is another one.
    pub(crate) fn set_vlan(&mut self, name: &str, vlan: Vlan) -> bool {
        if self.vlan(name) == vlan {
            return false;
        }
        self.vlans.insert(name.to_owned(), vlan);
        self.neighbors.forget(name);
        true
    }

    /// Whether all are in the segment of untagged frames.
    pub(crate) fn are_untagged(&self) -> bool {
        self.vlans.is_empty()
    }

    /// The segment that a node is in.
    pub(crate) fn vlan(&self, name: &str) -> Vlan {
        self.vlans.get(name).copied().unwrap_or_default()
    }

    /// The node of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&NodeRegistration> {
        self.by_name.get(name)
    }

    /// The name of the node that has this address in a segment: by its agent's word, or for further ones of IPv6 its own.
    pub(crate) fn with_ip(&self, vlan: Vlan, ip: IpAddr) -> Option<&str> {
        self.registered(vlan, ip).or_else(|| match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => self.neighbors.holder(vlan, ip),
        })
    }

    /// The name of the node in a segment whose agent has registered this address.
    pub(crate) fn registered(&self, vlan: Vlan, ip: IpAddr) -> Option<&str> {
        self.by_ip.get(&ip).map(String::as_str).filter(|name| self.vlan(name) == vlan)
    }

    /// Somebody asks for an address: the node that has it, and who is to answer.
    pub(crate) fn ask(&mut self, now: Time, vlan: Vlan, ip: IpAddr) -> Option<(&str, AddressResponder)> {
        match ip {
            // Of IPv4 nobody asks whether it is a router.
            IpAddr::V4(_) => Some((self.with_ip(vlan, ip)?, AddressResponder::Controller { router: false })),
            IpAddr::V6(asked) => match self.registered(vlan, ip).map(str::to_owned) {
                None => self.neighbors.ask(now, vlan, asked),
                // An agent has said so, though not whether its node is a router; nobody else has the address in any case.
                Some(name) => {
                    let answers = self.neighbors.ask(now, vlan, asked).filter(|(holder, _)| *holder == name);
                    let answerer = answers.map_or(AddressResponder::Node, |(_, answerer)| answerer);
                    Some((self.get(&name)?.name.as_str(), answerer))
                }
            },
        }
    }

    /// The addresses of a node, and whether it is a router, as far as that is known.
    pub(crate) fn addresses(&self, name: &str) -> Vec<(IpAddr, Option<bool>)> {
        let registered = self.get(name).map(|node| node.ip);
        let (said, router) = self.neighbors.of(name).map(|node| (&node.addresses, node.router)).unzip();
        let router = router.flatten();
        let said = said.into_iter().flatten().map(|ip| IpAddr::V6(*ip)).filter(|ip| Some(*ip) != registered);
        let known = |ip: IpAddr| (ip, router.filter(|_| ip.is_ipv6()));
        registered.into_iter().chain(said).map(known).collect()
    }

    /// The name of the node that has this Ethernet address.
    pub(crate) fn with_mac(&self, mac: MacAddr) -> Option<&str> {
        self.by_mac.get(&mac).map(String::as_str)
    }

    /// All nodes, by name.
    pub(crate) fn all(&self) -> &BTreeMap<String, NodeRegistration> {
        &self.by_name
    }

    /// Counts the changes that a snapshot of the network shows.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }
}

fn check(node: &NodeRegistration) -> Result<(), FabricError> {
    let bad = |reason: &str| {
        Err(FabricError::BadRegistration { name: node.name.clone(), reason: reason.to_owned() })
    };
    if check_node_name(&node.name).is_err() {
        return bad(NODE_NAME_RULE);
    }
    if !node.mac.is_unicast() || node.mac.is_zero() {
        return bad("its Ethernet address names no interface");
    }
    let nobodys = match node.ip {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    if node.ip.is_unspecified() || node.ip.is_multicast() || nobodys {
        return bad("its IP address names no node");
    }
    Ok(())
}
