//! The network as a graph: switches, links between their ports, and hosts at ports.

use crate::{DatapathId, Port};
use std::collections::{BTreeMap, BTreeSet};

/// A link between two switches. `a` is the smaller end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// One end.
    pub a: Port,
    /// The other end.
    pub b: Port,
}

impl Link {
    /// Returns the link between two ports, in either order.
    pub fn new(one: Port, other: Port) -> Link {
        Link { a: one.min(other), b: one.max(other) }
    }
}

/// Switches, links and hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    switches: BTreeSet<DatapathId>,
    /// Both directions of every link.
    peers: BTreeMap<Port, Port>,
    hosts: BTreeMap<String, Port>,
    /// Number of hosts of each switch that has any.
    hosts_at: BTreeMap<DatapathId, usize>,
}

impl Graph {
    /// Adds a switch.
    pub fn add_switch(&mut self, switch: DatapathId) {
        self.switches.insert(switch);
    }

    /// Removes a switch with its links and hosts.
    pub fn remove_switch(&mut self, switch: DatapathId) {
        let ports: Vec<Port> =
            self.neighbors(switch).map(|(port, _)| Port { switch, number: port }).collect();
        for port in ports {
            self.unlink(port);
        }
        self.hosts.retain(|_, port| port.switch != switch);
        self.hosts_at.remove(&switch);
        self.switches.remove(&switch);
    }

    /// Links two ports of different switches. Links that they had before are removed. A cable
    /// between two ports of one switch is ignored, because it leads nowhere.
    pub fn link(&mut self, one: Port, other: Port) {
        if one.switch == other.switch {
            return;
        }
        self.unlink(one);
        self.unlink(other);
        self.add_switch(one.switch);
        self.add_switch(other.switch);
        self.peers.insert(one, other);
        self.peers.insert(other, one);
    }

    /// Removes the link at a port. Returns the link.
    pub fn unlink(&mut self, port: Port) -> Option<Link> {
        let peer = self.peers.remove(&port)?;
        self.peers.remove(&peer);
        Some(Link::new(port, peer))
    }

    /// Places a host at a port.
    pub fn place(&mut self, host: &str, port: Port) {
        self.add_switch(port.switch);
        self.displace(host);
        self.hosts.insert(host.to_owned(), port);
        *self.hosts_at.entry(port.switch).or_default() += 1;
    }

    /// Removes a host from its place. Returns the place.
    pub fn displace(&mut self, host: &str) -> Option<Port> {
        let port = self.hosts.remove(host)?;
        if let Some(hosts) = self.hosts_at.get_mut(&port.switch) {
            *hosts -= 1;
            if *hosts == 0 {
                self.hosts_at.remove(&port.switch);
            }
        }
        Some(port)
    }

    /// Returns all switches in ascending order.
    pub fn switches(&self) -> impl Iterator<Item = DatapathId> + '_ {
        self.switches.iter().copied()
    }

    /// Returns whether a switch is part of the graph.
    pub fn contains(&self, switch: DatapathId) -> bool {
        self.switches.contains(&switch)
    }

    /// Returns all links once, in ascending order.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.peers.iter().filter(|(port, peer)| port < peer).map(|(port, peer)| Link { a: *port, b: *peer })
    }

    /// Returns the other end of the link at a port.
    pub fn peer(&self, port: Port) -> Option<Port> {
        self.peers.get(&port).copied()
    }

    /// Returns the linked ports of a switch in ascending order, each with the other end.
    pub fn neighbors(&self, switch: DatapathId) -> impl Iterator<Item = (u32, Port)> + '_ {
        let all = Port { switch, number: 0 }..=Port { switch, number: u32::MAX };
        self.peers.range(all).map(|(port, peer)| (port.number, *peer))
    }

    /// Returns all hosts by name, with their places.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, Port)> + '_ {
        self.hosts.iter().map(|(name, port)| (name.as_str(), *port))
    }

    /// Returns, in ascending order, the switches that have hosts.
    pub fn tors(&self) -> impl Iterator<Item = DatapathId> + '_ {
        self.hosts_at.keys().copied()
    }

    /// Returns the place of a host.
    pub fn host(&self, name: &str) -> Option<Port> {
        self.hosts.get(name).copied()
    }
}
