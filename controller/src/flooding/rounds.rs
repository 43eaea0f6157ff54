//! The rounds of an examination: each has a node that sends, a member, and listeners.

use std::collections::{BTreeMap, BTreeSet};

/// Number of nodes of each other rack that listen to a round. The nodes of the sender's rack all
/// listen, so each node of a rack with several nodes listens in some round.
const LISTENERS_PER_OTHER_RACK: usize = 2;
/// Number of nodes that a rack needs so that the sender, the member and a listener fit into it.
const ROUND_NODES_MIN: usize = 3;

/// A node that can take part, by the number of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExaminedNode {
    /// The number of its rack.
    pub(super) rack: u32,
    pub(super) number: u32,
    /// Whether it may listen. Switches forward all multicasts to some nodes for good reason.
    pub(super) may_listen: bool,
}

/// The roles in a round, by the numbers of the nodes' sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FloodingRound {
    pub(super) sender: u32,
    pub(super) member: u32,
    /// At least one node.
    pub(super) listeners: BTreeSet<u32>,
}

/// Returns the rounds that examine all racks with several nodes. Nodes in `unable` cannot listen,
/// either.
///
/// The sender is in the rack, because its switch forwards the probes in any case. The member is
/// there, too, if another node of the rack remains to listen; otherwise it is in the next rack.
pub(super) fn rounds(nodes: &[ExaminedNode], unable: &BTreeSet<u32>) -> Vec<FloodingRound> {
    let mut unable = unable.clone();
    unable.extend(nodes.iter().filter(|node| !node.may_listen).map(|node| node.number));
    let mut by_rack: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for node in nodes {
        by_rack.entry(node.rack).or_default().push(node.number);
    }
    // Nodes that cannot listen can still send or be the member.
    by_rack.values_mut().for_each(|rack| rack.sort_by_key(|number| (!unable.contains(number), *number)));
    let racks: Vec<&Vec<u32>> = by_rack.values().collect();
    let round = |at: usize| {
        let rack = racks[at];
        let next = racks[(at + 1) % racks.len()];
        let [sender, second, ..] = rack[..] else {
            // Such a rack is only a place of listeners, unless all racks have one node.
            let is_needed = at == 0 && racks.iter().all(|rack| rack.len() == 1);
            return is_needed.then(|| (rack[0], next[0]));
        };
        let fits = rack.len() >= ROUND_NODES_MIN || racks.len() == 1;
        Some((sender, if fits { second } else { next[0] }))
    };
    let round = |at: usize| {
        let (sender, member) = round(at)?;
        let listeners = racks.iter().enumerate().flat_map(|(other, rack)| {
            let able = rack
                .iter()
                .filter(|number| **number != sender && **number != member && !unable.contains(*number));
            able.take(if other == at { usize::MAX } else { LISTENERS_PER_OTHER_RACK })
        });
        let listeners: BTreeSet<u32> = listeners.copied().collect();
        (!listeners.is_empty()).then_some(FloodingRound { sender, member, listeners })
    };
    (0..racks.len()).filter_map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a node that may not listen.
    const QUERIER: u32 = 99;

    /// Returns the rounds of racks with these nodes: sender, member, and listeners.
    fn round_numbers(racks: &[&[u32]], unable: &[u32]) -> Vec<(u32, u32, Vec<u32>)> {
        let nodes: Vec<ExaminedNode> = (0..)
            .zip(racks)
            .flat_map(|(rack, numbers)| numbers.iter().map(move |number| (rack, *number)))
            .map(|(rack, number)| ExaminedNode { rack, number, may_listen: number != QUERIER })
            .collect();
        let rounds = rounds(&nodes, &unable.iter().copied().collect());
        rounds.into_iter().map(|r| (r.sender, r.member, r.listeners.into_iter().collect())).collect()
    }

    #[test]
    fn the_members_of_small_racks_are_elsewhere() {
        let two = round_numbers(&[&[1, 2], &[3, 4]], &[]);
        assert_eq!(two, [(1, 3, vec![2, 4]), (3, 1, vec![2, 4])]);
        assert_eq!(round_numbers(&[&[1, 2, 3, 4]], &[]), [(1, 2, vec![3, 4])]);
        assert_eq!(round_numbers(&[&[1, 2, 3], &[4]], &[]), [(1, 2, vec![3, 4])]);
        assert_eq!(round_numbers(&[&[1], &[2], &[3]], &[]), [(1, 2, vec![3])]);
    }

    #[test]
    fn too_few_nodes_are_not_examined() {
        let [one, two, three]: [&[u32]; 3] = [&[1], &[2], &[1, 2]];
        for racks in [&[][..], &[one], &[three], &[one, two]] {
            assert_eq!(round_numbers(racks, &[]), []);
        }
    }

    #[test]
    fn nodes_that_cannot_listen_send_or_join() {
        assert_eq!(round_numbers(&[&[1, 2, 3, 4]], &[3, 4]), [(3, 4, vec![1, 2])]);
        assert_eq!(round_numbers(&[&[1, 2, 3, QUERIER]], &[3]), [(3, QUERIER, vec![1, 2])]);
        assert_eq!(round_numbers(&[&[1, 2, 3]], &[1, 2, 3]), []);
    }

    #[test]
    fn few_nodes_of_other_racks_listen() {
        let (one, two): (Vec<u32>, Vec<u32>) = ((0..10).collect(), (10..20).collect());
        let rounds = round_numbers(&[&one, &two], &[]);
        assert_eq!(rounds[0], (0, 1, (2..12).collect()));
        assert_eq!(rounds[1], (10, 11, [0, 1].into_iter().chain(12..20).collect()));
    }
}
