//! The failures of calls by failures of their multicast streams.

use crate::failure::{CallFailure, CallFailureKind};
use crate::members::Members;
use cool_transport::{SpecError, StreamError, StreamId};

/// Returns the failure of a call for the reason that its stream cannot be opened.
pub(super) fn no_stream(members: &Members, rank: u32, error: &SpecError) -> CallFailure {
    let text = format!("rank {rank}, group {}: {error}", members.id);
    CallFailure::new(CallFailureKind::Invalid, text, vec![rank])
}

/// Returns the failure of a call by the failure of its stream.
pub(super) fn failed(members: &Members, id: StreamId, rank: u32, error: StreamError) -> CallFailure {
    let nodes = match &error {
        StreamError::NotStarted { source_node, .. } | StreamError::Stalled { source_node, .. } => {
            vec![*source_node]
        }
        StreamError::Incomplete { nodes, .. } => nodes.clone(),
    };
    let nodes = nodes.iter().map(|node| usize::from(*node)).filter(|node| *node < members.nodes.len());
    let nodes: Vec<usize> = nodes.collect();
    let names: Vec<&str> = nodes.iter().map(|node| members.nodes[*node].name.as_str()).collect();
    let ranks = nodes.iter().flat_map(|node| members.ranks_of(*node)).collect();
    let text = format!(
        "call {} of group {} at rank {rank}: {error} (nodes {}, numbered by place in the group); \
         are their agents running and reachable?",
        id.call,
        id.group,
        names.join(", ")
    );
    // The failure detector would have reported lost nodes before. So these nodes are alive, and
    // their ranks have not joined.
    CallFailure::new(CallFailureKind::Timeout, text, ranks)
}
