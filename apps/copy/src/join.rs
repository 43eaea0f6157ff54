//! A rank of a late node that joins a copy by swarm.
//!
//! The rank has a job of its own. It asks members for the plan of the swarm, and takes part until
//! its own copy is complete and no member is missing blocks that it has.

use crate::destination::DestinationCopy;
use crate::errors::{CopyError, CopyFileError};
use crate::protocol::{CopyTask, LateMember};
use crate::rank_result::RankResult;
use crate::stored::open_destination;
use crate::swarm::{SwarmMember, SwarmResult};
use cool_content::Manifest;
use cool_peer::Member;
use std::sync::Arc;
use std::time::Instant;

/// Takes part in the copy to its end, as the rank of a late node that started at `began`. Returns
/// whether the node has a copy.
///
/// # Errors
/// If the rank was too late. The command starts another one while the copy is under way.
pub(crate) fn join_swarm(
    node: &str,
    task: &CopyTask,
    late: &LateMember,
    began: Instant,
) -> Result<RankResult, CopyError> {
    if node == task.from && task.is_source(&task.dest_on(node)) {
        return Ok(RankResult::unreported(None));
    }
    let me = Member { rack: late.rack, slot: late.slot };
    let open = |manifest| prepare(task, node, manifest);
    let swarm = match SwarmMember::join((task, node), began, (me, &late.contacts, late.identity), open) {
        // An earlier rank of this node may still hold the lock. The command starts another rank
        // later.
        Err(locked @ CopyError::File(CopyFileError::Locked(_))) => return Err(locked),
        Err(CopyError::File(error)) => return Ok(RankResult::unreported(Some(error.into()))),
        joined => joined?,
    };
    swarm.serve();
    let SwarmResult { destination, install, .. } = swarm.end();
    match (install, destination) {
        (Some(install), _) => Ok(RankResult::of_install(install, task)),
        (None, Some(Err(error))) => Ok(RankResult::unreported(Some(error.into()))),
        (None, _) => Err(CopyError::Alone),
    }
}

/// Prepares this node's copy, with blocks of the source if that is on this node.
fn prepare(task: &CopyTask, node: &str, manifest: Arc<Manifest>) -> Result<DestinationCopy, CopyError> {
    let mut destination = open_destination(task, node, Arc::clone(&manifest))?;
    if node == task.from {
        // Blocks that cannot be read here are received from other members.
        drop(destination.take_from(&task.source, &manifest));
    }
    Ok(destination)
}
