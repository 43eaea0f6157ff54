//! The links between switches, and the ways over them.

use super::mesh::Mesh;

/// How racks are connected. Links are numbered from 0, each with an even number up or forth and the next odd one back.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wires {
    /// All under one core switch.
    Tree,
    /// Each rack to each of this many spines.
    LeafSpine { spines: usize },
    /// A fat tree (Al-Fares et al., SIGCOMM 2008) of switches with twice this many ports.
    FatTree { half: usize },
    /// As a file says.
    Mesh(Box<Mesh>),
}

impl Wires {
    /// Links between switches, each for both ways.
    pub(super) fn links(&self, racks: usize) -> usize {
        match self {
            Wires::Tree => racks,
            Wires::LeafSpine { spines } => racks * spines,
            Wires::FatTree { half } => 2 * racks * half,
            Wires::Mesh(mesh) => mesh.links(),
        }
    }

    /// Links that leave a rack.
    pub(super) fn lanes(&self, rack: usize) -> usize {
        match self {
            Wires::Tree => 1,
            Wires::LeafSpine { spines } => *spines,
            Wires::FatTree { half } => *half,
            Wires::Mesh(mesh) => mesh.lanes(rack),
        }
    }

    /// Links between the switches of two racks.
    pub(super) fn hops(&self, a: usize, b: usize) -> u32 {
        match self {
            _ if a == b => 0,
            Wires::FatTree { half } if a / half != b / half => 4,
            Wires::Tree | Wires::LeafSpine { .. } | Wires::FatTree { .. } => 2,
            Wires::Mesh(mesh) => mesh.hops(a, b),
        }
    }

    /// The most links on the way between two of this many racks.
    pub(super) fn farthest(&self, racks: usize) -> u32 {
        match self {
            Wires::Mesh(mesh) => mesh.farthest(),
            _ => self.hops(0, racks - 1),
        }
    }

    /// A way from one rack to another, of `racks`. Among equally short ones `choice` decides.
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

    /// The way by which a multicast over a tree of this number gets from one rack to another: with those to others it
    /// makes a tree.
    pub(super) fn branch(
        &self,
        (a, b): (usize, usize),
        racks: usize,
        tree: usize,
        mut link: impl FnMut(usize),
    ) {
        match self {
            // The way back by the same choice everywhere: all ways that meet stay together.
            Wires::Mesh(mesh) => mesh.way(b, a, tree, |back| link(back ^ 1)),
            _ => self.way((a, b), racks, tree, link),
        }
    }
}
