//! Places of ranks on nodes.

use crate::agents::Session;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The place of a rank.
#[derive(Clone, Debug)]
pub struct MemberPlace {
    /// The session of the node's agent.
    pub session: Arc<Session>,
    /// The node's rack.
    pub rack: u32,
}

/// Groups ranks by node. Returns for each session number the session and the ranks on its node.
pub fn by_node(places: &[MemberPlace]) -> BTreeMap<u32, (Arc<Session>, Vec<u32>)> {
    let mut nodes = BTreeMap::new();
    for (rank, place) in (0u32..).zip(places) {
        let entry = nodes.entry(place.session.number);
        let (_, ranks) = entry.or_insert_with(|| (place.session.clone(), Vec::new()));
        ranks.push(rank);
    }
    nodes
}
