//! Which of several controllers runs a switch: the one that started last.
//!
//! Each asks every switch to be its master, and gives the time at which it started, or of a pair the number that etcd has for its
//! leader, as the generation of that (OpenFlow 1.3, section 6.3.5). So the rule is the same at all switches, in whatever order
//! controllers connect: a later one takes over, the earlier is told with the next thing that it sends and hangs up, and is refused
//! from then on. A switch that knows no roles has whoever connects. Who stands by does not ask yet.

use rs_openflow::{Body, ControllerRole, ErrorMessage, ErrorType, RoleConfig};

/// ROLE_REQUEST_FAILED: a later generation was there.
const STALE: u16 = 0;
/// BAD_REQUEST: another controller is the master.
const IS_SLAVE: u16 = 10;

/// What is asked of one switch.
#[derive(Debug)]
pub(crate) struct MasterRole {
    generation: Option<u64>,
    asked: Option<u32>,
}

impl MasterRole {
    /// Without a generation this controller stands by.
    pub(crate) fn new(generation: Option<u64>) -> MasterRole {
        MasterRole { generation, asked: None }
    }

    /// This controller leads from now on.
    pub(crate) fn lead(&mut self, generation: u64) {
        self.generation = Some(generation);
    }

    /// May this controller be its master? `None` while it stands by.
    pub(crate) fn request(&self) -> Option<Body> {
        let generation = self.generation?;
        Some(Body::RoleRequest(RoleConfig { role: ControllerRole::MASTER, generation }))
    }

    /// That was asked, and by this number the answer is known.
    pub(crate) fn asked(&mut self, xid: u32) {
        self.asked = Some(xid);
    }

    /// Why this controller has nothing more to say to the switch, if an error tells that.
    pub(crate) fn lost(&self, xid: u32, failure: &ErrorMessage) -> Option<&'static str> {
        match (failure.kind, failure.code) {
            (ErrorType::ROLE_REQUEST_FAILED, STALE) if self.asked == Some(xid) => Some(
                "a controller that started later runs it; end one of the two, or restart the switch if only the clock was set back",
            ),
            (ErrorType::BAD_REQUEST, IS_SLAVE) => {
                Some("a controller that started later has taken it over; end one of the two")
            }
            _ => None,
        }
    }

    /// The question was refused otherwise: the switch knows no roles. Returns whether it was this one.
    pub(crate) fn refused(&self, xid: u32) -> bool {
        self.asked == Some(xid)
    }
}
