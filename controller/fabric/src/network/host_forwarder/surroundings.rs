//! The part of the network that the host forwarder may read.

use crate::api::MacAddr;
use crate::frames::pmac;
use crate::intent::hosts::HostKey;
use crate::network::node_registry::NodeRegistry;
use crate::network::silent_nodes::SilentNodes;
use crate::network::switch_table::SwitchTable;
use cool_topology::{DatapathId, Discovery, Port, Racks};
use std::collections::BTreeMap;

/// Read-only view of switches, nodes and their places.
pub(in crate::network) struct Surroundings<'a> {
    pub(in crate::network) nodes: &'a NodeRegistry,
    pub(in crate::network) discovery: &'a Discovery,
    pub(in crate::network) silent: &'a SilentNodes,
    pub(in crate::network) racks: &'a Racks,
    /// The ToR of each rack.
    pub(in crate::network) tors: &'a BTreeMap<u32, DatapathId>,
    pub(in crate::network) switches: &'a SwitchTable,
}

impl Surroundings<'_> {
    /// Returns the port at which a node is reached: where its LLDP is received, or was received
    /// last.
    pub(in crate::network) fn place_of(&self, name: &str) -> Option<Port> {
        self.discovery.graph().host(name).or_else(|| self.silent.place(name))
    }

    /// Returns the node at a port, including one that has fallen silent there.
    pub(in crate::network) fn node_at(&self, port: Port) -> Option<String> {
        let graph = self.discovery.graph();
        let located = self.discovery.node_at(port).filter(|name| graph.host(name) == Some(port));
        located.or_else(|| self.silent.at(port))
    }

    /// Returns the node with this Ethernet address, if the frame's VLAN is the node's.
    pub(in crate::network) fn node_of(&self, key: HostKey) -> Option<&str> {
        self.nodes.with_mac(key.mac).filter(|name| self.nodes.vlan(name) == key.vlan)
    }

    /// Returns the PMAC of the node at a port.
    pub(in crate::network) fn pmac_at(&self, port: Port) -> Option<MacAddr> {
        pmac::for_port(self.racks.number(port.switch)?, port.number)
    }

    /// Returns the port of the node that has this PMAC.
    pub(in crate::network) fn pmac_port(&self, address: MacAddr) -> Option<Port> {
        pmac::port(address, |rack| self.tors.get(&rack).copied())
    }

    /// Returns the name of a port as operators know it, for example "s1:2".
    pub(in crate::network) fn port_name(&self, port: Port) -> String {
        self.switches.port_name(port)
    }
}
