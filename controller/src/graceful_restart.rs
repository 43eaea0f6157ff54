//! Graceful restart: resumes groups and jobs of an earlier controller.
//!
//! The groups are reconstructed from the agents' reports. Meanwhile the ranks continue to compute,
//! and their trees stay installed. [`cool_fabric`] recovers the state of the switches.

use crate::agents::Session;
use crate::groups::membership_driver::MembershipDriver;
use crate::groups::{self, GroupRegistry, MemberPlace};
use crate::jobs::running_job::ResumedRanks;
use crate::jobs::{JobChannels, JobRegistry};
use crate::timeouts::Timeouts;
use cool_fabric::Fabric;
use cool_fabric::{GroupRequest, TreeScope};
use cool_proto::control::{Group, Held, Kill, ReleaseGroup, TreesProven, controller_message::Body};
use cool_proto::description::WireGroup;
use cool_proto::job_ids;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

/// Groups of which only some nodes have reconnected.
pub struct GroupRecovery {
    network: Arc<dyn Fabric>,
    groups: Arc<GroupRegistry>,
    jobs: Arc<JobRegistry>,
    membership_driver: Arc<MembershipDriver>,
    timeouts: Timeouts,
    /// Time since which the controller has been connected to any agent or switch. Nodes are not
    /// abandoned while it is isolated.
    connected_since: watch::Receiver<Option<Instant>>,
    /// Incomplete groups, by id.
    partial: Mutex<BTreeMap<u64, PartialGroup>>,
}

struct PartialGroup {
    group: Group,
    target: ResumeTarget,
    /// Nodes that have not reconnected.
    missing: BTreeSet<String>,
    /// Sessions of the nodes that have.
    sessions: BTreeMap<String, Arc<Session>>,
    /// Sessions with ranks of the group.
    users: BTreeSet<u32>,
    ranks: ResumedRanks,
    /// The trees that nodes have withdrawn, if the nodes must prove trees.
    withdrawn: Option<BTreeSet<IpAddr>>,
}

enum ResumeTarget {
    Job(JobChannels),
    Enlisted,
}

impl GroupRecovery {
    /// Returns a recovery without groups.
    pub fn new(
        network: Arc<dyn Fabric>,
        groups: Arc<GroupRegistry>,
        jobs: Arc<JobRegistry>,
        membership_driver: Arc<MembershipDriver>,
        timeouts: Timeouts,
        connected_since: watch::Receiver<Option<Instant>>,
    ) -> GroupRecovery {
        let partial = Mutex::default();
        GroupRecovery { network, groups, jobs, membership_driver, timeouts, connected_since, partial }
    }

    /// Records the groups that an agent still holds. `own` is this run of the controller.
    pub async fn record_held_groups(
        self: &Arc<GroupRecovery>,
        session: &Arc<Session>,
        own: u64,
        held: Vec<Held>,
    ) {
        for mut held in held {
            let description = match WireGroup::from_held(&mut held) {
                Ok(Some(description)) => description,
                Ok(None) => continue,
                Err(why) => {
                    warn!(node = session.agent.name, %why, "cannot resume a group that the node holds");
                    continue;
                }
            };
            let Held { controller, ranks, exited, user, proven, .. } = held;
            let (id, job) = description.numbers();
            if id.max(job) > job_ids::NUMBER_MAX {
                warn!(
                    node = session.agent.name,
                    group = id,
                    job,
                    "refused numbers that no controller assigns"
                );
                abandon(session, (id, job));
                continue;
            }
            // If this controller formed the group, the agent has lost its session, and its groups
            // were abandoned then.
            if controller == own || !self.begin(description).await {
                info!(group = id, "node {} holds a group that was abandoned", session.agent.name);
                abandon(session, (id, job));
                continue;
            }
            let complete = {
                let mut partial = self.partial.lock();
                let Some(part) = partial.get_mut(&id) else { continue };
                if let Some(TreesProven { withdrawn, .. }) = proven {
                    let known = part.withdrawn.get_or_insert_default();
                    known.extend(withdrawn.iter().filter_map(|tree| tree.parse::<IpAddr>().ok()));
                }
                if !ranks.is_empty() {
                    part.users.insert(session.number);
                }
                if job != 0 {
                    self.jobs.occupy(job, session, ranks.len() as u32, &user);
                }
                part.ranks.running.extend(ranks);
                part.ranks.exited.extend(exited.into_iter().map(|exited| (session.number, exited)));
                part.missing.remove(&session.agent.name);
                part.sessions.insert(session.agent.name.clone(), session.clone());
                match part.missing.is_empty() {
                    true => partial.remove(&id),
                    false => None,
                }
            };
            if let Some(complete) = complete {
                self.resume(complete);
            }
        }
    }

