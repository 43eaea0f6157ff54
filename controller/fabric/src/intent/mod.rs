//! The desired state: what every switch is to hold, computed from the network, its nodes and the groups' trees.
//!
//! Everything is installed ahead of traffic, and switches flood nothing. What no flow matches is dropped, but for what comes by
//! a port of hosts without an agent: that is the controller's to carry.

pub(crate) mod addresses;
pub(crate) mod failover;
pub(crate) mod hosts;
pub(crate) mod tables;

use crate::api::{NodeRegistration, Unicast};
use crate::frames::pmac;
use crate::frames::vlan::Vlan;
use crate::switch::reconcile::Former;
use crate::telemetry::Rules;
use addresses::{IpVersion, into_tree};
use cool_topology::routes::NextHops;
use cool_topology::{DatapathId, Port, Tree};
use core::net::IpAddr;
use failover::{FAILOVERS, Failovers};
use hosts::{FormerHosts, HostFlows, of_rack};
use rs_openflow::{Action, EtherType, GroupId, Instruction, Masked, Match, Oxm, PortNo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tables::{Buckets, COOKIE, Delta, Flow, FlowKey, GROUPS, Tables};

// Priorities (OpenFlow 1.3.5, 5.3: of the entries that match, the highest is taken). OF_PORT must beat LLDP and ARP;
// DROP must lose to everything.
const OF_PORT: u16 = 50_010;
const LLDP: u16 = 50_000;
/// And neighbour discovery, which is to IPv6 what ARP is to IPv4.
const ARP: u16 = 49_000;
const TREE: u16 = 40_000;
/// Below the trees: what is for a group and comes from nobody who may send there.
const NON_MEMBER: u16 = 39_000;
const NODE: u16 = 30_010;
const HOST: u16 = 30_005;
const RACK: u16 = 30_000;
const NORMAL: u16 = 10_000;
/// What comes by a port of hosts without an agent, and is for nobody who is known; below it, what others say to all.
const EDGE: u16 = 20;
const BROADCAST: u16 = 10;
/// Above 0, where a switch may have a flow of its own that floods.
const DROP: u16 = 1;

/// What a flow is for: the top byte of the cookie's low half.
const FOR_TREE: u64 = 1 << 24;
const FOR_RACK: u64 = 2 << 24;
const FOR_NODE: u64 = 3 << 24;
const FOR_NON_MEMBERS: u64 = 4 << 24;
const FOR_NODE_PORT: u64 = 5 << 24;
const FOR_LINK: u64 = 6 << 24;
const FOR_NORMAL: u64 = 7 << 24;
/// The flow that drops the rest, in a switch that is, or was, a ToR; its low 16 bits are the rack's number.
const FOR_TOR: u64 = 8 << 24;
/// Towards a host without an agent, and where it is; the low 16 bits are the rack's number.
const FOR_HOST: u64 = 9 << 24;
const FOR_HOST_HERE: u64 = 10 << 24;
const FOR_EDGE: u64 = 11 << 24;
const FOR_BROADCAST: u64 = 12 << 24;
/// What is said to all by IPv6, and neighbour discovery. Where switches have few flows this gives way.
const FOR_IPV6: u64 = 13 << 24;

/// By which cookie, in which bits, the flow is known that counts what outsiders send.
pub(crate) const NON_MEMBERS: (u64, u64) = (COOKIE | FOR_NON_MEMBERS, u64::MAX);

/// Whether a flow is for the frames of a link's port.
pub(crate) fn is_of_link(cookie: u64) -> bool {
    cookie & 0xff00_0000 == FOR_LINK
}

/// Whether a flow hands Ethernet broadcasts, or link-local multicast and neighbour discovery of IPv6, to the controller.
pub(crate) fn is_of_broadcasts(cookie: u64) -> bool {
    matches!(cookie & 0xff00_0000, FOR_BROADCAST | FOR_IPV6)
}

/// Whether a flow is one of those that every switch holds, and could not do without.
pub(crate) fn is_everywhere(flow: &Flow) -> bool {
    matches!(flow.cookie & 0xff00_0000, 0 | FOR_NON_MEMBERS | FOR_TOR | FOR_BROADCAST)
}

/// The number of the tree that a flow is for, if it is for one.
pub(crate) fn tree(flow: &Flow) -> Option<u32> {
    (flow.cookie & 0xff00_0000 == FOR_TREE).then_some(GROUPS.start + (flow.cookie & 0x00ff_ffff) as u32)
}

/// Stale entries that are retained though they are not desired, as in a graceful restart (RFC 4724, section 4.2): a
/// controller that has just started does not know everything yet, and must not interrupt what goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleEntries {
    /// All that follows from links and nodes: the switch's neighbourhood is still being discovered.
    pub(crate) unicast: bool,
    /// All of these trees: whose they are is not known yet.
    pub(crate) trees: Arc<BTreeSet<u32>>,
}

