//! The network on which a schedule is timed: racks of hosts below a tree, a leaf-spine or a
//! fat-tree network, or a network from a file; its links, and the paths of messages over them. This
//! module does not compute times.

mod file;
mod mesh;
mod text;
mod wires;

use cool_collective::planner::LinkCost;
use cool_collective::timing::AgentCosts;
use cool_collective::{CostModel, Layout, LayoutError, RankPlace};
use cool_machine::Duration;
use std::collections::BTreeSet;
use wires::Wires;

pub use file::FileError;

/// Maximum number of hosts of a network. Numbers and memory are dimensioned for it.
const MAX_HOSTS: u64 = 1 << 20;
/// Maximum number of ranks of a network.
const MAX_RANKS: u64 = 1 << 22;

/// The order in which ranks are placed on hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Host after host, rack after rack.
    #[default]
    Packed,
    /// Each rank in a different rack from the previous one.
    Interleaved,
}

/// The number of ranks on each host.
#[derive(Clone, Debug, PartialEq)]
enum Ranks {
    All(usize),
    Each(Vec<usize>),
}

/// A network. It parses from `tree:RxK` (R racks of K hosts), `tree:3+5+2` (racks of 3, 5 and 2
/// hosts), `leafspine:LxSxK` (L racks of K hosts, S spines) or `fattree:K` (of switches with K
/// ports). An additional `xP` states the number P of ranks on each host.
#[derive(Clone, Debug, PartialEq)]
pub struct FabricModel {
    wires: Wires,
    /// The text from which it was parsed, or the name of its file.
    name: String,
    /// The first host of each rack, followed by the number of hosts.
    starts: Vec<usize>,
    ranks: Ranks,
    /// Rate of the slowest host's link in each direction, in bytes per second.
    pub host: u64,
    /// Rate of the slowest link between switches in each direction, in bytes per second.
    pub uplink: u64,
    /// Delay of a host's link, including a switch's processing.
    pub delay: Duration,
    /// Delay of a link between switches, including a switch's processing.
    pub uplink_delay: Duration,
    /// Number of bytes that pass an idle link at once, as a token bucket permits; 0 for hardware
    /// links.
    pub burst: u64,
    /// Number of these bytes that are already used at the beginning.
    pub spent: u64,
}

/// Why a text does not describe a network, or a network is too small for a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricModelError {
    /// The text does not have the required form.
    #[error(
        "topology {0:?}: expected tree:RxK (R racks of K hosts), tree:3+5+2 (racks of 3, 5 and 2 hosts), \
         leafspine:LxSxK (L racks of K hosts, S spines) or fattree:K (switches with K ports, an even number), \
         each with another xP for P ranks on each host"
    )]
    Text(String),
    /// The network is too large.
    #[error("topology {0:?} is too large; at most {MAX_HOSTS} hosts and {MAX_RANKS} ranks can be timed")]
    Size(String),
    /// The file does not describe a valid network.
    #[error("topology file {name}: {reason}")]
    File {
        /// The name of the file.
        name: String,
        /// The reason.
        reason: FileError,
    },
    /// A rate is zero.
    #[error("link rates must be above 0")]
    Rate,
    /// There are no ranks.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The group has more nodes in a rack than the network has hosts there.
    #[error(
        "the group has {wanted} nodes in its rack {rack}, the network {found} there; time it on a larger one"
    )]
    Small {
        /// The rack.
        rack: usize,
        /// Number of the group's nodes in it.
        wanted: usize,
        /// Number of the network's hosts in it.
        found: usize,
    },
}

impl FabricModel {
    /// Returns the network with other link rates in bytes per second. A network from a file keeps
    /// its own rates.
    ///
    /// # Errors
    /// Fails if a rate is zero.
    pub fn with_rates(self, host: u64, uplink: u64) -> Result<FabricModel, FabricModelError> {
        match self.wires {
            _ if host == 0 || uplink == 0 => Err(FabricModelError::Rate),
            Wires::Mesh(_) => Ok(self),
            _ => Ok(FabricModel { host, uplink, ..self }),
        }
    }

