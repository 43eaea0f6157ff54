//! Examines the deployment: asks every agent how its node is, and says in plain words what is wrong anywhere.

use crate::agents::attendance::Attendance;
use crate::agents::{Agents, Session};
use cool_fabric::Fabric;
use cool_fabric::{Measurements, SwitchView, TopologySnapshot};
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

/// How long agents may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// Clocks may differ by this much, in microseconds.
const CLOCK_SLACK: i64 = 1_000_000;
/// Faults that one node may tell, and how long each may be.
const MAX_FAULTS: usize = 8;
const MAX_FAULT: usize = 400;
/// Certificates that are named.
const MAX_CERTIFICATES: usize = 12;
/// Ports of one switch that are named.
const MAX_PORTS: usize = 12;

/// What an agent said of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Health {
    /// How far its clock is ahead of ours, microseconds.
    ahead: i64,
    faults: Vec<String>,
}

/// How a node with an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// As its agent says.
    Told(Health),
    /// Its agent does not answer.
    Silent,
    /// Its agent has had no connection for so long.
    Away(Duration),
}

/// What an agent answered, when, to the examination that waits for it.
type Answer = (String, Examined, Instant);

/// Examines on demand.
pub struct Doctor {
    network: Arc<dyn Fabric>,
    agents: Arc<Agents>,
    attendance: Arc<Attendance>,
    credentials: Option<Credentials>,
    last: AtomicU64,
    waiting: Mutex<BTreeMap<u64, mpsc::UnboundedSender<Answer>>>,
}

impl Doctor {
    /// Has not examined anything yet.
    pub fn new(
        network: Arc<dyn Fabric>,
        agents: Arc<Agents>,
        attendance: Arc<Attendance>,
        credentials: Option<Credentials>,
    ) -> Doctor {
        let (last, waiting) = (AtomicU64::default(), Mutex::default());
        Doctor { network, agents, attendance, credentials, last, waiting }
    }

    /// An agent has answered.
    pub fn hear(&self, session: &Session, examined: Examined) {
        if let Some(waits) = self.waiting.lock().get(&examined.id) {
            // Who does not wait any more need not know.
            let _ = waits.send((session.agent.name.clone(), examined, Instant::now()));
        }
    }

    /// All that is wrong now.
    pub async fn examine(&self) -> Diagnosis {
        let nodes = self.ask().await;
        let (network, measured) = (self.network.topology(), self.network.measurements());
        let mut findings = findings(&network, &measured, &nodes);
        findings.extend(self.untagged());
        if let Some(credentials) = &self.credentials {
            let now = OffsetDateTime::now_utc();
            findings.extend(of_certificates(&credentials.expiries(), &credentials.peers(), now));
        }
        let count = |examined: usize| u32::try_from(examined).unwrap_or(u32::MAX);
        Diagnosis { findings, switches: count(network.switches.len()), nodes: count(nodes.len()) }
    }

    /// Agents without which groups would have keys.
    fn untagged(&self) -> impl Iterator<Item = Finding> {
        let sessions = self.agents.all().into_iter().filter(|session| !session.agent.has(features::TAGS));
        sessions.map(|session| {
            let wrong =
                "its agent is of a release that tags no datagrams, so groups with it are not protected";
            finding(format!("node {}", session.agent.name), wrong, "install this release there")
        })
    }

    /// How each node with an agent is.
    async fn ask(&self) -> BTreeMap<String, (u32, Condition)> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        // At most one answer of each is taken, so this is bounded.
        let (answers, mut told) = mpsc::unbounded_channel();
        self.waiting.lock().insert(id, answers);
        let (begun, clock) = (Instant::now(), SystemTime::now());
        let mut nodes = BTreeMap::new();
        let mut missing = 0usize;
        for session in self.agents.all() {
            let name = &session.agent.name;
            let condition = match self.attendance.away_for(name) {
                Some(away) => Condition::Away(away),
                None => Condition::Silent,
            };
            if condition == Condition::Silent {
                missing += usize::from(session.send(Body::Examine(Examine { id })).is_ok());
            }
            nodes.insert(name.clone(), (session.agent.mtu, condition));
        }
        let until = (begun + ANSWER_WITHIN).into();
        while missing > 0
            && let Ok(Some((name, examined, at))) = timeout_at(until, told.recv()).await
        {
            if let Some((_, condition @ Condition::Silent)) = nodes.get_mut(&name) {
                *condition = Condition::Told(Health::of(examined, clock, at - begun));
                missing -= 1;
            }
        }
        self.waiting.lock().remove(&id);
        nodes
    }
}

