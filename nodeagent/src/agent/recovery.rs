//! The recovery of a group that has lost ranks: its surviving ranks wait for each other, and the
//! controller decides which ranks have survived.

use super::{Agent, Attachment, CONTROLLER_MARGIN, PROCESS_ENDED};
use cool_membership::MAX_WAIT;
use cool_proto::control::agent_message::Body;
use cool_proto::control::{RanksLeft, Recover, Recovered};
use std::time::Duration;

/// The result of a recovery, on which the survivors of a group agree.
#[derive(Debug)]
pub(crate) struct RecoveryResult {
    /// The lost ranks.
    pub(crate) gone: Vec<u32>,
    /// The flags on which the survivors agreed.
    pub(crate) flags: u64,
    /// The rank's attachment to the new group, if there is one.
    pub(crate) attachment: Option<Attachment>,
}

impl Agent {
    /// Reports to the controller that a rank of this node waits for the other survivors of its
    /// group, and returns the controller's decision. An error is the reason as a text for the rank.
    pub(crate) async fn recover(&self, recover: Recover) -> Result<RecoveryResult, String> {
        let at = (recover.group, recover.rank);
        if !self.attached(at.0).contains(&at.1) {
            return Err(format!("rank {} is not attached to group {} on node {}", at.1, at.0, self.node));
        }
        let wait_limit = Duration::from_millis(recover.timeout_ms).min(MAX_WAIT) + CONTROLLER_MARGIN;
        let Some((_, answered)) = self.recovering.register(&at) else {
            return Err(format!("rank {} of group {} waits for the other survivors already", at.1, at.0));
        };
        let misses = self.engine.lost_ranks(at.0).await;
        self.report(Body::Recover(Recover { misses, ..recover })).await;
        self.recovering.wait(&at, answered, wait_limit).await
    }

    /// Passes the controller's decision on the survivors of a group to the ranks that wait for it.
    pub(crate) fn recovered(&self, recovered: &Recovered) {
        let Recovered { group, gone, flags, new_group, failure, rank } = recovered;
        let concerned = self.recovering.take(group, *rank, &[]);
        self.groups.release_when_unused(*new_group);
        let answer = |rank: u32| {
            let attachment = match *new_group {
                0 => Ok(None),
                new => {
                    let before = gone.iter().filter(|gone| **gone < rank).count() as u32;
                    self.attach(new, rank - before).map(Some).map_err(|e| e.to_string())
                }
            };
            match attachment {
                _ if !failure.is_empty() => Err(failure.clone()),
                Ok(attachment) => Ok(RecoveryResult { gone: gone.clone(), flags: *flags, attachment }),
                Err(reason) => Err(reason),
            }
        };
        // As in a rendezvous, all ranks must attach before the first one is informed.
        let answered: Vec<_> = concerned.into_iter().map(|(rank, waits)| (waits, answer(rank))).collect();
        for (waits, answer) in answered {
            if let Err(Ok(RecoveryResult { attachment: Some(attachment), .. })) = waits.send(answer) {
                // This must be a task of its own, because the caller may be the receiver of the
                // agent's events.
                tokio::spawn(attachment.leave(PROCESS_ENDED.to_owned()));
            }
        }
        self.left_before(*new_group);
    }

    /// Handles the end of a rank's process. If the rank never attached to its group, reports it as
    /// lost, so that the ranks that wait for it receive the reason.
    pub(crate) async fn rank_never_attached(&self, group: u64, rank: u32) {
        if self.groups.is_absent(group, rank) {
            self.engine.lose_rank(group, rank, PROCESS_ENDED.to_owned(), None);
            self.report(Body::Left(RanksLeft { group, ranks: vec![rank], unused: false })).await;
        }
    }
}
