//! A call that ranks execute themselves and that takes long: the agent watches it as it watches its
//! own calls.

use super::{RankSession, milliseconds};
use crate::error::Error;
use crate::interruption;
use crate::segment::{DescribedCall, Interrupted};
use cool_proto::local::watched::{Differs, Overdue, StillWaits, Through, What};
use cool_proto::local::{self, Call, Done, Dtype, ReduceOp, Watched, frame::Body};
use cool_quick::WaitPolicy;
use cool_shm::segment::RankPart;
use std::time::Duration;

/// A call as it is reported to the agent.
#[derive(Clone, Copy)]
pub(super) struct WatchedCall<'a> {
    pub(super) session: &'a RankSession,
    /// This rank's part of the segment, which contains the agent's notifications.
    pub(super) part: RankPart<'a>,
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) call: &'a DescribedCall,
    pub(super) counts: Option<&'a [usize]>,
    pub(super) timeout: Duration,
}

impl WatchedCall<'_> {
    /// Returns how long the rank waits before it involves the agent.
    pub(super) fn patience(&self) -> Duration {
        WaitPolicy(self.timeout).unwatched()
    }

    /// Returns whether the agent has replied.
    pub(super) fn has_reply(&self, id: u64) -> bool {
        self.part.last_reply() == id + 1
    }

    /// Reports that the wait is over. Returns an error if the agent replies that the call has
    /// failed, or that it must execute the call.
    pub(super) fn completed(&self, id: u64) -> Result<(), Interrupted<Error>> {
        self.report(id, What::Through(Through {}))?;
        match self.reply(id)? {
            Done { failure: None, by_agent: false, .. } => Ok(()),
            done => self.stop(done),
        }
    }

    /// Reports that the rank has waited for these ranks for as long as the timeout permits.
    pub(super) fn overdue(&self, id: u64, ranks: Vec<u32>) -> Result<(), Interrupted<Error>> {
        let timeout_ms = milliseconds(self.timeout);
        self.report(id, What::Overdue(Overdue { ranks, timeout_ms }))?;
        self.ended(id)
    }

    /// Reports that another rank called a different operation.
    pub(super) fn differs(&self, id: u64, rank: u32, text: String) -> Result<(), Interrupted<Error>> {
        self.report(id, What::Differs(Differs { rank, text }))?;
        self.ended(id)
    }

    /// Reports that the rank is still waiting, and checks that the connection to the agent is
    /// intact and that the program has not interrupted the call.
    pub(super) fn still_waits(&self, id: u64) -> Result<(), Interrupted<Error>> {
        interruption::check(self.session.rank, self.name).map_err(Interrupted::Failed)?;
        self.report(id, What::StillWaits(StillWaits {}))?;
        match self.session.inbox.poll_connection() {
            Some(why) => Err(Interrupted::Failed(self.session.disconnected(self.name, why))),
            None => Ok(()),
        }
    }

    /// Asks the agent to watch the call, and returns the identifier of its reply.
    pub(super) fn open(&self) -> Result<u64, Interrupted<Error>> {
        let (session, call) = (self.session, &self.call.call);
        let element = u64::from(call.element.max(1));
        let counts = self.counts.map(|counts| session.share_counts(self.name, counts)).transpose();
        let counts = counts.map_err(Interrupted::Failed)?;
        let watch = Call {
            group: session.group,
            operation: local::Operation::from(call.operation).into(),
            root: call.root.0,
            dtype: self.call.dtype.map_or(Dtype::Unspecified, Dtype::from).into(),
            reduce: self.call.op.map_or(ReduceOp::Unspecified, ReduceOp::from).into(),
            count: if self.counts.is_some() { 0 } else { call.bytes / element },
            counts: counts.as_ref().map(|(_, slice)| *slice),
            timeout_ms: milliseconds(self.timeout),
            watch: true,
            ..Call::default()
        };
        let number = Some(self.number);
        let id = session
            .sender_with_room(self.name, true, self.timeout)
            .and_then(|mut call_sender| {
                let call = |id| Body::Call(Call { id, number, ..watch });
                session.send_call(&mut call_sender, self.name, call)
            })
            .map_err(Interrupted::Failed)?;
        if let Some((block, _)) = counts {
            session.inbox.retain(id, block);
        }
        Ok(id)
    }

    fn report(&self, id: u64, what: What) -> Result<(), Interrupted<Error>> {
        let (session, watched) = (self.session, Body::Watched(Watched { id, what: Some(what) }));
        session.send(&mut session.call_sender(), self.name, watched, None).map_err(Interrupted::Failed)
    }

    fn reply(&self, id: u64) -> Result<Done, Interrupted<Error>> {
        self.session
            .inbox
            .wait(id)
            .map_err(|why| Interrupted::Failed(self.session.disconnected(self.name, why)))
    }

    /// Returns the agent's reply as an interruption: the failure of the call, or the request to let
    /// the agent execute it.
    pub(super) fn ended(&self, id: u64) -> Result<(), Interrupted<Error>> {
        let done = self.reply(id)?;
        self.stop(done)
    }

    fn stop(&self, done: Done) -> Result<(), Interrupted<Error>> {
        match done.failure {
            Some(failure) => Err(Interrupted::Failed(self.session.collective_error(self.name, failure))),
            None => Err(Interrupted::Fallback),
        }
    }
}
