//! NodeRegistry whose ports are up, but hear their LLDP no more: an agent that has crashed takes its node out of groups and trees, and not off
//! the network. What others send to it by its PMAC goes on to the port where it was heard last, until its agent is heard again
//! or has left, which makes the node a host; until the port goes down; or until another node or a link is found there.

use super::Network;
use cool_topology::{DatapathId, Port};
use std::collections::BTreeMap;

/// Where each of them was heard last.
#[derive(Debug, Default)]
pub(crate) struct SilentNodes {
    places: BTreeMap<String, Port>,
}

impl SilentNodes {
    /// Takes out those for which this is so; their names.
    fn take(&mut self, goes: impl Fn(&str, Port) -> bool) -> Vec<String> {
        let gone = self.places.iter().filter(|(name, port)| goes(name, **port));
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.places.remove(name);
        }
        gone
    }

    /// The ports where they are.
    pub(crate) fn ports(&self) -> impl Iterator<Item = Port> {
        self.places.values().copied()
    }
}

impl Network {
    /// Where a node is reached: where it is heard, or was last.
    pub(super) fn place_of(&self, name: &str) -> Option<Port> {
        self.discovery.graph().host(name).or_else(|| self.silent.places.get(name).copied())
    }

    /// The silent node that is at a port.
    pub(super) fn silent_at(&self, port: Port) -> Option<String> {
        let found = self.silent.places.iter().find(|(_, at)| **at == port);
        found.map(|(name, _)| name.clone())
    }

    /// A node is not heard at its port any more.
    pub(super) fn node_silent_at(&mut self, name: &str, port: Port) {
        let switch = self.switches.get(port.switch);
        let is_up = switch.and_then(|state| state.ports.get(&port.number)).is_some_and(|info| info.up);
        let graph = self.discovery.graph();
        let elsewhere = graph.host(name).is_some() || graph.peer(port).is_some();
        // Who is heard there, or not registered, is no silent node.
        let is_silent = self.discovery.node_at(port).is_none() && self.nodes.get(name).is_some();
        if is_up && graph.contains(port.switch) && !elsewhere && is_silent {
            self.silent.places.insert(name.to_owned(), port);
        }
    }

    /// A node is heard at a port.
    pub(super) fn node_heard_at(&mut self, name: &str, port: Port) {
        self.not_silent(|other, at| other == name || at == port);
    }

    /// No silent node is at a port any more.
    pub(super) fn clear_port(&mut self, port: Port) {
        self.not_silent(|_, at| at == port);
    }

    pub(super) fn clear_switch(&mut self, switch: DatapathId) {
        self.not_silent(|_, at| at.switch == switch);
    }

    /// A node is not registered any more.
    pub(super) fn node_unregistered(&mut self, name: &str) {
        self.not_silent(|other, _| other == name);
    }

    fn not_silent(&mut self, goes: impl Fn(&str, Port) -> bool) {
        self.changes.nodes.extend(self.silent.take(goes));
    }
}
