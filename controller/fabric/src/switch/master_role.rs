//! Decides which of several controllers is the master of a switch: the one that started last.
//!
//! Each controller requests the master role at every switch. The generation (OpenFlow 1.3, section
//! 6.3.5) is the time of its start, or, in a pair, the number that etcd assigns to the leader. The
//! rule is therefore the same at all switches, in whatever order controllers connect: a later
//! controller takes over. The earlier one learns this when its next message is refused; it then
//! closes the connection, and every later attempt is refused as well. A switch without roles serves
//! whichever controller connects. A standby does not request the role.

use rs_openflow::{Body, ControllerRole, ErrorMessage, ErrorType, RoleConfig};

/// Code of ROLE_REQUEST_FAILED: a later generation has been there.
const STALE: u16 = 0;
/// Code of BAD_REQUEST: another controller is the master.
const IS_SLAVE: u16 = 10;

/// The role at one switch.
#[derive(Debug)]
pub(crate) struct MasterRole {
    generation: Option<u64>,
    request_xid: Option<u32>,
}

impl MasterRole {
    /// Returns the role of this controller before any request. Without a generation it is a
    /// standby.
    pub(crate) fn new(generation: Option<u64>) -> MasterRole {
        MasterRole { generation, request_xid: None }
    }

    /// Makes this controller lead from now on.
    pub(crate) fn lead(&mut self, generation: u64) {
        self.generation = Some(generation);
    }

    /// Returns the request for the master role; `None` on standby.
    pub(crate) fn request(&self) -> Option<Body> {
        let generation = self.generation?;
        Some(Body::RoleRequest(RoleConfig { role: ControllerRole::MASTER, generation }))
    }

    /// Records the transaction of the request.
    pub(crate) fn requested(&mut self, xid: u32) {
        self.request_xid = Some(xid);
    }

    /// Returns why this controller must leave the switch, if that follows from an error.
    pub(crate) fn lost(&self, xid: u32, failure: &ErrorMessage) -> Option<&'static str> {
        match (failure.kind, failure.code) {
            (ErrorType::ROLE_REQUEST_FAILED, STALE) if self.request_xid == Some(xid) => Some(
                "a controller that started later runs it; end one of the two, or restart the switch if only the clock was set back",
            ),
            (ErrorType::BAD_REQUEST, IS_SLAVE) => {
                Some("a controller that started later has taken it over; end one of the two")
            }
            _ => None,
        }
    }

    /// Returns whether an error answers the request. If the error is not one for which
    /// [`lost`](MasterRole::lost) returns a reason, the switch does not support roles.
    pub(crate) fn refused(&self, xid: u32) -> bool {
        self.request_xid == Some(xid)
    }
}
