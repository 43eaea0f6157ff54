//! The desired state: which entries every switch must hold, computed from the network, its nodes
//! and the groups' trees.
//!
//! All entries are installed ahead of traffic, and switches never flood. Packets that match no flow
//! are dropped, except at ports of hosts without an agent: there the controller forwards them.

pub(crate) mod addresses;
pub(crate) mod cookies;
pub(crate) mod failover;
pub(crate) mod flows;
pub(crate) mod hosts;
pub(crate) mod inherited_state;
pub(crate) mod multicast;
pub(crate) mod retained;
pub(crate) mod tables;

use crate::api::{NodeRegistration, Unicast};
use crate::frames::vlan::Vlan;
use crate::frames::{loop_probe, pmac};
use addresses::IpVersion;
use cookies::{
    FOR_LINK, FOR_NODE, FOR_NODE_PORT, FOR_NORMAL, FOR_NORMAL_PROBE, FOR_RACK, FOR_TOR, is_for_link,
};
use cool_topology::routes::NextHops;
use cool_topology::{DatapathId, Port, Tree};
use failover::FailoverGroups;
use flows::{
    NODE, NORMAL, RACK, always, drop_rest, flow, port_key, priority_twin, rack_key, racks_of, to_controller,
    tree_flow,
};
use hosts::HostFlows;
use rs_openflow::{Action, EtherType, GroupId, Masked, Match, Oxm, PortNo};
use std::collections::{BTreeMap, BTreeSet};
use tables::{FlowEntry, FlowKey, GROUPS, GroupBuckets, RuleCounts, SwitchTables, TableDelta};

/// The desired tables of all switches, and the part of them that has not been sent yet.
///
/// They are changed piece by piece: by route, by node, by tree. The
/// [`Reconciler`](crate::switch::reconciler::Reconciler) of each switch holds a second copy,
/// because it runs in another task and shares no state with this one: it compares that copy with
/// the switch's own tables at any time, without waiting for the network.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    /// Whether flows forward unicast, or the switches on their own.
    unicast: Unicast,
    /// Whether hosts without an agent are served.
    carries_hosts: bool,
    /// Whether flows of the untagged segment also accept frames with a priority but no VLAN.
    priority_tags: bool,
    switches: BTreeMap<DatapathId, SwitchTables>,
    pending: BTreeMap<DatapathId, TableDelta>,
    failovers: BTreeMap<DatapathId, FailoverGroups>,
    /// Switch and flows of each node.
    nodes: BTreeMap<String, (DatapathId, Vec<FlowKey>)>,
    hosts: HostFlows,
    /// Flows of each tree by switch, in addition to its group.
    trees: BTreeMap<u32, BTreeMap<DatapathId, BTreeSet<FlowKey>>>,
}

impl Intent {
    pub(crate) fn new(unicast: Unicast, carries_hosts: bool) -> Intent {
        Intent { unicast, carries_hosts, ..Intent::default() }
    }

    /// Adds a switch. Does nothing if the switch is known.
    pub(crate) fn add_switch(&mut self, switch: DatapathId) {
        self.switches.entry(switch).or_insert_with(|| always(self.unicast, self.carries_hosts));
    }

    /// Makes a switch the ToR of the rack with this number. The switch stores the number for later
    /// controllers, even while no node of the rack is known, because hosts know their peers by
    /// PMACs that contain it.
    pub(crate) fn number_rack(&mut self, switch: DatapathId, rack: u32) {
        let (key, _) = drop_rest(0);
        let flow = u16::try_from(rack).ok().map(|rack| drop_rest(FOR_TOR | u64::from(rack)).1);
        if flow.is_some() {
            self.flow(switch, key, flow);
        }
    }

    /// Sends the switch an update even if nothing has changed for it, because it must acknowledge,
    /// or retain fewer stale entries.
    pub(crate) fn touch(&mut self, switch: DatapathId) {
        self.pending.entry(switch).or_default();
    }

