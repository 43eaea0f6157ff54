//! Examines the deployment: queries every agent and reports each problem with a remedy.

use crate::agents::presence::AgentPresence;
use crate::agents::{AgentRegistry, Session};
use crate::flooding::FloodingMonitor;
use crate::groups::GroupRegistry;
use crate::pages::multicast_findings::{flooding_finding, unreached_findings};
use crate::pages::observed_findings::{observed_findings, omit_unidentified_ports};
use crate::shared_work::SharedWork;
use cool_fabric::Fabric;
use cool_fabric::{Measurements, NodeView, RackSource, SwitchView, TopologySnapshot};
use cool_proto::control::{Diagnosis, Examine, Examined, Finding, controller_message::Body};
use cool_proto::features;
use cool_tls::{CertifiedPeer, Credentials, Expiry, expiring};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

/// How long agents may take to respond.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Permitted difference between clocks.
const MAX_CLOCK_OFFSET_US: i64 = 1_000_000;
/// Maximum number of faults reported per node, and maximum length of each.
const MAX_FAULTS: usize = 8;
const MAX_FAULT_CHARS: usize = 400;
/// Maximum number of certificates that are listed.
const MAX_CERTIFICATES: usize = 12;
/// Number of broken connections of a switch from which they are reported.
const BROKEN_CONNECTIONS_MIN: u32 = 3;
/// Maximum number of ports listed per switch.
const MAX_PORTS: usize = 12;
/// Number of nodes up to which one rack without a name is no reason for advice.
const MAX_UNNAMED: usize = 4;

/// State of a node as reported by its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeHealth {
    /// How far its clock is ahead of the controller's, in microseconds.
    ahead_us: i64,
    faults: Vec<String>,
    /// The fault that matters only at a switch in user space, if any.
    offload_fault: Option<String>,
    /// The fault that matters only at an OpenFlow switch, if any.
    bond_fault: Option<String>,
}

/// State of a node with an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeCondition {
    /// Its agent has reported.
    Reported(NodeHealth),
    /// Its agent has not responded.
    Silent,
    /// Its agent has been disconnected for this time.
    Disconnected(Duration),
}

/// A node's name, its agent's reply, and the time of arrival.
type ExaminationReply = (String, Examined, Instant);

/// Examines the deployment on request.
pub struct Doctor {
    network: Arc<dyn Fabric>,
    agents: Arc<AgentRegistry>,
    presence: Arc<AgentPresence>,
    groups: Arc<GroupRegistry>,
    flooding: Arc<FloodingMonitor>,
    credentials: Option<Credentials>,
    last: AtomicU64,
    /// The examination in progress: its number, and the channel for its replies.
    waiting: Mutex<Option<(u64, mpsc::Sender<ExaminationReply>)>>,
    diagnoses: SharedWork<Diagnosis>,
}

impl Doctor {
    /// Returns a doctor without examinations.
    pub fn new(
        network: Arc<dyn Fabric>,
        agents: Arc<AgentRegistry>,
        presence: Arc<AgentPresence>,
        (groups, flooding): (Arc<GroupRegistry>, Arc<FloodingMonitor>),
        credentials: Option<Credentials>,
    ) -> Doctor {
        let (last, waiting, diagnoses) = (AtomicU64::default(), Mutex::default(), SharedWork::default());
        Doctor { network, agents, presence, groups, flooding, credentials, last, waiting, diagnoses }
    }

    /// Handles an agent's reply.
    pub fn receive(&self, session: &Session, examined: Examined) {
        if let Some((id, waits)) = &*self.waiting.lock()
            && *id == examined.id
        {
            // The examination may have ended. Replies beyond one for each agent are dropped.
            let _ = waits.try_send((session.agent.name.clone(), examined, Instant::now()));
        }
    }

    /// Returns all current problems. Only one examination takes place at a time, because each sends
    /// a message to every agent; all callers that wait for the next one share it.
    pub async fn examine(&self) -> Diagnosis {
        self.diagnoses.result(self.diagnose()).await
    }

