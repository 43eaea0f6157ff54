//! k-nomial trees: in each round every member that has the message sends it to k - 1 others. This
//! needs fewer, but longer rounds than the binomial tree.

use super::Pattern;
use super::tree::{TreeEdge, tree};

pub(super) static FOUR_NOMIAL: Pattern = tree!("4-nomial", edges::<4>, 1);
pub(super) static EIGHT_NOMIAL: Pattern = tree!("8-nomial", edges::<8>, 1);

/// Returns the edges. The parent of position `v` is `v` without its lowest digit, in base `K`, that
/// is not zero.
pub(super) fn edges<const K: usize>(n: usize) -> Vec<TreeEdge> {
    let mut digit = 1;
    while digit < n {
        digit *= K;
    }
    let mut edges = Vec::with_capacity(n);
    while digit > 1 {
        let reach = digit / K;
        for parent in (0..n).step_by(digit) {
            for child in (1..K).rev().map(|j| parent + j * reach).filter(|child| *child < n) {
                edges.push(TreeEdge { parent, below: child..n.min(child + reach) });
            }
        }
        digit = reach;
    }
    edges
}
