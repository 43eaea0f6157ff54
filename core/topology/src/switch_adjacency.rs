//! Index of a [`Graph`] for fast computation: switches are positions in a list, and the links of
//! each are adjacent in memory. It must be rebuilt when links change.

use crate::{DatapathId, Graph, Link, Port};
use std::collections::VecDeque;

/// Distance of switches that cannot be reached.
pub const UNREACHABLE: u32 = u32::MAX;

/// One end of a link, as seen from a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Port of the switch.
    pub port: u32,
    /// Position of the switch at the other end.
    pub peer: usize,
    /// Port of that switch.
    pub peer_port: u32,
}

/// Switches and links of a graph by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchAdjacency {
    switches: Vec<DatapathId>,
    edges: Vec<Vec<Edge>>,
}

impl SwitchAdjacency {
    /// Returns the adjacency of a graph's switches.
    pub fn new(graph: &Graph) -> SwitchAdjacency {
        let switches: Vec<DatapathId> = graph.switches().collect();
        let edge = |(port, peer): (u32, Port)| {
            let peer_position = switches.binary_search(&peer.switch).ok()?;
            Some(Edge { port, peer: peer_position, peer_port: peer.number })
        };
        let edges = switches.iter().map(|s| graph.neighbors(*s).filter_map(edge).collect()).collect();
        SwitchAdjacency { switches, edges }
    }

    /// Returns all switches in ascending order, which is the order of their positions.
    pub fn switches(&self) -> &[DatapathId] {
        &self.switches
    }

    /// Returns the position of a switch.
    pub fn position(&self, switch: DatapathId) -> Option<usize> {
        self.switches.binary_search(&switch).ok()
    }

    /// Returns the links of a switch in ascending order of its own ports.
    pub fn edges(&self, at: usize) -> &[Edge] {
        &self.edges[at]
    }

    /// Returns the link of an edge.
    pub fn link(&self, at: usize, edge: Edge) -> Link {
        let here = Port { switch: self.switches[at], number: edge.port };
        Link::new(here, Port { switch: self.switches[edge.peer], number: edge.peer_port })
    }

    /// Returns whether the graph has this link.
    pub fn has(&self, link: Link) -> bool {
        let Some(at) = self.position(link.a.switch) else { return false };
        let edges = &self.edges[at];
        let found = edges.binary_search_by_key(&link.a.number, |edge| edge.port);
        found.is_ok_and(|i| self.link(at, edges[i]) == link)
    }

    /// Returns the number of links from each switch to the one at `to`; [`UNREACHABLE`] if there is
    /// no path.
    pub fn distances(&self, to: usize) -> Vec<u32> {
        let mut distances = vec![UNREACHABLE; self.switches.len()];
        distances[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(at) = queue.pop_front() {
            let next = distances[at] + 1;
            for edge in &self.edges[at] {
                if distances[edge.peer] == UNREACHABLE {
                    distances[edge.peer] = next;
                    queue.push_back(edge.peer);
                }
            }
        }
        distances
    }

    /// Returns the edges of a switch that begin a shortest path to the switch from which
    /// `distances` were computed.
    pub fn nearer<'a>(&'a self, at: usize, distances: &'a [u32]) -> impl Iterator<Item = Edge> + 'a {
        let here = distances[at];
        let on_way = move |edge: &&Edge| {
            let there = distances[edge.peer];
            there != UNREACHABLE && there < here
        };
        self.edges[at].iter().filter(on_way).copied()
    }
}
