//! What an observing controller reports: each switch as it is, and the entries that would be
//! installed in it. They are those of the [`Intent`](crate::intent::Intent), which an observer
//! computes as any controller does.

use super::Network;
use super::switch_table::SwitchState;
use crate::api::{GroupRequest, TableCapacity};
use crate::intent::cookies;
use crate::intent::tables::{GROUPS, RuleCounts, SwitchTables};
use crate::observation::{
    Observation, ObservedPort, ObservedSwitch, PlannedFlows, PortPeer, SwitchInventory,
};
use crate::switch::port_info::PortInfo;
use cool_topology::switch_adjacency::UNREACHABLE;
use cool_topology::{DatapathId, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of ports that a sentence lists.
const LISTED_PORTS_MAX: usize = 12;

/// The group with one rank on each node that is planned for the report.
#[derive(Default)]
struct PlannedGroup {
    members: BTreeSet<String>,
    trees: u32,
    /// Entries in each switch.
    entries: BTreeMap<DatapathId, RuleCounts>,
    /// Switches without room for one of its trees.
    full: BTreeSet<DatapathId>,
}

/// What is known about ports besides the links.
struct KnownPorts<'a> {
    nodes: BTreeMap<Port, &'a str>,
    /// For each port of a switch whose LLDP was received, the port that received it.
    heard_by: BTreeMap<Port, Port>,
}

impl Network {
    /// Returns what was found out, and what would be installed now.
    pub(super) fn observation(&self) -> Observation {
        let group = self.planned_group();
        let known = KnownPorts {
            nodes: self.discovery.graph().hosts().map(|(name, port)| (port, name)).collect(),
            heard_by: self.discovery.heard_switches().map(|(at, announced)| (announced, at)).collect(),
        };
        let switches = self.switches.iter();
        let switches = switches.map(|(switch, state)| self.observed(switch, state, &group, &known));
        let mut unknown = vec![
            "whether switches accept these entries and leave out the ingress port of groups: both tests would \
             change a switch"
                .to_owned(),
            "hosts without an agent: their packets are not examined; each host takes one more flow in every switch"
                .to_owned(),
        ];
        let missing: Vec<&str> = self
            .nodes
            .all()
            .keys()
            .filter(|name| !group.members.contains(*name))
            .map(String::as_str)
            .collect();
        if !missing.is_empty() {
            unknown.push(format!(
                "entries for {} of {} nodes (the first is {}): no known path leads to them, or they are in another \
                 VLAN, or use another version of IP",
                missing.len(),
                self.nodes.all().len(),
                missing[0]
            ));
        }
        Observation {
            switches: switches.collect(),
            group_nodes: group.members.into_iter().collect(),
            group_trees: group.trees,
            unknown,
        }
    }

    /// Plans the trees of a group of all nodes that can be in one group.
    fn planned_group(&self) -> PlannedGroup {
        let graph = self.discovery.graph();
        let place = |name: &str| Some((graph.host(name)?, self.nodes.get(name)?));
        let located = || self.nodes.all().keys().filter_map(|name| Some((name, place(name)?)));
        let Some((first, (at, node))) = located().next() else { return PlannedGroup::default() };
        let from = self.adjacency.position(at.switch);
        let distances = from.map(|from| self.adjacency.distances(from)).unwrap_or_default();
        let is_reached = |port: Port| {
            let position = self.adjacency.position(port.switch);
            position.is_some_and(|at| distances.get(at).is_some_and(|distance| *distance != UNREACHABLE))
        };
        let racks: BTreeMap<String, u32> = located()
            .filter(|(name, (port, other))| {
                is_reached(*port)
                    && other.ip.is_ipv6() == node.ip.is_ipv6()
                    && self.nodes.vlan(name) == self.nodes.vlan(first)
            })
            .filter_map(|(name, (port, _))| Some((name.clone(), self.racks.number(port.switch)?)))
            .collect();
        let members = racks.keys().cloned().collect();
        let request = GroupRequest { id: 0, members, can_prove: false, can_join_sources: false };
        let (trees, left_out) = self.plan_trees(&request, &racks);
        let mut entries: BTreeMap<DatapathId, RuleCounts> = BTreeMap::new();
        for (switch, ports) in trees.iter().flat_map(|planned| planned.tree.ports()) {
            let entries = entries.entry(switch).or_default();
            (entries.groups, entries.flows) = (entries.groups + 1, entries.flows + ports.len());
        }
        PlannedGroup {
            members: racks.into_keys().collect(),
            trees: number(trees.len()),
            entries,
            full: left_out.into_iter().map(|(switch, ..)| switch).collect(),
        }
    }

    fn observed(
        &self,
        switch: DatapathId,
        state: &SwitchState,
        group: &PlannedGroup,
        known: &KnownPorts<'_>,
    ) -> ObservedSwitch {
        let empty = SwitchTables::default();
        let planned = self.intent.tables().get(&switch).unwrap_or(&empty);
        let ports: Vec<ObservedPort> =
            state.ports.values().map(|info| self.observed_port(switch, info, known)).collect();
        let for_group = group.entries.get(&switch).copied().unwrap_or_default();
        let needed = RuleCounts {
            flows: planned.flows.len() + for_group.flows,
            groups: planned.groups.len() + for_group.groups,
        };
        let mut obstacles = obstacles(state, needed);
        if group.full.contains(&switch) {
            obstacles.push("a tree over all nodes would leave it out, because it has no room".to_owned());
        }
        ObservedSwitch {
            datapath_id: switch,
            name: state.name.clone(),
            model: state.model.clone(),
            tables: state.tables,
            table: self.config.pipeline.table,
            unknown: unknown(state, &ports),
            ports,
            capacity: state.capacity,
            inventory: state.inventory.clone(),
            planned_flows: by_purpose(planned),
            planned_groups: planned.groups.keys().filter(|number| !GROUPS.contains(number)).count(),
            withheld: state.withheld,
            for_group,
            obstacles,
        }
    }

