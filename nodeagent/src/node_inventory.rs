//! The groups that controllers have made on this node. The agent reports them at each registration,
//! so that a restarted controller can take over running jobs and groups.

use cool_proto::control::{Exited, Held, Launch, TreesProven, agent_message::Body};
use std::collections::{BTreeMap, BTreeSet};

/// Number of ended groups that are kept only because a controller may ask how their ranks ended.
const MAX_ENDED: usize = 256;

/// The groups of this node.
#[derive(Debug, Default)]
pub(crate) struct NodeInventory {
    /// The incarnation of the controller of the current session.
    controller: u64,
    groups: BTreeMap<u64, GroupRecord>,
}

#[derive(Debug)]
struct GroupRecord {
    job: u64,
    /// The group as the controller described it, with the controller's incarnation and the job's
    /// user.
    description: Held,
    /// Ranks that this node has started.
    started: BTreeSet<u32>,
    exited: BTreeMap<u32, Exited>,
}

impl GroupRecord {
    /// Returns the ranks that have ended, except for the `unreported` ones of the job.
    fn ended(&self, unreported: &BTreeSet<(u64, u32)>) -> impl Iterator<Item = (&u32, &Exited)> {
        self.exited.iter().filter(|(rank, _)| !unreported.contains(&(self.job, **rank)))
    }

    fn is_ended(&self) -> bool {
        self.job != 0
            && !self.started.is_empty()
            && self.started.iter().all(|rank| self.exited.contains_key(rank))
    }
}

impl NodeInventory {
    /// Records that a controller has accepted this agent.
    pub(crate) fn joined(&mut self, controller: u64) {
        self.controller = controller;
    }

    /// Records that a group of a job was made from this description.
    pub(crate) fn made(&mut self, (group, job): (u64, u64), description: Held) {
        let description = Held { controller: self.controller, ..description };
        self.groups.insert(
            group,
            GroupRecord { job, description, started: BTreeSet::new(), exited: BTreeMap::new() },
        );
    }

    /// Records the end of a proof of a group's trees. Returns whether it changes the trees that the
    /// group uses.
    pub(crate) fn proven(&mut self, proven: TreesProven) -> bool {
        let Some(record) = self.groups.get_mut(&proven.group) else { return false };
        let before = record.description.proven.take().unwrap_or_default();
        let changes = before.withdrawn != proven.withdrawn;
        record.description.proven = Some(proven);
        changes
    }

    /// Records that a group was released.
    pub(crate) fn released(&mut self, group: u64) {
        self.groups.remove(&group);
    }

    /// Records that ranks are being started.
    pub(crate) fn started(&mut self, launch: &Launch) {
        if let Some(record) = self.groups.get_mut(&launch.group) {
            record.started.extend(&launch.ranks);
            record.description.user.clone_from(&launch.user);
        }
    }

    /// Records how a rank ended.
    pub(crate) fn record_exit(&mut self, event: &Body) {
        let Body::Exited(exited) = event else { return };
        let Some(record) = self.groups.values_mut().find(|record| record.job == exited.job) else {
            return;
        };
        record.exited.insert(exited.rank, exited.clone());
        let over: Vec<u64> = self.groups.iter().filter(|(_, r)| r.is_ended()).map(|(id, _)| *id).collect();
        if over.len() > MAX_ENDED {
            self.groups.remove(&over[0]);
        }
    }

    /// Returns the group of a job, or `None` if this node has none.
    pub(crate) fn group_of(&self, job: u64) -> Option<u64> {
        self.groups.iter().find(|(_, record)| record.job == job).map(|(id, _)| *id)
    }

    /// Returns the report to a controller. `attached` returns the ranks of groups without a job.
    /// `unreported` contains the ranks, by job, whose ends are reported later; until then they
    /// count as running.
    pub(crate) fn report(
        &self,
        attached: impl Fn(u64) -> Vec<u32>,
        unreported: &BTreeSet<(u64, u32)>,
    ) -> Vec<Held> {
        let held = |(id, record): (&u64, &GroupRecord)| {
            let ended: BTreeSet<&u32> = record.ended(unreported).map(|(rank, _)| rank).collect();
            Held {
                ranks: match record.job {
                    0 => attached(*id),
                    _ => record.started.iter().filter(|rank| !ended.contains(rank)).copied().collect(),
                },
                exited: record.ended(unreported).map(|(_, exited)| exited.clone()).collect(),
                ..record.description.clone()
            }
        };
        self.groups.iter().map(held).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> BTreeSet<(u64, u32)> {
        BTreeSet::new()
    }

    fn exited(job: u64, rank: u32, code: i32) -> Body {
        Body::Exited(Exited { job, rank, code, ..Exited::default() })
    }

    #[test]
    fn ranks_are_reported_as_running_until_they_exit() {
        let mut held = NodeInventory::default();
        held.joined(9);
        held.made((5, 3), Held::default());
        held.started(&Launch { job: 3, group: 5, ranks: vec![1, 2], ..Launch::default() });
        held.record_exit(&exited(3, 2, 7));
        let report = held.report(|_| Vec::new(), &[(3, 1)].into());
        assert_eq!((report[0].controller, &report[0].ranks[..], report[0].exited[0].code), (9, &[1][..], 7));
        held.record_exit(&exited(3, 1, 0));
        assert_eq!(held.report(|_| Vec::new(), &[(3, 1)].into()), report, "it has not been reported yet");
        assert_eq!((held.report(|_| Vec::new(), &none())[0].ranks.len(), held.group_of(3)), (0, Some(5)));
        held.released(5);
        assert_eq!(held.report(|_| Vec::new(), &none()), []);
    }

    #[test]
    fn withdrawn_trees_are_reported_with_their_group() {
        let mut held = NodeInventory::default();
        held.made((5, 3), Held::default());
        let withdrawn = |group, trees: &[&str]| TreesProven {
            group,
            withdrawn: trees.iter().map(ToString::to_string).collect(),
        };
        let reports = [&["239.192.0.1"][..], &["239.192.0.1"], &[], &[]];
        let changes = reports.map(|trees| held.proven(withdrawn(5, trees)));
        assert_eq!(changes, [true, false, true, false]);
        assert!(!held.proven(withdrawn(6, &["239.192.0.1"])), "there is no such group");
        assert_eq!(held.report(|_| Vec::new(), &none())[0].proven, Some(withdrawn(5, &[])));
    }

    #[test]
    fn a_group_without_a_job_is_reported_with_attached_ranks() {
        let mut held = NodeInventory::default();
        held.made((5, 0), Held::default());
        assert_eq!(held.report(|id| vec![id as u32], &none())[0].ranks, [5]);
    }

    #[test]
    fn the_records_of_ended_jobs_are_bounded() {
        let mut held = NodeInventory::default();
        for id in 1..=2 * MAX_ENDED as u64 {
            held.made((id, id), Held::default());
            held.started(&Launch { job: id, group: id, ranks: vec![0], ..Launch::default() });
            held.record_exit(&exited(id, 0, 0));
        }
        assert_eq!(held.groups.len(), MAX_ENDED);
    }
}