    async fn diagnose(&self) -> Diagnosis {
        let nodes = self.examine_nodes().await;
        let observation = self.network.observation().await.ok().flatten();
        let (mut network, measured) = (self.network.topology(), self.network.measurements());
        if observation.is_some() {
            omit_unidentified_ports(Arc::make_mut(&mut network));
        }
        let mut findings = findings(&network, &measured, &nodes);
        findings.extend(observation.iter().flat_map(observed_findings));
        findings.extend(self.untagged());
        findings.extend(unreached_findings(self.groups.unreached_by_multicast()));
        findings.extend(flooding_finding(&self.flooding.flooded_nodes()));
        if let Some(credentials) = &self.credentials {
            let now = OffsetDateTime::now_utc();
            findings.extend(certificate_findings(&credentials.expiries(), &credentials.peers(), now));
        }
        let count = |examined: usize| u32::try_from(examined).unwrap_or(u32::MAX);
        Diagnosis { findings, switches: count(network.switches.len()), nodes: count(nodes.len()) }
    }

    /// Returns a finding for each agent that prevents the protection of groups.
    fn untagged(&self) -> impl Iterator<Item = Finding> {
        let sessions = self.agents.all().into_iter().filter(|session| !session.agent.has(features::TAGS));
        sessions.map(|session| {
            let problem =
                "its agent is of a release that does not tag datagrams, so groups with this node are not protected";
            finding(format!("node {}", session.agent.name), problem, "install this release on it")
        })
    }

    /// Queries all agents. Returns the MTU and the state of each node.
    async fn examine_nodes(&self) -> BTreeMap<String, (u32, NodeCondition)> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let sessions = self.agents.all();
        let (sender, mut replies) = mpsc::channel(sessions.len().max(1));
        *self.waiting.lock() = Some((id, sender));
        let (begun, clock) = (Instant::now(), SystemTime::now());
        let mut nodes = BTreeMap::new();
        let mut missing = 0usize;
        for session in sessions {
            let name = &session.agent.name;
            let condition = match self.presence.away_for(name) {
                Some(away) => NodeCondition::Disconnected(away),
                None => NodeCondition::Silent,
            };
            if condition == NodeCondition::Silent {
                missing += usize::from(session.send(Body::Examine(Examine { id })).is_ok());
            }
            nodes.insert(name.clone(), (session.agent.mtu, condition));
        }
        let until = (begun + REPLY_TIMEOUT).into();
        while missing > 0
            && let Ok(Some((name, examined, at))) = timeout_at(until, replies.recv()).await
        {
            if let Some((_, condition @ NodeCondition::Silent)) = nodes.get_mut(&name) {
                *condition = NodeCondition::Reported(NodeHealth::from_reply(examined, clock, at - begun));
                missing -= 1;
            }
        }
        *self.waiting.lock() = None;
        nodes
    }
}

