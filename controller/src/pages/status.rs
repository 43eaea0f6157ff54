//! Status of a running controller as one value: the network with its load, groups, jobs and events.
//! [`crate::pages::metrics`] and [`crate::pages::web`] present it.

use crate::agents::AgentRegistry;
use crate::agents::presence::AgentPresence;
use crate::flooding::{FloodedNodes, FloodingMonitor};
use crate::groups::{self, GroupRegistry};
use crate::jobs::JobRegistry;
use cool_daemon::log::EventLog;
use cool_fabric::Fabric;
use cool_fabric::{
    DatapathId, Histogram, Measurements, Port, PortLoad, RuleCounts, SwitchLoad, TopologySnapshot,
};
use cool_proto::control::{Group, JobView};
use cool_tls::Credentials;
use cool_topology::discovery::RefusedFrames;
use cool_topology::picture::{self, Picture};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Sources of the status.
#[derive(Clone)]
pub struct StatusSource {
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// The sessions of all agents.
    pub agents: Arc<AgentRegistry>,
    /// Which agents are connected.
    pub presence: Arc<AgentPresence>,
    /// The groups in use.
    pub groups: Arc<GroupRegistry>,
    /// Examines whether the network floods multicasts.
    pub flooding: Arc<FloodingMonitor>,
    /// The running jobs.
    pub jobs: Arc<JobRegistry>,
    /// The controller's certificates.
    pub credentials: Option<Credentials>,
    /// The log of events.
    pub events: EventLog,
}

/// The status at one moment. Links and ports are named as in trees: "s1:2-s3:1", "s3:4-h2".
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Switches by datapath id.
    pub switches: Vec<SwitchStatus>,
    /// Links between switches.
    pub links: Vec<LinkStatus>,
    /// Nodes by name.
    pub nodes: Vec<NodeStatus>,
    /// Hosts without an agent, by MAC address.
    pub hosts: Vec<HostStatus>,
    /// Groups by id.
    pub groups: Vec<GroupStatus>,
    /// Jobs by id.
    pub jobs: Vec<JobStatus>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// The last events, oldest first, as in the log.
    pub events: Vec<serde_json::Value>,
    /// Times from a change until the switch has confirmed it.
    #[serde(skip)]
    pub installation: Histogram,
    /// Times from when both ends are present until a link or node is discovered.
    #[serde(skip)]
    pub discovery: Histogram,
    /// The nodes that multicasts reach although they have not joined.
    #[serde(skip)]
    pub flooded: FloodedNodes,
    /// Rejected LLDP frames.
    #[serde(skip)]
    pub refused_lldp: RefusedFrames,
    /// Number of rejected switches, by cause.
    #[serde(skip)]
    pub not_admitted: BTreeMap<&'static str, u64>,
    /// First expiry of the certificates of the controller, the CA and the peers of sessions, in
    /// seconds since 1970.
    #[serde(skip)]
    pub certificates: BTreeMap<&'static str, i64>,
}

/// A switch.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchStatus {
    /// Datapath id in 16 hexadecimal digits.
    pub datapath_id: String,
    /// Name of the switch.
    pub name: String,
    /// Rack, if nodes are connected to the switch.
    pub rack: Option<u32>,
    /// Number of flows that it should hold.
    pub flows: usize,
    /// Number of group table entries that it should hold.
    pub groups: usize,
    /// Whether it supports meters.
    pub meters: bool,
    /// Number of dropped packets to groups from senders that are not members.
    pub outsiders: u64,
    /// Number of packet-ins.
    pub packet_ins: u64,
    /// Number of packet-ins dropped because a port exceeded its limit.
    pub packet_ins_dropped: u64,
    /// Load by port number.
    #[serde(skip)]
    pub ports: BTreeMap<u32, PortLoad>,
}

/// A link between switches, or between a switch and a node, with its load in each direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStatus {
    /// Name of the link, as in trees.
    pub name: String,
    /// Capacity. `None` if unknown.
    pub bytes_per_second: Option<u64>,
    /// Current load from the end that is named first, in bytes per second.
    pub forth: f64,
    /// Current load to that end.
    pub back: f64,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Unique name.
    pub name: String,
    /// Address on the data network.
    pub ip: String,
    /// Rack, if the node has been located.
    pub rack: Option<u32>,
    /// Maximum number of ranks.
    pub slots: u32,
    /// For how long its agent has been disconnected, if it is.
    pub away_seconds: Option<f64>,
    /// Its link, if the node has been located. `forth` is the direction to the node.
    pub link: Option<LinkStatus>,
}

/// A host without an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// MAC address.
    pub mac: String,
    /// VLAN of its frames, if they are tagged.
    pub vlan: Option<u16>,
    /// Its announced IP addresses.
    pub addresses: Vec<String>,
    /// Its port, for example "s3:4".
    pub port: String,
}

/// A group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStatus {
    /// Id of the group.
    pub id: u64,
    /// Job of the group.
    pub job: u64,
    /// Number of ranks.
    pub ranks: usize,
    /// Names of its nodes.
    pub nodes: BTreeSet<String>,
    /// Multicast trees.
    pub trees: Vec<TreeStatus>,
}

