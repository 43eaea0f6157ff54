//! Snapshots of the network, with names and rates.

use super::Network;
use super::tree_grants::{link_rate, node_rate};
use crate::api::{LinkView, Location, MulticastView, NodeView, SwitchView, TopologySnapshot};
use crate::frames::pmac;
use crate::intent::multicast::MulticastKey;
use cool_topology::Port;
use std::collections::BTreeSet;

/// Returns a snapshot of the network.
pub(crate) fn snapshot(network: &Network) -> TopologySnapshot {
    let graph = network.discovery.graph();
    let tors: BTreeSet<_> = graph.tors().collect();
    let of_nodes: BTreeSet<Port> = graph.hosts().map(|(_, port)| port).collect();
    let of_host = |port: &Port| network.host_forwarder.has_hosts_at(*port);
    let unidentified =
        |port: &Port| graph.peer(*port).is_none() && !of_nodes.contains(port) && !of_host(port);
    let switches = network.switches.iter().filter(|(switch, _)| graph.contains(*switch));
    let switches = switches.map(|(switch, state)| SwitchView {
        datapath_id: switch,
        name: state.name.clone(),
        rack: network.racks.number(switch).filter(|_| tors.contains(&switch)),
        connected: state.connected(),
        ports: u32::try_from(state.ports.keys().filter(|number| **number != Port::LOCAL).count())
            .unwrap_or(u32::MAX),
        unidentified_ports: {
            // The switch's own host may have nothing to do with this network.
            let up = state.ports.values().filter(|info| info.up && info.number != Port::LOCAL);
            let ports = up.map(|info| Port { switch, number: info.number });
            ports.filter(unidentified).map(|port| port.number).collect()
        },
    });
    let links = graph.links().map(|link| LinkView {
        a: link.a,
        b: link.b,
        bytes_per_second: link_rate(network, link),
    });
    let nodes = network.nodes.all().values().map(|node| NodeView {
        name: node.name.clone(),
        ip: node.ip,
        mac: node.mac,
        location: match graph.host(&node.name) {
            Some(port) => network.racks.number(port.switch).map(|rack| {
                let bytes_per_second = node_rate(network, port);
                Location { port: Some(port), rack, bytes_per_second }
            }),
            None => network.self_location.rack(&node.name).map(|rack| {
                let bytes_per_second = network.config.host_bytes_per_second.unwrap_or(0);
                Location { port: None, rack, bytes_per_second }
            }),
        },
    });
    TopologySnapshot {
        switches: switches.collect(),
        links: links.collect(),
        nodes: nodes.collect(),
        reported_racks: network.self_location.reported(),
        hosts: network.host_forwarder.views(),
        multicast: multicast(network),
        warnings: warnings(network),
    }
}

fn multicast(network: &Network) -> Vec<MulticastView> {
    let receivers = network.host_forwarder.memberships().receivers();
    let view = |(key, receivers): (MulticastKey, BTreeSet<Port>)| MulticastView {
        address: key.address.to_string(),
        vlan: key.vlan.0,
        receivers: receivers.into_iter().collect(),
    };
    receivers.map(view).collect()
}

fn warnings(network: &Network) -> Vec<String> {
    let discovery = network.discovery.warnings().map(ToString::to_string);
    let refused = network.switches.iter().filter_map(|(_, state)| {
        let what = state.refused.values().next()?;
        Some(match state.refused.len() {
            1 => format!("switch {} refused an entry: {what}", state.name),
            trees => format!("switch {} refused entries of {trees} trees, one of them {what}", state.name),
        })
    });
    let full = network.multicast.without().into_iter().map(|(switch, groups)| {
        let name = network.name(switch);
        format!("switch {name} is full; groups without some of their trees: {groups}")
    });
    let away = network.switches.iter().filter(|(_, state)| !state.connected()).map(|(_, state)| {
        format!("switch {} is not connected; it keeps forwarding by the flows it has", state.name)
    });
    let unreachable = network.discovery.graph().hosts().filter_map(|(name, port)| {
        let pmac = network.racks.number(port.switch).and_then(|rack| pmac::for_port(rack, port.number));
        let at = network.port_name(port);
        pmac.is_none().then(|| {
            format!("node {name} has no pmac: rack number above 65535 or port number above 65534 at {at}")
        })
    });
    let blocked_by_switch = network.switches.iter().flat_map(|(switch, state)| {
        let blocked = state.ports.values().filter(|info| info.up && info.blocked);
        blocked.map(move |info| {
            let at = network.port_name(Port { switch, number: info.number });
            format!(
                "port {at} is blocked by a protocol of the switch itself, and so is the traffic that COOL sends over it; \
                 turn off spanning tree (STP, RSTP) for the ports that COOL uses"
            )
        })
    });
    let blocked_segments = network.normal.iter().flat_map(|normal| normal.blocked()).map(|port| {
        format!(
            "port {} is blocked, because a switch without OpenFlow connects it to another port; remove one of the cables",
            network.port_name(port)
        )
    });
    let returning_switches = network.group_tests.returning().map(|switch| {
        format!(
            "switch {} returns packets of groups to their ingress port, so no multicast tree crosses it; update its software",
            network.name(switch)
        )
    });
    let of_hosts = network.host_forwarder.warnings(&network.surroundings());
    discovery
        .chain(refused)
        .chain(full)
        .chain(away)
        .chain(unreachable)
        .chain(blocked_by_switch)
        .chain(blocked_segments)
        .chain(returning_switches)
        .chain(of_hosts)
        .collect()
}