    /// Starts to collect the nodes of a group. Returns false if the group cannot be resumed.
    async fn begin(self: &Arc<GroupRecovery>, description: WireGroup) -> bool {
        let group = {
            let mut partial = self.partial.lock();
            let (id, _) = description.numbers();
            // All nodes report the same description, so only the first one must be decoded.
            if partial.contains_key(&id) {
                return true;
            }
            let group = match description.group() {
                Ok(group) => group,
                Err(why) => {
                    warn!(group = id, %why, "cannot resume the group");
                    return false;
                }
            };
            let Some(part) = self.reserve(&group) else { return false };
            partial.insert(id, part);
            group
        };
        let members = group.members.iter().map(|member| member.node.clone()).collect();
        let request = GroupRequest { id: group.id, members, can_prove: true, can_join_sources: true };
        if let Err(why) = self.network.adopt_group(request, trees(&group)).await {
            warn!(group = group.id, %why, "cannot adopt the trees of the group");
        }
        let (recovery, id) = (self.clone(), group.id);
        tokio::spawn(async move {
            grace_expired(recovery.timeouts.agent, recovery.connected_since.clone()).await;
            recovery.expire(id).await;
        });
        true
    }

    /// Reserves a group and its job. Returns `None` if either is already known.
    fn reserve(&self, group: &Group) -> Option<PartialGroup> {
        if !self.groups.adopt(group.clone()) {
            return None;
        }
        let target = match group.job {
            0 => {
                self.membership_driver.reserve(group.id);
                Some(ResumeTarget::Enlisted)
            }
            job => self.jobs.reserve(job, group.id).map(ResumeTarget::Job),
        };
        if target.is_none() {
            self.groups.remove(group.id);
        }
        Some(PartialGroup {
            missing: group.members.iter().map(|member| member.node.clone()).collect(),
            group: group.clone(),
            target: target?,
            sessions: BTreeMap::new(),
            users: BTreeSet::new(),
            ranks: ResumedRanks::default(),
            withdrawn: None,
        })
    }

    fn resume(&self, complete: PartialGroup) {
        let PartialGroup { group, target, sessions, users, ranks, withdrawn, .. } = complete;
        let place = |member: &cool_proto::control::Member| {
            let session = sessions.get(&member.node)?.clone();
            Some(MemberPlace { session, rack: member.rack })
        };
        let places: Vec<MemberPlace> = group.members.iter().filter_map(place).collect();
        if let Some(withdrawn) = withdrawn {
            self.groups.resume_proofs(&group, &places, withdrawn);
        }
        match target {
            ResumeTarget::Job(channels) => self.jobs.resume(group.job, group.id, places, channels, ranks),
            ResumeTarget::Enlisted => self.membership_driver.resume(group.id, places, users),
        }
    }

    /// Abandons a group if some of its nodes have not reconnected in time.
    async fn expire(&self, id: u64) {
        let Some(part) = self.partial.lock().remove(&id) else { return };
        let missing: Vec<String> = part.missing.into_iter().collect();
        warn!(
            group = id,
            job = part.group.job,
            "abandoning a group of an earlier controller: {} did not reconnect within {:?}",
            missing.join(", "),
            self.timeouts.agent
        );
        match part.target {
            ResumeTarget::Job(_) => self.jobs.forget(part.group.job),
            ResumeTarget::Enlisted => self.membership_driver.forget(id),
        }
        for session in part.sessions.values() {
            abandon(session, (id, part.group.job));
        }
        self.groups.release(&*self.network, id, &[]).await;
    }

    /// Removes a node after the end of its session. It may reconnect again.
    pub fn node_lost(&self, session: &Session) {
        for part in self.partial.lock().values_mut() {
            let name = &session.agent.name;
            part.users.remove(&session.number);
            if part.sessions.get(name).is_some_and(|other| other.number == session.number) {
                part.sessions.remove(name);
                part.missing
                    .extend(part.group.members.iter().map(|m| &m.node).find(|node| *node == name).cloned());
            }
        }
    }
}

/// Waits until agents that have not connected since now have had their grace time to do so. The
/// time starts over when the controller was isolated.
async fn grace_expired(grace: Duration, mut connected_since: watch::Receiver<Option<Instant>>) {
    let began = Instant::now();
    loop {
        let since = *connected_since.borrow_and_update();
        let deadline = since.map(|since| began.max(since) + grace);
        let expired = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expired => return,
            changed = connected_since.changed() => {
                if changed.is_err() {
                    // The server has ended.
                    return;
                }
            }
        }
    }
}

/// Makes a node drop a group and kill its ranks.
fn abandon(session: &Session, (group, job): (u64, u64)) {
    // If the session has ended as well, nothing remains to drop.
    if job != 0 {
        let _ = session.send(Body::Kill(Kill { job }));
    }
    let _ = session.send(Body::Release(ReleaseGroup { group }));
}

/// Returns the trees in a group's description.
fn trees(group: &Group) -> Vec<(TreeScope, IpAddr)> {
    let tree = |tree: &cool_proto::control::Tree| {
        Some((groups::group_parameters::scope(tree)?, tree.address.parse().ok()?))
    };
    group.trees.iter().filter_map(tree).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_grace_time_does_not_elapse_while_isolated() {
        let since = watch::Sender::new(None);
        let expired = tokio::spawn(grace_expired(Duration::ZERO, since.subscribe()));
        tokio::task::yield_now().await;
        assert!(!expired.is_finished(), "no agent can reconnect");
        since.send_replace(Some(Instant::now()));
        expired.await.unwrap();
    }
}
