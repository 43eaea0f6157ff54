//! The network that a schedule is timed on: racks of hosts below a tree, a leaf-spine or a fat-tree network,
//! its links, and the ways of messages over them. How long anything takes is not its business.

use cool_collective::planner::Level;
use cool_collective::timing::Costs;
use cool_collective::{CostModel, Layout, LayoutError, Place};
use cool_machine::Duration;
use core::fmt;
use core::str::FromStr;

/// Hosts of one network at most: what numbers and memory are made for.
const MAX_HOSTS: u64 = 1 << 20;
/// Ranks of one network at most.
const MAX_RANKS: u64 = 1 << 22;
/// Links between switches at most.
const MAX_SWITCH_LINKS: u64 = 1 << 22;

/// How the switches above the racks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All under one core switch.
    Tree,
    /// Each to each of so many spines.
    LeafSpine { spines: usize },
    /// A fat tree (Al-Fares et al., SIGCOMM 2008) of switches with twice so many ports.
    FatTree { half: usize },
}

/// Which ranks are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Host after host, rack after rack.
    #[default]
    Packed,
    /// Each rank in another rack than the one before it.
    Interleaved,
}

/// A network. It parses from `tree:RxK` (R racks of K hosts), `tree:3+5+2` (racks of so many hosts),
/// `leafspine:LxSxK` (L racks of K hosts, S spines) or `fattree:K` (of switches with K ports); another `xP` is
/// the number of ranks on each host.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    shape: Shape,
    /// The first host of each rack, and the number of hosts.
    starts: Vec<usize>,
    ranks_per_host: usize,
    /// Of a host's link, each way, in bytes per second.
    pub host: u64,
    /// Of a link between switches, each way, in bytes per second.
    pub uplink: u64,
    /// Time from one end of a link to the other, a switch's work included.
    pub delay: Duration,
    /// Bytes that pass an idle link at once, as a token bucket lets them; 0 for links as they are in hardware.
    pub burst: u64,
}

/// Why a text is no network, or a network too small for a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// It is not written as one.
    #[error(
        "topology {0:?}: expected tree:RxK (R racks of K hosts), tree:3+5+2 (racks of so many hosts), \
         leafspine:LxSxK (L racks of K hosts, S spines) or fattree:K (switches with K ports, an even number), \
         each with another xP for P ranks on each host"
    )]
    Text(String),
    /// It is larger than can be computed here.
    #[error("topology {0:?} is too large; at most {MAX_HOSTS} hosts and {MAX_RANKS} ranks can be timed")]
    Size(String),
    /// A rate of zero.
    #[error("the links of a network must carry something; give rates above 0")]
    Rate,
    /// There are no ranks.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The group has ranks where the network has no hosts.
    #[error(
        "the group has {wanted} nodes in its rack {rack}, the network {found} there; time it on a larger one"
    )]
    Small {
        /// The rack.
        rack: usize,
        /// Nodes of the group in it.
        wanted: usize,
        /// Hosts of the network in it.
        found: usize,
    },
}

impl Fabric {
    /// The same network with such links, in bytes per second.
    ///
    /// # Errors
    /// If one is zero.
    pub fn with_rates(self, host: u64, uplink: u64) -> Result<Fabric, FabricError> {
        if host == 0 || uplink == 0 {
            return Err(FabricError::Rate);
        }
        Ok(Fabric { host, uplink, ..self })
    }

    /// What the planner is told of this network.
    pub fn cost_model(&self, costs: &Costs) -> CostModel {
        let level = |hops: u32, bytes_per_second| Level { latency: self.delay * hops, bytes_per_second };
        let lanes = match self.shape {
            Shape::Tree => 1,
            Shape::LeafSpine { spines } => spines,
            Shape::FatTree { half } => half,
        };
        let far = if let Shape::FatTree { .. } = self.shape { 6 } else { 4 };
        CostModel {
            costs: *costs,
            rack: level(2, self.host),
            center: level(far, self.uplink),
            lanes: lanes as u32,
            burst: self.burst,
        }
    }

    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of racks.
    pub fn racks(&self) -> usize {
        self.starts.len() - 1
    }

    /// Number of ranks, if every host has as many as the text says.
    pub fn ranks(&self) -> usize {
        self.hosts() * self.ranks_per_host
    }

