//! The report of an observing controller as a message to tools.

use cool_fabric::{Observation, ObservedPort, ObservedSwitch, Port, PortPeer, RuleCounts};
use cool_proto::control::{self, observed_port};

/// Returns the report as tools receive it.
pub(crate) fn observation_message(observation: Observation) -> control::Observation {
    control::Observation {
        switches: observation.switches.into_iter().map(switch).collect(),
        group_nodes: observation.group_nodes,
        group_trees: observation.group_trees,
        unknown: observation.unknown,
    }
}

fn switch(observed: ObservedSwitch) -> control::ObservedSwitch {
    let own_flows = observed.planned_flows.into_iter();
    let own_flows = own_flows
        .map(|planned| control::PlannedFlows { purpose: planned.purpose.to_owned(), flows: planned.flows });
    let meters = observed.inventory.as_ref().and_then(|inventory| inventory.meter_demand);
    control::ObservedSwitch {
        datapath_id: observed.datapath_id.0,
        name: observed.name,
        model: observed.model,
        tables: observed.tables.into(),
        table: observed.table.into(),
        ports: observed.ports.into_iter().map(port).collect(),
        capacity: Some(control::TableCapacity {
            flows: observed.capacity.flows,
            groups: observed.capacity.groups,
            failovers: observed.capacity.failovers,
        }),
        present: observed.inventory.map(|inventory| control::PresentEntries {
            flows: inventory.flows,
            table_flows: inventory.table_flows,
            foreign_groups: inventory.foreign_groups,
            meters: inventory.meters,
        }),
        planned_flows: own_flows.collect(),
        planned_groups: number(observed.planned_groups),
        planned_meters: meters
            .map(|meters| control::MeterDemand { needed: meters.needed, most: meters.most }),
        for_group: Some(entries(observed.for_group)),
        changes: observed.withheld.map(|changes| control::EntryChanges {
            present: Some(entries(changes.present)),
            put: Some(entries(changes.put)),
            deleted: Some(entries(changes.deleted)),
        }),
        obstacles: observed.obstacles,
        unknown: observed.unknown,
    }
}

fn port(observed: ObservedPort) -> control::ObservedPort {
    let ObservedPort { number, up, bytes_per_second, peer } = observed;
    let end = |port: Port| control::SwitchPort { datapath_id: port.switch.0, port: port.number };
    let peer = match peer {
        PortPeer::Switch(peer) => Some(observed_port::Peer::Switch(end(peer))),
        PortPeer::PerhapsSwitch(peer) => Some(observed_port::Peer::PerhapsSwitch(end(peer))),
        PortPeer::Node(name) => Some(observed_port::Peer::Node(name)),
        PortPeer::Unknown => None,
    };
    control::ObservedPort { number, up, bytes_per_second, peer }
}

fn entries(counts: RuleCounts) -> control::Entries {
    control::Entries { flows: number(counts.flows), groups: number(counts.groups) }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
