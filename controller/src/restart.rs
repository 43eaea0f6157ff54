//! Graceful restart: groups and jobs of an earlier controller go on. They are put together again from what
//! agents say that they still have. Meanwhile the ranks compute, and their trees stay.
//!
//! What switches still have is found by [`cool_fabric`].

use crate::agents::Session;
use cool_fabric::Fabric;
use cool_fabric::{GroupRequest, TreeScope};
use crate::groups::registrar::Registrar;
use crate::groups::{self, Groups, Place};
use crate::jobs::job::{Limits, Ranks};
use crate::jobs::{Inlets, Jobs};
use cool_proto::control::{Group, Held, Kill, ReleaseGroup, controller_message::Body};
use cool_proto::description::WireGroup;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::time::sleep;
use tracing::{info, warn};

/// Groups of which some nodes have come back.
pub struct Takeover {
    network: Arc<dyn Fabric>,
    groups: Arc<Groups>,
    jobs: Arc<Jobs>,
    registrar: Arc<Registrar>,
    limits: Limits,
    /// By group.
    partial: Mutex<BTreeMap<u64, Partial>>,
}

struct Partial {
    group: Group,
    inlet: Inlet,
    /// The nodes that have not come back.
    missing: BTreeSet<String>,
    /// By node.
    sessions: BTreeMap<String, Arc<Session>>,
    /// The sessions that have ranks of the group.
    users: BTreeSet<u32>,
    ranks: Ranks,
}

enum Inlet {
    Job(Inlets),
    Enlisted,
}

impl Takeover {
    /// Nothing to take over yet.
    pub fn new(
        network: Arc<dyn Fabric>,
        groups: Arc<Groups>,
        jobs: Arc<Jobs>,
        registrar: Arc<Registrar>,
        limits: Limits,
    ) -> Takeover {
        Takeover { network, groups, jobs, registrar, limits, partial: Mutex::default() }
    }

    /// An agent has come back with these groups; `own` is this run of the controller.
    pub async fn report(self: &Arc<Takeover>, session: &Arc<Session>, own: u64, held: Vec<Held>) {
        for mut held in held {
            let told = match WireGroup::from_held(&mut held) {
                Ok(Some(told)) => told,
                Ok(None) => continue,
                Err(why) => {
                    warn!(node = session.agent.name, %why, "a group that the node has is not taken over");
                    continue;
                }
            };
            let Held { controller, ranks, exited, user, .. } = held;
            let (id, job) = told.numbers();
            // Its session broke, not the controller: whatever it had was given up then.
            if controller == own || !self.begin(told).await {
                info!(group = id, "node {} has a group that is given up", session.agent.name);
                give_up(session, (id, job));
                continue;
            }
            let complete = {
                let mut partial = self.partial.lock();
                let Some(part) = partial.get_mut(&id) else { continue };
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

    /// Makes room for a group; returns whether it is being taken over.
    async fn begin(self: &Arc<Takeover>, told: WireGroup) -> bool {
        let group = {
            let mut partial = self.partial.lock();
            let (id, _) = told.numbers();
            // Each of its nodes tells the same: only the first has to be understood.
            if partial.contains_key(&id) {
                return true;
            }
            let group = match told.group() {
                Ok(group) => group,
                Err(why) => {
                    warn!(group = id, %why, "not taken over");
                    return false;
                }
            };
            let Some(part) = self.reserve(&group) else { return false };
            partial.insert(id, part);
            group
        };
        let members = group.members.iter().map(|member| member.node.clone()).collect();
        let request = GroupRequest { id: group.id, members };
        if let Err(why) = self.network.adopt_group(request, trees(&group)).await {
            warn!(group = group.id, %why, "its trees are not taken over");
        }
        let (takeover, id) = (self.clone(), group.id);
        tokio::spawn(async move {
            sleep(takeover.limits.takeover).await;
            takeover.expire(id).await;
        });
        true
    }

    /// `None` if the group, or its job, is known already.
    fn reserve(&self, group: &Group) -> Option<Partial> {
        if !self.groups.adopt(group.clone()) {
            return None;
        }
        let inlet = match group.job {
            0 => {
                self.registrar.reserve(group.id);
                Some(Inlet::Enlisted)
            }
            job => self.jobs.reserve(job, group.id).map(Inlet::Job),
        };
        if inlet.is_none() {
            self.groups.remove(group.id);
        }
        Some(Partial {
            missing: group.members.iter().map(|member| member.node.clone()).collect(),
            group: group.clone(),
            inlet: inlet?,
            sessions: BTreeMap::new(),
            users: BTreeSet::new(),
            ranks: Ranks::default(),
        })
    }

    fn resume(&self, complete: Partial) {
        let Partial { group, inlet, sessions, users, ranks, .. } = complete;
        let place = |member: &cool_proto::control::Member| {
            let session = sessions.get(&member.node)?.clone();
            Some(Place { session, rack: member.rack })
        };
        let places: Vec<Place> = group.members.iter().filter_map(place).collect();
        match inlet {
            Inlet::Job(inlets) => self.jobs.resume(group.job, group.id, places, inlets, ranks),
            Inlet::Enlisted => self.registrar.resume(group.id, places, users),
        }
    }

    /// Gives a group up if nodes of it have not come back.
    async fn expire(&self, id: u64) {
        let Some(part) = self.partial.lock().remove(&id) else { return };
        let missing: Vec<String> = part.missing.into_iter().collect();
        warn!(
            group = id,
            job = part.group.job,
            "a group of an earlier controller is given up: {} has not come back within {:?}",
            missing.join(", "),
            self.limits.takeover
        );
        match part.inlet {
            Inlet::Job(_) => self.jobs.forget(part.group.job),
            Inlet::Enlisted => self.registrar.forget(id),
        }
        for session in part.sessions.values() {
            give_up(session, (id, part.group.job));
        }
        self.groups.release(&*self.network, id, &[]).await;
    }

    /// A session has ended; its node may come back once more.
    pub fn node_left(&self, session: &Session) {
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

/// Ends what a node has of a group.
fn give_up(session: &Session, (group, job): (u64, u64)) {
    // An agent that is gone again has nothing to end.
    if job != 0 {
        let _ = session.send(Body::Kill(Kill { job }));
    }
    let _ = session.send(Body::Release(ReleaseGroup { group }));
}

/// The trees of a group as it was described.
fn trees(group: &Group) -> Vec<(TreeScope, IpAddr)> {
    let tree = |tree: &cool_proto::control::Tree| Some((groups::scope(tree)?, tree.address.parse().ok()?));
    group.trees.iter().filter_map(tree).collect()
}
