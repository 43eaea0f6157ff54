//! Nodes from which no LLDP is received any more, although their ports are up: their agents may
//! have crashed. Such a node leaves groups and trees, but not the network: packets to its PMAC
//! still go to the port where it was located last. That ends when LLDP of its agent is received
//! again, when its agent has left (which makes the node a host), when the port goes down, or when
//! another node or a link is found there.

use super::Network;
use cool_topology::{DatapathId, Port};
use std::collections::BTreeMap;

/// Last place of each silent node.
#[derive(Debug, Default)]
pub(crate) struct SilentNodes {
    places: BTreeMap<String, Port>,
}

impl SilentNodes {
    /// Removes the nodes for which `goes` returns true. Returns their names.
    fn take(&mut self, goes: impl Fn(&str, Port) -> bool) -> Vec<String> {
        let removed = self.places.iter().filter(|(name, port)| goes(name, **port));
        let removed: Vec<String> = removed.map(|(name, _)| name.clone()).collect();
        for name in &removed {
            self.places.remove(name);
        }
        removed
    }

    /// Returns the ports of silent nodes.
    pub(crate) fn ports(&self) -> impl Iterator<Item = Port> {
        self.places.values().copied()
    }

    /// Returns the last port of a silent node.
    pub(crate) fn place(&self, name: &str) -> Option<Port> {
        self.places.get(name).copied()
    }

    /// Returns the silent node at a port.
    pub(crate) fn at(&self, port: Port) -> Option<String> {
        self.places.iter().find(|(_, at)| **at == port).map(|(name, _)| name.clone())
    }
}

impl Network {
    /// Records that the LLDP of a node is no longer received at its port.
    pub(super) fn node_silent_at(&mut self, name: &str, port: Port) {
        let switch = self.switches.get(port.switch);
        let is_up = switch.and_then(|state| state.ports.get(&port.number)).is_some_and(|info| info.up);
        let graph = self.discovery.graph();
        let elsewhere = graph.host(name).is_some() || graph.peer(port).is_some();
        // Only a registered node counts, and only if no other node is located there.
        let is_silent = self.discovery.node_at(port).is_none() && self.nodes.get(name).is_some();
        if is_up && graph.contains(port.switch) && !elsewhere && is_silent {
            self.silent.places.insert(name.to_owned(), port);
        }
    }

    /// Records that a node is located at a port.
    pub(super) fn node_heard_at(&mut self, name: &str, port: Port) {
        self.not_silent(|other, at| other == name || at == port);
    }

    /// Records that no silent node can be at a port.
    pub(super) fn clear_port(&mut self, port: Port) {
        self.not_silent(|_, at| at == port);
    }

    pub(super) fn clear_switch(&mut self, switch: DatapathId) {
        self.not_silent(|_, at| at.switch == switch);
    }

    /// Records that a node is no longer registered.
    pub(super) fn node_unregistered(&mut self, name: &str) {
        self.not_silent(|other, _| other == name);
    }

    fn not_silent(&mut self, goes: impl Fn(&str, Port) -> bool) {
        self.changes.nodes.extend(self.silent.take(goes));
    }
}
