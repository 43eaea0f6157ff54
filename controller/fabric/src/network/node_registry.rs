//! Registered nodes by name and by address, with the place of each.

use crate::api::{FabricError, LldpNeighbor, MacAddr, NodeRegistration};
use crate::frames::vlan::Vlan;
use cool_topology::Port;
use cool_types::{NODE_NAME_RULE, check_node_name};
use core::net::IpAddr;
use std::collections::BTreeMap;

/// The nodes with registered agents.
#[derive(Debug, Default)]
pub(crate) struct NodeRegistry {
    by_name: BTreeMap<String, NodeRegistration>,
    by_ip: BTreeMap<IpAddr, String>,
    by_mac: BTreeMap<MacAddr, String>,
    places: BTreeMap<String, Port>,
    /// VLANs of the nodes with tagged LLDP.
    vlans: BTreeMap<String, Vlan>,
    revision: u64,
}

impl NodeRegistry {
    /// Registers a node, replacing an earlier registration of its name. Returns whether its
    /// Ethernet address has changed.
    ///
    /// # Errors
    /// Fails if another node has one of its addresses, or if a value is invalid.
    pub(crate) fn register(&mut self, node: NodeRegistration) -> Result<bool, FabricError> {
        check(&node)?;
        let from_ips = self.by_ip.get(&node.ip).map(|holder| (holder, node.ip.to_string()));
        let of_mac = || self.by_mac.get(&node.mac).map(|holder| (holder, node.mac.to_string()));
        let other = |(holder, _): &(&String, String)| **holder != node.name;
        if let Some((holder, address)) = from_ips.filter(other).or_else(|| of_mac().filter(other)) {
            return Err(FabricError::AddressTaken { name: node.name, address, holder: holder.clone() });
        }
        let mut was_reset = false;
        if let Some(before) = self.by_name.get(&node.name) {
            self.by_ip.remove(&before.ip);
            self.by_mac.remove(&before.mac);
            was_reset = before.mac != node.mac;
        }
        self.by_mac.insert(node.mac, node.name.clone());
        self.by_ip.insert(node.ip, node.name.clone());
        self.by_name.insert(node.name.clone(), node);
        self.revision += 1;
        Ok(was_reset)
    }

    /// Records the neighbor of a node, if the node is registered.
    pub(crate) fn set_neighbor(&mut self, name: &str, neighbor: Option<LldpNeighbor>) {
        if let Some(node) = self.by_name.get_mut(name) {
            node.neighbor = neighbor;
        }
    }

    /// Removes a node. Returns whether it was registered.
    pub(crate) fn unregister(&mut self, name: &str) -> bool {
        let Some(node) = self.by_name.remove(name) else { return false };
        self.by_ip.remove(&node.ip);
        self.by_mac.remove(&node.mac);
        self.places.remove(name);
        self.vlans.remove(name);
        self.revision += 1;
        true
    }

    /// Records the place of a node. Returns whether it had been located elsewhere.
    pub(crate) fn locate(&mut self, name: &str, port: Port) -> bool {
        self.places.insert(name.to_owned(), port).is_some_and(|before| before != port)
    }

    /// Records the VLAN of a node. Returns whether it has changed.
    pub(crate) fn set_vlan(&mut self, name: &str, vlan: Vlan) -> bool {
        if self.vlan(name) == vlan {
            return false;
        }
        self.vlans.insert(name.to_owned(), vlan);
        true
    }

    /// Returns whether no node uses a VLAN.
    pub(crate) fn are_untagged(&self) -> bool {
        self.vlans.is_empty()
    }

    /// Returns the VLAN of a node.
    pub(crate) fn vlan(&self, name: &str) -> Vlan {
        self.vlans.get(name).copied().unwrap_or_default()
    }

    /// Returns the node of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&NodeRegistration> {
        self.by_name.get(name)
    }

    /// Returns the node of a VLAN that registered this address.
    pub(crate) fn registered(&self, vlan: Vlan, ip: IpAddr) -> Option<&str> {
        self.by_ip.get(&ip).map(String::as_str).filter(|name| self.vlan(name) == vlan)
    }

    /// Returns the node with this Ethernet address.
    pub(crate) fn with_mac(&self, mac: MacAddr) -> Option<&str> {
        self.by_mac.get(&mac).map(String::as_str)
    }

    /// Returns all nodes, by name.
    pub(crate) fn all(&self) -> &BTreeMap<String, NodeRegistration> {
        &self.by_name
    }

    /// Returns the number of changes so far that are visible in a snapshot of the network.
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
        return bad("its Ethernet address cannot belong to an interface");
    }
    let nobodys = match node.ip {
        IpAddr::V4(ip) => ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    if node.ip.is_unspecified() || node.ip.is_multicast() || nobodys {
        return bad("its IP address cannot belong to a node");
    }
    Ok(())
}
