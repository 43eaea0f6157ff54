//! Rates of the nodes' links, as far as the controller knows them. They are part of a task, so they
//! must fit into a command-line argument of a process.

use cool_proto::control::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of named nodes, because an argument has up to 128 KiB (execve(2)).
const NAMED_MAX: usize = 1024;

/// Rates of links, in bytes per second; 0 if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLinkRates {
    /// Rate of every link that is not in `slower`.
    most: u64,
    /// Links that are at least a tenth slower, by node.
    slower: BTreeMap<String, u64>,
}

impl NodeLinkRates {
    /// Returns the rates of these nodes. If too many links are slow, all have the rate of the
    /// slowest.
    #[must_use]
    pub fn from_nodes<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> NodeLinkRates {
        let known = nodes.into_iter().filter(|node| node.bytes_per_second > 0);
        let known: Vec<(&str, u64)> = known.map(|node| (&*node.name, node.bytes_per_second)).collect();
        let most = known.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
        let is_slower = |(_, rate): &&(&str, u64)| *rate < most - most / 10;
        let slower: BTreeMap<String, u64> =
            known.iter().filter(is_slower).map(|(node, rate)| ((*node).to_owned(), *rate)).collect();
        let all = NodeLinkRates { most, slower };
        if all.slower.len() > NAMED_MAX {
            NodeLinkRates { most: all.slowest(), ..NodeLinkRates::default() }
        } else {
            all
        }
    }

    /// Returns the rate of a node's link.
    pub(crate) fn on(&self, node: &str) -> u64 {
        self.slower.get(node).copied().unwrap_or(self.most)
    }

    /// Returns the rate of the slowest link.
    #[must_use]
    pub fn slowest(&self) -> u64 {
        self.slower.values().copied().min().unwrap_or(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(rates: impl IntoIterator<Item = u64>) -> Vec<Node> {
        let named = |(number, bytes_per_second)| Node {
            name: format!("h{number}"),
            bytes_per_second,
            ..Node::default()
        };
        (0..).zip(rates).map(named).collect::<Vec<_>>()
    }

    #[test]
    fn each_node_has_the_rate_of_its_own_link() {
        let rates = NodeLinkRates::from_nodes(&nodes([0, 100, 95, 50, 20]));
        let all = ["h0", "h1", "h2", "h3", "h4"].map(|node| rates.on(node));
        assert_eq!((all, rates.slowest()), ([100, 100, 100, 50, 20], 20));
        assert_eq!(NodeLinkRates::from_nodes(&nodes([0])), NodeLinkRates::default(), "nothing is known");
        let many =
            NodeLinkRates::from_nodes(&nodes((0..2 * NAMED_MAX as u64).map(|number| 100 + number % 2 * 100)));
        assert_eq!(many.on("h1"), 200);
        let more =
            NodeLinkRates::from_nodes(&nodes((0..4 * NAMED_MAX as u64).map(|number| 100 + number % 2 * 100)));
        assert_eq!((more.on("h1"), more.slowest()), (100, 100), "there are too many");
    }
}
