//! The links between switches, and the paths over them.

use super::mesh::Mesh;

/// How racks are connected. Links are numbered from 0. An even number is the direction up or
/// forward, and the next odd one is the opposite direction.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wires {
    /// All racks under one core switch.
    Tree,
    /// Each rack is connected to each of this many spines.
    LeafSpine { spines: usize },
    /// A fat tree (Al-Fares et al., SIGCOMM 2008) of switches with twice this many ports.
    FatTree { half: usize },
    /// As given by a file.
    Mesh(Box<Mesh>),
}

impl Wires {
    /// Returns the number of links between switches. Both directions count as one.
    pub(super) fn links(&self, racks: usize) -> usize {
        match self {
            Wires::Tree => racks,
            Wires::LeafSpine { spines } => racks * spines,
            Wires::FatTree { half } => 2 * racks * half,
            Wires::Mesh(mesh) => mesh.links(),
        }
    }

    /// Returns the number of links that leave a rack.
    pub(super) fn lanes(&self, rack: usize) -> usize {
        match self {
            Wires::Tree => 1,
            Wires::LeafSpine { spines } => *spines,
            Wires::FatTree { half } => *half,
            Wires::Mesh(mesh) => mesh.lanes(rack),
        }
    }

    /// Returns the number of links between the switches of two racks.
    pub(super) fn hops(&self, a: usize, b: usize) -> u32 {
        match self {
            _ if a == b => 0,
            Wires::FatTree { half } if a / half != b / half => 4,
            Wires::Tree | Wires::LeafSpine { .. } | Wires::FatTree { .. } => 2,
            Wires::Mesh(mesh) => mesh.hops(a, b),
        }
    }

    /// Returns the largest number of links between two of this many racks.
    pub(super) fn farthest(&self, racks: usize) -> u32 {
        match self {
            Wires::Mesh(mesh) => mesh.farthest(),
            _ => self.hops(0, racks - 1),
        }
    }

    /// Reports the links of a path from one of `racks` racks to another. Among equally short paths
    /// `choice` decides.
    pub(super) fn way(
        &self,
        (a, b): (usize, usize),
        racks: usize,
        choice: usize,
        mut link: impl FnMut(usize),
    ) {
        let (up, down) = (|index: usize| 2 * index, |index: usize| 2 * index + 1);
        match self {
            _ if a == b => {}
            Wires::Tree => {
                link(up(a));
                link(down(b));
            }
            Wires::LeafSpine { spines } => {
                let spine = choice % spines;
                link(up(a * spines + spine));
                link(down(b * spines + spine));
            }
            Wires::FatTree { half } => {
                let (above, core) = (choice % half, choice / half % half);
                link(up(a * half + above));
                if a / half != b / half {
                    let to_core = |rack: usize| (racks + rack / half * half + above) * half + core;
                    link(up(to_core(a)));
                    link(down(to_core(b)));
                }
                link(down(b * half + above));
            }
            Wires::Mesh(mesh) => mesh.way(a, b, choice, link),
        }
    }

    /// Reports the links by which a multicast over the given tree goes from one rack to another.
    /// Together with the links to other racks these must form a tree.
    pub(super) fn branch(
        &self,
        (a, b): (usize, usize),
        racks: usize,
        tree: usize,
        mut link: impl FnMut(usize),
    ) {
        match self {
            // Paths are chosen from the destination with the same choice everywhere, so that paths
            // that meet stay together.
            Wires::Mesh(mesh) => mesh.way(b, a, tree, |back| link(back ^ 1)),
            _ => self.way((a, b), racks, tree, link),
        }
    }
}
