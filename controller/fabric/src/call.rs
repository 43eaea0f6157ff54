//! Calls of the controller to the fabric's task.

use crate::api::{FabricError, GroupRequest, NodeRegistration, TreeGrant, TreeScope};
use std::net::IpAddr;
use tokio::sync::oneshot;

/// Sends the result of a call back to the caller.
pub(crate) type CallReply<T> = oneshot::Sender<Result<T, FabricError>>;

/// What the core is asked to do.
pub(crate) enum FabricCall {
    Register(NodeRegistration, CallReply<()>),
    Unregister(String, CallReply<()>),
    CreateGroup(GroupRequest, CallReply<Vec<TreeGrant>>),
    AdoptGroup(GroupRequest, Vec<(TreeScope, IpAddr)>, CallReply<()>),
    Trees(u64, CallReply<Vec<TreeGrant>>),
    ReleaseGroup(u64, CallReply<()>),
}