    /// Removes a switch. Entries of other switches that concern it remain until they are changed.
    pub(crate) fn remove_switch(&mut self, switch: DatapathId) {
        self.switches.remove(&switch);
        self.pending.remove(&switch);
        self.failovers.remove(&switch);
        self.hosts.forget(switch);
    }

    /// Limits the failover groups of a switch. If the switch uses more than `most`, its routes stop
    /// using failover groups.
    pub(crate) fn allow_failovers(&mut self, switch: DatapathId, most: usize) {
        let failovers = self.failovers.entry(switch).or_default();
        failovers.most = most;
        if failovers.len() <= most {
            return;
        }
        let Some(tables) = self.switches.get(&switch) else { return };
        let led = |(key, flow): (&FlowKey, &FlowEntry)| {
            let number = failover::group_of_flow(flow).filter(|_| key.priority == RACK)?;
            Some((key.clone(), number, racks_of(key).next()))
        };
        for (key, number, rack) in tables.flows.iter().filter_map(led).collect::<Vec<_>>() {
            self.lead(switch, key, Some(NextHops { port: failover::preferred(number), alternate: None }));
            if let Some(rack) = rack {
                self.follow_rack(switch, rack);
            }
        }
    }

    /// Returns all desired entries of a switch as a delta to empty tables. Nothing is pending for
    /// the switch afterwards.
    pub(crate) fn full_delta(&mut self, switch: DatapathId) -> TableDelta {
        let TableDelta { blocked, group_test, .. } = self.pending.remove(&switch).unwrap_or_default();
        let full = self.switches.get(&switch).map(TableDelta::from_empty).unwrap_or_default();
        TableDelta { blocked, group_test, ..full }
    }

    /// Returns the deltas that have not been sent yet, by switch.
    pub(crate) fn take_pending(&mut self) -> BTreeMap<DatapathId, TableDelta> {
        core::mem::take(&mut self.pending)
    }

    /// Returns the number of desired entries of a switch.
    pub(crate) fn rules(&self, switch: DatapathId) -> Option<RuleCounts> {
        let tables = self.switches.get(&switch)?;
        Some(RuleCounts { flows: tables.flows.len(), groups: tables.groups.len() })
    }

    /// Returns whether a switch must have a part of a tree.
    pub(crate) fn has_tree(&self, switch: DatapathId, number: u32) -> bool {
        self.switches.get(&switch).is_some_and(|tables| tables.groups.contains_key(&number))
    }

    /// Returns the desired entries of each switch.
    pub(crate) fn tables(&self) -> &BTreeMap<DatapathId, SwitchTables> {
        &self.switches
    }

    /// Routes packets to a rack by these next hops; `None` withdraws the route.
    pub(crate) fn route(&mut self, switch: DatapathId, rack: u32, next_hops: Option<NextHops>) {
        if self.unicast == Unicast::Normal {
            return;
        }
        let Some(key) = rack_key(rack) else { return };
        if next_hops.is_none() && self.switches.contains_key(&switch) {
            // An entry of an earlier controller must go as well, though this controller has never
            // sent it.
            self.pending.entry(switch).or_default().flows.insert(key.clone(), None);
        }
        self.lead(switch, key, next_hops);
        self.follow_rack(switch, rack);
    }

    /// Sets a route, by a failover group if there is an alternate port and the switch has room for
    /// the group.
    fn lead(&mut self, switch: DatapathId, key: FlowKey, next_hops: Option<NextHops>) {
        let Some(tables) = self.switches.get(&switch) else { return };
        let before = tables.flows.get(&key).and_then(failover::group_of_flow);
        let failovers = self.failovers.entry(switch).or_default();
        let group = next_hops.and_then(|next_hops| failovers.take(next_hops));
        let unused = before.filter(|number| failovers.give_back(*number));
        if let Some(number) = group {
            self.group(switch, number, Some(failover::buckets(number)));
        }
        let flow = next_hops.map(|next_hops| {
            let action = match group {
                Some(number) => Action::Group(GroupId(number)),
                None => Action::output(PortNo(next_hops.port)),
            };
            flow(FOR_RACK, vec![action])
        });
        self.flow(switch, key, flow);
        if let Some(number) = unused {
            self.group(switch, number, None);
        }
    }

