//! What there is to see of a running controller, as one value: the network with its load, groups, jobs and events.
//! How it is shown is left to [`crate::pages::metrics`] and [`crate::pages::web`].

use crate::agents::Agents;
use crate::agents::attendance::Attendance;
use cool_fabric::Fabric;
use cool_fabric::{DatapathId, Histogram, Measurements, Port, PortLoad, RuleCounts, SwitchLoad, TopologySnapshot};
use crate::groups::{self, Groups};
use crate::jobs::Jobs;
use cool_daemon::log::EventLog;
use cool_proto::control::{Group, JobView};
use cool_tls::Credentials;
use cool_topology::discovery::Refused;
use cool_topology::picture::{self, Picture};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Where it is seen from.
#[derive(Clone)]
pub struct Watcher {
    /// The network.
    pub network: Arc<dyn Fabric>,
    /// The agents whose nodes are there.
    pub agents: Arc<Agents>,
    /// Which of them are away.
    pub attendance: Arc<Attendance>,
    /// The groups in use.
    pub groups: Arc<Groups>,
    /// The running jobs.
    pub jobs: Arc<Jobs>,
    /// By what the controller proves who it is.
    pub credentials: Option<Credentials>,
    /// What has happened.
    pub events: EventLog,
}

/// All of it, at one moment. Links and ports are called as in trees: "s1:2-s3:1", "s3:4-h2".
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// By datapath id.
    pub switches: Vec<SwitchStatus>,
    /// Between switches.
    pub links: Vec<LinkStatus>,
    /// By name.
    pub nodes: Vec<NodeStatus>,
    /// Hosts without an agent, by Ethernet address.
    pub hosts: Vec<HostStatus>,
    /// By number.
    pub groups: Vec<GroupStatus>,
    /// By number.
    pub jobs: Vec<JobStatus>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
    /// The last ones, oldest first, as the log has them.
    pub events: Vec<serde_json::Value>,
    /// From the last change of what a switch is to hold until it has confirmed it.
    #[serde(skip)]
    pub installation: Histogram,
    /// From the moment at which both ends are there until a link or node is found.
    #[serde(skip)]
    pub discovery: Histogram,
    /// LLDP frames that were not believed.
    #[serde(skip)]
    pub refused_lldp: Refused,
    /// Switches that were not served, how often, by cause.
    #[serde(skip)]
    pub not_admitted: BTreeMap<&'static str, u64>,
    /// When the certificates of the controller, the CA and the other sides of sessions end, the first of each; seconds since 1970.
    #[serde(skip)]
    pub certificates: BTreeMap<&'static str, i64>,
}

/// A switch.
#[derive(Clone, Debug, Serialize)]
pub struct SwitchStatus {
    /// 16 hexadecimal digits.
    pub datapath_id: String,
    /// As it calls itself.
    pub name: String,
    /// If nodes are on it.
    pub rack: Option<u32>,
    /// Flows that it is to hold.
    pub flows: usize,
    /// Entries of its group table that it is to hold.
    pub groups: usize,
    /// Whether it has meters.
    pub meters: bool,
    /// Packets for groups that it dropped, from who may not send them.
    pub outsiders: u64,
    /// Packets that it handed in.
    pub packet_ins: u64,
    /// Of those, dropped since a port handed in too many.
    pub packet_ins_dropped: u64,
    /// By number.
    #[serde(skip)]
    pub ports: BTreeMap<u32, PortLoad>,
}

/// A link between switches, or of a node, with its load each way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkStatus {
    /// As in trees.
    pub name: String,
    /// What it carries at most; `None`: unknown.
    pub bytes_per_second: Option<u64>,
    /// From the end that is named first, of late.
    pub forth: f64,
    /// To it.
    pub back: f64,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Unique.
    pub name: String,
    /// On the data network.
    pub ip: String,
    /// If it has been found.
    pub rack: Option<u32>,
    /// Ranks that it takes.
    pub slots: u32,
    /// For how long its agent has had no connection, if it has none.
    pub away_seconds: Option<f64>,
    /// Its link, if it has been found; forth is to the node.
    pub link: Option<LinkStatus>,
}

