//! Groups to try schedules on.

use cool_collective::{Layout, Place};

/// Nodes in racks of the given sizes, each with `per_node` ranks.
pub(crate) fn racks(sizes: &[u32], per_node: u32) -> Vec<Place> {
    let mut places = Vec::new();
    let mut node = 0;
    for (rack, size) in (0..).zip(sizes) {
        for _ in 0..*size {
            places.extend((0..per_node).map(|_| Place { rack, node }));
            node += 1;
        }
    }
    places
}

/// The same places with neighbouring ranks far apart: rank `i` where rank `i * stride` was.
pub(crate) fn interleaved(places: &[Place], stride: usize) -> Vec<Place> {
    (0..stride).flat_map(|start| places.iter().skip(start).step_by(stride)).copied().collect()
}

/// Even and uneven racks, one and several ranks per node, in order, interleaved and backwards.
pub(crate) fn all() -> Vec<Layout> {
    let mut places = Vec::new();
    for sizes in [
        &[1][..],
        &[2],
        &[5],
        &[1, 1],
        &[1, 1, 1, 1],
        &[2, 2],
        &[3, 1, 2],
        &[1, 4],
        &[4, 1, 1, 5],
        &[4, 4, 4, 4],
        &[7, 2, 11],
    ] {
        for per_node in [1, 3] {
            let straight = racks(sizes, per_node);
            places.push(interleaved(&straight, 3));
            places.push(straight.iter().rev().copied().collect());
            places.push(straight);
        }
    }
    // Nodes with unequal numbers of ranks, of which the first to come is in the last rack.
    places.push(
        [(3, 9), (1, 4), (1, 4), (3, 9), (1, 5), (2, 7), (3, 8), (3, 9), (1, 4)]
            .map(|(rack, node)| Place { rack, node })
            .to_vec(),
    );
    places.iter().map(|places| Layout::new(places).expect("no node stands in two racks")).collect()
}