    /// Returns the network that a cost model describes, with the nodes of a group.
    ///
    /// # Errors
    /// Fails if a rate of the model is zero.
    pub fn of_group(layout: &Layout, model: &CostModel) -> Result<FabricModel, FabricModelError> {
        let spines = model.ecmp_paths as usize;
        let ends = (0..layout.racks()).map(|rack| layout.nodes_of_rack(rack).end);
        let ranks = (0..layout.nodes()).map(|node| layout.ranks_of_node(node).len());
        let (near, far) = (model.rack.latency, model.core.latency);
        let (host, uplink) = (model.rack.bytes_per_second, model.core.bytes_per_second);
        let fabric = FabricModel {
            wires: if spines > 1 { Wires::LeafSpine { spines } } else { Wires::Tree },
            name: format!("{} nodes in {} racks", layout.nodes(), layout.racks()),
            starts: core::iter::once(0).chain(ends).collect(),
            ranks: Ranks::Each(ranks.collect()),
            host,
            uplink,
            delay: near / 2,
            uplink_delay: far.saturating_sub(near) / 2,
            burst: model.burst,
            spent: 0,
        };
        fabric.with_rates(host, uplink)
    }

    /// Returns the delay over `hops` links. The first and last ones must be links of hosts.
    pub(super) fn delay_over(&self, hops: u32) -> Duration {
        self.delay * hops.min(2) + self.uplink_delay * hops.saturating_sub(2)
    }

