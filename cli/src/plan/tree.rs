//! Trees as people write them: `tree:4x4` is 4 racks of 4 nodes.

use cool_collective::{Layout, LayoutError, Place};
use std::fmt;
use std::str::FromStr;

/// The most nodes or ranks of a topology given as text.
const MOST: u32 = 4096;

/// Racks of nodes below one core switch.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    text: String,
    layout: Layout,
}

/// Why a text is no tree.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error(
        "{0:?} is no topology; write tree:4x4 for 4 racks of 4 nodes, tree:4x4x2 for 2 ranks on each, tree:3+1+2 for uneven racks, up to {MOST} ranks"
    )]
    Text(String),
    #[error("{0}")]
    Layout(#[from] LayoutError),
}

impl Tree {
    pub(super) fn layout(&self) -> Layout {
        self.layout.clone()
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Tree {
    type Err = TreeError;

    fn from_str(text: &str) -> Result<Tree, TreeError> {
        let wrong = || TreeError::Text(text.to_owned());
        let (racks, per_node) = racks(text).ok_or_else(wrong)?;
        let nodes = racks.iter().try_fold(0u32, |sum, nodes| sum.checked_add(*nodes)).ok_or_else(wrong)?;
        nodes.checked_mul(per_node).filter(|ranks| (1..=MOST).contains(ranks)).ok_or_else(wrong)?;
        let mut places = Vec::new();
        let mut node = 0;
        for (rack, nodes) in (0..).zip(racks) {
            for _ in 0..nodes {
                places.extend((0..per_node).map(|_| Place { rack, node }));
                node += 1;
            }
        }
        Ok(Tree { text: text.to_owned(), layout: Layout::new(&places)? })
    }
}

/// Nodes of each rack, and ranks of each node.
fn racks(text: &str) -> Option<(Vec<u32>, u32)> {
    let shape = text.strip_prefix("tree:")?;
    let number = |text: &str| text.parse().ok().filter(|n| (1..=MOST).contains(n));
    if shape.contains('+') {
        let (racks, per_node) =
            shape.split_once('x').map_or((shape, Some(1)), |(racks, n)| (racks, number(n)));
        return Some((racks.split('+').map(number).collect::<Option<_>>()?, per_node?));
    }
    let mut numbers = shape.split('x').map(number);
    let (racks, nodes) = (numbers.next()??, numbers.next()??);
    let per_node = numbers.next().unwrap_or(Some(1))?;
    numbers.next().is_none().then(|| (vec![nodes; racks as usize], per_node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_read_as_written() {
        for (text, nodes, racks, size) in [
            ("tree:4x4", 16, 4, 16),
            ("tree:2x3x2", 6, 2, 12),
            ("tree:3+1+2", 6, 3, 6),
            ("tree:3+1x4", 4, 2, 16),
        ] {
            let layout = text.parse::<Tree>().unwrap().layout();
            assert_eq!((layout.nodes(), layout.racks(), layout.size()), (nodes, racks, size), "{text}");
        }
    }

    #[test]
    fn what_is_no_tree_is_refused_with_examples() {
        for text in ["", "4x4", "tree:", "tree:4", "tree:0x4", "tree:4x4x1x1", "tree:1++2", "tree:64x65"] {
            let e = text.parse::<Tree>().unwrap_err().to_string();
            assert!(e.contains("tree:4x4"), "{text}: {e}");
        }
    }
}
