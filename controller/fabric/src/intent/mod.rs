//! The desired state: what every switch is to hold, computed from the network, its nodes and the groups' trees.
//!
//! Everything is installed ahead of traffic, and switches flood nothing. What no flow matches is dropped, but for what comes by
//! a port of hosts without an agent: that is the controller's to carry.

pub(crate) mod addresses;
pub(crate) mod cookies;
pub(crate) mod failover;
pub(crate) mod flows;
pub(crate) mod hosts;
pub(crate) mod inherited_state;
pub(crate) mod retained;
pub(crate) mod tables;

use crate::api::{NodeRegistration, Unicast};
use crate::frames::pmac;
use crate::frames::vlan::Vlan;
use addresses::IpVersion;
use cookies::{FOR_LINK, FOR_NODE, FOR_NODE_PORT, FOR_NORMAL, FOR_RACK, FOR_TOR, is_for_link};
use cool_topology::routes::NextHops;
use cool_topology::{DatapathId, Port, Tree};
use failover::FailoverGroups;
use flows::{
    NODE, NORMAL, RACK, always, drop_rest, flow, port_key, rack_key, racks_of, to_controller, tree_flow,
};
use hosts::HostFlows;
use rs_openflow::{Action, EtherType, GroupId, Masked, Match, Oxm, PortNo};
use std::collections::{BTreeMap, BTreeSet};
use tables::{FlowEntry, FlowKey, GroupBuckets, RuleCounts, SwitchTables, TableDelta};

/// The tables that all switches are to have, and the delta that each has not been sent yet.
///
/// Changed piece by piece: a route, a node, a tree.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    /// Unicast is the switches' own affair.
    unicast: Unicast,
    /// Hosts without an agent are carried.
    carries_hosts: bool,
    switches: BTreeMap<DatapathId, SwitchTables>,
    pending: BTreeMap<DatapathId, TableDelta>,
    failovers: BTreeMap<DatapathId, FailoverGroups>,
    /// Where each node has flows.
    nodes: BTreeMap<String, (DatapathId, Vec<FlowKey>)>,
    hosts: HostFlows,
    /// Where each tree has flows, beside its group.
    trees: BTreeMap<u32, BTreeMap<DatapathId, BTreeSet<FlowKey>>>,
}

impl Intent {
    pub(crate) fn new(unicast: Unicast, carries_hosts: bool) -> Intent {
        Intent { unicast, carries_hosts, ..Intent::default() }
    }

    /// From now on there is such a switch; nothing happens if there was.
    pub(crate) fn add_switch(&mut self, switch: DatapathId) {
        self.switches.entry(switch).or_insert_with(|| always(self.unicast, self.carries_hosts));
    }

    /// The switch is the ToR of the rack of this number. It remembers that for whichever controller comes, since hosts know
    /// their peers by PMACs that say it: also while no node of the rack is known.
    pub(crate) fn number_rack(&mut self, switch: DatapathId, rack: u32) {
        let (key, _) = drop_rest(0);
        let flow = u16::try_from(rack).ok().map(|rack| drop_rest(FOR_TOR | u64::from(rack)).1);
        if flow.is_some() {
            self.flow(switch, key, flow);
        }
    }

    /// The switch is to be sent something though nothing else is desired of it: it has to answer, or retains less.
    pub(crate) fn touch(&mut self, switch: DatapathId) {
        self.pending.entry(switch).or_default();
    }

    /// There is no such switch any more. What others hold of it remains until told otherwise.
    pub(crate) fn remove_switch(&mut self, switch: DatapathId) {
        self.switches.remove(&switch);
        self.pending.remove(&switch);
        self.failovers.remove(&switch);
        self.hosts.forget(switch);
    }

    /// Bounds the fast-failover groups of a switch. If it has more than `most` it does without any.
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

    /// All that a switch is to have, as a delta to empty tables; then nothing is pending for it.
    pub(crate) fn full_delta(&mut self, switch: DatapathId) -> TableDelta {
        self.pending.remove(&switch);
        self.switches.get(&switch).map(TableDelta::from_empty).unwrap_or_default()
    }

    /// What has not been sent yet, by switch.
    pub(crate) fn take_pending(&mut self) -> BTreeMap<DatapathId, TableDelta> {
        core::mem::take(&mut self.pending)
    }