    /// Removes the flows of a node.
    pub(crate) fn displace(&mut self, node: &str) {
        let Some((switch, keys)) = self.nodes.remove(node) else { return };
        for key in keys {
            self.flow(switch, key, None);
        }
    }

    /// Installs the flows of a node at this port of its rack's ToR: packets to its PMAC, from its
    /// own VLAN, go to the node.
    pub(crate) fn place(&mut self, node: &NodeRegistration, vlan: Vlan, rack: u32, port: Port) {
        // LLDP and ARP of this port have flows of their own, so that they can be metered apart from
        // other ports.
        let message = |kind| (port_key(port.number, kind), flow(FOR_NODE_PORT, to_controller()));
        let mut flows = vec![message(EtherType::LLDP)];
        if self.unicast == Unicast::Routed {
            let Some(pmac) = pmac::for_port(rack, port.number) else { return };
            let key = FlowKey::new(NODE, Match::new().eth_dst(pmac).vlan_vid(vlan.field()));
            let to_node = vec![
                Action::SetField(Oxm::EthDst(Masked::exact(node.mac))),
                Action::output(PortNo(port.number)),
            ];
            flows.extend([(key, flow(FOR_NODE, to_node)), message(EtherType::ARP)]);
        }
        let keys = flows.iter().map(|(key, _)| key.clone()).collect();
        for (key, flow) in flows {
            self.flow(port.switch, key, Some(flow));
        }
        self.nodes.insert(node.name.clone(), (port.switch, keys));
    }

    /// Adds or removes the flow for LLDP at the end of a link. LLDP must reach the controller under
    /// any load, because it keeps the link known.
    pub(crate) fn link(&mut self, end: Port, there: bool) {
        let key = port_key(end.number, EtherType::LLDP);
        // The flow of a node at this port must stay.
        let ours = |flow: &FlowEntry| is_for_link(flow.cookie);
        let held = self.switches.get(&end.switch).and_then(|tables| tables.flows.get(&key));
        match there {
            true => drop(self.flow(end.switch, key, Some(flow(FOR_LINK, to_controller())))),
            false if held.is_some_and(ours) => drop(self.flow(end.switch, key, None)),
            false => {}
        }
    }

    /// Makes the switch's own forwarding accept a port's frames, or drops them.
    pub(crate) fn normal(&mut self, port: Port, open: bool) {
        let key = FlowKey::new(NORMAL, Match::new().in_port(PortNo(port.number)));
        let flow = open.then(|| flow(FOR_NORMAL, vec![Action::output(PortNo::NORMAL)]));
        self.flow(port.switch, key, flow);
    }

    /// Blocks a port: the switch sends nothing out of it. Probes of other ports that it receives
    /// have a flow of their own meanwhile, so that they are metered apart from other ports.
    pub(crate) fn block(&mut self, port: Port, blocked: bool) {
        let probes = blocked.then(|| flow(FOR_NORMAL_PROBE, to_controller()));
        self.flow(port.switch, port_key(port.number, EtherType(loop_probe::ETHERTYPE)), probes);
        if self.switches.contains_key(&port.switch) {
            self.pending.entry(port.switch).or_default().blocked.insert(port.number, blocked);
        }
    }

    /// Makes a switch test its groups with this packet, at the port of a link.
    pub(crate) fn test_groups(&mut self, port: Port, packet: Vec<u8>) {
        self.pending.entry(port.switch).or_default().group_test = Some((port.number, packet));
    }

    /// Returns the trees of which a switch must have a part.
    pub(crate) fn trees_of(&self, switch: DatapathId) -> Vec<u32> {
        let tables = self.switches.get(&switch);
        tables.into_iter().flat_map(|tables| tables.groups.range(GROUPS)).map(|(number, _)| *number).collect()
    }

