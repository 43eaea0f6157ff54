//! Snapshots of the network as messages to tools.

use crate::costs::MeasuredCosts;
use crate::groups::{MemberPlace, group_parameters};
use crate::observation_message::observation_message;
use crate::service::Service;
use cool_fabric::{
    HostView, LldpNeighbor, MulticastView, Observation, Port, RackSource, ReportedRack, TopologySnapshot,
};
use cool_proto::control::{self, Link, Node, Switch, Topology};
use std::time::Duration;

impl Service {
    /// Returns a snapshot of the network as tools receive it, with the report of an observing
    /// controller.
    pub(crate) fn topology(&self, network: &TopologySnapshot, observation: Option<Observation>) -> Topology {
        let switch = |s: &cool_fabric::SwitchView| Switch {
            datapath_id: s.datapath_id.0,
            name: s.name.clone(),
            rack: s.rack.unwrap_or(0),
            tor: s.rack.is_some(),
            ports: s.ports,
        };
        let link = |l: &cool_fabric::LinkView| Link {
            a: l.a.switch.0,
            a_port: l.a.number,
            b: l.b.switch.0,
            b_port: l.b.number,
            bytes_per_second: l.bytes_per_second,
        };
        let node = |n: &cool_fabric::NodeView| {
            let session = self.agents.get(&n.name);
            let port = n.location.and_then(|location| location.port);
            let reported = network.reported_racks.get(&n.name).filter(|_| port.is_none());
            Node {
                id: session.as_ref().map_or(0, |s| s.number),
                name: n.name.clone(),
                ip: n.ip.to_string(),
                mac: n.mac.to_string(),
                located: n.location.is_some(),
                datapath_id: port.map_or(0, |port| port.switch.0),
                port: port.map_or(0, |port| port.number),
                rack: n.location.map_or(0, |l| l.rack),
                slots: session.map_or(0, |s| s.agent.slots),
                bytes_per_second: n.location.map_or(0, |l| l.bytes_per_second),
                away_ms: self.presence.away_for(&n.name).map(milliseconds),
                is_reported: reported.is_some(),
                rack_name: reported.and_then(|rack| rack.name.clone()).unwrap_or_default(),
                rack_source: rack_source(port, reported).into(),
                neighbor: reported.and_then(|rack| rack.neighbor.clone()).map(neighbor_message),
            }
        };
        let own = self.presence.warnings().into_iter().chain(self.jobs.warnings());
        Topology {
            switches: network.switches.iter().map(switch).collect(),
            links: network.links.iter().map(link).collect(),
            nodes: network.nodes.iter().map(node).collect(),
            warnings: own.chain(network.warnings.iter().cloned()).collect(),
            measurements: Some(self.measurements(network)),
            hosts: network.hosts.iter().map(host_message).collect(),
            multicast: network.multicast.iter().map(multicast_message).collect(),
            observation: observation.map(observation_message),
        }
    }

    fn measurements(&self, network: &TopologySnapshot) -> control::Measurements {
        let place = |n: &cool_fabric::NodeView| {
            Some(MemberPlace { session: self.agents.get(&n.name)?, rack: n.location?.rack })
        };
        let places: Vec<MemberPlace> = network.nodes.iter().filter_map(place).collect();
        let known = self.prober.measurements();
        let cost_model = group_parameters::cost_model(&places, network, &known);
        control::Measurements {
            rack: MeasuredCosts::message(known.rack),
            core: MeasuredCosts::message(known.core),
            pending: u32::try_from(self.prober.pending()).unwrap_or(u32::MAX),
            cost_model: group_parameters::text(&cost_model),
        }
    }
}

/// Returns how the rack of a node was found.
fn rack_source(port: Option<Port>, reported: Option<&ReportedRack>) -> control::RackSource {
    match reported.map(|rack| rack.source) {
        Some(RackSource::AgentOption) => control::RackSource::Option,
        Some(RackSource::RackTable) => control::RackSource::File,
        Some(RackSource::Neighbor) => control::RackSource::Neighbor,
        Some(RackSource::Nothing) => control::RackSource::None,
        None if port.is_some() => control::RackSource::Switch,
        None => control::RackSource::Unknown,
    }
}

fn neighbor_message(neighbor: LldpNeighbor) -> control::LldpNeighbor {
    let LldpNeighbor { chassis, port, system_name } = neighbor;
    control::LldpNeighbor { chassis, port, system_name: system_name.unwrap_or_default() }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn host_message(host: &HostView) -> control::Host {
    control::Host {
        mac: host.mac.to_string(),
        vlan: host.vlan.map(u32::from),
        addresses: host.addresses.iter().map(ToString::to_string).collect(),
        datapath_id: host.port.switch.0,
        port: host.port.number,
    }
}

fn multicast_message(multicast: &MulticastView) -> control::Multicast {
    let port = |port: &Port| control::SwitchPort { datapath_id: port.switch.0, port: port.number };
    control::Multicast {
        address: multicast.address.clone(),
        vlan: multicast.vlan.map(u32::from),
        receivers: multicast.receivers.iter().map(port).collect(),
    }
}
