//! `cool topology`: shows the network as the controller knows it, as text, as a picture or as JSON.

mod json;
mod observation;

use crate::error::Error;
use crate::terminal_text::printable_lines;
use crate::{cluster, units};
use cool_proto::control::controller_client::ControllerClient;
use cool_proto::control::{
    Host, Link, LldpNeighbor, Measured, Measurements, Multicast, Node, RackSource, Switch, SwitchPort,
    Topology, TopologyRequest,
};
use cool_topology::Port;
use cool_topology::picture::{self, Picture};
use json::json;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tonic::transport::Channel;

/// Show the switches, racks and nodes that the controller has found
#[derive(Debug, clap::Args)]
pub(crate) struct TopologyOptions {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Write a picture of the network to this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
}

/// Requests the topology, and prints it.
pub(crate) async fn show(
    mut client: ControllerClient<Channel>,
    options: &TopologyOptions,
) -> Result<(), Error> {
    let topology = client.get_topology(TopologyRequest {}).await?.into_inner();
    if let Some(path) = &options.svg {
        let written = std::fs::write(path, svg(&topology));
        return written.map_err(|reason| Error::Picture { path: path.display().to_string(), reason });
    }
    let text = if options.json { json(&topology) } else { printable_lines(&picture(&topology)).into_owned() };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn svg(topology: &Topology) -> String {
    let place = |switch: u64| topology.switches.iter().position(|s| s.datapath_id == switch);
    let switch = |s: &Switch| picture::PictureSwitch { name: s.name.clone(), rack: s.tor.then_some(s.rack) };
    let link = |l: &Link| Some([(place(l.a)?, l.a_port), (place(l.b)?, l.b_port)]);
    let node = |n: &Node| Some((n.name.clone(), place(n.datapath_id).filter(|_| is_at_switch(n))?, n.port));
    let picture = Picture {
        switches: topology.switches.iter().map(switch).collect(),
        links: topology.links.iter().filter_map(link).collect(),
        nodes: topology.nodes.iter().filter_map(node).collect(),
    };
    picture.svg()
}

/// Returns how the rack of a located node was found.
fn located_by(node: &Node) -> &'static str {
    match node.rack_source() {
        RackSource::Option => "agent-option",
        RackSource::File => "racks-file",
        RackSource::Neighbor => "lldp-neighbor",
        RackSource::None => "none",
        RackSource::Switch => "switch",
        // A controller of an earlier release knows no other source than the option.
        RackSource::Unknown if !node.is_reported => "switch",
        RackSource::Unknown if node.rack_name.is_empty() => "none",
        RackSource::Unknown => "agent-option",
    }
}

/// Returns how the rack of a node was found that no switch locates, in words.
fn found_by(node: &Node) -> String {
    match (located_by(node), &node.neighbor) {
        ("lldp-neighbor", Some(LldpNeighbor { chassis, port, .. })) => {
            format!("LLDP of chassis {chassis}, port {port}")
        }
        ("agent-option", _) => "--rack of its agent".to_owned(),
        ("racks-file", _) => "--racks of the controller".to_owned(),
        _ => "no source names its rack".to_owned(),
    }
}

/// Returns whether a switch has located a node.
fn is_at_switch(node: &Node) -> bool {
    node.located && !node.is_reported
}

/// Returns the measured costs and the cost model, line by line.
fn costs(found: &Measurements) -> Vec<String> {
    let level = |place: &str, level: &Option<Measured>| match level {
        None => format!("measured {place}: nothing yet"),
        Some(Measured { probes, latency_ns, bytes_per_second, .. }) => format!(
            "measured {place}: {}, {:.1} Mbit/s, median of {}",
            units::seconds(*latency_ns as f64 / 1e9),
            *bytes_per_second as f64 * 8.0 / 1e6,
            units::count(*probes as usize, "probe")
        ),
    };
    let mut lines = vec![level("within racks", &found.rack), level("between racks", &found.core)];
    if found.pending > 0 {
        lines.push(format!("{} to be made while no job runs", units::count(found.pending as usize, "probe")));
    }
    if let Ok(model) = cluster::cost_model(&found.cost_model) {
        lines.push(format!("cost model of the planner: {}", cluster::describe(&model)));
    }
    lines
}