/// What a switch retains of its stale entries: not those that were withdrawn since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained {
    pub(crate) stale: StaleEntries,
    /// Flows of unicast that were desired in the meantime, or that must not be there.
    pub(crate) withdrawn: BTreeSet<FlowKey>,
}

impl Retained {
    pub(crate) fn flow(&self, key: &FlowKey, flow: &Flow) -> bool {
        match tree(flow) {
            Some(number) => self.stale.trees.contains(&number),
            None => {
                self.stale.unicast
                    && !self.withdrawn.contains(key)
                    && matches!(
                        flow.cookie & 0xff00_0000,
                        FOR_RACK
                            | FOR_NODE
                            | FOR_NODE_PORT
                            | FOR_LINK
                            | FOR_NORMAL
                            | FOR_HOST
                            | FOR_HOST_HERE
                            | FOR_EDGE
                    )
            }
        }
    }

    pub(crate) fn group(&self, number: u32) -> bool {
        self.stale.trees.contains(&number) || (self.stale.unicast && FAILOVERS.contains(&number))
    }
}

/// The racks of the PMACs that a flow is for.
fn racks_of(key: &FlowKey) -> impl Iterator<Item = u32> + '_ {
    key.matching.fields.iter().filter_map(|field| match field {
        Oxm::EthDst(address) => pmac::rack(address.value),
        _ => None,
    })
}

/// What a switch's tables tell of the controller before this one.
pub(crate) fn former(tables: &Tables) -> Former {
    let of_tor = tables.flows.values().find(|flow| flow.cookie & 0xff00_0000 == FOR_TOR);
    let rack = of_tor.map(|flow| (flow.cookie & 0xffff) as u32);
    let racks = tables.flows.keys().flat_map(racks_of).collect();
    let trees = tables.groups.range(GROUPS).map(|(id, buckets)| match buckets {
        Some(Buckets::All(ports)) => (*id, ports.clone()),
        _ => (*id, BTreeSet::new()),
    });
    let trees = trees.collect();
    let open = tables.flows.iter().filter(|(_, flow)| flow.cookie == COOKIE | FOR_NORMAL);
    let open = open.filter_map(|(key, _)| match key.matching.fields.first() {
        Some(Oxm::InPort(port)) => Some(port.value.0),
        _ => None,
    });
    Former { rack, racks, trees, open: open.collect(), hosts: FormerHosts::read(tables) }
}