    fn observed_port(&self, switch: DatapathId, info: &PortInfo, known: &KnownPorts<'_>) -> ObservedPort {
        let port = Port { switch, number: info.number };
        let heard = || self.discovery.heard_switch(port).or_else(|| known.heard_by.get(&port).copied());
        let peer = if let Some(peer) = self.discovery.graph().peer(port) {
            PortPeer::Switch(peer)
        } else if let Some(name) = known.nodes.get(&port) {
            PortPeer::Node((*name).to_owned())
        } else if let Some(peer) = heard() {
            PortPeer::PerhapsSwitch(peer)
        } else {
            PortPeer::Unknown
        };
        ObservedPort { number: info.number, up: info.up, bytes_per_second: info.bytes_per_second, peer }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns the numbers of flows by purpose, most important first.
fn by_purpose(tables: &SwitchTables) -> Vec<PlannedFlows> {
    let purposes = tables.flows.values().map(|flow| cookies::purpose(flow.cookie));
    let mut counts: BTreeMap<cookies::Purpose, u32> = BTreeMap::new();
    purposes.for_each(|purpose| *counts.entry(purpose).or_default() += 1);
    counts.into_iter().map(|(purpose, flows)| PlannedFlows { purpose: purpose.name(), flows }).collect()
}

/// Returns why a switch cannot hold these entries, or not be used.
fn obstacles(state: &SwitchState, needed: RuleCounts) -> Vec<String> {
    let TableCapacity { groups, flows, .. } = state.capacity;
    let own = state.withheld.map(|changes| changes.present).unwrap_or_default();
    let inventory = state.inventory.clone().unwrap_or_default();
    let mut all = Vec::new();
    if !state.connected() {
        all.push("it is not connected; this is its last known state".to_owned());
    }
    let foreign_flows = inventory.table_flows.map_or(0, |all| (all as usize).saturating_sub(own.flows));
    let lacks = |what: &str, needed: usize, most: u32, foreign: usize| {
        let free = (most as usize).saturating_sub(foreign);
        (needed > free).then(|| format!("{needed} {what} are needed, but only {free} of {most} are free"))
    };
    if groups == Some(0) {
        all.push("it has no group table of type ALL, so no multicast tree can cross it".to_owned());
    } else if let Some(most) = groups {
        all.extend(lacks("groups", needed.groups, most, inventory.foreign_groups.unwrap_or(0) as usize));
    }
    all.extend(flows.and_then(|most| lacks("flows", needed.flows, most, foreign_flows)));
    all
}

/// Returns what could not be found out about a switch.
fn unknown(state: &SwitchState, ports: &[ObservedPort]) -> Vec<String> {
    let TableCapacity { groups, flows, .. } = state.capacity;
    let mut all = Vec::new();
    let mut lacks = |is_missing: bool, text: &str| {
        if is_missing {
            all.push(text.to_owned());
        }
    };
    lacks(flows.is_none(), "the capacity of its flow table, because it does not report one");
    lacks(groups.is_none(), "the number of groups that it can hold, because it does not report one");
    match &state.inventory {
        None => lacks(true, "its entries, because they have not been counted yet"),
        Some(SwitchInventory { flows, foreign_groups, .. }) => {
            lacks(flows.is_none(), "the number of its flows, because it does not report it");
            lacks(foreign_groups.is_none(), "the number of its groups, because it does not report it");
        }
    }
    let silent: Vec<u32> = ports
        .iter()
        .filter(|port| port.up && port.peer == PortPeer::Unknown && port.number != Port::LOCAL)
        .map(|port| port.number)
        .collect();
    if silent.is_empty() {
        return all;
    }
    let is_deaf = ports.iter().all(|port| matches!(port.peer, PortPeer::Unknown));
    let takes_none = state.inventory.as_ref().is_some_and(|inventory| inventory.miss_send_len == Some(0));
    let reason = if takes_none {
        "the switch sends no packets over this connection (in Open vSwitch, a controller of type \"service\")"
    } else if is_deaf {
        "the switch hands in no LLDP, so none of its flows sends LLDP to controllers, or it uses LLDP itself"
    } else {
        "no LLDP arrives there: nothing that sends LLDP is connected, or a switch on the way drops it"
    };
    all.push(format!("what is connected to {}: {reason}", listed(&silent)));
    all
}

fn listed(ports: &[u32]) -> String {
    let mut texts: Vec<String> = ports.iter().take(LISTED_PORTS_MAX).map(u32::to_string).collect();
    if ports.len() > LISTED_PORTS_MAX {
        texts.push(format!("{} more", ports.len() - LISTED_PORTS_MAX));
    }
    let noun = if ports.len() == 1 { "port" } else { "ports" };
    format!("{noun} {}", texts.join(", "))
}