    /// Where the ranks of a group over the whole network are.
    pub fn places(&self, placement: Placement) -> Vec<Place> {
        let place = |host: usize| Place { rack: self.rack_of(host) as u32, node: host as u32 };
        let packed =
            (0..self.hosts()).flat_map(|host| core::iter::repeat_n(place(host), self.ranks_per_host));
        match placement {
            Placement::Packed => packed.collect(),
            Placement::Interleaved => {
                let mut racks: Vec<Vec<Place>> = vec![Vec::new(); self.racks()];
                packed.for_each(|place| racks[place.rack as usize].push(place));
                let longest = racks.iter().map(Vec::len).max().unwrap_or(0);
                (0..longest).flat_map(|i| racks.iter().filter_map(move |rack| rack.get(i).copied())).collect()
            }
        }
    }

    /// The layout of a group over the whole network.
    ///
    /// # Errors
    /// Never for a network that was made from a text.
    pub fn layout(&self, placement: Placement) -> Result<Layout, FabricError> {
        Ok(Layout::new(&self.places(placement))?)
    }

    /// The host of each node of a group: its racks and their nodes in order.
    ///
    /// # Errors
    /// If the network has no host for a node.
    pub(super) fn hosts_of(&self, layout: &Layout) -> Result<Vec<usize>, FabricError> {
        let mut hosts = vec![0; layout.nodes()];
        for rack in 0..layout.racks() {
            let nodes = layout.nodes_of_rack(rack);
            let found = self.starts.get(rack + 1).map_or(0, |end| end - self.starts[rack]);
            if nodes.len() > found {
                return Err(FabricError::Small { rack, wanted: nodes.len(), found });
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

    /// Bytes per second of every link, each direction a link of its own.
    pub(super) fn rates(&self) -> Vec<u64> {
        let hosts = 2 * self.hosts();
        let switches = match self.shape {
            Shape::Tree => self.racks(),
            Shape::LeafSpine { spines } => self.racks() * spines,
            Shape::FatTree { half } => 2 * self.racks() * half,
        };
        let mut rates = vec![self.host; hosts];
        rates.resize(hosts + 2 * switches, self.uplink);
        rates
    }

    /// The bytes per second between a rack and the others.
    pub fn rack_rate(&self) -> u64 {
        match self.shape {
            Shape::Tree => self.uplink,
            Shape::LeafSpine { spines } => self.uplink.saturating_mul(spines as u64),
            Shape::FatTree { half } => self.uplink.saturating_mul(half as u64),
        }
    }

    /// The links of a message from one host to another. Among equally short ways the destination's rack chooses.
    pub(super) fn path(&self, from: usize, to: usize) -> Vec<u32> {
        let mut links = Vec::with_capacity(6);
        self.way(from, to, self.rack_of(to), &mut links);
        links
    }

    /// The links of a multicast from one host to others, each once, ascending.
    pub(super) fn tree(&self, from: usize, to: impl Iterator<Item = usize>) -> Vec<u32> {
        let mut links = Vec::new();
        for host in to {
            self.way(from, host, 0, &mut links);
        }
        links.sort_unstable();
        links.dedup();
        links
    }

    /// Number of links between two hosts.
    pub(super) fn hops(&self, from: usize, to: usize) -> u32 {
        let (a, b) = (self.rack_of(from), self.rack_of(to));
        match self.shape {
            _ if from == to => 0,
            _ if a == b => 2,
            Shape::FatTree { half } if a / half != b / half => 6,
            _ => 4,
        }
    }

    fn way(&self, from: usize, to: usize, choice: usize, links: &mut Vec<u32>) {
        let (a, b) = (self.rack_of(from), self.rack_of(to));
        let base = 2 * self.hosts();
        let between = |index: usize, down: bool| (base + 2 * index + usize::from(down)) as u32;
        links.push(2 * from as u32);
        if a != b {
            match self.shape {
                Shape::Tree => links.extend([between(a, false), between(b, true)]),
                Shape::LeafSpine { spines } => {
                    let spine = choice % spines;
                    links.extend([between(a * spines + spine, false), between(b * spines + spine, true)]);
                }
                Shape::FatTree { half } => {
                    let (above, core) = (choice % half, choice / half % half);
                    links.push(between(a * half + above, false));
                    if a / half != b / half {
                        let to_core = |rack: usize| (self.racks() + rack / half * half + above) * half + core;
                        links.extend([between(to_core(a), false), between(to_core(b), true)]);
                    }
                    links.push(between(b * half + above, true));
                }
            }
        }
        links.push(2 * to as u32 + 1);
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let racks: Vec<usize> = self.starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let first = racks.first().copied().unwrap_or(0);
        match self.shape {
            Shape::Tree if racks.iter().all(|rack| *rack == first) => {
                write!(f, "tree:{}x{first}", racks.len())?;
            }
            Shape::Tree => {
                let racks: Vec<String> = racks.iter().map(usize::to_string).collect();
                write!(f, "tree:{}", racks.join("+"))?;
            }
            Shape::LeafSpine { spines } => write!(f, "leafspine:{}x{spines}x{first}", racks.len())?,
            Shape::FatTree { half } => write!(f, "fattree:{}", 2 * half)?,
        }
        match self.ranks_per_host {
            1 => Ok(()),
            ranks => write!(f, "x{ranks}"),
        }
    }
}

impl FromStr for Fabric {
    type Err = FabricError;

    /// With the links of the emulated test bed, all 20 Mbit/s.
    fn from_str(text: &str) -> Result<Fabric, FabricError> {
        let wrong = || FabricError::Text(text.to_owned());
        let large = || FabricError::Size(text.to_owned());
        let number = |word: &str| match word.parse::<u64>() {
            Ok(0) | Err(_) => Err(wrong()),
            Ok(number) => Ok(number),
        };
        let (kind, words) = text.split_once(':').ok_or_else(wrong)?;
        let words: Vec<&str> = words.split('x').collect();
        let first: Vec<u64> = words[0].split('+').map(number).collect::<Result<_, _>>()?;
        let rest: Vec<u64> = words[1..].iter().map(|word| number(word)).collect::<Result<_, _>>()?;
        let even = |racks: u64, hosts: u64| {
            let fits = racks.checked_mul(hosts).is_some_and(|all| all <= MAX_HOSTS);
            if fits { Ok(vec![hosts; racks as usize]) } else { Err(large()) }
        };
        let (shape, racks, ranks) = match (kind, first.as_slice(), rest.as_slice()) {
            ("tree", [racks], [hosts]) => (Shape::Tree, even(*racks, *hosts)?, 1),
            ("tree", [racks], [hosts, ranks]) => (Shape::Tree, even(*racks, *hosts)?, *ranks),
            ("tree", racks @ [_, _, ..], []) => (Shape::Tree, racks.to_vec(), 1),
            ("tree", racks @ [_, _, ..], [ranks]) => (Shape::Tree, racks.to_vec(), *ranks),
            ("leafspine", [racks], [spines, hosts, ranks @ ..]) if ranks.len() < 2 => {
                if racks.checked_mul(*spines).is_none_or(|links| links > MAX_SWITCH_LINKS) {
                    return Err(large());
                }
                let shape = Shape::LeafSpine { spines: *spines as usize };
                (shape, even(*racks, *hosts)?, ranks.first().copied().unwrap_or(1))
            }
            ("fattree", [ports], ranks) if ports.is_multiple_of(2) && ranks.len() < 2 => {
                let half = ports / 2;
                let racks = ports.checked_mul(half).ok_or_else(large)?;
                let shape = Shape::FatTree { half: half as usize };
                (shape, even(racks, half)?, ranks.first().copied().unwrap_or(1))
            }
            _ => return Err(wrong()),
        };
        let hosts = racks.iter().try_fold(0u64, |sum, rack| sum.checked_add(*rack)).unwrap_or(u64::MAX);
        if hosts > MAX_HOSTS || hosts.checked_mul(ranks).is_none_or(|all| all > MAX_RANKS) {
            return Err(large());
        }
        let mut starts = vec![0];
        starts.extend(racks.iter().scan(0, |at, rack| {
            *at += *rack as usize;
            Some(*at)
        }));
        Ok(Fabric {
            shape,
            starts,
            ranks_per_host: ranks as usize,
            host: 2_500_000,
            uplink: 2_500_000,
            delay: Duration::from_micros(50),
            burst: 16_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fabric(text: &str) -> Fabric {
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
    fn what_is_no_topology_is_answered_with_what_would_be() {
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
            let error = text.parse::<Fabric>().unwrap_err();
            assert!(
                matches!(error, FabricError::Text(_)) && error.to_string().contains("tree:RxK"),
                "{text}"
            );
        }
        for text in
            ["tree:99999999x99999999", "fattree:999999998", "leafspine:9999x9999x1", "tree:1024x1024x1024"]
        {
            assert!(matches!(text.parse::<Fabric>(), Err(FabricError::Size(_))), "{text}");
        }
    }

    #[test]
    fn every_way_begins_and_ends_at_its_hosts_and_has_as_many_links_as_hops() {
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
    fn a_multicast_crosses_every_link_of_its_tree_once() {
        let tree = fabric("tree:3x4").tree(0, 1..12);
        // Its own link up and rack up, two racks down, eleven hosts down.
        assert_eq!(tree.len(), 1 + 1 + 2 + 11);
        let fat = fabric("fattree:4").tree(0, 1..16);
        // To the edge, to the aggregation, to the core; three other pods and their six racks, one rack beside.
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
