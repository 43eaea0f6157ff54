//! The agreement on whether the ranks of a group execute quick calls: they do if all of them can.
//! Each agent reports whether its ranks can, once they have all attached. The result is therefore
//! known, and the same everywhere, before the first call that all ranks join.

use super::super::Group;
use crate::engine_resources::{EngineResources, GroupContext};
use crate::inputs_outputs::Output;
use cool_machine::Time;
use cool_transport::unicast::Notice;
use std::collections::BTreeSet;

/// The reports of all nodes.
#[derive(Debug, Default)]
pub(in crate::group) struct QuickAgreement {
    /// The nodes whose ranks can execute quick calls.
    able: BTreeSet<usize>,
    /// Whether a node has reported that its ranks cannot.
    declined: bool,
    /// Whether this node has reported. Before that, no local rank can be notified.
    here: bool,
    /// Whether the result is known and has been reported.
    reported: bool,
}

impl QuickAgreement {
    /// Returns whether the result was reported to the driver and is that all ranks of the group can
    /// execute quick calls. Otherwise no local rank has executed a call itself.
    pub(in crate::group) fn all_can(&self) -> bool {
        self.reported && !self.declined
    }

    /// Records the report of a node. Returns the result if it is known and must be reported now.
    fn learn(&mut self, (node, is_here): (usize, bool), able: bool, nodes: usize) -> Option<bool> {
        if able {
            self.able.insert(node);
        }
        self.declined |= !able;
        self.here |= is_here;
        let all = self.able.len() == nodes;
        let is_known = (all || self.declined) && self.here && !self.reported;
        self.reported |= is_known;
        is_known.then_some(all && !self.declined)
    }
}

impl Group {
    /// Handles the report on this node's ranks.
    pub(crate) fn quick(&mut self, now: Time, resources: &mut EngineResources, able: bool) {
        let (group, epoch) = self.id_and_epoch();
        let notice = Notice::QuickCapability { group, epoch, able };
        GroupContext { now, members: &self.members, resources }.notify_others(&notice);
        self.learn_quick(resources, self.members.me, able);
    }

    /// Handles the report of a node.
    pub(in crate::group) fn learn_quick(&mut self, resources: &mut EngineResources, node: usize, able: bool) {
        let (is_here, nodes) = (node == self.members.me, self.members.nodes.len());
        if let Some(all) = self.quick_calls.learn((node, is_here), able, nodes) {
            resources.out.push(Output::Quick { group: self.members.id, all });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_able_only_if_every_node_reports_so() {
        // This is node 1 of 3.
        let results = |reports: &[(usize, bool)]| {
            let mut agreement = QuickAgreement::default();
            reports
                .iter()
                .map(|(node, able)| agreement.learn((*node, *node == 1), *able, 3))
                .collect::<Vec<_>>()
        };
        assert_eq!(results(&[(0, true), (2, true), (1, true), (2, true)]), [None, None, Some(true), None]);
        assert_eq!(results(&[(0, false), (1, true), (2, true)]), [None, Some(false), None]);
        assert_eq!(results(&[(1, true), (0, true), (2, false)]), [None, None, Some(false)]);
    }
}
