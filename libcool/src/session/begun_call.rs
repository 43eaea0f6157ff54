//! A call that the ranks have begun to execute themselves. If this rank does not complete it, the
//! group fails.

use super::RankSession;
use cool_proto::local::{Revoke, frame::Body};
use cool_shm::segment::Segment;

/// A call of this rank in its group's segment, or by datagrams. Dropping it makes the group fail,
/// whatever the reason is: an error, or a panic. The other ranks would otherwise count this rank's
/// publications differently, and could take data of one call for that of another.
pub(super) struct BegunRankCall<'a> {
    session: &'a RankSession,
    segment: &'a Segment,
    is_settled: bool,
}

impl<'a> BegunRankCall<'a> {
    pub(super) fn new(session: &'a RankSession, segment: &'a Segment) -> BegunRankCall<'a> {
        BegunRankCall { session, segment, is_settled: false }
    }

    /// Records that this rank has completed the call, or passes it to the agent.
    pub(super) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for BegunRankCall<'_> {
    fn drop(&mut self) {
        if !self.is_settled && !self.segment.has_failed() {
            self.session.fail_group();
        }
    }
}

impl RankSession {
    /// Makes the group fail at every rank, because this rank has begun a call and cannot complete
    /// it.
    pub(super) fn fail_group(&self) {
        if self.inbox.disconnected().is_none() {
            // If the frame cannot be sent, the agent notices the end of the connection and notifies
            // the other ranks of the loss.
            let _ = self.send(&mut self.call_sender(), "revoke", Body::Revoke(Revoke {}), None);
        }
        self.fail_segment();
    }
}