/// A tree of a group.
#[derive(Clone, Debug, Serialize)]
pub struct TreeStatus {
    /// Description of the nodes that it connects.
    pub scope: String,
    /// Multicast address.
    pub address: String,
    /// Names of its links.
    pub links: Vec<String>,
}

/// A running job.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// Id of the job.
    pub id: u64,
    /// Id of its world group.
    pub group: u64,
    /// Its program. Empty for a resumed job until its caller has reconnected.
    pub program: String,
    /// Number of ranks.
    pub ranks: usize,
    /// State in one word.
    pub state: String,
    /// For how long this controller has known the job.
    pub seconds: u64,
}

impl StatusSource {
    /// Returns the current status.
    pub async fn snapshot(&self) -> Status {
        let groups = self.groups.list(&*self.network).await;
        let (network, measured) = (self.network.topology(), self.network.measurements());
        let view = NetworkView { network: &network, measured: &measured };
        let agent = |name: &str| {
            let slots = self.agents.get(name).map_or(0, |session| session.agent.slots);
            (slots, self.presence.away_for(name))
        };
        let away = self.presence.warnings();
        let events = self.events.last();
        Status {
            switches: view.switches(),
            links: view.links(),
            nodes: view.nodes(agent),
            hosts: view.hosts(),
            groups: groups.into_iter().map(GroupStatus::from).collect(),
            jobs: self.jobs.list(|_| true).into_iter().map(JobStatus::from).collect(),
            warnings: away.into_iter().chain(network.warnings.iter().cloned()).collect(),
            events: events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect(),
            installation: measured.installation.clone(),
            discovery: measured.discovery.clone(),
            flooded: self.flooding.flooded_nodes(),
            refused_lldp: measured.refused_lldp,
            not_admitted: measured.not_admitted,
            certificates: self.credentials.as_ref().map(certificates).unwrap_or_default(),
        }
    }

    /// Returns a picture of the network as SVG.
    pub fn draw(&self) -> String {
        picture(&self.network.topology()).svg()
    }
}

/// Returns the first expiry of each kind of certificate.
fn certificates(credentials: &Credentials) -> BTreeMap<&'static str, i64> {
    let own = credentials.expiries().into_iter().map(|expiry| (expiry.holder, expiry.until));
    let peers = credentials.peers().into_iter().map(|peer| (peer.identity.role.name(), peer.until));
    let mut first = BTreeMap::new();
    for (of, until) in own.chain(peers) {
        let until = until.unix_timestamp();
        first.entry(of).and_modify(|first: &mut i64| *first = until.min(*first)).or_insert(until);
    }
    first
}

/// Returns the network as a picture.
fn picture(network: &TopologySnapshot) -> Picture {
    let places: BTreeMap<DatapathId, usize> =
        network.switches.iter().enumerate().map(|(at, switch)| (switch.datapath_id, at)).collect();
    let end = |port: Port| Some((*places.get(&port.switch)?, port.number));
    let switch = |s: &cool_fabric::SwitchView| picture::PictureSwitch { name: s.name.clone(), rack: s.rack };
    let node = |n: &cool_fabric::NodeView| {
        let (switch, port) = end(n.location?.port?)?;
        Some((n.name.clone(), switch, port))
    };
    Picture {
        switches: network.switches.iter().map(switch).collect(),
        links: network.links.iter().filter_map(|l| Some([end(l.a)?, end(l.b)?])).collect(),
        nodes: network.nodes.iter().filter_map(node).collect(),
    }
}

/// The network and its load.
struct NetworkView<'a> {
    network: &'a TopologySnapshot,
    measured: &'a Measurements,
}