impl NodeHealth {
    /// Evaluates the reply of a node. `asked` is the time of the request, and `took` the time until
    /// the reply.
    fn from_reply(examined: Examined, asked: SystemTime, took: Duration) -> NodeHealth {
        let then = asked.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (low, high) = (micros(then), micros(then + took));
        // The node read its clock between request and reply.
        let ahead_us = examined.clock_us.saturating_sub(examined.clock_us.clamp(low, high));
        let short = |fault: String| fault.chars().take(MAX_FAULT_CHARS).collect();
        let faults = examined.faults.into_iter().take(MAX_FAULTS).map(short).collect();
        let [offload_fault, bond_fault] = [examined.offload_fault, examined.bond_fault]
            .map(|fault| Some(fault).filter(|fault| !fault.is_empty()).map(short));
        NodeHealth { ahead_us, faults, offload_fault, bond_fault }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn finding(
    about: impl Into<String>,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding { about: about.into(), wrong: problem.into(), remedy: remedy.into(), note: false }
}

fn findings(
    network: &TopologySnapshot,
    measured: &Measurements,
    nodes: &BTreeMap<String, (u32, NodeCondition)>,
) -> Vec<Finding> {
    let mut all = Vec::new();
    // On a network without OpenFlow, the reports of agents locate nodes.
    if network.switches.is_empty() && network.nodes.iter().all(|node| node.location.is_none()) {
        let remedy = "connect OpenFlow 1.3 switches to --openflow of this controller, with the switches' certificate; the log names rejected \
                      switches; without such switches, start it with --network auto, snooping or plain";
        all.push(finding("network", "no switch is connected", remedy));
    }
    if nodes.is_empty() {
        let remedy = "start cool-nodeagent on every node; the controller's log names rejected agents";
        all.push(finding("network", "no agent has joined", remedy));
    }
    for ((datapath_id, address), rejected) in &measured.rejected {
        let about = format!("switch {datapath_id} at {address}");
        let remedy = "find out which switch this is, and give it a certificate and a name of its own";
        all.push(finding(about, format!("it is rejected: {}", rejected.why), remedy));
    }
    for ((datapath_id, address), broken) in &measured.broken_connections {
        if broken.count < BROKEN_CONNECTIONS_MIN {
            continue;
        }
        let about = match datapath_id {
            Some(datapath_id) => format!("switch {datapath_id} at {address}"),
            None => format!("switch at {address}"),
        };
        let problem =
            format!("{} connections of it have ended in a row; the last one: {}", broken.count, broken.why);
        let remedy = "check its log, its load and the management network; what is no switch should not connect to --openflow";
        // Health checks connect without being switches.
        all.push(Finding { note: datapath_id.is_none(), ..finding(about, problem, remedy) });
    }
    all.extend(network.warnings.iter().map(|warning| finding("network", warning, "")));
    all.extend(unnamed_racks(network));
    for switch in &network.switches {
        add_switch_findings(switch, measured, &mut all);
        all.extend(deaf_switch(network, switch));
    }
    let largest = nodes.values().map(|(mtu, _)| *mtu).max().unwrap_or(0);
    for (name, (mtu, condition)) in nodes {
        let about = format!("node {name}");
        if network.node(name).is_none_or(|node| node.location.is_none()) {
            let remedy = "its --interface must be up and connected to a switch of this controller";
            all.push(finding(
                &about,
                "no switch receives its LLDP, so it cannot be located in the network",
                remedy,
            ));
        }
        if *mtu < largest {
            let problem = format!(
                "its MTU is {mtu}, but others have up to {largest}: groups with this node use small packets"
            );
            all.push(finding(&about, problem, "set the same MTU on the data interfaces of all nodes"));
        }
        add_node_findings(&about, condition, &mut all);
        let port = network.node(name).and_then(|node| node.location?.port);
        if let (NodeCondition::Reported(health), Some(port)) = (condition, port) {
            let is_in_user_space =
                measured.switches.get(&port.switch).is_some_and(|load| load.is_in_user_space);
            let offload_fault = health.offload_fault.as_ref().filter(|_| is_in_user_space);
            let faults = offload_fault.into_iter().chain(&health.bond_fault);
            all.extend(faults.map(|fault| finding(&about, fault, "")));
        }
    }
    all
}

/// Returns a note if many nodes share a rack only because no source names their racks.
fn unnamed_racks(network: &TopologySnapshot) -> Option<Finding> {
    let racks = &network.reported_racks;
    let is_unnamed = racks.values().all(|rack| rack.source == RackSource::Nothing);
    (racks.len() > MAX_UNNAMED && is_unnamed).then(|| {
        let problem =
            format!("no source names the racks of the {} nodes, so they count as one rack", racks.len());
        let remedy = "if they are in several racks, list them in a file for --racks of the controller, start agents with --rack, or turn on LLDP \
                      of the switches and give agents CAP_NET_RAW";
        // They may be at one switch.
        Finding { note: true, ..finding("network", problem, remedy) }
    })
}

/// Returns a finding for each certificate that expires soon: those of the controller, the CA, and
/// the peers of current sessions.
fn certificate_findings(own: &[Expiry], peers: &[CertifiedPeer], now: OffsetDateTime) -> Vec<Finding> {
    let own = own.iter().filter_map(|expiry| {
        let about = format!("certificate of {}", expiry.holder);
        Some(finding(about, format!("it {}", expiring(expiry.until, now)?), expiry.remedy()))
    });
    let mut first: BTreeMap<String, OffsetDateTime> = BTreeMap::new();
    for peer in peers {
        let first = first.entry(peer.identity.to_string()).or_insert(peer.until);
        *first = peer.until.min(*first);
    }
    let soon = first.into_iter().filter_map(|(of, until)| Some((of, expiring(until, now)?)));
    let soon: Vec<(String, String)> = soon.collect();
    let remedy = "renew it with `cool certs --renew`, and copy it to its holder";
    let more = soon.len().saturating_sub(MAX_CERTIFICATES);
    let named = soon
        .into_iter()
        .take(MAX_CERTIFICATES)
        .map(|(of, end)| finding(format!("certificate of {of}"), format!("it {end}"), remedy));
    let more =
        (more > 0).then(|| finding("certificates", format!("{more} more expire within a month"), remedy));
    own.chain(named).chain(more).collect()
}

/// Returns a finding if no port of a switch has received LLDP, although another switch or a node
/// could be connected to one.
fn deaf_switch(network: &TopologySnapshot, switch: &SwitchView) -> Option<Finding> {
    let id = switch.datapath_id;
    let at_switch = |node: &NodeView| {
        node.location.and_then(|location| location.port).is_some_and(|port| port.switch == id)
    };
    let hears = network.links.iter().any(|link| link.a.switch == id || link.b.switch == id)
        || network.nodes.iter().any(at_switch);
    let expects = network.switches.len() > 1 || network.nodes.iter().any(|node| node.location.is_none());
    if hears || !expects || !switch.connected || switch.unidentified_ports.is_empty() {
        return None;
    }
    let remedy = "turn off LLDP and filters for 802.1D addresses of the switch itself, and check that its cables lead to switches \
                  and nodes of this controller";
    Some(finding(
        format!("switch {}", switch.name),
        "none of its ports receives LLDP of this controller or of agents",
        remedy,
    ))
}

fn add_switch_findings(switch: &SwitchView, measured: &Measurements, all: &mut Vec<Finding>) {
    let about = format!("switch {}", switch.name);
    if !switch.unidentified_ports.is_empty() {
        let mut ports: Vec<String> =
            switch.unidentified_ports.iter().take(MAX_PORTS).map(u32::to_string).collect();
        if switch.unidentified_ports.len() > MAX_PORTS {
            ports.push(format!("{} more", switch.unidentified_ports.len() - MAX_PORTS));
        }
        let problem = format!("nothing is received on port {}, although it has a link", ports.join(", "));
        let remedy = "if it leads to a node, start cool-nodeagent there; if to a switch, connect that to this controller; \
                      anything else is fine";
        // This is normal for hosts without an agent.
        all.push(Finding { note: true, ..finding(&about, problem, remedy) });
    }
    let Some(load) = measured.switches.get(&switch.datapath_id) else { return };
    if load.group_tables == Some(false) {
        let problem = "it has no group table of type ALL, so no multicast tree can cross it";
        all.push(finding(&about, problem, "use a switch with group tables on the path of groups"));
    }
    if load.nonmember_packets_recent {
        let problem = format!(
            "it dropped {} packets to multicast groups from senders that are not members",
            load.nonmember_packets
        );
        all.push(finding(
            &about,
            problem,
            "find the host that sends to 239.192.0.0/14 without being a member",
        ));
    }
    if load.packet_ins_dropped_recent {
        let problem =
            format!("its ports exceeded the packet-in limit by {} packets", load.packet_ins_dropped);
        all.push(finding(
            &about,
            problem,
            "find the host that floods; the limit is --port-packets-per-second",
        ));
    }
}

fn add_node_findings(about: &str, condition: &NodeCondition, all: &mut Vec<Finding>) {
    let health = match condition {
        NodeCondition::Reported(health) => health,
        NodeCondition::Silent => {
            let problem = format!("its agent did not respond within {REPLY_TIMEOUT:?}");
            return all.push(finding(about, problem, "check its log and the load of its machine"));
        }
        NodeCondition::Disconnected(away) => {
            let problem = format!(
                "its agent has been disconnected for {} s; the node keeps its flows, groups and jobs",
                away.as_secs()
            );
            let remedy = "check the network between it and this controller; after --agent-grace the node counts as lost";
            return all.push(finding(about, problem, remedy));
        }
    };
    if health.ahead_us.abs() > MAX_CLOCK_OFFSET_US {
        let direction = if health.ahead_us > 0 { "ahead of" } else { "behind" };
        let seconds = health.ahead_us.unsigned_abs() as f64 / 1e6;
        let problem = format!("its clock is {seconds:.1} s {direction} the controller's");
        all.push(finding(
            about,
            problem,
            "synchronize clocks with NTP, because certificates and logs depend on them",
        ));
    }
    all.extend(health.faults.iter().map(|fault| finding(about, fault, "")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_fabric::{
        BrokenConnections, DatapathId, Location, MacAddr, NotAdmitted, Port, RejectedSwitch, ReportedRack,
        SwitchLoad,
    };
    use cool_tls::{Identity, Role};

    fn node(name: &str, located: bool) -> NodeView {
        let port = Port { switch: DatapathId(1), number: 1 };
        let location = Location { port: Some(port), rack: 0, bytes_per_second: 0 };
        let (ip, mac) = ([10, 0, 0, 1].into(), MacAddr(2, 0, 0, 0, 0, 1));
        NodeView { name: name.into(), ip, mac, location: located.then_some(location) }
    }

    fn network() -> TopologySnapshot {
        let (datapath_id, name) = (DatapathId(1), "s1".to_owned());
        let switch = SwitchView {
            datapath_id,
            name,
            rack: Some(0),
            connected: true,
            ports: 2,
            unidentified_ports: Vec::new(),
        };
        TopologySnapshot {
            switches: vec![switch],
            nodes: vec![node("h1", true), node("h2", true)],
            ..TopologySnapshot::default()
        }
    }

    fn healthy() -> BTreeMap<String, (u32, NodeCondition)> {
        let health = || NodeCondition::Reported(NodeHealth::default());
        [("h1".to_owned(), (1500, health())), ("h2".to_owned(), (1500, health()))].into()
    }

    fn text(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|f| format!("{}: {}", f.about, f.wrong)).collect()
    }

    #[test]
    fn a_healthy_deployment_has_no_findings() {
        assert_eq!(findings(&network(), &Measurements::default(), &healthy()), []);
    }

    #[test]
    fn an_empty_deployment_reports_no_switches_and_agents() {
        let found = findings(&TopologySnapshot::default(), &Measurements::default(), &BTreeMap::new());
        assert_eq!(text(&found), ["network: no switch is connected", "network: no agent has joined"]);
    }

    #[test]
    fn every_problem_is_reported() {
        let (mut network, mut measured, mut nodes) = (network(), Measurements::default(), healthy());
        network.nodes.push(node("h3", true));
        network.nodes[1].location = None;
        network.switches[0].unidentified_ports = vec![7, 9];
        network.warnings.push("something else".into());
        let load = SwitchLoad {
            group_tables: Some(false),
            nonmember_packets: 3,
            nonmember_packets_recent: true,
            packet_ins_dropped: 4,
            packet_ins_dropped_recent: true,
            ..SwitchLoad::default()
        };
        measured.switches.insert(DatapathId(1), load);
        let why = NotAdmitted::Impostor { claimed: DatapathId(2), bound: vec![DatapathId(3)] };
        let rejected = RejectedSwitch { why, at: Instant::now() };
        measured.rejected.insert((DatapathId(2), [10, 0, 0, 9].into()), rejected);
        nodes.insert("h1".into(), (9000, NodeCondition::Silent));
        nodes.insert("h3".into(), (9000, NodeCondition::Disconnected(Duration::from_secs(12))));
        let faults = vec!["its disk is full".to_owned()];
        let health = NodeHealth { ahead_us: -2_500_000, faults, ..NodeHealth::default() };
        nodes.insert("h2".into(), (1500, NodeCondition::Reported(health)));
        let expected = [
            "switch 0000000000000002 at 10.0.0.9: it is rejected: it claims to be 0000000000000002, but its certificate is \
             for 0000000000000003",
            "network: something else",
            "switch s1: nothing is received on port 7, 9, although it has a link",
            "switch s1: it has no group table of type ALL, so no multicast tree can cross it",
            "switch s1: it dropped 3 packets to multicast groups from senders that are not members",
            "switch s1: its ports exceeded the packet-in limit by 4 packets",
            "node h1: its agent did not respond within 3s",
            "node h2: no switch receives its LLDP, so it cannot be located in the network",
            "node h2: its MTU is 1500, but others have up to 9000: groups with this node use small packets",
            "node h2: its clock is 2.5 s behind the controller's",
            "node h2: its disk is full",
            "node h3: its agent has been disconnected for 12 s; the node keeps its flows, groups and jobs",
        ];
        assert_eq!(text(&findings(&network, &measured, &nodes)), expected);
    }

    #[test]
    fn some_faults_of_nodes_matter_at_some_switches_only() {
        let (mut network, mut measured, mut nodes) = (network(), Measurements::default(), healthy());
        let [offload_fault, bond_fault] = ["checksum offload is on", "bond0 is a bond"].map(String::from);
        let examined = Examined { offload_fault, bond_fault, ..Examined::default() };
        let health = NodeHealth::from_reply(examined, UNIX_EPOCH, Duration::ZERO);
        nodes.insert("h1".into(), (1500, NodeCondition::Reported(health)));
        assert_eq!(text(&findings(&network, &measured, &nodes)), ["node h1: bond0 is a bond"]);
        let load = SwitchLoad { is_in_user_space: true, ..SwitchLoad::default() };
        measured.switches.insert(DatapathId(1), load);
        let expected = ["node h1: checksum offload is on", "node h1: bond0 is a bond"];
        assert_eq!(text(&findings(&network, &measured, &nodes)), expected);
        // A node that no switch locates may be anywhere.
        network.nodes[0].location.as_mut().unwrap().port = None;
        assert_eq!(findings(&network, &measured, &nodes), []);
    }

    #[test]
    fn one_rack_for_many_nodes_is_noted_if_no_source_names_racks() {
        let mut network = network();
        let rack = |source| ReportedRack { name: None, source, neighbor: None };
        let noted = |network: &TopologySnapshot| findings(network, &Measurements::default(), &healthy());
        network.reported_racks = (0..5).map(|n| (format!("h{n}"), rack(RackSource::Nothing))).collect();
        let found = noted(&network);
        assert_eq!(
            text(&found),
            ["network: no source names the racks of the 5 nodes, so they count as one rack"]
        );
        assert!(found[0].note && found[0].remedy.contains("--racks"));
        network.reported_racks.remove("h0");
        assert_eq!(noted(&network), [], "few nodes");
        network.reported_racks.insert("h0".into(), rack(RackSource::RackTable));
        assert_eq!(noted(&network), []);
    }

    #[test]
    fn switches_that_reconnect_endlessly_are_reported() {
        let mut measured = Measurements::default();
        let broken = |count| {
            let why = "it did not reply to a barrier within 10s".to_owned();
            BrokenConnections { count, why, at: Instant::now() }
        };
        measured.broken_connections.insert((Some(DatapathId(1)), [10, 0, 0, 9].into()), broken(7));
        measured.broken_connections.insert((None, [10, 0, 0, 8].into()), broken(BROKEN_CONNECTIONS_MIN - 1));
        let expected = "switch 0000000000000001 at 10.0.0.9: 7 connections of it have ended in a row; the last one: it did \
                        not reply to a barrier within 10s";
        assert_eq!(text(&findings(&network(), &measured, &healthy())), [expected]);
    }

    #[test]
    fn a_switch_without_lldp_is_reported_if_something_is_missing() {
        let mut network = network();
        let reported = |network: &TopologySnapshot| {
            let all = text(&findings(network, &Measurements::default(), &healthy()));
            all.iter().any(|line| line.contains("none of its ports receives LLDP"))
        };
        network.switches[0].unidentified_ports = vec![1, 2];
        assert!(!reported(&network), "nodes are located at it");
        network.nodes.iter_mut().for_each(|node| node.location = None);
        assert!(reported(&network));
        network.nodes.clear();
        assert!(!reported(&network), "it may be the only switch");
    }

    #[test]
    fn expiring_certificates_are_reported_once_per_holder() {
        let now = OffsetDateTime::UNIX_EPOCH + time::Duration::days(10_000);
        let at = |days| now + time::Duration::days(days);
        let own = [Expiry { holder: "controller", until: at(40) }, Expiry { holder: "ca", until: at(-1) }];
        let peer = |identity, days| CertifiedPeer { identity, until: at(days) };
        let peers = [
            peer(Identity::for_role(Role::Switch), 5),
            peer(Identity::for_role(Role::Switch), 5),
            peer(Identity::node("h1", Vec::new()), 31),
        ];
        let expected = [
            "certificate of ca: it expired on 1997-05-18",
            "certificate of switch: it expires on 1997-05-24, in 5 days",
        ];
        assert_eq!(text(&certificate_findings(&own, &peers, now)), expected);
        let many: Vec<CertifiedPeer> = (0..20).map(|n| peer(Identity::switch(vec![n]), 1)).collect();
        let texts = text(&certificate_findings(&[], &many, now));
        assert_eq!(texts.len(), MAX_CERTIFICATES + 1);
        assert_eq!(texts[MAX_CERTIFICATES], "certificates: 8 more expire within a month");
    }

    #[test]
    fn clocks_are_compared_within_the_round_trip() {
        let asked = UNIX_EPOCH + Duration::from_secs(100);
        let ahead_us = |clock_us| {
            let examined = Examined { clock_us, ..Examined::default() };
            NodeHealth::from_reply(examined, asked, Duration::from_secs(2)).ahead_us
        };
        assert_eq!([99_000_000, 101_000_000, 105_000_000].map(ahead_us), [-1_000_000, 0, 3_000_000]);
        assert!(ahead_us(i64::MIN) < 0 && ahead_us(i64::MAX) > 0);
    }
}
