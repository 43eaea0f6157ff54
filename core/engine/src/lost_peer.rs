//! The loss of another agent.

use crate::ids::NodeId;
use std::collections::BTreeSet;

/// A lost peer.
#[derive(Debug)]
pub(crate) struct LostPeer {
    pub(crate) node: NodeId,
    pub(crate) groups: BTreeSet<u64>,
    pub(crate) why: String,
}

impl LostPeer {
    pub(crate) fn new(node: NodeId, groups: BTreeSet<u64>, why: &str) -> LostPeer {
        LostPeer { node, groups, why: why.to_owned() }
    }
}
