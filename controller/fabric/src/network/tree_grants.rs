//! The trees of a group as its agents receive them: addresses, links, and the sending rate of each
//! tree, which is the rate of its slowest link.

use super::Network;
use super::multicast_groups::GroupTrees;
use crate::api::TreeGrant;
use crate::intent::addresses::IpVersion;
use crate::trees::GroupTree;
use cool_topology::{Link, Port};

/// Returns the current trees of a group.
pub(crate) fn grants(network: &Network, group: &GroupTrees) -> Vec<TreeGrant> {
    let grant = |tree: &GroupTree| {
        let shape = tree.current();
        let uplinks = shape.links.iter().map(|link| link_rate(network, *link));
        let rates = uplinks.chain(shape.members.values().map(|port| node_rate(network, *port)));
        TreeGrant {
            scope: tree.scope,
            address: IpVersion::for_tree(shape, network.nodes.all()).address(tree.number),
            port: network.config.multicast_port,
            bytes_per_second: rates.filter(|rate| *rate > 0).min().unwrap_or(0),
            links: shape.links.iter().copied().collect(),
            needs_proof: false,
            nodes: shape.members.iter().map(|(name, port)| (name.clone(), *port)).collect(),
        }
    };
    group.trees.iter().map(grant).collect()
}

pub(crate) fn link_rate(network: &Network, link: Link) -> u64 {
    let reported = [link.a, link.b].map(|port| port_rate(network, port));
    let slower = reported.into_iter().filter(|rate| *rate > 0).min().unwrap_or(0);
    network.config.uplink_bytes_per_second.unwrap_or(slower)
}

pub(crate) fn node_rate(network: &Network, port: Port) -> u64 {
    network.config.host_bytes_per_second.unwrap_or_else(|| port_rate(network, port))
}

fn port_rate(network: &Network, port: Port) -> u64 {
    let switch = network.switches.get(port.switch);
    switch.and_then(|state| state.ports.get(&port.number)).map_or(0, |info| info.bytes_per_second)
}