    /// Returns the cost model for the planner, given by the slowest links and longest paths.
    pub fn cost_model(&self, costs: &AgentCosts) -> CostModel {
        let level =
            |hops: u32, bytes_per_second| LinkCost { latency: self.delay_over(hops), bytes_per_second };
        let lanes = (0..self.racks()).map(|rack| self.wires.lanes(rack)).min().unwrap_or(1);
        CostModel {
            costs: *costs,
            rack: level(2, self.host),
            core: level(2 + self.wires.farthest(self.racks()), self.uplink),
            ecmp_paths: lanes as u32,
            burst: self.burst,
            unicast_plans: true,
        }
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the number of racks.
    pub fn racks(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of ranks if every host has as many as it can.
    pub fn ranks(&self) -> usize {
        match &self.ranks {
            Ranks::All(ranks) => self.hosts() * ranks,
            Ranks::Each(ranks) => ranks.iter().sum(),
        }
    }

    fn ranks_of(&self, host: usize) -> usize {
        match &self.ranks {
            Ranks::All(ranks) => *ranks,
            Ranks::Each(ranks) => ranks[host],
        }
    }

    /// Returns the places of the ranks of a group over the whole network.
    pub fn places(&self, placement: Placement) -> Vec<RankPlace> {
        let place = |host: usize| RankPlace { rack: self.rack_of(host) as u32, node: host as u32 };
        let packed =
            (0..self.hosts()).flat_map(|host| core::iter::repeat_n(place(host), self.ranks_of(host)));
        match placement {
            Placement::Packed => packed.collect(),
            Placement::Interleaved => {
                let mut racks: Vec<Vec<RankPlace>> = vec![Vec::new(); self.racks()];
                packed.for_each(|place| racks[place.rack as usize].push(place));
                let longest = racks.iter().map(Vec::len).max().unwrap_or(0);
                (0..longest).flat_map(|i| racks.iter().filter_map(move |rack| rack.get(i).copied())).collect()
            }
        }
    }

    /// Returns the layout of a group over the whole network.
    ///
    /// # Errors
    /// Never fails, because a network has hosts and each of them is in one rack.
    pub fn layout(&self, placement: Placement) -> Result<Layout, FabricModelError> {
        Ok(Layout::new(&self.places(placement))?.with_stripes(self.stripes()))
    }

    /// Returns the number of trees over all hosts that share no link between switches and together
    /// fill a host's link.
    pub fn stripes(&self) -> u32 {
        let lanes = (0..self.racks()).map(|rack| self.wires.lanes(rack)).min().unwrap_or(1);
        let enough = self.host.div_ceil(self.uplink.max(1)).min(lanes as u64);
        if self.racks() > 1 { u32::try_from(enough).unwrap_or(u32::MAX) } else { 1 }
    }

    /// Returns the host of each node of a group. Racks and their nodes are matched in order.
    ///
    /// # Errors
    /// Fails if the network has no host for a node.
    pub(super) fn hosts_of(&self, layout: &Layout) -> Result<Vec<usize>, FabricModelError> {
        let mut hosts = vec![0; layout.nodes()];
        for rack in 0..layout.racks() {
            let nodes = layout.nodes_of_rack(rack);
            let found = self.starts.get(rack + 1).map_or(0, |end| end - self.starts[rack]);
            if nodes.len() > found {
                return Err(FabricModelError::Small { rack, wanted: nodes.len(), found });
            }
            for (host, node) in (self.starts[rack]..).zip(nodes) {
                hosts[node] = host;
            }
        }
        Ok(hosts)
    }

    fn rack_of(&self, host: usize) -> usize {
        self.starts.partition_point(|start| *start <= host) - 1
    }

    /// Returns the rates of all links in bytes per second. Each direction is a separate link.
    pub(super) fn rates(&self) -> Vec<u64> {
        let (hosts, links) = (self.hosts(), self.wires.links(self.racks()));
        let (hosts, links) = match &self.wires {
            Wires::Mesh(mesh) => mesh.rates(),
            _ => (vec![self.host; hosts], vec![self.uplink; links]),
        };
        hosts.into_iter().chain(links).flat_map(|rate| [rate; 2]).collect()
    }

    /// Returns the rate of a host's link in bytes per second.
    pub(super) fn host_rate(&self, host: usize) -> u64 {
        if let Wires::Mesh(mesh) = &self.wires { mesh.host_rate(host) } else { self.host }
    }

    /// Returns the rate between a rack and the others in bytes per second.
    pub(super) fn rack_rate(&self, rack: usize) -> u64 {
        match &self.wires {
            Wires::Mesh(mesh) => mesh.rack_rate(rack),
            wires => self.uplink.saturating_mul(wires.lanes(rack) as u64),
        }
    }

    /// Returns the links of a message from one host to another. Among equally short paths the
    /// destination's rack decides.
    pub(super) fn path(&self, from: usize, to: usize) -> Vec<u32> {
        let (a, b) = (self.rack_of(from), self.rack_of(to));
        let mut links = Vec::with_capacity(6);
        links.push(2 * from as u32);
        self.wires.way((a, b), self.racks(), b, |link| links.push(self.switch_link(link)));
        links.push(2 * to as u32 + 1);
        links
    }

    /// Returns the links of a multicast over a tree from one host to others, each once: first the
    /// sender's own link, then the others in ascending order.
    pub(super) fn tree(&self, from: usize, to: impl Iterator<Item = usize>, tree: usize) -> Vec<u32> {
        let mut links = Vec::new();
        let mut racks = BTreeSet::new();
        for host in to {
            racks.insert(self.rack_of(host));
            links.push(2 * host as u32 + 1);
        }
        let home = self.rack_of(from);
        for rack in racks {
            self.wires.branch((home, rack), self.racks(), tree, |link| links.push(self.switch_link(link)));
        }
        links.sort_unstable();
        links.dedup();
        links.insert(0, 2 * from as u32);
        links
    }

    /// Returns the number of links between two hosts.
    pub(super) fn hops(&self, from: usize, to: usize) -> u32 {
        if from == to { 0 } else { 2 + self.wires.hops(self.rack_of(from), self.rack_of(to)) }
    }

    fn switch_link(&self, link: usize) -> u32 {
        (2 * self.hosts() + link) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(text: &str) -> FabricModel {
        text.parse().unwrap()
    }

    #[test]
    fn a_topology_is_written_as_it_is_read() {
        for (text, racks, hosts, ranks) in [
            ("tree:4x3", 4, 12, 12),
            ("tree:4x3x2", 4, 12, 24),
            ("tree:3+5+2", 3, 10, 10),
            ("tree:3+5x4", 2, 8, 32),
            ("leafspine:4x2x3", 4, 12, 12),
            ("leafspine:4x2x3x5", 4, 12, 60),
            ("fattree:4", 8, 16, 16),
        ] {
            let fabric = fabric(text);
            assert_eq!((fabric.racks(), fabric.hosts(), fabric.ranks()), (racks, hosts, ranks), "{text}");
            assert_eq!(fabric.to_string(), text);
        }
    }

    #[test]
    fn an_invalid_topology_is_refused_with_the_valid_forms() {
        for text in [
            "",
            "tree",
            "tree:4",
            "tree:0x4",
            "tree:4x4x2x2",
            "ring:4x4",
            "fattree:3",
            "leafspine:2x2",
            "tree:ax4",
        ] {
            let error = text.parse::<FabricModel>().unwrap_err();
            assert!(
                matches!(error, FabricModelError::Text(_)) && error.to_string().contains("tree:RxK"),
                "{text}"
            );
        }
        for text in
            ["tree:99999999x99999999", "fattree:999999998", "leafspine:9999x9999x1", "tree:1024x1024x1024"]
        {
            assert!(matches!(text.parse::<FabricModel>(), Err(FabricModelError::Size(_))), "{text}");
        }
    }

    #[test]
    fn every_path_ends_at_its_hosts_and_has_as_many_links_as_hops() {
        for text in ["tree:3x2", "tree:1+3+2", "leafspine:3x2x2", "fattree:4"] {
            let fabric = fabric(text);
            let links = fabric.rates().len();
            for from in 0..fabric.hosts() {
                for to in (0..fabric.hosts()).filter(|to| *to != from) {
                    let path = fabric.path(from, to);
                    assert_eq!(path.len() as u32, fabric.hops(from, to), "{text} {from} {to}");
                    assert_eq!((path[0], path[path.len() - 1]), (2 * from as u32, 2 * to as u32 + 1));
                    assert!(path.iter().all(|link| (*link as usize) < links));
                }
            }
        }
    }

    #[test]
    fn the_network_of_a_groups_model_has_that_model() {
        for text in ["tree:4x3", "tree:3+5+2", "leafspine:4x2x3"] {
            let mut fabric = fabric(text);
            (fabric.uplink, fabric.uplink_delay) = (1_000_000, Duration::from_micros(80));
            let (model, layout) =
                (fabric.cost_model(&AgentCosts::default()), fabric.layout(Placement::Packed).unwrap());
            let of_group = FabricModel::of_group(&layout, &model).unwrap();
            assert_eq!(of_group.cost_model(&AgentCosts::default()), model);
            assert_eq!(of_group.layout(Placement::Packed).unwrap(), layout);
        }
    }

    #[test]
    fn a_multicast_crosses_every_link_of_its_tree_once() {
        let tree = fabric("tree:3x4").tree(0, 1..12, 0);
        // The sender's own link, its rack's uplink, the downlinks of two racks and of eleven hosts.
        assert_eq!(tree.len(), 1 + 1 + 2 + 11);
        let fat = fabric("fattree:4").tree(0, 1..16, 0);
        // To the edge, to the aggregation and to the core; three other pods and their six racks,
        // and the other rack of this pod.
        assert_eq!(fat.len(), 1 + 1 + 1 + 3 + 7 + 15);
    }

    #[test]
    fn interleaved_ranks_follow_each_other_in_other_racks() {
        let racks = |text: &str| -> Vec<u32> {
            fabric(text).places(Placement::Interleaved).iter().map(|place| place.rack).collect()
        };
        assert_eq!(racks("tree:2x2"), [0, 1, 0, 1]);
        assert_eq!(racks("tree:1+3"), [0, 1, 1, 1]);
    }
}