impl NetworkView<'_> {
    fn switches(&self) -> Vec<SwitchStatus> {
        let switch = |s: &cool_fabric::SwitchView| {
            let load = self.measured.switches.get(&s.datapath_id);
            let of = |count: fn(&SwitchLoad) -> u64| load.map_or(0, count);
            let rules = self.measured.rules.get(&s.datapath_id).copied().unwrap_or_default();
            let RuleCounts { flows, groups } = rules;
            SwitchStatus {
                datapath_id: s.datapath_id.to_string(),
                name: s.name.clone(),
                rack: s.rack,
                flows,
                groups,
                meters: load.is_some_and(|load| load.meters),
                outsiders: of(|load| load.nonmember_packets),
                packet_ins: of(|load| load.packet_ins),
                packet_ins_dropped: of(|load| load.packet_ins_dropped),
                ports: load.map(|load| load.ports.clone()).unwrap_or_default(),
            }
        };
        self.network.switches.iter().map(switch).collect()
    }

    fn links(&self) -> Vec<LinkStatus> {
        let link = |l: &cool_fabric::LinkView| {
            let name = self.network.link_name(l.a, l.b);
            let (forth, back) = (self.sends(l.a), self.sends(l.b));
            LinkStatus { name, bytes_per_second: known(l.bytes_per_second), forth, back }
        };
        self.network.links.iter().map(link).collect()
    }

    /// `agent` must return the slots of a node, and for how long its agent has been disconnected.
    fn nodes(&self, agent: impl Fn(&str) -> (u32, Option<Duration>)) -> Vec<NodeStatus> {
        let link = |n: &cool_fabric::NodeView| {
            let location = n.location?;
            let port = location.port?;
            let name = self.network.node_link_name(port, &n.name);
            let load = self.load(port);
            let (forth, back) = load.map_or((0.0, 0.0), |l| (l.tx_bytes_per_second, l.rx_bytes_per_second));
            Some(LinkStatus { name, bytes_per_second: known(location.bytes_per_second), forth, back })
        };
        let node = |n: &cool_fabric::NodeView| {
            let (slots, away) = agent(&n.name);
            NodeStatus {
                name: n.name.clone(),
                ip: n.ip.to_string(),
                rack: n.location.map(|location| location.rack),
                slots,
                away_seconds: away.map(|away| away.as_secs_f64()),
                link: link(n),
            }
        };
        self.network.nodes.iter().map(node).collect()
    }

    fn hosts(&self) -> Vec<HostStatus> {
        let host = |h: &cool_fabric::HostView| HostStatus {
            mac: h.mac.to_string(),
            vlan: h.vlan,
            addresses: h.addresses.iter().map(ToString::to_string).collect(),
            port: self.network.port_name(h.port),
        };
        self.network.hosts.iter().map(host).collect()
    }

    fn load(&self, port: Port) -> Option<&PortLoad> {
        self.measured.switches.get(&port.switch)?.ports.get(&port.number)
    }

    fn sends(&self, port: Port) -> f64 {
        self.load(port).map_or(0.0, |load| load.tx_bytes_per_second)
    }
}

impl From<Group> for GroupStatus {
    fn from(group: Group) -> GroupStatus {
        let tree = |tree: cool_proto::control::Tree| {
            let scope = groups::group_parameters::scope(&tree)
                .map_or_else(|| "unknown".to_owned(), |scope| scope.to_string());
            TreeStatus { scope, address: tree.address, links: tree.links }
        };
        GroupStatus {
            id: group.id,
            job: group.job,
            ranks: group.members.len(),
            nodes: group.members.into_iter().map(|member| member.node).collect(),
            trees: group.trees.into_iter().map(tree).collect(),
        }
    }
}

impl From<JobView> for JobStatus {
    fn from(view: JobView) -> JobStatus {
        JobStatus {
            id: view.job,
            group: view.group,
            state: view.state().as_str_name().to_lowercase(),
            ranks: view.nodes.len(),
            seconds: view.running_ms / 1000,
            program: view.spec.map(|spec| spec.program).unwrap_or_default(),
        }
    }
}

fn known(rate: u64) -> Option<u64> {
    (rate > 0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_fabric::{LinkView, Location, MacAddr, NodeView, SwitchView};

    #[test]
    fn links_are_named_as_in_trees_and_have_their_ports_load() {
        let port = |switch, number| Port { switch: DatapathId(switch), number };
        let switch = |id: u64, rack| SwitchView {
            datapath_id: DatapathId(id),
            name: format!("s{id}"),
            rack,
            connected: true,
            ports: 2,
            unidentified_ports: Vec::new(),
        };
        let location = Location { port: Some(port(2, 1)), rack: 0, bytes_per_second: 0 };
        let network = TopologySnapshot {
            switches: vec![switch(1, None), switch(2, Some(0))],
            links: vec![LinkView { a: port(1, 1), b: port(2, 2), bytes_per_second: 100 }],
            nodes: vec![NodeView {
                name: "h1".into(),
                ip: [10, 0, 0, 1].into(),
                mac: MacAddr(2, 0, 0, 0, 0, 1),
                location: Some(location),
            }],
            ..TopologySnapshot::default()
        };
        let mut measured = Measurements::default();
        for (switch, number, tx, rx) in [(1, 1, 5.0, 6.0), (2, 2, 6.0, 5.0), (2, 1, 7.0, 8.0)] {
            let load = PortLoad { tx_bytes_per_second: tx, rx_bytes_per_second: rx, ..PortLoad::default() };
            measured.switches.entry(DatapathId(switch)).or_default().ports.insert(number, load);
        }
        measured.rules.insert(DatapathId(2), RuleCounts { flows: 9, groups: 1 });
        let view = NetworkView { network: &network, measured: &measured };
        let link = |name: &str, bytes_per_second, forth, back| LinkStatus {
            name: name.into(),
            bytes_per_second,
            forth,
            back,
        };
        assert_eq!(view.links(), [link("s1:1-s2:2", Some(100), 5.0, 6.0)]);
        assert_eq!(view.nodes(|_| (4, None))[0].link, Some(link("s2:1-h1", None, 7.0, 8.0)));
        assert_eq!((view.switches()[1].flows, view.switches()[0].flows), (9, 0));
        assert!(picture(&network).svg().contains("data-link=\"s1:1-s2:2\""));
    }
}
