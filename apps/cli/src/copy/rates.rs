//! What links of nodes carry, as far as the controller knows, in few words: ranks are told it by an argument.

use cool_proto::control::Node;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Nodes that are named at most; an argument has up to 128 KiB (execve(2)).
const NAMED: usize = 1024;

/// The rates of links, in bytes per second; 0 where nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkRates {
    /// Of all that are not named.
    most: u64,
    /// Of those that are slower by a tenth and more.
    slower: BTreeMap<String, u64>,
}

impl LinkRates {
    /// Of these nodes. Where too many are slow to be named, all count as the slowest.
    pub(super) fn of<'n>(nodes: impl IntoIterator<Item = &'n Node>) -> LinkRates {
        let known = nodes.into_iter().filter(|node| node.bytes_per_second > 0);
        let known: Vec<(&str, u64)> = known.map(|node| (&*node.name, node.bytes_per_second)).collect();
        let most = known.iter().map(|(_, rate)| *rate).max().unwrap_or(0);
        let is_slower = |(_, rate): &&(&str, u64)| *rate < most - most / 10;
        let slower: BTreeMap<String, u64> =
            known.iter().filter(is_slower).map(|(node, rate)| ((*node).to_owned(), *rate)).collect();
        let all = LinkRates { most, slower };
        if all.slower.len() > NAMED { LinkRates { most: all.slowest(), ..LinkRates::default() } } else { all }
    }

    /// Of a node's link.
    pub(super) fn on(&self, node: &str) -> u64 {
        self.slower.get(node).copied().unwrap_or(self.most)
    }

    pub(super) fn slowest(&self) -> u64 {
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
        let rates = LinkRates::of(&nodes([0, 100, 95, 50, 20]));
        let all = ["h0", "h1", "h2", "h3", "h4"].map(|node| rates.on(node));
        assert_eq!((all, rates.slowest()), ([100, 100, 100, 50, 20], 20));
        assert_eq!(LinkRates::of(&nodes([0])), LinkRates::default(), "nothing is known");
        let many = LinkRates::of(&nodes((0..2 * NAMED as u64).map(|number| 100 + number % 2 * 100)));
        assert_eq!(many.on("h1"), 200);
        let more = LinkRates::of(&nodes((0..4 * NAMED as u64).map(|number| 100 + number % 2 * 100)));
        assert_eq!((more.on("h1"), more.slowest()), (100, 100), "there are too many");
    }
}
