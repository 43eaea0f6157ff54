//! Who may want something still, as far as a member has heard.

use super::Swarm;
use crate::rings::Member;

impl Swarm {
    /// Whether a member can be reached that has not said that it has all.
    pub fn may_lack(&self, member: Member) -> bool {
        self.peers.may_lack(member)
    }

    /// Whether any such member can be reached.
    pub fn is_wanted(&self) -> bool {
        self.peers.any_lacks()
    }

    /// Whether no other member can be reached.
    pub fn is_alone(&self) -> bool {
        self.peers.len() == 0
    }
}
