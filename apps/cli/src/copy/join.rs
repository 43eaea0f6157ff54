//! A rank that comes when a copy by swarm is under way: alone in a job of its own, it hears from members what is copied, and
//! takes part until it has its copy and nobody lacks anything of it any more.

use super::fault::Fault;
use super::rank::{CopyEnd, Stop};
use super::said::Task;
use super::stored;
use super::swarm::{Ended, Swarm};
use super::target::Target;
use cool_content::Manifest;
use cool_peer::Member;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// How a rank comes late.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LateRank {
    /// To broadcasts, with the other ranks of its job.
    Broadcast,
    /// To a swarm.
    Swarm(LateMember),
}

/// A member that comes late.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LateMember {
    /// Which member it will be.
    pub(super) rack: u32,
    pub(super) slot: u32,
    /// Where some members listen.
    pub(super) contacts: Vec<SocketAddr>,
}

/// Takes part to the end; an error if it has come too late, so that it may try again while the copy is under way.
pub(super) fn join(node: &str, task: &Task, late: &LateMember, began: Instant) -> Result<CopyEnd, Stop> {
    if node == task.from && task.is_source(&task.dest_on(node)) {
        return Ok(CopyEnd::untold(None));
    }
    let me = Member { rack: late.rack, slot: late.slot };
    let open = |manifest| prepare(task, node, manifest);
    let swarm = match Swarm::join((task, node), began, (me, &late.contacts), open) {
        // An earlier rank of this node may be about to end.
        Err(stop @ Stop::Fault(Fault::Locked(_))) => return Err(stop),
        Err(Stop::Fault(fault)) => return Ok(CopyEnd::untold(Some(fault.into()))),
        joined => joined?,
    };
    swarm.serve();
    let Ended { target, placing, .. } = swarm.end();
    match (placing, target) {
        (Some(placing), _) => Ok(CopyEnd::placed(placing, task)),
        (None, Some(Err(fault))) => Ok(CopyEnd::untold(Some(fault.into()))),
        (None, _) => Err(Stop::Alone),
    }
}

/// Looks at what is here: at the source itself, if this is its node.
fn prepare(task: &Task, node: &str, manifest: Arc<Manifest>) -> Result<Target, Stop> {
    let mut target = stored::open(task, node, Arc::clone(&manifest))?;
    if node == task.from {
        // What cannot be read here comes from others.
        drop(target.take_from(&task.source, &manifest));
    }
    Ok(target)
}
