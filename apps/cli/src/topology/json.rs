//! The topology as JSON.

use super::{is_at_switch, located_by, observation};
use crate::terminal_text;
use cool_proto::control::{LldpNeighbor, Measured, Measurements, Multicast, SwitchPort, Topology};
use serde::Serialize;

/// Returns the topology as one JSON document.
pub(super) fn json(topology: &Topology) -> String {
    #[derive(Serialize)]
    struct TopologyJson<'a> {
        switches: Vec<SwitchJson<'a>>,
        links: Vec<LinkJson>,
        nodes: Vec<NodeJson<'a>>,
        hosts: Vec<HostJson<'a>>,
        multicast: Vec<serde_json::Value>,
        measurements: serde_json::Value,
        observation: Option<serde_json::Value>,
        warnings: &'a [String],
    }
    #[derive(Serialize)]
    struct SwitchJson<'a> {
        datapath_id: u64,
        name: &'a str,
        rack: Option<u32>,
        ports: u32,
    }
    #[derive(Serialize)]
    struct LinkJson {
        a: u64,
        a_port: u32,
        b: u64,
        b_port: u32,
        bytes_per_second: Option<u64>,
    }
    #[derive(Serialize)]
    struct NodeJson<'a> {
        name: &'a str,
        ip: &'a str,
        mac: &'a str,
        slots: u32,
        located: bool,
        located_by: Option<&'static str>,
        datapath_id: Option<u64>,
        port: Option<u32>,
        rack: Option<u32>,
        rack_name: Option<&'a str>,
        neighbor: Option<serde_json::Value>,
        bytes_per_second: Option<u64>,
        away_ms: Option<u64>,
    }
    #[derive(Serialize)]
    struct HostJson<'a> {
        mac: &'a str,
        vlan: Option<u32>,
        addresses: &'a [String],
        datapath_id: u64,
        port: u32,
    }
    let known = |rate: u64| (rate > 0).then_some(rate);
    let switches = topology.switches.iter().map(|s| SwitchJson {
        datapath_id: s.datapath_id,
        name: &s.name,
        rack: s.tor.then_some(s.rack),
        ports: s.ports,
    });
    let links = topology.links.iter().map(|l| LinkJson {
        a: l.a,
        a_port: l.a_port,
        b: l.b,
        b_port: l.b_port,
        bytes_per_second: known(l.bytes_per_second),
    });
    let nodes = topology.nodes.iter().map(|n| NodeJson {
        name: &n.name,
        ip: &n.ip,
        mac: &n.mac,
        slots: n.slots,
        located: n.located,
        located_by: n.located.then(|| located_by(n)),
        datapath_id: is_at_switch(n).then_some(n.datapath_id),
        port: is_at_switch(n).then_some(n.port),
        rack: n.located.then_some(n.rack),
        rack_name: Some(n.rack_name.as_str()).filter(|name| !name.is_empty()),
        neighbor: n.neighbor.as_ref().map(neighbor),
        bytes_per_second: known(n.bytes_per_second),
        away_ms: n.away_ms,
    });
    let hosts = topology.hosts.iter().map(|h| HostJson {
        mac: &h.mac,
        vlan: h.vlan,
        addresses: &h.addresses,
        datapath_id: h.datapath_id,
        port: h.port,
    });
    let document = TopologyJson {
        switches: switches.collect(),
        links: links.collect(),
        nodes: nodes.collect(),
        hosts: hosts.collect(),
        multicast: topology.multicast.iter().map(multicast).collect(),
        measurements: topology.measurements.as_ref().map_or(serde_json::Value::Null, measurements),
        observation: topology.observation.as_ref().map(observation::json),
        warnings: &topology.warnings,
    };
    terminal_text::json(&serde_json::json!(document))
}

fn neighbor(LldpNeighbor { chassis, port, system_name }: &LldpNeighbor) -> serde_json::Value {
    let system_name = Some(system_name).filter(|name| !name.is_empty());
    serde_json::json!({ "chassis": chassis, "port": port, "system_name": system_name })
}

fn multicast(multicast: &Multicast) -> serde_json::Value {
    let port = |at: &SwitchPort| serde_json::json!({ "datapath_id": at.datapath_id, "port": at.port });
    let receivers: Vec<_> = multicast.receivers.iter().map(port).collect();
    serde_json::json!({ "address": multicast.address, "vlan": multicast.vlan, "receivers": receivers })
}

fn measurements(found: &Measurements) -> serde_json::Value {
    let level = |level: &Measured| {
        serde_json::json!({
            "probes": level.probes,
            "latency_ns": level.latency_ns,
            "bytes_per_second": level.bytes_per_second,
            "burst": level.burst,
        })
    };
    serde_json::json!({
        "rack": found.rack.as_ref().map(level),
        "core": found.core.as_ref().map(level),
        "pending": found.pending,
        "cost_model": serde_json::from_str::<serde_json::Value>(&found.cost_model).ok(),
    })
}
