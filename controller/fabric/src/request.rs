//! Requests of the controller to the fabric's task.

use crate::api::{FabricError, GroupRequest, LldpNeighbor, NodeRegistration, TreeGrant, TreeScope};
use crate::observation::Observation;
use std::net::IpAddr;
use tokio::sync::oneshot;

/// Returns the result of a request to the caller.
pub(crate) type RequestReply<T> = oneshot::Sender<Result<T, FabricError>>;

/// A request, with the channel for its result.
pub(crate) enum FabricRequest {
    Register(NodeRegistration, RequestReply<()>),
    SetNeighbor(String, Option<LldpNeighbor>, RequestReply<()>),
    Unregister(String, RequestReply<()>),
    CreateGroup(GroupRequest, RequestReply<Vec<TreeGrant>>),
    AdoptGroup(GroupRequest, Vec<(TreeScope, IpAddr)>, RequestReply<()>),
    Trees(u64, RequestReply<Vec<TreeGrant>>),
    ReleaseGroup(u64, RequestReply<()>),
    Observation(RequestReply<Observation>),
}
