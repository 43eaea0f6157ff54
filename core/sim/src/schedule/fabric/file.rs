//! Networks from files: JSON with `switches`, `links` and `nodes`, as `cool topology --json` prints
//! it.

use super::mesh::{Cable, Mesh, MeshError};
use super::{FabricModel, FabricModelError, MAX_RANKS, Ranks, Wires};
use cool_machine::Duration;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of switches in a file, because the paths between each two are stored.
const MAX_SWITCHES: usize = 1024;

#[derive(Debug, Deserialize)]
struct Document {
    switches: Vec<Switch>,
    #[serde(default)]
    links: Vec<LinkEntry>,
    nodes: Vec<NodeEntry>,
}

#[derive(Debug, Deserialize)]
struct Switch {
    datapath_id: u64,
    name: Option<String>,
    rack: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct LinkEntry {
    a: u64,
    b: u64,
    bytes_per_second: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct NodeEntry {
    name: String,
    datapath_id: Option<u64>,
    slots: Option<u32>,
    bytes_per_second: Option<u64>,
}

/// Why a file does not describe a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is not a document of the required form.
    #[error(
        "{0}; it needs switches with a datapath_id, links with a and b, nodes with a name and a datapath_id"
    )]
    Json(String),
    /// It has no nodes.
    #[error("it has no nodes; give at least one, with the datapath_id of its switch")]
    Empty,
    /// It is too large to be timed.
    #[error(
        "it has {switches} switches and {ranks} slots; at most {MAX_SWITCHES} and {MAX_RANKS} can be timed"
    )]
    Large {
        /// Number of switches.
        switches: usize,
        /// Number of ranks of all nodes.
        ranks: u64,
    },
    /// Two entries have the same name.
    #[error("{0} is listed twice; names must be unique")]
    Twice(String),
    /// A link or node refers to a switch that is not listed.
    #[error("{at} names switch {switch}, which is not listed")]
    Switch {
        /// The link or node.
        at: String,
        /// The datapath id of the switch.
        switch: u64,
    },
    /// A node has no switch.
    #[error("node {0} is not connected: it has no datapath_id")]
    Nowhere(String),
    /// The network consists of two or more parts.
    #[error(
        "node {node} at switch {switch} is not connected: no links lead to node {first} at switch {home}"
    )]
    Apart {
        /// A node.
        node: String,
        /// The switch of that node.
        switch: String,
        /// A node of another part.
        first: String,
        /// The switch of that other node.
        home: String,
    },
    /// Switches form a ring.
    #[error(
        "switches {} make a loop; there may be several ways up and down, as in a leaf-spine network, but no ring: \
         remove one of these links", .0.join(" - ")
    )]
    Loop(Vec<String>),
    /// A rate is zero.
    #[error("{0} has a rate of 0; omit rates that are unknown")]
    Rate(String),
}

impl FabricModel {
    /// Returns the network of a JSON document with `switches`, `links` and `nodes`, as `cool
    /// topology --json` prints it. Links without a rate get the given ones, in bytes per second.
    /// Each switch with nodes is a rack.
    ///
    /// # Errors
    /// Fails if the document is not valid, a node is not connected, or switches form a loop.
    pub fn from_json(
        name: &str,
        json: &str,
        host: u64,
        uplink: u64,
    ) -> Result<FabricModel, FabricModelError> {
        if host == 0 || uplink == 0 {
            return Err(FabricModelError::Rate);
        }
        let document = serde_json::from_str(json).map_err(|error| FileError::Json(error.to_string()));
        let fabric = document.and_then(|document| build(name, document, host, uplink));
        fabric.map_err(|reason| FabricModelError::File { name: name.to_owned(), reason })
    }
}