fn picture(topology: &Topology) -> String {
    let mut reported: BTreeMap<u32, Vec<&Node>> = BTreeMap::new();
    for node in topology.nodes.iter().filter(|n| n.is_reported) {
        reported.entry(node.rack).or_default().push(node);
    }
    let racks = topology.switches.iter().filter(|s| s.tor).count() + reported.len();
    let mut text = format!(
        "{}, {}, {}\n",
        units::count(topology.switches.len(), "switch"),
        units::count(racks, "rack"),
        units::count(topology.nodes.len(), "node")
    );
    let mut drawing = NetworkDrawing::new(topology);
    for switch in drawing.roots() {
        text += &format!("\n{}\n", drawing.title(switch));
        drawing.below(switch, "", &mut text);
    }
    section(&mut text, "links that are not part of the tree:", drawing.others());
    for (rack, nodes) in reported {
        let name = nodes.iter().map(|n| n.rack_name.as_str()).find(|name| !name.is_empty());
        let named = name.map_or(String::new(), |name| format!(" \"{name}\""));
        let title = format!("rack {rack}{named}, not located by OpenFlow switches:");
        let line = |n: &&Node| format!("{} ({}{}): {}", n.name, n.ip, state(n), found_by(n));
        section(&mut text, &title, nodes.iter().map(line));
    }
    let lost = topology.nodes.iter().filter(|n| !n.located);
    section(&mut text, "not found by LLDP yet:", lost.map(|n| format!("{} ({})", n.name, n.ip)));
    section(&mut text, "hosts without an agent:", topology.hosts.iter().map(|h| host(topology, h)));
    let multicast = topology.multicast.iter().map(|m| multicast(topology, m));
    section(&mut text, "multicast of other programs, with its receivers:", multicast);
    section(&mut text, "costs:", topology.measurements.iter().flat_map(costs));
    observation::describe(topology, &mut text);
    section(&mut text, "warnings:", topology.warnings.iter().cloned());
    text
}

/// Returns the slots of a node, and for how long its agent has been disconnected, each after a
/// comma.
fn state(node: &Node) -> String {
    let away = |ms| format!(", its agent away for {}", units::clock(Duration::from_millis(ms)));
    format!(", {}{}", units::count(node.slots as usize, "slot"), node.away_ms.map_or(String::new(), away))
}

fn host(topology: &Topology, host: &Host) -> String {
    let addresses = match &host.addresses[..] {
        [] => String::new(),
        some => format!(", {}", some.join(", ")),
    };
    let place = port(topology, host.datapath_id, host.port);
    format!("{}{} at {place}{addresses}", host.mac, in_vlan(host.vlan))
}

/// Returns an address and its receivers: nodes by name, others by port.
fn multicast(topology: &Topology, multicast: &Multicast) -> String {
    let receiver = |at: &SwitchPort| {
        let is_there = |n: &&Node| is_at_switch(n) && (n.datapath_id, n.port) == (at.datapath_id, at.port);
        let node = topology.nodes.iter().find(is_there);
        node.map_or_else(|| port(topology, at.datapath_id, at.port), |node| node.name.clone())
    };
    let receivers: Vec<String> = multicast.receivers.iter().map(receiver).collect();
    format!("{}{}: {}", multicast.address, in_vlan(multicast.vlan), receivers.join(", "))
}

fn in_vlan(vlan: Option<u32>) -> String {
    vlan.map_or(String::new(), |vlan| format!(" in VLAN {vlan}"))
}

fn port(topology: &Topology, datapath_id: u64, port: u32) -> String {
    let switch = topology.switches.iter().find(|s| s.datapath_id == datapath_id);
    let switch = switch.map_or_else(|| format!("{datapath_id:016x}"), |s| s.name.clone());
    format!("{switch} port {}", Port::number_text(port))
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        text.extend(["\n", title, "\n"]);
        lines.for_each(|line| text.extend(["  ", &line, "\n"]));
    }
}

/// Draws the network from the top: each switch above those that are one link nearer to the racks.
struct NetworkDrawing<'a> {
    topology: &'a Topology,
    /// Number of links from each switch to the nearest top-of-rack switch.
    height: BTreeMap<u64, u32>,
    drawn: BTreeSet<u64>,
}

/// An item below a switch.
enum Child<'a> {
    Switch(u64),
    Node(&'a Node),
}

