//! The linear pattern: a single member exchanges one message with each other member, without a
//! tree.

use super::tree::{TreeEdge, tree};
use super::{Pattern, parallel};

pub(super) static LINEAR: Pattern = Pattern {
    reduce_scatter: Some(parallel::reduce_scatter),
    alltoall: Some(parallel::alltoall),
    ..tree!("linear", edges, 16)
};

fn edges(n: usize) -> Vec<TreeEdge> {
    (1..n).rev().map(|child| TreeEdge { parent: 0, below: child..child + 1 }).collect()
}
