//! Nodes with an object in their stores, and the choice of those from which it is copied.

use crate::copy::options::{ChosenNode, TransferOptions};
use crate::copy::outcome::CopyOutcome;
use crate::copy::request::{CopyRequest, copy};
use crate::error::Error;
use crate::terminal_text::printable;
use cool_copy::ObjectInfo;
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{Node, TopologyRequest};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tonic::transport::Channel;

/// Maximum number of nodes from which an object is copied. With four, the links of the others make
/// up for a slow one.
const HOLDERS_MAX: usize = 4;

/// A node that has the object.
#[derive(Clone, Debug)]
pub(super) struct StoreHolder {
    pub(super) node: String,
    pub(super) object: ObjectInfo,
}

/// The nodes from which an object is copied, in the order in which they are tried.
pub(super) struct Holders {
    holders: Vec<StoreHolder>,
    /// The nodes that get it.
    to: BTreeSet<String>,
}

impl Holders {
    /// Orders the nodes that have the object: first nodes that get it, then nodes in the racks of
    /// these; among equals, those with the fastest links.
    pub(super) fn new(mut holders: Vec<StoreHolder>, nodes: &[Node], to: &[ChosenNode]) -> Holders {
        let to: BTreeSet<String> = to.iter().map(|(name, _)| name.clone()).collect();
        let nodes: BTreeMap<&str, &Node> = nodes.iter().map(|node| (&*node.name, node)).collect();
        let rack = |name: &str| nodes.get(name).filter(|node| node.located).map(|node| node.rack);
        let racks: BTreeSet<u32> = to.iter().filter_map(|name| rack(name)).collect();
        holders.sort_by_key(|StoreHolder { node, .. }| {
            let is_near = rack(node).is_some_and(|rack| racks.contains(&rack));
            let rate = nodes.get(&**node).map_or(0, |node| node.bytes_per_second);
            (!to.contains(node), !is_near, Reverse(rate))
        });
        holders.truncate(HOLDERS_MAX);
        Holders { holders, to }
    }

    /// Returns the options of the transfer. If several nodes have the object and the only receiver
    /// does not, they all send together, by swarm.
    pub(super) fn transfer_options(&self, options: &TransferOptions) -> TransferOptions {
        let has_none = self.holders.iter().all(|holder| !self.to.contains(&holder.node));
        if self.to.len() == 1 && self.holders.len() > 1 && has_none {
            options.for_several_sources()
        } else {
            options.clone()
        }
    }

    /// Copies from the first holder and, by swarm, also from those after it. If the first one
    /// fails, the next one continues; blocks that have arrived are kept.
    pub(super) async fn copy<'w>(
        self,
        mut client: ControllerClient<Channel>,
        request: impl Fn(StoreHolder, Vec<String>) -> Result<CopyRequest<'w>, Error>,
    ) -> Result<CopyOutcome, Error> {
        let mut left = &self.holders[..];
        loop {
            // There is at least one, which has the object that was put last.
            let (first, rest) = left.split_first().ok_or(Error::NoNodes)?;
            let others = rest.iter().map(|holder| &holder.node).filter(|node| !self.to.contains(*node));
            let request = request(first.clone(), others.cloned().collect())?;
            // The topology is requested again, because it now reports a lost holder as away.
            let nodes = client.get_topology(TopologyRequest {}).await?.into_inner().nodes;
            let outcome = copy(client.clone(), &nodes, request).await;
            let reason = match &outcome {
                Err(Error::CopySource { reason, .. }) => reason.clone(),
                Ok(outcome) if outcome.is_missing_source() => {
                    "it was lost, or its object is damaged".to_owned()
                }
                _ => return outcome,
            };
            let Some(next) = rest.first() else { return outcome };
            let reason = printable(&reason);
            eprintln!("cool: {}: {reason}; continuing from {}", first.node, next.node);
            left = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(node: &str) -> StoreHolder {
        let object = ObjectInfo {
            name: "a".parse().unwrap(),
            id: cool_content::Digest::of(b"a"),
            put_ms: 0,
            used_ms: 0,
            bytes: 1,
            items: 1,
            tree: "/a".into(),
        };
        StoreHolder { node: node.to_owned(), object }
    }

    #[test]
    fn receivers_are_tried_first_then_their_racks_then_the_fastest() {
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
            let to: Vec<ChosenNode> = to.iter().map(|name| ((*name).to_owned(), None)).collect();
            let holders = Holders::new(holders, &nodes, &to);
            let by_swarm = holders.transfer_options(&TransferOptions::default()).is_by_swarm();
            (holders.holders.into_iter().map(|holder| holder.node).collect::<String>(), by_swarm)
        };
        assert_eq!(order(&["f"]), ("dcae".to_owned(), true));
        assert_eq!(order(&["c"]), ("cdae".to_owned(), false), "it has the object");
        assert_eq!(order(&["f", "b"]), ("badc".to_owned(), false), "several nodes get it");
    }
}
