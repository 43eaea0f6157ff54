//! What a controller with --observe reports, as text and as JSON.

use super::{port as port_text, section};
use crate::units;
use cool_proto::control::observed_port::Peer;
use cool_proto::control::{
    Entries, EntryChanges, MeterDemand, Observation, ObservedPort, ObservedSwitch, PlannedFlows,
    PresentEntries, SwitchPort, TableCapacity, Topology,
};
use cool_topology::Port;
use serde_json::json;

/// Appends the report to a text.
pub(super) fn describe(topology: &Topology, text: &mut String) {
    let Some(observation) = &topology.observation else { return };
    *text += "\nThe controller only observes (--observe): it has changed nothing in any switch.\n";
    for switch in &observation.switches {
        let model = if switch.model.is_empty() { String::new() } else { format!(" ({})", switch.model) };
        let lines = switch_lines(topology, observation, switch);
        section(text, &format!("observed switch {}{model}:", switch.name), lines.into_iter());
    }
    section(text, "not found out:", observation.unknown.iter().cloned());
}

fn switch_lines(topology: &Topology, observation: &Observation, switch: &ObservedSwitch) -> Vec<String> {
    let mut lines: Vec<String> = switch.ports.iter().map(|port| port_line(topology, port)).collect();
    lines.push(capacity(switch));
    lines.push(present(switch));
    lines.push(planned(switch));
    lines.extend(changes(switch));
    lines.extend(for_group(observation, switch));
    lines.extend(switch.obstacles.iter().map(|obstacle| format!("obstacle: {obstacle}")));
    lines.extend(switch.unknown.iter().map(|unknown| format!("not found out: {unknown}")));
    lines
}

fn port_line(topology: &Topology, port: &ObservedPort) -> String {
    let end = |end: &SwitchPort| port_text(topology, end.datapath_id, end.port);
    let peer = match &port.peer {
        Some(Peer::Switch(peer)) => end(peer),
        Some(Peer::PerhapsSwitch(peer)) => {
            format!("perhaps {}, LLDP arrived in one direction only", end(peer))
        }
        Some(Peer::Node(name)) => name.clone(),
        None if port.up => "unknown".to_owned(),
        None => "down".to_owned(),
    };
    let rate = units::rate(port.bytes_per_second).map_or(String::new(), |rate| format!(", {rate}"));
    format!("port {}{rate}: {peer}", Port::number_text(port.number))
}

/// Returns a number, or that the switch does not report it.
fn known(number: Option<u32>) -> String {
    number.map_or_else(|| "not reported".to_owned(), |number| number.to_string())
}

fn capacity(switch: &ObservedSwitch) -> String {
    let TableCapacity { flows, groups, failovers } = switch.capacity.unwrap_or_default();
    let meters = switch.planned_meters.map_or(0, |meters| meters.most);
    format!(
        "capacity: flows of table {} of {}: {}; groups: {}, for fast failover: {}; meters: {meters}",
        switch.table,
        switch.tables,
        known(flows),
        known(groups),
        known(failovers),
    )
}

fn present(switch: &ObservedSwitch) -> String {
    let Some(present) = &switch.present else { return "holds: not counted yet".to_owned() };
    let PresentEntries { flows, table_flows, foreign_groups, meters } = present;
    let own = switch.changes.as_ref().and_then(|changes| changes.present).unwrap_or_default();
    let others = |all: &Option<u32>| known(all.map(|all| all.saturating_sub(own.flows)));
    format!(
        "holds: flows of others: {}, in table {}: {}; groups of others: {}; meters: {}; COOL's own: {}, {}",
        others(flows),
        switch.table,
        others(table_flows),
        known(*foreign_groups),
        known(*meters),
        units::count(own.flows as usize, "flow"),
        units::count(own.groups as usize, "group"),
    )
}

