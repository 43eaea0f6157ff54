//! Functions that every copy uses on its group of ranks: the plan of its broadcasts, the node of a
//! rank, data from the source to all ranks, and reports of lost nodes.

use crate::pipeline::{PackedPiece, PieceHead};
use crate::protocol::{CopyEvent, CopyVia};
use cool::{Comm, Error, Operation};
use std::io;

/// Returns the name of this rank's node.
pub(crate) fn own_node(comm: &Comm) -> String {
    comm.place(comm.rank()).map_or_else(String::new, |place| place.name.clone())
}

/// Returns the rank on a node, or `None` if the node is lost.
pub(crate) fn rank_on(comm: &Comm, node: &str) -> Option<usize> {
    (0..comm.size()).find(|rank| comm.place(*rank).is_some_and(|place| place.name == node))
}

/// Sets the plan and the priority of the broadcasts that follow.
pub(crate) fn configure_broadcasts(comm: &Comm, via: CopyVia, background: bool) -> Result<(), Error> {
    comm.set_background(background);
    via.plan().map_or(Ok(()), |plan| comm.set_plan(Operation::Bcast, plan))
}

/// Broadcasts the root's piece, and returns it at all ranks. The other ranks may pass any piece;
/// they receive at most `limit` bytes.
pub(crate) fn broadcast_packed(
    comm: &Comm,
    root: usize,
    limit: usize,
    (form, mut bytes): PackedPiece,
) -> Result<PackedPiece, Error> {
    let mut head = PieceHead { form, bytes: bytes.len() }.to_words();
    comm.bcast(&mut head, root)?;
    let PieceHead { form, bytes: length } = PieceHead::from_words(head);
    // At the root, this does not change the length.
    bytes.resize(length.min(limit), 0);
    comm.bcast(&mut bytes, root)?;
    Ok((form, bytes))
}

/// Returns the nodes of a group that are missing in the group to which it was shrunk.
pub(crate) fn lost_nodes(before: &Comm, rest: &Comm) -> Vec<String> {
    let name = |rank: &usize| Some(before.place(*rank)?.name.clone());
    rest.gone().iter().filter_map(name).collect()
}

/// Reports lost nodes to the command, from one of the remaining ranks.
pub(crate) fn report_lost(rest: &Comm, nodes: Vec<String>) -> io::Result<()> {
    if rest.rank() == 0 && !nodes.is_empty() { CopyEvent::Lost { nodes }.send() } else { Ok(()) }
}