    /// Installs a tree with this shape, or removes it. Returns the switches for which this changes
    /// something.
    ///
    /// Each switch of the tree has one group of type ALL, and for each port of the tree a flow into
    /// that group. From a member's port, the flow accepts only packets with the member's own source
    /// address.
    pub(crate) fn tree(
        &mut self,
        number: u32,
        tree: Option<&Tree>,
        nodes: &BTreeMap<String, NodeRegistration>,
    ) -> BTreeSet<DatapathId> {
        let mut touched = BTreeSet::new();
        let mut before = self.trees.remove(&number).unwrap_or_default();
        if let Some(tree) = tree {
            let senders: BTreeMap<_, _> =
                tree.members.iter().map(|(name, port)| (*port, nodes.get(name))).collect();
            let address = IpVersion::for_tree(tree, nodes).address(number);
            let mut now = BTreeMap::new();
            for (switch, ports) in tree.ports() {
                let mut left = before.remove(&switch).unwrap_or_default();
                let mut keys = BTreeSet::new();
                for port in &ports {
                    let sender = match senders.get(&Port { switch, number: *port }) {
                        Some(None) => continue,
                        Some(Some(member)) => Some(member.ip),
                        None => None,
                    };
                    let (key, flow) = tree_flow((number, address), *port, sender);
                    left.remove(&key);
                    if self.flow(switch, key.clone(), Some(flow)) {
                        touched.insert(switch);
                    }
                    keys.insert(key);
                }
                if self.group(switch, number, Some(GroupBuckets::All(ports))) || !left.is_empty() {
                    touched.insert(switch);
                }
                for key in left {
                    self.flow(switch, key, None);
                }
                now.insert(switch, keys);
            }
            self.trees.insert(number, now);
        }
        for (switch, keys) in before {
            for key in keys {
                self.flow(switch, key, None);
            }
            self.group(switch, number, None);
            touched.insert(switch);
        }
        touched
    }

    /// Makes flows of the untagged segment accept frames with a priority but no VLAN as well. Only
    /// few networks have such frames, and each flow must exist twice for them.
    pub(crate) fn accept_priority_tags(&mut self) {
        if core::mem::replace(&mut self.priority_tags, true) {
            return;
        }
        for switch in self.switches.keys().copied().collect::<Vec<_>>() {
            let flows = self.switches.get(&switch).into_iter().flat_map(|tables| &tables.flows);
            let twins = flows.filter_map(|(key, flow)| Some((priority_twin(key)?, flow.clone())));
            for (key, flow) in twins.collect::<Vec<_>>() {
                self.set_flow(switch, key, Some(flow));
            }
        }
    }

    /// Sets or removes a flow. Returns whether this changes anything.
    fn flow(&mut self, switch: DatapathId, key: FlowKey, flow: Option<FlowEntry>) -> bool {
        if self.priority_tags
            && let Some(twin) = priority_twin(&key)
        {
            self.set_flow(switch, twin, flow.clone());
        }
        self.set_flow(switch, key, flow)
    }

    fn set_flow(&mut self, switch: DatapathId, key: FlowKey, flow: Option<FlowEntry>) -> bool {
        let Some(tables) = self.switches.get_mut(&switch) else { return false };
        if tables.flows.get(&key) == flow.as_ref() {
            return false;
        }
        match &flow {
            Some(flow) => tables.flows.insert(key.clone(), flow.clone()),
            None => tables.flows.remove(&key),
        };
        self.pending.entry(switch).or_default().flows.insert(key, flow);
        true
    }

    /// Sets or removes a group. Returns whether this changes anything.
    fn group(&mut self, switch: DatapathId, number: u32, buckets: Option<GroupBuckets>) -> bool {
        let Some(tables) = self.switches.get_mut(&switch) else { return false };
        if tables.groups.get(&number).map(Option::as_ref) == buckets.as_ref().map(Some) {
            return false;
        }
        match &buckets {
            Some(buckets) => tables.groups.insert(number, Some(buckets.clone())),
            None => tables.groups.remove(&number),
        };
        self.pending.entry(switch).or_default().groups.insert(number, buckets);
        true
    }
}

#[cfg(test)]
mod tests;
