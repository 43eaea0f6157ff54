//! A call that the ranks have begun to execute themselves. If this rank does not complete it, the
//! group fails.

use super::RankSession;
use super::agent_requests::RankAttempt;
use crate::error::Error;
use cool_proto::local::{Revoke, frame::Body};
use cool_shm::segment::Segment;

/// Maximum length of a reported cause. It fits a frame to the agent.
const CAUSE_BYTES_MAX: usize = 1000;

/// A call of this rank in its group's segment, or by datagrams. Dropping it makes the group fail,
/// whatever the reason is: an error, or a panic. The other ranks would otherwise count this rank's
/// publications differently, and could take data of one call for that of another.
pub(super) struct BegunRankCall<'a> {
    session: &'a RankSession,
    segment: &'a Segment,
    /// The operation, and the number of the call.
    name: &'static str,
    number: u64,
    is_settled: bool,
    /// The error, for the other ranks.
    error: Option<String>,
}

impl<'a> BegunRankCall<'a> {
    pub(super) fn new(
        session: &'a RankSession,
        segment: &'a Segment,
        (name, number): (&'static str, u64),
    ) -> BegunRankCall<'a> {
        BegunRankCall { session, segment, name, number, is_settled: false, error: None }
    }

    /// Returns the result of the call. If it is an error, the group fails.
    pub(super) fn settle(mut self, result: Result<RankAttempt, Error>) -> Result<RankAttempt, Error> {
        match &result {
            // This rank has completed the call, or passes it to the agent.
            Ok(_) => self.is_settled = true,
            Err(error) => self.error = Some(error.to_string()),
        }
        result
    }
}

impl Drop for BegunRankCall<'_> {
    fn drop(&mut self) {
        if !self.is_settled && !self.segment.has_failed() {
            let error = self.error.as_deref().unwrap_or("the thread has panicked");
            self.session.fail_group((self.name, self.number), error);
        }
    }
}

impl RankSession {
    /// Makes the group fail at every rank, because this rank has begun a call and cannot complete
    /// it. The errors of the other ranks contain the call and the error.
    pub(super) fn fail_group(&self, (name, number): (&'static str, u64), error: &str) {
        if self.inbox.disconnected().is_none() {
            let mut cause = format!("it left {name} (call {number}) incomplete: {error}");
            cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
            let revoke = Body::Revoke(Revoke { cause });
            // If the frame cannot be sent, the agent notices the end of the connection and notifies
            // the other ranks of the loss.
            let _ = self.send(&mut self.call_sender(), "revoke", revoke, None);
        }
        self.fail_segment();
    }
}
