//! Switches connected in any way that has no loops but those of equally short ways up and down: what a file may say.

use std::collections::VecDeque;

/// A link between two switches, by their indices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cable {
    pub(super) ends: [usize; 2],
    /// Bytes per second, each way.
    pub(super) rate: u64,
}

/// Switches and links; the first switches are the racks', in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mesh {
    cables: Vec<Cable>,
    /// Of each host, in order.
    host_rates: Vec<u64>,
    lanes: Vec<usize>,
    /// For each rack, from each switch.
    ways: Vec<Vec<Ways>>,
}

/// The shortest ways from a switch to a rack: how many links, and the first links with the switches they lead to.
#[derive(Clone, Debug, PartialEq)]
struct Ways {
    links: u32,
    first: Vec<(usize, usize)>,
}

/// What is wrong with switches and their links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A ring of switches.
    Loop(Vec<usize>),
    /// No way to this rack from the first.
    Apart(usize),
}

impl Mesh {
    pub(super) fn new(
        racks: usize,
        switches: usize,
        cables: Vec<Cable>,
        host_rates: Vec<u64>,
    ) -> Result<Mesh, Wrong> {
        let mut beside = vec![Vec::new(); switches];
        for (number, Cable { ends: [a, b], .. }) in cables.iter().enumerate() {
            beside[*a].push((2 * number, *b));
            beside[*b].push((2 * number + 1, *a));
        }
        let heights = distances(&beside, 0..racks, None);
        for (number, Cable { ends: [a, b], .. }) in cables.iter().enumerate() {
            // Links up and down give equally short ways; one between equals must be the only way.
            if heights[*a] == heights[*b]
                && let Some(ring) = ring(&beside, number, (*a, *b))
            {
                return Err(Wrong::Loop(ring));
            }
        }
        let mut ways = Vec::with_capacity(racks);
        for rack in 0..racks {
            let far = distances(&beside, rack..rack + 1, None);
            if far[0].is_none() {
                return Err(Wrong::Apart(rack));
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

    /// Rates of hosts' links and of those between switches.
    pub(super) fn rates(&self) -> (Vec<u64>, Vec<u64>) {
        (self.host_rates.clone(), self.cables.iter().map(|cable| cable.rate).collect())
    }

    pub(super) fn host_rate(&self, host: usize) -> u64 {
        self.host_rates[host]
    }

    /// Of all links that leave a rack.
    pub(super) fn rack_rate(&self, rack: usize) -> u64 {
        let leaving = self.cables.iter().filter(|cable| cable.ends.contains(&rack));
        leaving.fold(0, |sum: u64, cable| sum.saturating_add(cable.rate))
    }
}

/// Links from each switch to the nearest of some, leaving one link out; none if there is no way.
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

/// The shortest ring of switches that a link closes.
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
