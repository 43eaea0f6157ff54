//! Calls from the controller to the fabric's task.

use crate::api::{FabricError, GroupRequest, NodeRegistration, TreeGrant, TreeScope};
use std::net::IpAddr;
use tokio::sync::oneshot;

/// Returns the result of a call to the caller.
pub(crate) type CallReply<T> = oneshot::Sender<Result<T, FabricError>>;

/// A call, with the channel for its result.
pub(crate) enum FabricCall {
    Register(NodeRegistration, CallReply<()>),
    Unregister(String, CallReply<()>),
    CreateGroup(GroupRequest, CallReply<Vec<TreeGrant>>),
    AdoptGroup(GroupRequest, Vec<(TreeScope, IpAddr)>, CallReply<()>),
    Trees(u64, CallReply<Vec<TreeGrant>>),
    ReleaseGroup(u64, CallReply<()>),
}