/// A host without an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostStatus {
    /// Its Ethernet address.
    pub mac: String,
    /// Of its frames, if they are tagged.
    pub vlan: Option<u16>,
    /// That it has said it has.
    pub addresses: Vec<String>,
    /// Where it is: "s3:4".
    pub port: String,
}

/// A group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStatus {
    /// Its number.
    pub id: u64,
    /// Of which job.
    pub job: u64,
    /// How many ranks.
    pub ranks: usize,
    /// On which nodes.
    pub nodes: BTreeSet<String>,
    /// Its trees.
    pub trees: Vec<TreeStatus>,
}

/// A tree of a group.
#[derive(Clone, Debug, Serialize)]
pub struct TreeStatus {
    /// Which nodes it connects, in words.
    pub scope: String,
    /// The multicast group.
    pub address: String,
    /// The names of its links.
    pub links: Vec<String>,
}

/// A running job.
#[derive(Clone, Debug, Serialize)]
pub struct JobStatus {
    /// Its number.
    pub id: u64,
    /// Its world.
    pub group: u64,
    /// What it runs; empty until the caller of a job that goes on comes back.
    pub program: String,
    /// How many ranks.
    pub ranks: usize,
    /// How it is, in a word.
    pub state: String,
    /// For how long this controller has known it.
    pub seconds: u64,
}

impl Watcher {
    /// What there is to see now.
    pub async fn look(&self) -> Status {
        let groups = self.groups.list(&*self.network).await;
        let (network, measured) = (self.network.topology(), self.network.measurements());
        let view = View { network: &network, measured: &measured };
        let agent = |name: &str| {
            let slots = self.agents.get(name).map_or(0, |session| session.agent.slots);
            (slots, self.attendance.away_for(name))
        };
        let away = self.attendance.warnings();
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
            refused_lldp: measured.refused_lldp,
            not_admitted: measured.not_admitted,
            certificates: self.credentials.as_ref().map(certificates).unwrap_or_default(),
        }
    }

    /// The network drawn, as SVG.
    pub fn draw(&self) -> String {
        picture(&self.network.topology()).svg()
    }
}

/// When the certificates end, the first of each kind.
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

/// A network as it is drawn.
fn picture(network: &TopologySnapshot) -> Picture {
    let places: BTreeMap<DatapathId, usize> =
        network.switches.iter().enumerate().map(|(at, switch)| (switch.datapath_id, at)).collect();
    let end = |port: Port| Some((*places.get(&port.switch)?, port.number));
    let switch = |s: &cool_fabric::SwitchView| picture::Switch { name: s.name.clone(), rack: s.rack };
    let node = |n: &cool_fabric::NodeView| {
        let (switch, port) = end(n.location?.port)?;
        Some((n.name.clone(), switch, port))
    };
    Picture {
        switches: network.switches.iter().map(switch).collect(),
        links: network.links.iter().filter_map(|l| Some([end(l.a)?, end(l.b)?])).collect(),
        nodes: network.nodes.iter().filter_map(node).collect(),
    }
}

/// The network with what it carries.
struct View<'a> {
    network: &'a TopologySnapshot,
    measured: &'a Measurements,
}

impl View<'_> {
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

    /// `agent` says the slots of a node, and how long its agent has been away.
    fn nodes(&self, agent: impl Fn(&str) -> (u32, Option<Duration>)) -> Vec<NodeStatus> {
        let link = |n: &cool_fabric::NodeView| {
            let location = n.location?;
            let name = self.network.node_link_name(location.port, &n.name);
            let load = self.load(location.port);
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
            let scope = groups::scope(&tree).map_or_else(|| "unknown".to_owned(), |scope| scope.to_string());
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
    fn links_have_the_names_that_trees_have_and_the_load_of_their_ports() {
        let port = |switch, number| Port { switch: DatapathId(switch), number };
        let switch = |id: u64, rack| SwitchView {
            datapath_id: DatapathId(id),
            name: format!("s{id}"),
            rack,
            connected: true,
            ports: 2,
            unidentified_ports: Vec::new(),
        };
        let location = Location { port: port(2, 1), rack: 0, bytes_per_second: 0 };
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
        let view = View { network: &network, measured: &measured };
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
