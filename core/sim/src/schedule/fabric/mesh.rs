//! Switches of a network from a file. They may be connected in any way that has no loops other than
//! those of equally short paths up and down.

use std::collections::VecDeque;

/// A link between two switches, given by their indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cable {
    pub(super) ends: [usize; 2],
    /// Rate in bytes per second, in each direction.
    pub(super) rate: u64,
}

/// Switches and links. The first switches are those of the racks, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mesh {
    cables: Vec<Cable>,
    /// Rate of each host's link, in order.
    host_rates: Vec<u64>,
    lanes: Vec<usize>,
    /// For each rack, the shortest paths from each switch.
    ways: Vec<Vec<Ways>>,
}

/// The shortest paths from a switch to a rack: their length in links, and their first links with
/// the switches to which these lead.
#[derive(Clone, Debug, PartialEq)]
struct Ways {
    links: u32,
    first: Vec<(usize, usize)>,
}

/// Why switches and links do not form a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeshError {
    /// A ring of switches.
    Loop(Vec<usize>),
    /// The rack that cannot be reached from the first one.
    Apart(usize),
}

impl Mesh {
    pub(super) fn new(
        racks: usize,
        switches: usize,
        cables: Vec<Cable>,
        host_rates: Vec<u64>,
    ) -> Result<Mesh, MeshError> {
        let mut beside = vec![Vec::new(); switches];
        for (number, Cable { ends: [a, b], .. }) in cables.iter().enumerate() {
            beside[*a].push((2 * number, *b));
            beside[*b].push((2 * number + 1, *a));
        }
        let heights = distances(&beside, 0..racks, None);
        for (number, Cable { ends: [a, b], .. }) in cables.iter().enumerate() {
            // Links up and down give equally short paths. A link between switches of the same
            // height must be the only path.
            if heights[*a] == heights[*b]
                && let Some(ring) = ring(&beside, number, (*a, *b))
            {
                return Err(MeshError::Loop(ring));
            }
        }
        let mut ways = Vec::with_capacity(racks);
        for rack in 0..racks {
            let far = distances(&beside, rack..rack + 1, None);
            if far[0].is_none() {
                return Err(MeshError::Apart(rack));
            }
            let nearer = |switch: usize| {
                let next =
                    |peer: &(usize, usize)| far[peer.1].is_some_and(|peer| far[switch] == Some(peer + 1));
                beside[switch].iter().copied().filter(next).collect()
            };
            let from = |switch: usize| Ways { links: far[switch].unwrap_or(u32::MAX), first: nearer(switch) };
            ways.push((0..switches).map(from).collect());
        }
        let lanes = beside[..racks].iter().map(|links| links.len().max(1)).collect();
        Ok(Mesh { cables, host_rates, lanes, ways })
    }

    pub(super) fn links(&self) -> usize {
        self.cables.len()
    }

    pub(super) fn lanes(&self, rack: usize) -> usize {
        self.lanes[rack]
    }

    pub(super) fn hops(&self, a: usize, b: usize) -> u32 {
        self.ways[b][a].links
    }

    pub(super) fn farthest(&self) -> u32 {
        let racks = self.ways.len();
        self.ways.iter().flat_map(|ways| ways[..racks].iter().map(|ways| ways.links)).max().unwrap_or(0)
    }

    pub(super) fn way(&self, a: usize, b: usize, choice: usize, mut link: impl FnMut(usize)) {
        let mut at = a;
        while at != b {
            let next = &self.ways[b][at].first;
            let (number, peer) = next[choice % next.len()];
            link(number);
            at = peer;
        }
    }

    /// Returns the rates of the hosts' links and of those between switches.
    pub(super) fn rates(&self) -> (Vec<u64>, Vec<u64>) {
        (self.host_rates.clone(), self.cables.iter().map(|cable| cable.rate).collect())
    }

    pub(super) fn host_rate(&self, host: usize) -> u64 {
        self.host_rates[host]
    }

    /// Returns the total rate of all links that leave a rack.
    pub(super) fn rack_rate(&self, rack: usize) -> u64 {
        let leaving = self.cables.iter().filter(|cable| cable.ends.contains(&rack));
        leaving.fold(0, |sum: u64, cable| sum.saturating_add(cable.rate))
    }
}

/// Returns the number of links from each switch to the nearest one of `from` on paths that do not
/// use the link `without`, or none if there is no path.
fn distances(
    beside: &[Vec<(usize, usize)>],
    from: core::ops::Range<usize>,
    without: Option<usize>,
) -> Vec<Option<u32>> {
    let mut far = vec![None; beside.len()];
    let mut queue: VecDeque<(usize, u32)> = from.map(|switch| (switch, 0)).collect();
    queue.iter().for_each(|(switch, _)| far[*switch] = Some(0));
    while let Some((switch, distance)) = queue.pop_front() {
        for (number, peer) in &beside[switch] {
            if far[*peer].is_none() && without != Some(number / 2) {
                far[*peer] = Some(distance + 1);
                queue.push_back((*peer, distance + 1));
            }
        }
    }
    far
}

/// Returns the shortest ring of switches that a link closes.
fn ring(beside: &[Vec<(usize, usize)>], link: usize, (a, b): (usize, usize)) -> Option<Vec<usize>> {
    let far = distances(beside, b..b + 1, Some(link));
    let mut ring = vec![a];
    let mut at = a;
    while at != b {
        let distance = far[at]?;
        let next = |(number, peer): &&(usize, usize)| {
            number / 2 != link && far[*peer].is_some_and(|peer| peer + 1 == distance)
        };
        at = beside[at].iter().find(next)?.1;
        ring.push(at);
    }
    Some(ring)
}