/// The tables that all switches are to have, and the delta that each has not been sent yet.
///
/// Changed piece by piece: a route, a node, a tree.
#[derive(Debug, Default)]
pub(crate) struct Intent {
    /// Unicast is the switches' own affair.
    unicast: Unicast,
    /// Hosts without an agent are carried.
    carries_hosts: bool,
    switches: BTreeMap<DatapathId, Tables>,
    pending: BTreeMap<DatapathId, Delta>,
    failovers: BTreeMap<DatapathId, Failovers>,
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
        let led = |(key, flow): (&FlowKey, &Flow)| {
            let number = failover::of_flow(flow).filter(|_| key.priority == RACK)?;
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
    pub(crate) fn full_delta(&mut self, switch: DatapathId) -> Delta {
        self.pending.remove(&switch);
        self.switches.get(&switch).map(Delta::from_empty).unwrap_or_default()
    }

    /// What has not been sent yet, by switch.
    pub(crate) fn take_pending(&mut self) -> BTreeMap<DatapathId, Delta> {
        core::mem::take(&mut self.pending)
    }

    /// How much a switch is to have.
    pub(crate) fn rules(&self, switch: DatapathId) -> Option<Rules> {
        let tables = self.switches.get(&switch)?;
        Some(Rules { flows: tables.flows.len(), groups: tables.groups.len() })
    }

    /// Whether a switch is to have a part of a tree.
    pub(crate) fn has_tree(&self, switch: DatapathId, number: u32) -> bool {
        self.switches.get(&switch).is_some_and(|tables| tables.groups.contains_key(&number))
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> &BTreeMap<DatapathId, Tables> {
        &self.switches
    }

    /// Sends what is for a rack by these next hops, or nowhere.
    pub(crate) fn route(&mut self, switch: DatapathId, rack: u32, next_hops: Option<NextHops>) {
        if self.unicast == Unicast::Normal {
            return;
        }
        let Some(key) = of_rack(rack) else { return };
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
        let before = tables.flows.get(&key).and_then(failover::of_flow);
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
        let said = |kind| (of_port(port.number, kind), flow(FOR_NODE_PORT, to_controller()));
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
        let key = of_port(end.number, EtherType::LLDP);
        // Not that of a node at this port.
        let ours = |flow: &Flow| is_of_link(flow.cookie);
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
            let address = IpVersion::of_tree(tree, nodes).address(number);
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
                if self.group(switch, number, Some(Buckets::All(ports))) || !left.is_empty() {
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
    fn flow(&mut self, switch: DatapathId, key: FlowKey, flow: Option<Flow>) -> bool {
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
    fn group(&mut self, switch: DatapathId, number: u32, buckets: Option<Buckets>) -> bool {
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

/// The flow by which packets come into a tree at a port.
fn tree_flow((number, address): (u32, IpAddr), port: u32, sender: Option<IpAddr>) -> (FlowKey, Flow) {
    let matching = into_tree(Match::new().in_port(PortNo(port)), address, sender);
    let purpose = FOR_TREE | u64::from(number - GROUPS.start);
    (FlowKey::new(TREE, matching), flow(purpose, vec![Action::Group(GroupId(number))]))
}

/// What every switch holds: LLDP and, unless switches forward unicast, ARP come to the controller, the rest goes nowhere, and what of that is for a
/// group is counted.
pub(crate) fn always(unicast: Unicast, carries_hosts: bool) -> Tables {
    let arp = (ARP, Match::new().eth_type(EtherType::ARP), 0, to_controller());
    let flows = [
        (LLDP, Match::new().eth_type(EtherType::LLDP), 0, to_controller()),
        (NON_MEMBER, IpVersion::V4.of_trees(), FOR_NON_MEMBERS, Vec::new()),
    ];
    let entry =
        |(priority, matching, purpose, actions)| (FlowKey::new(priority, matching), flow(purpose, actions));
    // Who forwards by what it learns floods the question instead.
    let arp = (unicast == Unicast::Routed).then_some(arp);
    // Else there are no nodes whose agents speak IPv6.
    let ipv6 = (carries_hosts || unicast == Unicast::Normal)
        .then(|| (NON_MEMBER, IpVersion::V6.of_trees(), FOR_NON_MEMBERS, Vec::new()));
    let broadcasts = carries_hosts.then(hosts::broadcasts).into_iter().flatten();
    let flows = flows.into_iter().chain(ipv6).chain(arp).map(entry).chain(broadcasts).chain([drop_rest(0)]);
    Tables { flows: flows.collect(), groups: BTreeMap::new() }
}

/// The flow that drops what no other matches (OpenFlow 1.3.5, 5.4, has the switch drop it too, unless it has a flow of its
/// own that floods).
fn drop_rest(purpose: u64) -> (FlowKey, Flow) {
    (FlowKey::new(DROP, Match::new()), flow(purpose, Vec::new()))
}

fn to_controller() -> Vec<Action> {
    vec![Action::output(PortNo::CONTROLLER)]
}

/// The flow for frames of a kind that come by a port, for the controller.
fn of_port(port: u32, kind: EtherType) -> FlowKey {
    FlowKey::new(OF_PORT, Match::new().in_port(PortNo(port)).eth_type(kind))
}

fn flow(purpose: u64, actions: Vec<Action>) -> Flow {
    let instructions = match actions.is_empty() {
        true => Vec::new(),
        false => vec![Instruction::ApplyActions(actions)],
    };
    Flow { cookie: COOKIE | purpose, instructions: instructions.into() }
}

#[cfg(test)]
mod tests;
