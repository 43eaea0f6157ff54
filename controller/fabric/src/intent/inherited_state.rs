//! State that a switch holds from an earlier controller, as its tables reveal it.

use super::cookies::{COOKIE, FOR_HOST, FOR_HOST_HERE, FOR_NORMAL, FOR_TOR};
use super::flows::racks_of;
use super::hosts::HostKey;
use super::tables::{FlowEntry, FlowKey, GROUPS, GroupBuckets, SwitchTables};
use crate::frames::vlan::Vlan;
use rs_openflow::{Action, Instruction, Masked, Oxm};
use std::collections::{BTreeMap, BTreeSet};

/// State that a switch kept from the previous controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InheritedState {
    /// Number of the rack for which the switch was the ToR.
    pub(crate) rack: Option<u32>,
    /// Racks for which the switch has flows to PMACs of the rack.
    pub(crate) racks: BTreeSet<u32>,
    /// Ports of the switch in each tree, by the tree's number.
    pub(crate) trees: BTreeMap<u32, BTreeSet<u32>>,
    /// Ports from which the switch accepts frames for its own forwarding.
    pub(crate) open: BTreeSet<u32>,
    /// Hosts without an agent.
    pub(crate) hosts: InheritedHosts,
}

impl InheritedState {
    /// Derives the state from the tables of a switch.
    pub(crate) fn read(tables: &SwitchTables) -> InheritedState {
        let of_tor = tables.flows.values().find(|flow| flow.cookie & 0xff00_0000 == FOR_TOR);
        let rack = of_tor.map(|flow| (flow.cookie & 0xffff) as u32);
        let racks = tables.flows.keys().flat_map(racks_of).collect();
        let trees = tables.groups.range(GROUPS).map(|(id, buckets)| match buckets {
            Some(GroupBuckets::All(ports)) => (*id, ports.clone()),
            _ => (*id, BTreeSet::new()),
        });
        let trees = trees.collect();
        let open = tables.flows.iter().filter(|(_, flow)| flow.cookie == COOKIE | FOR_NORMAL);
        let open = open.filter_map(|(key, _)| match key.matching.fields.first() {
            Some(Oxm::InPort(port)) => Some(port.value.0),
            _ => None,
        });
        InheritedState { rack, racks, trees, open: open.collect(), hosts: InheritedHosts::read(tables) }
    }
}

/// Hosts without an agent that a switch has flows for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InheritedHosts {
    /// Hosts at ports of the switch.
    pub(crate) here: Vec<(HostKey, u32)>,
    /// Flows towards hosts of other racks.
    pub(crate) elsewhere: BTreeMap<u32, Vec<FlowKey>>,
}

impl InheritedHosts {
    fn read(tables: &SwitchTables) -> InheritedHosts {
        let mut inherited = InheritedHosts::default();
        for (key, flow) in &tables.flows {
            let rack = (flow.cookie & 0xffff) as u32;
            match flow.cookie & 0xff00_0000 {
                FOR_HOST => inherited.elsewhere.entry(rack).or_default().push(key.clone()),
                FOR_HOST_HERE => inherited.here.extend(host_of(key).zip(output_of(flow))),
                _ => {}
            }
        }
        inherited
    }
}

fn host_of(key: &FlowKey) -> Option<HostKey> {
    match key.matching.fields[..] {
        [Oxm::EthDst(Masked { value: mac, mask: None }), Oxm::VlanVid(Masked { value, mask: None })] => {
            Some(HostKey { mac, vlan: Vlan::from_field(value) })
        }
        _ => None,
    }
}

fn output_of(flow: &FlowEntry) -> Option<u32> {
    match &flow.instructions[..] {
        [Instruction::ApplyActions(actions)] => match actions[..] {
            [Action::Output { port, .. }] => Some(port.0),
            _ => None,
        },
        _ => None,
    }
}
