//! Ranks that agents have not reported as ended although their jobs have: processes that the kernel
//! cannot end, for example because they wait for a file server, or an agent that does not answer.
//!
//! They still use their nodes, so their slots are not assigned to other jobs.

use crate::agents::Session;
use cool_proto::job_ids;
use cool_types::rank_list;
use std::collections::{BTreeMap, BTreeSet};

/// The ranks, by the number of the session and the id of the job.
#[derive(Debug, Default)]
pub(super) struct LingeringRanks {
    by_job: BTreeMap<(u32, u64), LingeringJob>,
}

#[derive(Debug)]
struct LingeringJob {
    node: String,
    ranks: BTreeSet<u32>,
}

impl LingeringRanks {
    /// Adds ranks of a job that has ended.
    pub(super) fn add(&mut self, session: &Session, job: u64, ranks: BTreeSet<u32>) {
        if !session.has_ended() {
            let node = session.agent.name.clone();
            self.by_job.insert((session.number, job), LingeringJob { node, ranks });
        }
    }

    /// Records that a rank has ended after all.
    pub(super) fn ended(&mut self, session: u32, job: u64, rank: u32) {
        if let Some(lingering) = self.by_job.get_mut(&(session, job)) {
            lingering.ranks.remove(&rank);
            if lingering.ranks.is_empty() {
                self.by_job.remove(&(session, job));
            }
        }
    }

    /// Removes all ranks of a session. If its node returns, the agent has ended them or reports
    /// them.
    pub(super) fn session_ended(&mut self, session: u32) {
        self.by_job.retain(|(number, _), _| *number != session);
    }

    /// Returns the number of slots that these ranks use on the node of a session.
    pub(super) fn on_session(&self, session: u32) -> u32 {
        let on_session = self.by_job.range((session, 0)..=(session, u64::MAX));
        on_session.map(|(_, lingering)| lingering.ranks.len() as u32).sum()
    }

    /// Returns a warning for each job and node.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.by_job.iter().map(|((_, job), LingeringJob { node, ranks })| {
            let job = job_ids::short(*job);
            let ranks = rank_list(ranks.iter().copied());
            format!(
                "node {node}: job {job} has ended, but not its {ranks}, whose slots stay in use. Look for \
                 processes that wait for a device or a file server (state D in ps)"
            )
        })
    }
}
