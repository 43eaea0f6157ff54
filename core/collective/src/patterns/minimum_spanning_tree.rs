//! The minimum spanning tree of van de Geijn: the root sends to the first member of the other half,
//! and both continue in their halves, so that messages of later rounds stay among neighbors.

use super::Pattern;
use super::tree::{TreeEdge, tree};

pub(super) static MINIMUM_SPANNING_TREE: Pattern = tree!("minimum-spanning-tree", edges, 1);

fn edges(n: usize) -> Vec<TreeEdge> {
    let mut edges = Vec::with_capacity(n);
    // Ranges of positions of which the first has the message.
    let mut open = vec![(0, n)];
    while let Some((start, end)) = open.pop() {
        if end - start > 1 {
            let middle = start + (end - start).div_ceil(2);
            edges.push(TreeEdge { parent: start, below: middle..end });
            open.extend([(start, middle), (middle, end)]);
        }
    }
    edges
}
