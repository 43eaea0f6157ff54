//! Whether the ranks of a group carry out quick calls: if all can. Each agent says so of its ranks when they have come, so it is known, and
//! the same everywhere, before the first call to which all come.

use super::super::Group;
use crate::machine::Output;
use crate::shared::{GroupContext, SharedState};
use cool_machine::Time;
use cool_transport::unicast::Notice;
use std::collections::BTreeSet;

/// What is known of the nodes.
#[derive(Debug, Default)]
pub(in crate::group) struct QuickAgreement {
    /// Those whose ranks can.
    able: BTreeSet<usize>,
    /// One cannot.
    declined: bool,
    /// This node has said whether its rank can: before, nobody here can be told.
    here: bool,
    /// It is known whether all can, and has been told.
    told: bool,
}

impl QuickAgreement {
    /// Whether it has been told that all can: before, and where not all can, no rank has carried out a call itself.
    pub(in crate::group) fn all_can(&self) -> bool {
        self.told && !self.declined
    }

    /// Whether the rank of a node can, which may be this one; whether all of `nodes` can, if that is to be told now.
    fn learn(&mut self, (node, is_here): (usize, bool), able: bool, nodes: usize) -> Option<bool> {
        if able {
            self.able.insert(node);
        }
        self.declined |= !able;
        self.here |= is_here;
        let all = self.able.len() == nodes;
        let is_known = (all || self.declined) && self.here && !self.told;
        self.told |= is_known;
        is_known.then_some(all && !self.declined)
    }
}

impl Group {
    /// Whether the rank of this node can carry out quick calls.
    pub(crate) fn quick(&mut self, now: Time, shared: &mut SharedState, able: bool) {
        let (group, epoch) = self.key();
        let notice = Notice::QuickCapability { group, epoch, able };
        GroupContext { now, members: &self.members, shared }.notify_others(&notice);
        self.learn_quick(shared, self.members.me, able);
    }

    /// Whether the rank of a node can.
    pub(in crate::group) fn learn_quick(&mut self, shared: &mut SharedState, node: usize, able: bool) {
        let (is_here, nodes) = (node == self.members.me, self.members.nodes.len());
        if let Some(all) = self.quick_calls.learn((node, is_here), able, nodes) {
            shared.out.push(Output::Quick { group: self.members.id, all });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_can_when_all_have_said_so_and_not_all_when_one_has_said_no() {
        // This is node 1 of three.
        let told = |said: &[(usize, bool)]| {
            let mut agreement = QuickAgreement::default();
            said.iter().map(|(node, able)| agreement.learn((*node, *node == 1), *able, 3)).collect::<Vec<_>>()
        };
        assert_eq!(told(&[(0, true), (2, true), (1, true), (2, true)]), [None, None, Some(true), None]);
        assert_eq!(told(&[(0, false), (1, true), (2, true)]), [None, Some(false), None]);
        assert_eq!(told(&[(1, true), (0, true), (2, false)]), [None, None, Some(false)]);
    }
}
