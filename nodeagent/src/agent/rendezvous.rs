//! Processes of this node that ask for a group together with others, anywhere: the controller is told of each, and makes the
//! group when all have come. The rendezvous itself is the controller's.

use super::{Agent, Attachment, CONTROLLER_MARGIN, PROCESS_ENDED};
use cool_membership::MAX_WAIT;
use cool_proto::control::agent_message::Body;
use cool_proto::control::{Enlist, Enlisted, RanksLeft, Withdraw};
use std::time::Duration;

impl Agent {
    /// Lets a process of this node be a rank of a new group, with those who give the same key. May be dropped
    /// only after [`Agent::withdraw`].
    pub(crate) async fn enlist(&self, mut enlist: Enlist) -> Result<Attachment, String> {
        let at = (enlist.key.clone(), enlist.rank);
        let wait_limit = Duration::from_millis(enlist.timeout_ms).min(MAX_WAIT) + CONTROLLER_MARGIN;
        let Some((ticket, answered)) = self.enlisted.register(&at) else {
            return Err(format!("two processes say that they are rank {} of {}", at.1, at.0));
        };
        enlist.ticket = ticket;
        self.report(Body::Enlist(enlist)).await;
        self.enlisted.wait(&at, answered, wait_limit).await
    }

    /// A process that waited is gone.
    pub(crate) async fn withdraw(&self, key: String, rank: u32) {
        if self.enlisted.unregister(&(key.clone(), rank)) {
            self.report(Body::Withdraw(Withdraw { key, rank })).await;
        }
    }

    /// The controller has made a group for processes that waited, or will not.
    pub(crate) fn enlisted(&self, enlisted: Enlisted) {
        let Enlisted { key, group, reason, rank, tickets } = enlisted;
        let concerned = self.enlisted.take(&key, rank, &tickets);
        self.release_when_unused(group);
        let answer = |rank| match group {
            0 => Err(reason.clone()),
            _ => self.attach(group, rank).map_err(|e| e.to_string()),
        };
        // All attach before the first is told: one that leaves at once must not leave the group unused behind the others.
        let answered: Vec<_> = concerned.into_iter().map(|(rank, waits)| (waits, answer(rank))).collect();
        for (waits, answer) in answered {
            if let Err(Ok(attachment)) = waits.send(answer) {
                // Not here: whoever calls this may be the one who takes what is told to the controller.
                tokio::spawn(attachment.leave(PROCESS_ENDED.to_owned()));
            }
        }
        self.left_before(group);
    }

    /// A group's ranks have come by themselves.
    pub(crate) fn release_when_unused(&self, group: u64) {
        self.groups.release_when_unused(group);
    }

    /// Ranks that have gone since they were counted among those who have come leave a new group.
    pub(super) fn left_before(&self, group: u64) {
        let Some((ranks, unused)) = self.groups.absent(group) else { return };
        ranks.iter().for_each(|rank| self.engine.lose_rank(group, *rank, PROCESS_ENDED.to_owned(), None));
        if !ranks.is_empty() {
            let agent = self.clone();
            tokio::spawn(async move { agent.report(Body::Left(RanksLeft { group, ranks, unused })).await });
        }
    }

    /// A controller is being asked something for a rank that waits.
    pub(crate) fn record_request(&self, event: &Body) {
        match event {
            Body::Enlist(enlist) => self.enlisted.record_request(&(enlist.key.clone(), enlist.rank), event),
            Body::Recover(recover) => self.recovering.record_request(&(recover.group, recover.rank), event),
            _ => {}
        }
    }

    /// What another controller is to be asked, since ranks wait for it.
    pub(crate) fn requests(&self) -> Vec<Body> {
        let (enlisted, recovering) = (self.enlisted.requests(), self.recovering.requests());
        enlisted.into_iter().chain(recovering).collect()
    }

    /// Nobody will make the groups that processes wait for, or say who is left of theirs.
    pub(crate) fn give_up_waiting(&self, why: &str) {
        self.recovering.give_up(why);
        self.enlisted.give_up(why);
    }
}
