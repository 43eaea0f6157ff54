//! Queries about the members that may still be missing blocks, as known to this member.

use super::Swarm;
use crate::rings::Member;

impl Swarm {
    /// Returns whether a member is present and has not reported that it holds everything.
    pub fn may_need(&self, member: Member) -> bool {
        self.peers.may_need(member)
    }

    /// Returns whether there is any such member.
    pub fn is_wanted(&self) -> bool {
        self.peers.any_incomplete()
    }

    /// Returns whether no other member is present.
    pub fn is_alone(&self) -> bool {
        self.peers.len() == 0
    }
}