fn build(name: &str, document: Document, host: u64, uplink: u64) -> Result<FabricModel, FileError> {
    let Document { switches, links, mut nodes } = document;
    let slots = |node: &NodeEntry| u64::from(node.slots.unwrap_or(1).max(1));
    let ranks: u64 = nodes.iter().map(slots).sum();
    if switches.len() > MAX_SWITCHES || ranks > MAX_RANKS {
        return Err(FileError::Large { switches: switches.len(), ranks });
    }
    let first = nodes.first().ok_or(FileError::Empty)?.name.clone();
    let switches = Switches::new(switches, &nodes)?;
    let mut names = BTreeSet::new();
    for node in &nodes {
        let what = || format!("node {}", node.name);
        let home = node.datapath_id.ok_or_else(|| FileError::Nowhere(node.name.clone()))?;
        switches.index(home, what)?;
        known_rate(node.bytes_per_second, what)?;
        if !names.insert(&node.name) {
            return Err(FileError::Twice(what()));
        }
    }
    let rack =
        |node: &NodeEntry| node.datapath_id.and_then(|id| switches.indices.get(&id)).copied().unwrap_or(0);
    let first_rack = rack(&nodes[0]);
    nodes.sort_by_key(rack);
    let starts = (0..=switches.racks).map(|at| nodes.partition_point(|node| rack(node) < at)).collect();
    let mut cables = Vec::with_capacity(links.len());
    for link in links {
        let what = || format!("link {} - {}", link.a, link.b);
        known_rate(link.bytes_per_second, what)?;
        let ends = [switches.index(link.a, what)?, switches.index(link.b, what)?];
        cables.push(Cable { ends, rate: link.bytes_per_second.unwrap_or(uplink) });
    }
    let host_rates: Vec<u64> = nodes.iter().map(|node| node.bytes_per_second.unwrap_or(host)).collect();
    let host = host_rates.iter().copied().min().unwrap_or(host);
    let uplink = cables.iter().map(|cable| cable.rate).min().unwrap_or(uplink);
    let mesh = Mesh::new(switches.racks, switches.names.len(), cables, host_rates);
    let mesh = mesh.map_err(|wrong| match wrong {
        MeshError::Loop(mut ring) => {
            ring.push(ring[0]);
            FileError::Loop(ring.into_iter().map(|switch| switches.names[switch].clone()).collect())
        }
        MeshError::Apart(apart) => FileError::Apart {
            node: nodes
                .iter()
                .find(|node| rack(node) == apart)
                .map_or(String::new(), |node| node.name.clone()),
            switch: switches.names[apart].clone(),
            first,
            home: switches.names[first_rack].clone(),
        },
    })?;
    Ok(FabricModel {
        wires: Wires::Mesh(Box::new(mesh)),
        name: name.to_owned(),
        starts,
        ranks: Ranks::Each(nodes.iter().map(|node| slots(node) as usize).collect()),
        host,
        uplink,
        delay: Duration::from_micros(50),
        uplink_delay: Duration::from_micros(50),
        burst: 16_000,
        spent: 0,
    })
}

fn known_rate(rate: Option<u64>, what: impl Fn() -> String) -> Result<(), FileError> {
    if rate == Some(0) { Err(FileError::Rate(what())) } else { Ok(()) }
}

/// The switches by index: first those with nodes, in the order of their racks' numbers, then the
/// others.
struct Switches {
    names: Vec<String>,
    indices: BTreeMap<u64, usize>,
    racks: usize,
}

impl Switches {
    fn new(mut switches: Vec<Switch>, nodes: &[NodeEntry]) -> Result<Switches, FileError> {
        let tors: BTreeSet<u64> = nodes.iter().filter_map(|node| node.datapath_id).collect();
        let is_tor = |switch: &Switch| tors.contains(&switch.datapath_id);
        switches.sort_by_key(|s| (!is_tor(s), s.rack.unwrap_or(u32::MAX), s.datapath_id));
        let mut indices = BTreeMap::new();
        for (index, switch) in switches.iter().enumerate() {
            if indices.insert(switch.datapath_id, index).is_some() {
                return Err(FileError::Twice(format!("switch {}", switch.datapath_id)));
            }
        }
        let racks = switches.iter().filter(|switch| is_tor(switch)).count();
        let name = |switch: Switch| switch.name.unwrap_or_else(|| switch.datapath_id.to_string());
        Ok(Switches { names: switches.into_iter().map(name).collect(), indices, racks })
    }

