//! What an observing controller has found out about the switches, and what it would install: plain
//! values, without OpenFlow.

use crate::api::{DatapathId, Port, TableCapacity};
use crate::intent::tables::RuleCounts;

/// The report of an observing controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// Switches, in order of datapath id.
    pub switches: Vec<ObservedSwitch>,
    /// Nodes of a group with one rank on each node, for which entries were computed. It contains
    /// all nodes that reach each other over known links, in one VLAN and with one version of IP.
    pub group_nodes: Vec<String>,
    /// Number of trees of that group.
    pub group_trees: u32,
    /// What could not be found out about the network, each as a sentence with the reason.
    pub unknown: Vec<String>,
}

/// A switch, as it is and as it would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSwitch {
    /// Datapath id.
    pub datapath_id: DatapathId,
    /// Name as in [`SwitchView::name`](crate::SwitchView::name).
    pub name: String,
    /// Manufacturer, hardware and software; empty if it does not report them.
    pub model: String,
    /// Number of its flow tables.
    pub tables: u8,
    /// The flow table that this controller would use.
    pub table: u8,
    /// Ports, by number.
    pub ports: Vec<ObservedPort>,
    /// Capacity that it reports, within the limits of the operator. A number is `None` if it
    /// reports none.
    pub capacity: TableCapacity,
    /// Its entries. `None` until they have been counted.
    pub inventory: Option<SwitchInventory>,
    /// Flows that this controller would install now, by purpose.
    pub planned_flows: Vec<PlannedFlows>,
    /// Groups that this controller would install now, for fast failover.
    pub planned_groups: usize,
    /// The difference to the entries of this controller that the switch has. `None` until they have
    /// been read.
    pub withheld: Option<WithheldChanges>,
    /// Entries that the group of [`Observation::group_nodes`] would take in addition.
    pub for_group: RuleCounts,
    /// Why the switch cannot carry everything, each as a sentence.
    pub obstacles: Vec<String>,
    /// What could not be found out about the switch, each as a sentence with the reason.
    pub unknown: Vec<String>,
}

/// Flows for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFlows {
    /// The purpose, in words.
    pub purpose: &'static str,
    /// Number of flows.
    pub flows: u32,
}

/// A port of an observed switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPort {
    /// Number.
    pub number: u32,
    /// Whether it has a link.
    pub up: bool,
    /// Rate; 0 if unknown.
    pub bytes_per_second: u64,
    /// What is connected to it.
    pub peer: PortPeer,
}

/// What is connected to a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortPeer {
    /// This port of a switch: both have received LLDP of each other.
    Switch(Port),
    /// Perhaps this port of a switch: LLDP arrived in one direction only.
    PerhapsSwitch(Port),
    /// This node.
    Node(String),
    /// Nothing is known, because no LLDP arrived.
    Unknown,
}

/// Numbers of entries in a switch, whichever controller made them. A number is `None` if the switch
/// does not report it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchInventory {
    /// Flows in all tables.
    pub flows: Option<u32>,
    /// Flows in the table that this controller would use.
    pub table_flows: Option<u32>,
    /// Groups with numbers that do not belong to this controller.
    pub foreign_groups: Option<u32>,
    /// Meters.
    pub meters: Option<u32>,
    /// Meters that this controller would use. `None` if the switch has no suitable ones.
    pub meter_demand: Option<MeterDemand>,
    /// Number of bytes of a packet that the switch sends to this controller if no flow matches.
    pub miss_send_len: Option<u16>,
}

/// Meters that this controller would use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterDemand {
    /// Number of meters.
    pub needed: u32,
    /// Number of meters of the switch.
    pub most: u32,
}

/// Entries of this controller in an observed switch, and the changes that are not sent to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithheldChanges {
    /// Entries with this controller's cookie or group numbers that the switch has, for example of
    /// an earlier controller.
    pub present: RuleCounts,
    /// Entries that would be added or replaced.
    pub put: RuleCounts,
    /// Entries that would be deleted. Entries of others never are.
    pub deleted: RuleCounts,
}