fn planned(switch: &ObservedSwitch) -> String {
    let all: u32 = switch.planned_flows.iter().map(|planned| planned.flows).sum();
    let purpose = |PlannedFlows { purpose, flows }: &PlannedFlows| format!("{purpose}: {flows}");
    let purposes: Vec<String> = switch.planned_flows.iter().map(purpose).collect();
    let meters = switch.planned_meters.map_or(0, |meters| meters.needed);
    format!(
        "would hold: {} ({}), {} for fast failover, {}",
        units::count(all as usize, "flow"),
        purposes.join(", "),
        units::count(switch.planned_groups as usize, "group"),
        units::count(meters as usize, "meter"),
    )
}

fn changes(switch: &ObservedSwitch) -> Option<String> {
    let EntryChanges { put, deleted, .. } = switch.changes?;
    let (put, deleted) = (put.unwrap_or_default(), deleted.unwrap_or_default());
    Some(format!(
        "would change: {} and {} added or replaced, {} and {} of COOL deleted, none of others",
        units::count(put.flows as usize, "flow"),
        units::count(put.groups as usize, "group"),
        units::count(deleted.flows as usize, "flow"),
        units::count(deleted.groups as usize, "group"),
    ))
}

fn for_group(observation: &Observation, switch: &ObservedSwitch) -> Option<String> {
    let nodes = observation.group_nodes.len();
    let Entries { flows, groups } = switch.for_group.unwrap_or_default();
    (nodes > 0).then(|| {
        format!(
            "a group with one rank on each of {} ({}) would add: {}, {}",
            units::count(nodes, "node"),
            units::count(observation.group_trees as usize, "tree"),
            units::count(flows as usize, "flow"),
            units::count(groups as usize, "group"),
        )
    })
}

/// Returns the report as JSON.
pub(super) fn json(observation: &Observation) -> serde_json::Value {
    let switches: Vec<_> = observation.switches.iter().map(switch_json).collect();
    json!({
        "switches": switches,
        "group_nodes": observation.group_nodes,
        "group_trees": observation.group_trees,
        "unknown": observation.unknown,
    })
}

fn switch_json(switch: &ObservedSwitch) -> serde_json::Value {
    let entries = |entries: Entries| json!({ "flows": entries.flows, "groups": entries.groups });
    let capacity = switch.capacity.unwrap_or_default();
    let present = switch.present.as_ref().map(|present| {
        json!({
            "flows": present.flows,
            "table_flows": present.table_flows,
            "foreign_groups": present.foreign_groups,
            "meters": present.meters,
        })
    });
    let planned = |planned: &PlannedFlows| json!({ "purpose": planned.purpose, "flows": planned.flows });
    let changes = switch.changes.map(|changes| {
        json!({
            "present": entries(changes.present.unwrap_or_default()),
            "put": entries(changes.put.unwrap_or_default()),
            "deleted": entries(changes.deleted.unwrap_or_default()),
        })
    });
    let meters = |MeterDemand { needed, most }: &MeterDemand| json!({ "needed": needed, "most": most });
    json!({
        "datapath_id": switch.datapath_id,
        "name": switch.name,
        "model": Some(&switch.model).filter(|model| !model.is_empty()),
        "tables": switch.tables,
        "table": switch.table,
        "ports": switch.ports.iter().map(port_json).collect::<Vec<_>>(),
        "capacity": {
            "flows": capacity.flows,
            "groups": capacity.groups,
            "failovers": capacity.failovers,
        },
        "present": present,
        "planned_flows": switch.planned_flows.iter().map(planned).collect::<Vec<_>>(),
        "planned_groups": switch.planned_groups,
        "planned_meters": switch.planned_meters.as_ref().map(meters),
        "for_group": entries(switch.for_group.unwrap_or_default()),
        "changes": changes,
        "obstacles": switch.obstacles,
        "unknown": switch.unknown,
    })
}

