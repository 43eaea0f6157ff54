//! Nodes whose stores have what is wanted: from whom it comes, and from whom if one of them fails.

use super::said::StoredContent;
use crate::copy::{Chosen, CopyOrder, CopyWay, Outcome, carry_out};
use crate::error::Error;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tonic::transport::Channel;

/// From how many it comes at most: enough that links of others make good what one lacks.
const HOLDERS: usize = 4;

/// A node that has it.
#[derive(Clone, Debug)]
pub(super) struct StoreHolder {
    pub(super) node: String,
    pub(super) content: StoredContent,
}

/// All that are asked, in this order.
pub(super) struct Holders {
    holders: Vec<StoreHolder>,
    /// The nodes that are to get it.
    to: BTreeSet<String>,
}

impl Holders {
    /// Of those that have it. First come nodes that get it, then those in their racks; among these the fastest.
    pub(super) fn new(mut holders: Vec<StoreHolder>, nodes: &[Node], to: &[Chosen]) -> Holders {
        let to: BTreeSet<String> = to.iter().map(|(name, _)| name.clone()).collect();
        let nodes: BTreeMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        let rack = |name: &str| nodes.get(name).filter(|node| node.located).map(|node| node.rack);
        let racks: BTreeSet<u32> = to.iter().filter_map(|name| rack(name)).collect();
        holders.sort_by_key(|StoreHolder { node, .. }| {
            let is_near = rack(node).is_some_and(|rack| racks.contains(&rack));
            let rate = nodes.get(&**node).map_or(0, |node| node.bytes_per_second);
            (!to.contains(node), !is_near, Reverse(rate))
        });
        holders.truncate(HOLDERS);
        Holders { holders, to }
    }

    /// How it goes: from several to one that has nothing of it, from all of them together.
    pub(super) fn way(&self, way: &CopyWay) -> CopyWay {
        let lacks_it = self.holders.iter().all(|holder| !self.to.contains(&holder.node));
        if self.to.len() == 1 && self.holders.len() > 1 && lacks_it { way.gathering() } else { way.clone() }
    }

    /// Copies from the first and by swarm from those behind it, too; if it fails, from the next. What came before stays.
    pub(super) async fn copy<'w>(
        self,
        mut client: ControllerClient<Channel>,
        order: impl Fn(StoreHolder, Vec<String>) -> Result<CopyOrder<'w>, Error>,
    ) -> Result<Outcome, Error> {
        let mut left = &self.holders[..];
        loop {
            // There is one, whatever was put last.
            let (first, rest) = left.split_first().ok_or(Error::NoNodes)?;
            let others = rest.iter().map(|holder| &holder.node).filter(|node| !self.to.contains(*node));
            let order = order(first.clone(), others.cloned().collect())?;
            // One that was lost is away now.
            let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
            let outcome = carry_out(client.clone(), &nodes, order).await;
            let why = match &outcome {
                Err(Error::CopySource { reason, .. }) => reason.clone(),
                Ok(outcome) if outcome.lacks_source() => "it was lost, or lacks it itself".to_owned(),
                _ => return outcome,
            };
            let Some(next) = rest.first() else { return outcome };
            eprintln!("cool: {}: {why}; it comes from {}", first.node, next.node);
            left = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: &str) -> StoreHolder {
        let content = StoredContent {
            name: "a".parse().unwrap(),
            id: cool_content::Digest::of(b"a"),
            put_ms: 0,
            used_ms: 0,
            bytes: 1,
            items: 1,
            tree: "/a".into(),
        };
        StoreHolder { node: node.to_owned(), content }
    }

    #[test]
    fn who_gets_it_comes_first_then_its_rack_then_the_fastest() {
        let node = |name: &str, rack, bytes_per_second| Node {
            name: name.to_owned(),
            located: true,
            rack,
            bytes_per_second,
            ..Node::default()
        };
        let nodes = [
            node("a", 0, 9),
            node("b", 0, 5),
            node("c", 1, 5),
            node("d", 1, 7),
            node("e", 2, 9),
            node("f", 1, 3),
        ];
        let order = |to: &[&str]| {
            let holders = ["a", "b", "c", "d", "e"].map(holder).to_vec();
            let to: Vec<Chosen> = to.iter().map(|name| ((*name).to_owned(), None)).collect();
            let asked = Holders::new(holders, &nodes, &to);
            let by_swarm = asked.way(&CopyWay::default()).is_by_swarm();
            (asked.holders.into_iter().map(|holder| holder.node).collect::<String>(), by_swarm)
        };
        assert_eq!(order(&["f"]), ("dcae".to_owned(), true));
        assert_eq!(order(&["c"]), ("cdae".to_owned(), false), "it has it");
        assert_eq!(order(&["f", "b"]), ("badc".to_owned(), false), "several get it");
    }
}
