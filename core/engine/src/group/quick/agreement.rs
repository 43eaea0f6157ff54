//! The agreement on whether the ranks of a group execute quick calls: they do if all of them can,
//! and if datagrams arrive. Each agent reports whether its ranks can, once they have all attached.
//! When all have reported that they can, all sockets are open. Each agent then tests whether
//! datagrams arrive at its node, and reports the result. So all agents reach the same result, and
//! the first quick call waits for it.

use super::super::Group;
use crate::engine_resources::{EngineResources, GroupContext};
use crate::inputs_outputs::Output;
use cool_machine::Time;
use cool_transport::unicast::Notice;
use std::collections::BTreeSet;

/// A report of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum NodeReport {
    /// Whether its ranks can execute quick calls.
    Capability(bool),
    /// Whether datagrams have arrived.
    Probed(bool),
}

/// The action that follows from a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgreementStep {
    /// The driver must test the datagrams.
    Probe,
    /// The driver must be notified of the result.
    Conclude(bool),
}

/// The reports of all nodes.
#[derive(Debug, Default)]
pub(in crate::group) struct QuickAgreement {
    /// The nodes whose ranks can execute quick calls.
    able: BTreeSet<usize>,
    /// The nodes at which datagrams have arrived.
    probed: BTreeSet<usize>,
    /// Whether a node has reported that its ranks cannot, or that datagrams do not arrive.
    declined: bool,
    /// Whether this node has reported. Before that, no local rank can be notified.
    here: bool,
    /// Whether the driver was requested to test the datagrams.
    is_probing: bool,
    /// Whether the result is known and has been reported.
    reported: bool,
}

impl QuickAgreement {
    /// Returns whether the result was reported to the driver and is that all ranks of the group can
    /// execute quick calls. Otherwise no local rank has executed a call itself.
    pub(in crate::group) fn all_can(&self) -> bool {
        self.reported && !self.declined
    }

    /// Records the report of a node. Returns what must be done now. `probes` is whether datagrams
    /// are tested in this group.
    fn learn(
        &mut self,
        (node, is_here): (usize, bool),
        report: NodeReport,
        (nodes, probes): (usize, bool),
    ) -> Option<AgreementStep> {
        let (reporters, good) = match report {
            NodeReport::Capability(able) => (&mut self.able, able),
            NodeReport::Probed(passed) => (&mut self.probed, passed),
        };
        if good {
            reporters.insert(node);
        }
        self.declined |= !good;
        self.here |= is_here;
        if self.reported || !self.here {
            return None;
        }
        let all_able = self.able.len() == nodes;
        if self.declined || all_able && (!probes || self.probed.len() == nodes) {
            self.reported = true;
            return Some(AgreementStep::Conclude(!self.declined));
        }
        let begins = all_able && !std::mem::replace(&mut self.is_probing, all_able);
        begins.then_some(AgreementStep::Probe)
    }
}

impl Group {
    /// Handles the report on this node's ranks.
    pub(crate) fn quick(&mut self, now: Time, resources: &mut EngineResources, able: bool) {
        let (group, epoch) = self.id_and_epoch();
        let notice = Notice::QuickCapability { group, epoch, able };
        GroupContext { now, members: &self.members, resources }.notify_others(&notice);
        self.learn_quick(resources, self.members.me, NodeReport::Capability(able));
    }

    /// Handles the result of the test of datagrams at this node.
    pub(crate) fn quick_probed(&mut self, now: Time, resources: &mut EngineResources, passed: bool) {
        let (group, epoch) = self.id_and_epoch();
        let notice = Notice::QuickProbed { group, epoch, passed };
        GroupContext { now, members: &self.members, resources }.notify_others(&notice);
        self.learn_quick(resources, self.members.me, NodeReport::Probed(passed));
    }

    /// Handles the report of a node.
    pub(in crate::group) fn learn_quick(
        &mut self,
        resources: &mut EngineResources,
        node: usize,
        report: NodeReport,
    ) {
        let (is_here, group) = (node == self.members.me, self.members.id);
        let expected = (self.members.nodes.len(), self.members.probe_quick);
        match self.quick_calls.learn((node, is_here), report, expected) {
            Some(AgreementStep::Probe) => resources.out.push(Output::ProbeQuick { group }),
            Some(AgreementStep::Conclude(all)) => resources.out.push(Output::Quick { group, all }),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AgreementStep::{Conclude, Probe};
    use super::NodeReport::{Capability, Probed};
    use super::*;

    /// Returns what follows from these reports at node 1 of 3.
    fn steps(probes: bool, reports: &[(usize, NodeReport)]) -> Vec<Option<AgreementStep>> {
        let mut agreement = QuickAgreement::default();
        let learn =
            |(node, report): &(usize, NodeReport)| agreement.learn((*node, *node == 1), *report, (3, probes));
        reports.iter().map(learn).collect()
    }

    #[test]
    fn all_are_able_only_if_every_node_reports_so() {
        let results = |reports: &[(usize, bool)]| {
            let reports: Vec<_> = reports.iter().map(|(node, able)| (*node, Capability(*able))).collect();
            steps(false, &reports)
        };
        let (yes, no) = (Some(Conclude(true)), Some(Conclude(false)));
        assert_eq!(results(&[(0, true), (2, true), (1, true), (2, true)]), [None, None, yes, None]);
        assert_eq!(results(&[(0, false), (1, true), (2, true)]), [None, no, None]);
        assert_eq!(results(&[(1, true), (0, true), (2, false)]), [None, None, no]);
    }

    #[test]
    fn datagrams_are_tested_once_all_sockets_are_open() {
        let able = [(0, Capability(true)), (1, Capability(true)), (2, Capability(true))];
        let after = |reports: &[(usize, NodeReport)]| steps(true, &[&able, reports].concat()).split_off(2);
        let (yes, no) = (Some(Conclude(true)), Some(Conclude(false)));
        let passed = |node| (node, Probed(true));
        assert_eq!(after(&[passed(1), passed(0), passed(2)]), [Some(Probe), None, None, yes]);
        assert_eq!(after(&[(0, Probed(false)), passed(1), passed(2)]), [Some(Probe), no, None, None]);
        // Others may have finished before this node learns that all sockets are open.
        let early = [able[0], able[1], passed(0), passed(2), able[2], passed(1)];
        assert_eq!(steps(true, &early), [None, None, None, None, Some(Probe), yes]);
        // A node that cannot take part at all is not tested.
        assert_eq!(steps(true, &[able[0], able[1], (2, Capability(false))]), [None, None, no]);
    }
}