fn port_json(port: &ObservedPort) -> serde_json::Value {
    let end = |end: &SwitchPort| json!({ "datapath_id": end.datapath_id, "port": end.port });
    let (kind, peer) = match &port.peer {
        Some(Peer::Switch(peer)) => (Some("switch"), end(peer)),
        Some(Peer::PerhapsSwitch(peer)) => (Some("perhaps_switch"), end(peer)),
        Some(Peer::Node(name)) => (Some("node"), json!(name)),
        None => (None, serde_json::Value::Null),
    };
    let rate = Some(port.bytes_per_second).filter(|rate| *rate > 0);
    json!({
        "number": port.number,
        "up": port.up,
        "bytes_per_second": rate,
        "peer_kind": kind,
        "peer": peer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Switch;

    fn observed() -> Topology {
        let port =
            |number, peer| ObservedPort { number, up: number < 4, bytes_per_second: 125_000_000, peer };
        let peer = || SwitchPort { datapath_id: 2, port: 9 };
        let switch = ObservedSwitch {
            datapath_id: 1,
            name: "leaf1".to_owned(),
            model: "Maker Box 1.0".to_owned(),
            tables: 8,
            table: 0,
            ports: vec![
                port(1, Some(Peer::Switch(peer()))),
                port(2, Some(Peer::PerhapsSwitch(peer()))),
                port(3, Some(Peer::Node("h1".to_owned()))),
                port(4, None),
            ],
            capacity: Some(TableCapacity { flows: Some(2000), groups: Some(64), failovers: None }),
            present: Some(PresentEntries {
                flows: Some(12),
                table_flows: Some(7),
                foreign_groups: Some(3),
                meters: None,
            }),
            planned_flows: vec![
                PlannedFlows { purpose: "every switch".to_owned(), flows: 15 },
                PlannedFlows { purpose: "nodes".to_owned(), flows: 3 },
            ],
            planned_groups: 1,
            planned_meters: Some(MeterDemand { needed: 5, most: 100 }),
            for_group: Some(Entries { flows: 4, groups: 2 }),
            changes: Some(EntryChanges {
                present: Some(Entries { flows: 2, groups: 0 }),
                put: Some(Entries { flows: 18, groups: 1 }),
                deleted: Some(Entries { flows: 2, groups: 0 }),
            }),
            obstacles: vec!["it is small".to_owned()],
            unknown: vec!["its color".to_owned()],
        };
        let other = Switch { datapath_id: 2, name: "spine1".to_owned(), ..Switch::default() };
        Topology {
            switches: vec![other],
            observation: Some(Observation {
                switches: vec![switch],
                group_nodes: vec!["h1".to_owned(), "h2".to_owned()],
                group_trees: 2,
                unknown: vec!["hosts".to_owned()],
            }),
            ..Topology::default()
        }
    }

    #[test]
    fn the_report_of_an_observer_is_readable() {
        let mut text = String::new();
        describe(&observed(), &mut text);
        let expected = "
The controller only observes (--observe): it has changed nothing in any switch.

observed switch leaf1 (Maker Box 1.0):
  port 1, 1 Gbit/s: spine1 port 9
  port 2, 1 Gbit/s: perhaps spine1 port 9, LLDP arrived in one direction only
  port 3, 1 Gbit/s: h1
  port 4, 1 Gbit/s: down
  capacity: flows of table 0 of 8: 2000; groups: 64, for fast failover: not reported; meters: 100
  holds: flows of others: 10, in table 0: 5; groups of others: 3; meters: not reported; COOL's own: 2 flows, 0 groups
  would hold: 18 flows (every switch: 15, nodes: 3), 1 group for fast failover, 5 meters
  would change: 18 flows and 1 group added or replaced, 2 flows and 0 groups of COOL deleted, none of others
  a group with one rank on each of 2 nodes (2 trees) would add: 4 flows, 2 groups
  obstacle: it is small
  not found out: its color

not found out:
  hosts
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_report_of_an_observer_is_complete_as_json() {
        let report = json(observed().observation.as_ref().unwrap());
        let switch = &report["switches"][0];
        assert_eq!(switch["ports"][1]["peer_kind"], "perhaps_switch");
        assert_eq!(switch["ports"][1]["peer"]["port"], 9);
        assert_eq!(switch["ports"][3]["peer"], serde_json::Value::Null);
        assert_eq!(switch["capacity"]["failovers"], serde_json::Value::Null);
        assert_eq!(switch["present"]["table_flows"], 7);
        assert_eq!(switch["changes"]["deleted"]["flows"], 2);
        assert_eq!(switch["planned_meters"]["needed"], 5);
        assert_eq!(report["group_nodes"], json!(["h1", "h2"]));
    }
}
