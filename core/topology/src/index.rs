//! A [`Graph`] numbered through for computing: switches are positions in a list, and what they are linked to
//! lies side by side. Made anew when links change; the graph remains what is true.

use crate::{DatapathId, Graph, Link, Port};
use std::collections::VecDeque;

/// The distance of what cannot be reached.
pub const UNREACHABLE: u32 = u32::MAX;

/// One end of a link as seen from a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The switch's own port.
    pub port: u32,
    /// The position of the switch at the other end.
    pub peer: usize,
    /// The port there.
    pub peer_port: u32,
}

/// A graph's switches and links by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    switches: Vec<DatapathId>,
    edges: Vec<Vec<Edge>>,
}

impl Index {
    /// Numbers a graph through.
    pub fn new(graph: &Graph) -> Index {
        let switches: Vec<DatapathId> = graph.switches().collect();
        let edge = |(port, peer): (u32, Port)| {
            let peer_position = switches.binary_search(&peer.switch).ok()?;
            Some(Edge { port, peer: peer_position, peer_port: peer.number })
        };
        let edges = switches.iter().map(|s| graph.neighbours(*s).filter_map(edge).collect()).collect();
        Index { switches, edges }
    }

    /// All switches, ascending: each at its position.
    pub fn switches(&self) -> &[DatapathId] {
        &self.switches
    }

    /// Where a switch is in the list.
    pub fn position(&self, switch: DatapathId) -> Option<usize> {
        self.switches.binary_search(&switch).ok()
    }

    /// A switch's links, by its own port ascending.
    pub fn edges(&self, at: usize) -> &[Edge] {
        &self.edges[at]
    }

    /// The link of an edge at a switch.
    pub fn link(&self, at: usize, edge: Edge) -> Link {
        let here = Port { switch: self.switches[at], number: edge.port };
        Link::new(here, Port { switch: self.switches[edge.peer], number: edge.peer_port })
    }

    /// Whether this link is there.
    pub fn has(&self, link: Link) -> bool {
        let Some(at) = self.position(link.a.switch) else { return false };
        let edges = &self.edges[at];
        let found = edges.binary_search_by_key(&link.a.number, |edge| edge.port);
        found.is_ok_and(|i| self.link(at, edges[i]) == link)
    }

    /// Number of links from each switch to the one at `to`; [`UNREACHABLE`] where there is no way.
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

    /// The edges by which a shortest way to where `distances` are measured from begins at a switch.
    pub fn nearer<'a>(&'a self, at: usize, distances: &'a [u32]) -> impl Iterator<Item = Edge> + 'a {
        let here = distances[at];
        let on_way = move |edge: &&Edge| {
            let there = distances[edge.peer];
            there != UNREACHABLE && there < here
        };
        self.edges[at].iter().filter(on_way).copied()
    }
}
