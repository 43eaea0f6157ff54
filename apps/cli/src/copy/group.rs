//! What the ranks of every copy do with their group: how its broadcasts go, who has the source, what that says to all, and who is lost.

use super::pipeline::{Head, Packed};
use super::said::{CopyVia, Said};
use cool::{Comm, Error, Operation};
use std::io;

/// The name of this rank's node.
pub(super) fn own_node(comm: &Comm) -> String {
    comm.place(comm.rank()).map_or_else(String::new, |place| place.name.clone())
}

/// The rank on a node, if that is not lost.
pub(super) fn rank_on(comm: &Comm, node: &str) -> Option<usize> {
    (0..comm.size()).find(|rank| comm.place(*rank).is_some_and(|place| place.name == node))
}

/// Lets later broadcasts go so.
pub(super) fn set_way(comm: &Comm, via: CopyVia, background: bool) -> Result<(), Error> {
    comm.set_background(background);
    via.plan().map_or(Ok(()), |plan| comm.set_plan(Operation::Bcast, plan))
}

/// What the source says, at all ranks; the others give anything. At them it has `most` bytes at the most.
pub(super) fn share(
    comm: &Comm,
    root: usize,
    most: usize,
    (form, mut bytes): Packed,
) -> Result<Packed, Error> {
    let mut head = Head { form, bytes: bytes.len() }.words();
    comm.bcast(&mut head, root)?;
    let Head { form, bytes: length } = Head::of(head);
    // At the source it is as long already.
    bytes.resize(length.min(most), 0);
    comm.bcast(&mut bytes, root)?;
    Ok((form, bytes))
}

/// The nodes of a group that are not in the one that it was shrunk to.
pub(super) fn lost(before: &Comm, rest: &Comm) -> Vec<String> {
    let name = |rank: &usize| Some(before.place(*rank)?.name.clone());
    rest.gone().iter().filter_map(name).collect()
}

/// One of those that are left says who is not.
pub(super) fn say_lost(rest: &Comm, nodes: Vec<String>) -> io::Result<()> {
    if rest.rank() == 0 && !nodes.is_empty() { Said::Lost { nodes }.say() } else { Ok(()) }
}
