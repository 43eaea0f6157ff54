//! Two binary trees over the members, each for one half of the message (Sanders, Speck and Träff:
//! Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009). A member with
//! children in one tree is a leaf of the other, so every link carries the message about once in
//! each direction, as along a chain, but in a number of steps that only grows with the logarithm of
//! the number of members.
//!
//! A reduction combines the value of a member with those of its children in the reverse order of
//! the messages of a broadcast.

use super::Pattern;
use super::tree::trees;
use crate::builder::ScheduleBuilder;
use crate::schedule::Span;

pub(super) static DOUBLE_TREE: Pattern =
    Pattern { segments: 32, is_new: true, ..trees!("double-tree", halves) };

/// Returns the edges of both trees, parent and child, those near the root first. Position 0 is the
/// root of both and has one child in each.
fn edges(n: usize) -> [Vec<(usize, usize)>; 2] {
    // The in-order binary tree: positions with more trailing zeros are further up, so odd ones are
    // leaves.
    let mut first: Vec<(usize, usize)> = (1..n).map(|child| (parent(child, n), child)).collect();
    first.sort_by_key(|(_, child)| (core::cmp::Reverse(child.trailing_zeros()), *child));
    let last = n.saturating_sub(1);
    // The same tree over other positions, so that odd ones are not leaves.
    let moved = |position: usize| match position {
        0 => 0,
        _ if last.is_multiple_of(2) => last + 1 - position,
        _ => position % last + 1,
    };
    let second = first.iter().map(|(parent, child)| (moved(*parent), moved(*child))).collect();
    [first, second]
}

/// Returns the parent of a position in the in-order binary tree.
fn parent(child: usize, n: usize) -> usize {
    let lowest = 1 << child.trailing_zeros();
    let (below, above) = (child - lowest, (child - lowest) | (lowest << 1));
    if above < n { above } else { below }
}

/// Returns the edges of both trees with the halves of a message that they carry, alternately.
fn halves(b: &ScheduleBuilder<'_>, whole: Span, n: usize) -> Vec<(Span, usize, usize)> {
    let parts = b.split(whole, 2);
    let [first, second] = edges(n);
    let both = first.into_iter().zip(second);
    both.flat_map(|(one, other)| [(parts[0], one.0, one.1), (parts[1], other.0, other.1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_trees_reach_all_and_share_hardly_any_inner_member() {
        for n in 2..200 {
            let mut children = vec![[0; 2]; n];
            for (tree, edges) in edges(n).into_iter().enumerate() {
                let mut reached = vec![false; n];
                reached[0] = true;
                for (parent, child) in edges {
                    assert!(reached[parent] && !reached[child], "{n}: {parent} -> {child}");
                    reached[child] = true;
                    children[parent][tree] += 1;
                }
                assert!(reached.iter().all(|reached| *reached), "{n}");
            }
            assert_eq!(children[0], [1, 1], "{n}");
            let inner = |of: &&[usize; 2]| of.iter().all(|children| *children > 0);
            assert!(children[1..].iter().filter(inner).count() <= 1, "{n}");
            assert!(children.iter().flatten().all(|children| *children <= 2), "{n}");
        }
    }

    #[test]
    fn the_depth_grows_with_the_logarithm_of_the_members() {
        for (n, depth) in [(2, 1), (4, 3), (64, 7), (1000, 11)] {
            for edges in edges(n) {
                let mut depths = vec![0; n];
                for (parent, child) in edges {
                    depths[child] = depths[parent] + 1;
                }
                assert!(*depths.iter().max().unwrap() <= depth, "{n}");
            }
        }
    }
}
