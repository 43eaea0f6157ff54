//! The rendezvous of processes that request a group together with processes of other nodes. The
//! agent reports each of them to the controller, which makes the group when all have arrived.

use super::{Agent, Attachment, CONTROLLER_MARGIN, PROCESS_ENDED};
use cool_membership::MAX_WAIT;
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, Enlisted, RanksLeft, Withdraw};
use std::time::Duration;

impl Agent {
    /// Requests that a process of this node become a rank of a new group, together with the
    /// processes that specify the same key. Returns the rank's attachment to this group, or the
    /// reason why there is none. The caller must not drop the future before it has called
    /// [`Agent::withdraw`].
    pub(crate) async fn enlist(&self, mut enlist: Enlist) -> Result<Attachment, String> {
        let at = (enlist.key.clone(), enlist.rank);
        let wait_limit = Duration::from_millis(enlist.timeout_ms).min(MAX_WAIT) + CONTROLLER_MARGIN;
        let Some((ticket, answered)) = self.enlisted.register(&at) else {
            return Err(format!("two processes claim to be rank {} of {}", at.1, at.0));
        };
        enlist.ticket = ticket;
        self.report(Body::Enlist(enlist)).await;
        self.enlisted.wait(&at, answered, wait_limit).await
    }

    /// Withdraws a process that has stopped waiting.
    pub(crate) async fn withdraw(&self, key: String, rank: u32) {
        if self.enlisted.unregister(&(key.clone(), rank)) {
            self.report(Body::Withdraw(Withdraw { key, rank })).await;
        }
    }

    /// Handles the controller's answer to processes that wait for a group.
    pub(crate) fn enlisted(&self, enlisted: Enlisted) {
        let Enlisted { key, group, reason, rank, tickets } = enlisted;
        let concerned = self.enlisted.take(&key, rank, &tickets);
        self.release_when_unused(group);
        let answer = |rank| match group {
            0 => Err(reason.clone()),
            _ => self.attach(group, rank).map_err(|e| e.to_string()),
        };
        // All ranks must attach before the first one is informed. Otherwise the first could leave
        // at once, and the group would count as unused although the others are about to attach.
        let answered: Vec<_> = concerned.into_iter().map(|(rank, waits)| (waits, answer(rank))).collect();
        for (waits, answer) in answered {
            if let Err(Ok(attachment)) = waits.send(answer) {
                // This must be a task of its own, because the caller may be the receiver of the
                // agent's events.
                tokio::spawn(attachment.leave(PROCESS_ENDED.to_owned()));
            }
        }
        self.left_before(group);
    }

    /// Marks a group as requested by its ranks.
    pub(crate) fn release_when_unused(&self, group: u64) {
        self.groups.release_when_unused(group);
    }

    /// Reports the local ranks of a new group that stopped waiting before the group was made. They
    /// count as lost.
    pub(super) fn left_before(&self, group: u64) {
        let Some((ranks, unused)) = self.groups.absent(group) else { return };
        ranks.iter().for_each(|rank| self.engine.lose_rank(group, *rank, PROCESS_ENDED.to_owned(), None));
        if !ranks.is_empty() {
            let agent = self.clone();
            tokio::spawn(async move { agent.report(Body::Left(RanksLeft { group, ranks, unused })).await });
        }
    }

    /// Records the request that is sent to the controller for a waiting rank.
    pub(crate) fn record_request(&self, event: &Body) {
        match event {
            Body::Enlist(enlist) => self.enlisted.record_request(&(enlist.key.clone(), enlist.rank), event),
            Body::Recover(recover) => self.recovering.record_request(&(recover.group, recover.rank), event),
            _ => {}
        }
    }

    /// Returns the requests that another controller must receive, because ranks wait for the
    /// answers.
    pub(crate) fn requests(&self) -> Vec<Body> {
        let (enlisted, recovering) = (self.enlisted.requests(), self.recovering.requests());
        enlisted.into_iter().chain(recovering).collect()
    }

    /// Ends all waits, because no controller will answer.
    pub(crate) fn give_up_waiting(&self, why: &str) {
        self.recovering.give_up(why);
        self.enlisted.give_up(why);
    }
}