impl<'a> NetworkDrawing<'a> {
    fn new(topology: &'a Topology) -> NetworkDrawing<'a> {
        let tors = topology.switches.iter().filter(|s| s.tor).map(|s| s.datapath_id);
        let mut queue: VecDeque<u64> = tors.collect();
        let mut height: BTreeMap<u64, u32> = queue.iter().map(|s| (*s, 0)).collect();
        while let Some(switch) = queue.pop_front() {
            let above = height[&switch] + 1;
            for (_, peer, _) in ends(topology, switch) {
                if let std::collections::btree_map::Entry::Vacant(new) = height.entry(peer) {
                    new.insert(above);
                    queue.push_back(peer);
                }
            }
        }
        NetworkDrawing { topology, height, drawn: BTreeSet::new() }
    }

    /// Returns the switches that have none above them.
    fn roots(&self) -> Vec<u64> {
        let height = |switch| self.height.get(&switch);
        let is_root = |s: &u64| ends(self.topology, *s).all(|(_, peer, _)| height(peer) <= height(*s));
        self.topology.switches.iter().map(|s| s.datapath_id).filter(is_root).collect()
    }

    fn title(&self, switch: u64) -> String {
        match self.topology.switches.iter().find(|s| s.datapath_id == switch) {
            Some(s) if s.tor => format!("{} (rack {})", s.name, s.rack),
            Some(s) => s.name.clone(),
            None => format!("{switch:016x}"),
        }
    }

    /// Draws the items below a switch, each line after `margin`.
    fn below(&mut self, switch: u64, margin: &str, text: &mut String) {
        self.drawn.insert(switch);
        let mut hanging: Vec<(u32, u64, Child<'a>)> = Vec::new();
        for (port, peer, link) in ends(self.topology, switch) {
            if self.height.get(&peer) < self.height.get(&switch) {
                hanging.push((port, link.bytes_per_second, Child::Switch(peer)));
            }
        }
        for node in self.topology.nodes.iter().filter(|n| is_at_switch(n) && n.datapath_id == switch) {
            hanging.push((node.port, node.bytes_per_second, Child::Node(node)));
        }
        hanging.sort_by_key(|(port, ..)| *port);
        let count = hanging.len();
        for (i, (port, rate, what)) in hanging.into_iter().enumerate() {
            let last = i + 1 == count;
            let branch = if last { "└─" } else { "├─" };
            let rate = units::rate(rate).map_or(String::new(), |rate| format!(", {rate}"));
            *text += &format!("{margin}{branch} port {}{rate}: ", Port::number_text(port));
            match what {
                Child::Node(n) => {
                    *text += &format!("{} ({}{})\n", n.name, n.ip, state(n));
                }
                Child::Switch(peer) if self.drawn.contains(&peer) => {
                    *text += &format!("{}, as above\n", self.title(peer));
                }
                Child::Switch(peer) => {
                    *text += &format!("{}\n", self.title(peer));
                    let margin = format!("{margin}{}", if last { "   " } else { "│  " });
                    self.below(peer, &margin, text);
                }
            }
        }
    }

    /// Returns the links between switches of the same height.
    fn others(&self) -> impl Iterator<Item = String> {
        let level = |l: &&Link| self.height.get(&l.a) == self.height.get(&l.b);
        let line = |l: &Link| {
            format!("{} port {} - {} port {}", self.title(l.a), l.a_port, self.title(l.b), l.b_port)
        };
        self.topology.links.iter().filter(level).map(line)
    }
}

/// Returns the links of a switch, with its own port and the peer.
fn ends(topology: &Topology, switch: u64) -> impl Iterator<Item = (u32, u64, &Link)> {
    topology.links.iter().filter_map(move |l| match switch {
        s if s == l.a => Some((l.a_port, l.b, l)),
        s if s == l.b => Some((l.b_port, l.a, l)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a network of `spines` above two leaves of two nodes each.
    fn fabric(spines: u64) -> Topology {
        let leaf = |i: u64| Switch {
            datapath_id: spines + i,
            name: format!("s{}", spines + i),
            rack: i as u32 - 1,
            tor: true,
            ports: 4,
        };
        let spine = |i: u64| Switch { datapath_id: i, name: format!("s{i}"), ports: 2, ..Switch::default() };
        let link = |s: u64, l: u64| Link {
            a: s,
            a_port: l as u32,
            b: spines + l,
            b_port: 2 + s as u32,
            bytes_per_second: 2_500_000,
        };
        let node = |i: u32| Node {
            name: format!("h{i}"),
            ip: format!("10.0.0.{i}"),
            located: true,
            datapath_id: spines + u64::from(i.div_ceil(2)),
            port: 2 - i % 2,
            rack: (i - 1) / 2,
            slots: 2,
            ..Node::default()
        };
        Topology {
            switches: (1..=spines).map(spine).chain((1..=2).map(leaf)).collect(),
            links: (1..=spines).flat_map(|s| (1..=2).map(move |l| link(s, l))).collect(),
            nodes: (1..=4).map(node).collect(),
            hosts: Vec::new(),
            multicast: Vec::new(),
            warnings: Vec::new(),
            measurements: None,
            observation: None,
        }
    }

    #[test]
    fn a_tree_is_drawn_from_its_root() {
        let expected = "\
3 switches, 2 racks, 4 nodes

s1
├─ port 1, 20 Mbit/s: s2 (rack 0)
│  ├─ port 1: h1 (10.0.0.1, 2 slots)
│  └─ port 2: h2 (10.0.0.2, 2 slots)
└─ port 2, 20 Mbit/s: s3 (rack 1)
   ├─ port 1: h3 (10.0.0.3, 2 slots)
   └─ port 2: h4 (10.0.0.4, 2 slots)
";
        assert_eq!(picture(&fabric(1)), expected);
    }

    #[test]
    fn a_leaf_below_two_spines_is_drawn_whole_only_once() {
        let text = picture(&fabric(2));
        assert_eq!(text.matches("h1").count(), 1, "{text}");
        assert!(text.ends_with("\ns2\n├─ port 1, 20 Mbit/s: s3 (rack 0), as above\n└─ port 2, 20 Mbit/s: s4 (rack 1), as above\n"), "{text}");
    }

    #[test]
    fn a_drawing_has_all_links_and_only_located_nodes() {
        let mut t = fabric(2);
        t.nodes[0].located = false;
        let svg = svg(&t);
        assert_eq!(svg.matches("<line").count(), 4 + 3);
        assert!(svg.contains("data-link=\"s1:1-s3:3\"") && !svg.contains(">h1<"), "{svg}");
    }

    #[test]
    fn items_outside_the_tree_are_listed() {
        let mut t = fabric(1);
        t.links.push(Link { a: 2, a_port: 9, b: 3, b_port: 9, bytes_per_second: 0 });
        t.nodes[0].located = false;
        t.warnings.push("a forged link".into());
        t.switches.push(Switch { datapath_id: 7, name: "s7".into(), ..Switch::default() });
        let text = picture(&t);
        for part in ["s2 (rack 0) port 9 - s3 (rack 1) port 9", "h1 (10.0.0.1)", "a forged link", "\ns7\n"] {
            assert_eq!(text.matches(part).count(), 1, "{part} in {text}");
        }
    }

    #[test]
    fn hosts_without_an_agent_are_listed_with_where_they_are() {
        let mut t = fabric(1);
        let addresses = vec!["10.0.0.254".to_owned(), "10.1.0.254".to_owned()];
        let gateway =
            Host { mac: "02:00:00:00:00:fe".into(), addresses, datapath_id: 3, port: 9, vlan: None };
        let tagged = Host { vlan: Some(42), addresses: Vec::new(), ..gateway.clone() };
        t.hosts = vec![gateway, tagged];
        let expected = "
hosts without an agent:
  02:00:00:00:00:fe at s3 port 9, 10.0.0.254, 10.1.0.254
  02:00:00:00:00:fe in VLAN 42 at s3 port 9
";
        let text = picture(&t);
        assert!(text.contains(expected), "{text}");
        let v: serde_json::Value = serde_json::from_str(&json(&t)).unwrap();
        assert_eq!((&v["hosts"][0]["vlan"], &v["hosts"][1]["vlan"]), (&serde_json::Value::Null, &42.into()));
        assert_eq!(v["hosts"][0]["addresses"][1], "10.1.0.254");
    }

    #[test]
    fn multicast_of_other_programs_is_listed_with_its_receivers() {
        let mut t = fabric(1);
        let receivers = [(2, 1), (3, 9)].map(|(datapath_id, port)| SwitchPort { datapath_id, port }).to_vec();
        t.multicast = vec![Multicast { address: "239.1.2.3".into(), vlan: Some(7), receivers }];
        let text = picture(&t);
        assert!(text.contains("\n  239.1.2.3 in VLAN 7: h1, s3 port 9\n"), "{text}");
        let v: serde_json::Value = serde_json::from_str(&json(&t)).unwrap();
        assert_eq!(v["multicast"][0]["receivers"][1]["port"], 9);
    }

    #[test]
    fn nodes_without_a_switch_are_listed_by_rack_with_its_source() {
        let mut t = fabric(1);
        let leaf =
            LldpNeighbor { chassis: "02:00:00:00:00:01".into(), port: "e1".into(), ..Default::default() };
        let sources = [RackSource::Option, RackSource::File, RackSource::Neighbor, RackSource::None];
        for (node, source) in t.nodes.iter_mut().zip(sources) {
            (node.is_reported, node.rack_source, node.rack) = (true, source.into(), 4);
        }
        t.nodes[0].rack_name = "west".into();
        t.nodes[2].neighbor = Some(leaf);
        t.nodes[3].rack = 5;
        let expected = "
rack 4 \"west\", not located by OpenFlow switches:
  h1 (10.0.0.1, 2 slots): --rack of its agent
  h2 (10.0.0.2, 2 slots): --racks of the controller
  h3 (10.0.0.3, 2 slots): LLDP of chassis 02:00:00:00:00:01, port e1

rack 5, not located by OpenFlow switches:
  h4 (10.0.0.4, 2 slots): no source names its rack
";
        let text = picture(&t);
        assert!(text.contains(expected), "{text}");
        let v: serde_json::Value = serde_json::from_str(&json(&t)).unwrap();
        let found = |n: usize| v["nodes"][n]["located_by"].clone();
        let expected = ["agent-option", "racks-file", "lldp-neighbor", "none"];
        assert_eq!([0, 1, 2, 3].map(found), expected);
        assert_eq!(v["nodes"][2]["neighbor"]["port"], "e1");
        assert_eq!(v["nodes"][2]["neighbor"]["system_name"], serde_json::Value::Null);
        assert_eq!(v["nodes"][1]["neighbor"], serde_json::Value::Null);
    }

    #[test]
    fn unknown_properties_are_null_in_json() {
        let mut t = fabric(1);
        t.nodes[0].located = false;
        let v: serde_json::Value = serde_json::from_str(&json(&t)).unwrap();
        assert_eq!(v["switches"][0]["rack"], serde_json::Value::Null);
        assert_eq!(v["switches"][1]["rack"], 0);
        assert_eq!(v["nodes"][0]["datapath_id"], serde_json::Value::Null);
        assert_eq!(v["nodes"][1]["datapath_id"], 2);
        assert_eq!(v["links"][0]["bytes_per_second"], 2_500_000);
        assert_eq!(v["nodes"][1]["bytes_per_second"], serde_json::Value::Null);
    }

    #[test]
    fn measurements_are_shown_with_the_cost_model() {
        let mut t = fabric(1);
        let rack = Measured { probes: 3, latency_ns: 123_400, bytes_per_second: 2_490_000, burst: 16_000 };
        let cost_model = serde_json::json!(cool_collective::CostModel::default()).to_string();
        t.measurements = Some(Measurements { rack: Some(rack), core: None, pending: 2, cost_model });
        let text = picture(&t);
        for line in [
            "measured within racks: 123 us, 19.9 Mbit/s, median of 3 probes\n",
            "measured between racks: nothing yet\n",
            "2 probes to be made while no job runs\n",
            "cost model of the planner: within racks 100 us, 20 Mbit/s; between racks 200 us, 20 Mbit/s; bursts of 16000",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let v: serde_json::Value = serde_json::from_str(&json(&t)).unwrap();
        assert_eq!(v["measurements"]["rack"]["bytes_per_second"], 2_490_000);
        assert_eq!(v["measurements"]["core"], serde_json::Value::Null);
        assert_eq!(v["measurements"]["cost_model"]["burst"], 16_000);
    }

    #[test]
    fn an_empty_network_is_no_error() {
        assert_eq!(picture(&Topology::default()), "0 switches, 0 racks, 0 nodes\n");
    }
}
