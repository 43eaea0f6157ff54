//! How a group fails: because a rank or a node is lost, because a rank has revoked it, or because
//! an operation failed. All open requests are answered with the failure, and the other agents are
//! notified.

use super::{Group, failure_detector, lost_ranks};
use crate::engine_resources::{EngineResources, GroupContext, TimerKey};
use crate::failure::{CallFailure, CallFailureKind};
use crate::ids::NodeId;
use crate::inputs_outputs::Output;
use cool_machine::Time;
use cool_transport::unicast::Notice;
use std::sync::Arc;

/// Maximum length of the cause that a rank reports when it revokes a group.
const CAUSE_CHARACTERS_MAX: usize = 500;

impl Group {
    /// Handles the loss of a local rank, which had completed `completed_calls` calls, if that is
    /// known.
    ///
    /// # Errors
    /// Returns an error if the group fails because other ranks need the lost one.
    pub(crate) fn lose_rank(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        (rank, completed_calls): (u32, Option<u64>),
        why: String,
    ) -> Result<(), CallFailure> {
        let Some(local) = self.ranks.get_mut(rank).filter(|local| !local.is_lost) else { return Ok(()) };
        local.is_lost = true;
        let (calls, open) =
            (local.calls_made(completed_calls), local.open_calls + self.point_to_point.open_count(rank));
        if self.failed.is_some() {
            return Ok(());
        }
        if open > 0 {
            return Err(lost_ranks::failure(&self.members, rank, &why));
        }
        let ((group, epoch), text) = (self.id_and_epoch(), why.clone());
        let notice = Notice::RankLost { group, epoch, call: calls, rank, text };
        GroupContext { now, members: &self.members, resources }.notify_others(&notice);
        self.on_rank_lost(rank, calls, why)?;
        let over: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.is_empty()).map(|(number, _)| number).collect();
        over.into_iter().for_each(|number| self.retire(resources, number));
        Ok(())
    }

    pub(super) fn on_rank_lost(&mut self, rank: u32, calls: u64, why: String) -> Result<(), CallFailure> {
        let waiting = self.calls.iter().any(|(number, call)| number >= calls && !call.is_empty());
        let waiting = waiting || self.watched_calls.has_any_from(calls);
        let lost = self.lost_rank_table.add(&self.members, rank, calls, why);
        let alone = self.lost_rank_table.check_any_left(&self.members).is_err();
        if waiting || self.point_to_point.needs(rank, alone) { Err(lost) } else { Ok(()) }
    }

    /// Returns the failure of a group that a rank has revoked, with the `cause` that the rank has
    /// reported, if it is not empty. The text of a rank is neither long nor contains control
    /// characters, because other agents log it.
    pub(crate) fn revoked(&self, rank: u32, cause: &str) -> CallFailure {
        let printed = |character: char| if character.is_control() { ' ' } else { character };
        let cause: String = cause.chars().take(CAUSE_CHARACTERS_MAX).map(printed).collect();
        let because = if cause.is_empty() { String::new() } else { format!(", because {cause}") };
        let text = format!(
            "{} has revoked group {}{because}; continue with agree and shrink",
            self.members.describe_ranks(&[rank]),
            self.members.id
        );
        CallFailure::new(CallFailureKind::Revoked, text, vec![rank])
    }

    /// Returns the ranks on a node.
    pub(crate) fn ranks_of(&self, node: NodeId) -> Vec<u32> {
        self.members.node_index(node).map_or(Vec::new(), |place| self.members.ranks_of(place).collect())
    }

    /// Returns the failure of a group that has lost at least one node.
    pub(crate) fn nodes_lost(&self, nodes: &[NodeId], why: &str) -> CallFailure {
        let nodes: Vec<usize> = nodes.iter().filter_map(|node| self.members.node_index(*node)).collect();
        failure_detector::nodes_lost(&self.members, &nodes, why)
    }

    /// Makes the group fail: all open requests are answered, and the other agents are notified if
    /// `notify` is set.
    pub(crate) fn fail(
        &mut self,
        now: Time,
        resources: &mut EngineResources,
        failed: &CallFailure,
        notify: bool,
    ) {
        if self.failed.is_some() {
            return;
        }
        let failed = &self.failure_detector.with_cause(&self.members, failed);
        let (group, epoch) = self.id_and_epoch();
        tracing::warn!(group, epoch, kind = ?failed.kind, "{}", failed.message);
        let why: Arc<str> = failed.message.as_str().into();
        let numbers = self.calls.iter().map(|(number, _)| number);
        numbers.for_each(|number| resources.timers.set(TimerKey::Call(group, number), None));
        let (mut open, records) = self.calls.fail(now, (group, epoch), &why, &mut resources.out);
        records.into_iter().for_each(|record| resources.ring.push(record));
        open.extend(self.call_queue.fail());
        open.extend(self.watched_calls.take_all());
        open.extend(self.point_to_point.clear(group, resources));
        for (token, rank) in open {
            self.fail_open(resources, token, rank, failed);
        }
        self.clear(now, resources);
        self.failed = Some(failed.clone());
        resources.out.push(Output::GroupFailed { group });
        for node in self.members.others() {
            let peer = self.members.nodes[node].id;
            if notify {
                self.notify_failure(now, resources, peer);
            }
            resources.peers.leave(now, peer, (group, epoch));
        }
    }

    /// Answers an open request with the group's failure.
    pub(super) fn fail_open(
        &mut self,
        resources: &mut EngineResources,
        token: u64,
        rank: u32,
        failed: &CallFailure,
    ) {
        resources.done(token, Err(failed.clone()));
        self.ranks.mark_informed(rank);
    }

    /// Frees all resources of calls.
    pub(super) fn clear(&mut self, now: Time, resources: &mut EngineResources) {
        self.streams.clear(resources);
        self.messages.clear(resources);
        self.failure_detector.stop(&mut GroupContext { now, members: &self.members, resources });
    }

    /// Notifies another node's agent that the group has failed, if it has.
    pub(crate) fn notify_failure(&self, now: Time, resources: &mut EngineResources, peer: NodeId) {
        if let Some(failed) = &self.failed {
            let (group, epoch) = self.id_and_epoch();
            let (kind, ranks, text) = (failed.kind.code(), failed.ranks.clone(), failed.message.clone());
            resources.peers.notify(now, peer, Notice::Abort { group, epoch, kind, ranks, text });
        }
    }

    /// Returns the index of a node to which agents of this group connect on demand, if the group
    /// contains it and has not failed.
    pub(crate) fn on_demand_place(&self, node: NodeId) -> Option<usize> {
        self.members.node_index(node).filter(|_| self.members.on_demand && self.failed.is_none())
    }

    /// Notifies a newly connected agent of the ranks that have left on this node.
    pub(crate) fn introduce(&self, now: Time, resources: &mut EngineResources, peer: NodeId) {
        let (group, epoch) = self.id_and_epoch();
        for (rank, call, why) in self.lost_rank_table.among(self.members.my_ranks()) {
            let notice = Notice::RankLost { group, epoch, call, rank, text: why.to_owned() };
            resources.peers.notify(now, peer, notice);
        }
    }

    /// Handles a ping from a node of the group. If the group has failed here and the node is not
    /// connected, the node may not have been notified, so it is connected and notified now.
    pub(crate) fn on_ping(&self, now: Time, resources: &mut EngineResources, place: usize) {
        let Some(peer) = self.members.nodes.get(place).map(|node| node.id) else { return };
        let unspoken = place != self.members.me && resources.peers.link(peer).is_none();
        if self.failed.is_some() && unspoken {
            let EngineResources { peers, out, .. } = &mut *resources;
            peers.reach(now, (&self.members, place), out);
            self.notify_failure(now, resources, peer);
            resources.peers.leave(now, peer, self.id_and_epoch());
        }
    }

    /// Returns whether the group has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the lost ranks that made the group fail.
    pub(crate) fn lost_ranks(&self) -> Vec<u32> {
        let lost = self.failed.as_ref().filter(|failed| failed.kind == CallFailureKind::Lost);
        lost.map_or(Vec::new(), |failed| failed.ranks.clone())
    }
}