    fn index(&self, switch: u64, what: impl Fn() -> String) -> Result<usize, FileError> {
        self.indices.get(&switch).copied().ok_or_else(|| FileError::Switch { at: what(), switch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a document with nodes h1, h2, ..., one at each switch of `tors`, and links between
    /// switches.
    fn network(tors: &[u64], links: &[(u64, u64)]) -> serde_json::Value {
        let all: BTreeSet<u64> =
            links.iter().flat_map(|(a, b)| [*a, *b]).chain(tors.iter().copied()).collect();
        serde_json::json!({
            "switches": all.iter().map(|id| serde_json::json!({"datapath_id": id, "name": format!("s{id}")})).collect::<Vec<_>>(),
            "links": links.iter().map(|(a, b)| serde_json::json!({"a": a, "b": b})).collect::<Vec<_>>(),
            "nodes": (1..).zip(tors).map(|(i, id)| serde_json::json!({"name": format!("h{i}"), "datapath_id": id})).collect::<Vec<_>>(),
        })
    }

    fn read(document: &serde_json::Value) -> Result<FabricModel, FabricModelError> {
        FabricModel::from_json("net.json", &document.to_string(), 1000, 500)
    }

    fn refused(document: &serde_json::Value) -> String {
        let error = read(document).unwrap_err().to_string();
        assert!(error.contains("net.json"), "{error}");
        error
    }

    #[test]
    fn a_leaf_spine_file_has_the_same_paths_as_the_text() {
        let tors = [3, 3, 4, 4, 5, 5];
        let links = [(3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2)];
        let file = read(&network(&tors, &links)).unwrap();
        let text: FabricModel = "leafspine:3x2x2".parse().unwrap();
        for from in 0..6 {
            for to in (0..6).filter(|to| *to != from) {
                assert_eq!(file.hops(from, to), text.hops(from, to));
                assert_eq!(file.path(from, to), text.path(from, to));
            }
            let others = || (0..6).filter(move |to| *to != from);
            assert_eq!(file.tree(from, others(), 0).len(), text.tree(from, others(), 0).len());
        }
        assert_eq!((file.racks(), file.ranks(), file.rack_rate(0)), (3, 6, 1000));
    }

    #[test]
    fn rates_and_slots_are_those_of_the_file_where_it_has_some() {
        let mut document = network(&[2, 2, 3], &[(1, 2), (1, 3)]);
        document["nodes"][1]["slots"] = 4.into();
        document["nodes"][2]["bytes_per_second"] = 700.into();
        document["links"][1]["bytes_per_second"] = 300.into();
        let file = read(&document).unwrap();
        assert_eq!(file.ranks(), 6);
        assert_eq!([0, 1, 2].map(|host| file.host_rate(host)), [1000, 1000, 700]);
        assert_eq!([0, 1].map(|rack| file.rack_rate(rack)), [500, 300]);
        assert_eq!(file.rates(), [1000, 1000, 1000, 1000, 700, 700, 500, 500, 300, 300]);
    }

    #[test]
    fn a_loop_is_named_by_its_switches() {
        let ring = refused(&network(&[1, 2, 3], &[(1, 2), (2, 3), (3, 1)]));
        assert!(ring.contains("s1 - s3 - s2 - s1") || ring.contains("s1 - s2 - s3 - s1"), "{ring}");
        let itself = refused(&network(&[1], &[(1, 1)]));
        assert!(itself.contains("s1 - s1"), "{itself}");
        let spines = refused(&network(&[3, 4], &[(3, 1), (3, 2), (4, 1), (4, 2), (1, 2)]));
        assert!(spines.contains("s1 - s3 - s2 - s1") || spines.contains("s1 - s4 - s2 - s1"), "{spines}");
        assert!(read(&network(&[1, 2], &[(1, 2)])).is_ok());
    }

    #[test]
    fn unconnected_nodes_are_named() {
        let apart = refused(&network(&[1, 2, 3], &[(1, 2)]));
        assert!(apart.contains("node h3 at switch s3") && apart.contains("node h1 at switch s1"), "{apart}");
        let mut document = network(&[1, 1], &[]);
        document["nodes"][1]["datapath_id"] = serde_json::Value::Null;
        assert!(refused(&document).contains("node h2 is not connected"));
        document["nodes"][1]["datapath_id"] = 9.into();
        assert!(refused(&document).contains("node h2 names switch 9"));
    }

    #[test]
    fn an_invalid_network_file_is_refused_with_the_reason() {
        for (text, wrong) in
            [("{}", "switches"), ("[", "EOF"), (r#"{"switches": [], "nodes": []}"#, "no nodes")]
        {
            let error = FabricModel::from_json("x", text, 1, 1).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
        let mut document = network(&[1, 1], &[]);
        document["nodes"][1]["name"] = "h1".into();
        assert!(refused(&document).contains("node h1 is listed twice"));
        document["nodes"][1]["name"] = "h2".into();
        document["nodes"][1]["bytes_per_second"] = 0.into();
        assert!(refused(&document).contains("node h2 has a rate of 0"));
        document["nodes"][1]["slots"] = u32::MAX.into();
        document["nodes"][1]["bytes_per_second"] = 1.into();
        assert!(refused(&document).contains("at most"));
    }
}