impl Health {
    /// Of a node whose answer took `took` since `asked`.
    fn of(examined: Examined, asked: SystemTime, took: Duration) -> Health {
        let then = asked.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (low, high) = (micros(then), micros(then + took));
        // It read its clock some time in between.
        let ahead = examined.clock_us.saturating_sub(examined.clock_us.clamp(low, high));
        let faults = examined.faults.into_iter().take(MAX_FAULTS);
        let faults = faults.map(|fault| fault.chars().take(MAX_FAULT).collect());
        Health { ahead, faults: faults.collect() }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn finding(about: impl Into<String>, wrong: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { about: about.into(), wrong: wrong.into(), remedy: remedy.into(), note: false }
}

fn findings(
    network: &TopologySnapshot,
    measured: &Measurements,
    nodes: &BTreeMap<String, (u32, Condition)>,
) -> Vec<Finding> {
    let mut all = Vec::new();
    if network.switches.is_empty() {
        let remedy = "point switches at --openflow of this controller, with OpenFlow 1.3 and the switches' certificate; \
                      its log names those that were turned away";
        all.push(finding("network", "no switch is connected", remedy));
    }
    if nodes.is_empty() {
        let remedy =
            "start cool-nodeagent on every node; this controller's log names those that were refused";
        all.push(finding("network", "no agent has joined", remedy));
    }
    for ((datapath_id, address), turned_away) in &measured.rejected {
        let about = format!("switch {datapath_id} at {address}");
        let remedy = "see whose switch that is, and give it its own certificate and name";
        all.push(finding(about, format!("it is turned away: {}", turned_away.why), remedy));
    }
    all.extend(network.warnings.iter().map(|warning| finding("network", warning, "")));
    for switch in &network.switches {
        of_switch(switch, measured, &mut all);
    }
    let largest = nodes.values().map(|(mtu, _)| *mtu).max().unwrap_or(0);
    for (name, (mtu, condition)) in nodes {
        let about = format!("node {name}");
        if network.node(name).is_none_or(|node| node.location.is_none()) {
            let remedy =
                "its --interface must be the one that is cabled to a switch of this controller, and be up";
            all.push(finding(&about, "no switch hears its LLDP, so it is not found in the network", remedy));
        }
        if *mtu < largest {
            let wrong =
                format!("its MTU is {mtu}, that of others up to {largest}: groups with it use small packets");
            all.push(finding(&about, wrong, "give the data interfaces of all nodes the same MTU"));
        }
        of_node(&about, condition, &mut all);
    }
    all
}

/// Certificates that end soon: the controller's and the CA's, and of the sessions that are there.
fn of_certificates(own: &[Expiry], peers: &[CertifiedPeer], now: OffsetDateTime) -> Vec<Finding> {
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
    let remedy = "renew it with `cool certs --renew`, and copy it to where it is used";
    let more = soon.len().saturating_sub(MAX_CERTIFICATES);
    let named = soon
        .into_iter()
        .take(MAX_CERTIFICATES)
        .map(|(of, end)| finding(format!("certificate of {of}"), format!("it {end}"), remedy));
    let more = (more > 0).then(|| finding("certificates", format!("{more} more end within a month"), remedy));
    own.chain(named).chain(more).collect()
}

fn of_switch(switch: &SwitchView, measured: &Measurements, all: &mut Vec<Finding>) {
    let about = format!("switch {}", switch.name);
    if !switch.unidentified_ports.is_empty() {
        let mut ports: Vec<String> =
            switch.unidentified_ports.iter().take(MAX_PORTS).map(u32::to_string).collect();
        if switch.unidentified_ports.len() > MAX_PORTS {
            ports.push(format!("{} more", switch.unidentified_ports.len() - MAX_PORTS));
        }
        let wrong = format!("nobody is heard from port {}, though there is a link", ports.join(", "));
        let remedy = "if a node is there, start cool-nodeagent on it; if a switch, point it at this controller; if \
                      something else, nothing is wrong";
        // Where hosts without an agent are, that is as it should be.
        all.push(Finding { note: true, ..finding(&about, wrong, remedy) });
    }
    let Some(load) = measured.switches.get(&switch.datapath_id) else { return };
    if load.group_tables == Some(false) {
        let wrong = "it has no group tables of type ALL, so no multicast tree can cross it";
        all.push(finding(&about, wrong, "place a switch that has them where groups must pass"));
    }
    if load.nonmember_packets_recent {
        let wrong = format!("it dropped {} packets for groups from who may not send there", load.nonmember_packets);
        all.push(finding(&about, wrong, "see which host sends to 239.192.0.0/14 without being a member"));
    }
    if load.packet_ins_dropped_recent {
        let wrong = format!("its ports handed in {} packets too many", load.packet_ins_dropped);
        all.push(finding(
            &about,
            wrong,
            "see which host floods; --port-packets-per-second says what is too many",
        ));
    }
}

fn of_node(about: &str, condition: &Condition, all: &mut Vec<Finding>) {
    let health = match condition {
        Condition::Told(health) => health,
        Condition::Silent => {
            let wrong = format!("its agent has not answered within {ANSWER_WITHIN:?}");
            return all.push(finding(about, wrong, "see its log, and the load of its machine"));
        }
        Condition::Away(away) => {
            let wrong =
                format!("its agent has been away for {} s; the node keeps what it has", away.as_secs());
            let remedy =
                "see the network between it and this controller; after --agent-grace its node counts as gone";
            return all.push(finding(about, wrong, remedy));
        }
    };
    if health.ahead.abs() > CLOCK_SLACK {
        let direction = if health.ahead > 0 { "ahead of" } else { "behind" };
        let seconds = health.ahead.unsigned_abs() as f64 / 1e6;
        let wrong = format!("its clock is {seconds:.1} s {direction} the controller's");
        all.push(finding(about, wrong, "keep clocks together by NTP: certificates and logs go by them"));
    }
    all.extend(health.faults.iter().map(|fault| finding(about, fault, "")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_fabric::{DatapathId, Location, MacAddr, NodeView, NotAdmitted, Port, SwitchLoad, RejectedSwitch};
    use cool_tls::{Identity, Role};

    fn node(name: &str, located: bool) -> NodeView {
        let port = Port { switch: DatapathId(1), number: 1 };
        let location = Location { port, rack: 0, bytes_per_second: 0 };
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

    fn well() -> BTreeMap<String, (u32, Condition)> {
        let health = || Condition::Told(Health { ahead: 0, faults: Vec::new() });
        [("h1".to_owned(), (1500, health())), ("h2".to_owned(), (1500, health()))].into()
    }

    fn text(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|f| format!("{}: {}", f.about, f.wrong)).collect()
    }

    #[test]
    fn of_a_deployment_that_is_well_nothing_is_said() {
        assert_eq!(findings(&network(), &Measurements::default(), &well()), []);
    }

    #[test]
    fn an_empty_deployment_lacks_switches_and_agents() {
        let found = findings(&TopologySnapshot::default(), &Measurements::default(), &BTreeMap::new());
        assert_eq!(text(&found), ["network: no switch is connected", "network: no agent has joined"]);
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let (mut network, mut measured, mut nodes) = (network(), Measurements::default(), well());
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
        let turned_away = RejectedSwitch { why, at: Instant::now() };
        measured.rejected.insert((DatapathId(2), [10, 0, 0, 9].into()), turned_away);
        nodes.insert("h1".into(), (9000, Condition::Silent));
        nodes.insert("h3".into(), (9000, Condition::Away(Duration::from_secs(12))));
        let faults = vec!["its disk is full".to_owned()];
        nodes.insert("h2".into(), (1500, Condition::Told(Health { ahead: -2_500_000, faults })));
        let expected = [
            "switch 0000000000000002 at 10.0.0.9: it is turned away: it says that it is 0000000000000002, but its certificate is \
             for 0000000000000003",
            "network: something else",
            "switch s1: nobody is heard from port 7, 9, though there is a link",
            "switch s1: it has no group tables of type ALL, so no multicast tree can cross it",
            "switch s1: it dropped 3 packets for groups from who may not send there",
            "switch s1: its ports handed in 4 packets too many",
            "node h1: its agent has not answered within 3s",
            "node h2: no switch hears its LLDP, so it is not found in the network",
            "node h2: its MTU is 1500, that of others up to 9000: groups with it use small packets",
            "node h2: its clock is 2.5 s behind the controller's",
            "node h2: its disk is full",
            "node h3: its agent has been away for 12 s; the node keeps what it has",
        ];
        assert_eq!(text(&findings(&network, &measured, &nodes)), expected);
    }

    #[test]
    fn certificates_that_end_soon_are_told_once_for_each_holder() {
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
        assert_eq!(text(&of_certificates(&own, &peers, now)), expected);
        let many: Vec<CertifiedPeer> = (0..20).map(|n| peer(Identity::switch(vec![n]), 1)).collect();
        let told = text(&of_certificates(&[], &many, now));
        assert_eq!(told.len(), MAX_CERTIFICATES + 1);
        assert_eq!(told[MAX_CERTIFICATES], "certificates: 8 more end within a month");
    }

    #[test]
    fn a_clock_is_compared_with_the_time_in_which_it_may_have_been_read() {
        let asked = UNIX_EPOCH + Duration::from_secs(100);
        let ahead = |clock_us| {
            let examined = Examined { clock_us, ..Examined::default() };
            Health::of(examined, asked, Duration::from_secs(2)).ahead
        };
        assert_eq!([99_000_000, 101_000_000, 105_000_000].map(ahead), [-1_000_000, 0, 3_000_000]);
        assert!(ahead(i64::MIN) < 0 && ahead(i64::MAX) > 0);
    }
}