    /// How much a switch is to have.
    pub(crate) fn rules(&self, switch: DatapathId) -> Option<RuleCounts> {
        let tables = self.switches.get(&switch)?;
        Some(RuleCounts { flows: tables.flows.len(), groups: tables.groups.len() })
    }

    /// Whether a switch is to have a part of a tree.
    pub(crate) fn has_tree(&self, switch: DatapathId, number: u32) -> bool {
        self.switches.get(&switch).is_some_and(|tables| tables.groups.contains_key(&number))
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> &BTreeMap<DatapathId, SwitchTables> {
        &self.switches
    }

    /// Sends what is for a rack by these next hops, or nowhere.
    pub(crate) fn route(&mut self, switch: DatapathId, rack: u32, next_hops: Option<NextHops>) {
        if self.unicast == Unicast::Normal {
            return;
        }
        let Some(key) = rack_key(rack) else { return };
        if next_hops.is_none() && self.switches.contains_key(&switch) {
            // Also a stale one has to go, which this controller has never sent.
            self.pending.entry(switch).or_default().flows.insert(key.clone(), None);
        }
        self.lead(switch, key, next_hops);
        self.follow_rack(switch, rack);
    }

    /// By a group for fast failover if there is an alternate and the switch can have the group.
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

    /// Forgets where a node is.
    pub(crate) fn displace(&mut self, node: &str) {
        let Some((switch, keys)) = self.nodes.remove(node) else { return };
        for key in keys {
            self.flow(switch, key, None);
        }
    }

    /// Hands what is for a node, from its own segment, over to it at this port of its rack's ToR.
    pub(crate) fn place(&mut self, node: &NodeRegistration, vlan: Vlan, rack: u32, port: Port) {
        // What its port says to the controller is apart from what others say, so that it can be bounded apart.
        let said = |kind| (port_key(port.number, kind), flow(FOR_NODE_PORT, to_controller()));
        let mut flows = vec![said(EtherType::LLDP)];
        if self.unicast == Unicast::Routed {
            let Some(pmac) = pmac::of(rack, port.number) else { return };
            let key = FlowKey::new(NODE, Match::new().eth_dst(pmac).vlan_vid(vlan.field()));
            let to_node = vec![
                Action::SetField(Oxm::EthDst(Masked::exact(node.mac))),
                Action::output(PortNo(port.number)),
            ];
            flows.extend([(key, flow(FOR_NODE, to_node)), said(EtherType::ARP)]);
        }
        let keys = flows.iter().map(|(key, _)| key.clone()).collect();
        for (key, flow) in flows {
            self.flow(port.switch, key, Some(flow));
        }
        self.nodes.insert(node.name.clone(), (port.switch, keys));
    }

    /// A port is, or is no more, an end of a link: what keeps the link known comes to the controller in any case.
    pub(crate) fn link(&mut self, end: Port, there: bool) {
        let key = port_key(end.number, EtherType::LLDP);
        // Not that of a node at this port.
        let ours = |flow: &FlowEntry| is_for_link(flow.cookie);
        let held = self.switches.get(&end.switch).and_then(|tables| tables.flows.get(&key));
        match there {
            true => drop(self.flow(end.switch, key, Some(flow(FOR_LINK, to_controller())))),
            false if held.is_some_and(ours) => drop(self.flow(end.switch, key, None)),
            false => {}
        }
    }

    /// Frames that come by a port go the way that the switch itself finds, or nowhere.
    pub(crate) fn normal(&mut self, port: Port, open: bool) {
        let key = FlowKey::new(NORMAL, Match::new().in_port(PortNo(port.number)));
        let flow = open.then(|| flow(FOR_NORMAL, vec![Action::output(PortNo::NORMAL)]));
        self.flow(port.switch, key, flow);
    }

    /// Gives a tree this shape, or removes it; returns the switches at which that changes something.
    ///
    /// One group of type ALL at each switch of the tree, and a flow to it for each port by which its packets
    /// may come: from a member's port only what the member sends under its own address.
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

    /// Returns whether that is another flow than before.
    fn flow(&mut self, switch: DatapathId, key: FlowKey, flow: Option<FlowEntry>) -> bool {
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

    /// Returns whether that is another group than before.
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
