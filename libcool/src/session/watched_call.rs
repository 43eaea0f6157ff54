//! A call that ranks execute themselves and that takes long: the agent watches it as it watches its own
//! calls.

use super::agent_requests::CallNumber;
use super::{RankSession, milliseconds};
use crate::error::Error;
use crate::segment::{DescribedCall, Interrupted};
use cool_proto::local::watched::{Differs, Overdue, StillWaits, Through, What};
use cool_proto::local::{self, Call, Done, Dtype, ReduceOp, Watched, frame::Body};
use cool_quick::WaitPolicy;
use cool_shm::segment::RankPart;
use std::time::Duration;

/// A call that a rank carries out with others, as its agent is told of it when that takes long.
#[derive(Clone, Copy)]
pub(super) struct WatchedCall<'a> {
    pub(super) session: &'a RankSession,
    /// The rank's own part of the segment, in which the agent answers.
    pub(super) part: RankPart<'a>,
    pub(super) name: &'static str,
    pub(super) number: u64,
    pub(super) call: &'a DescribedCall,
    pub(super) counts: Option<&'a [usize]>,
    pub(super) timeout: Duration,
}

impl WatchedCall<'_> {
    /// How long the rank waits without the agent.
    pub(super) fn patience(&self) -> Duration {
        WaitPolicy(self.timeout).unwatched()
    }

    /// Whether the agent has answered.
    pub(super) fn has_reply(&self, id: u64) -> bool {
        self.part.last_reply() == id + 1
    }

    /// What is waited for is there.
    pub(super) fn completed(&self, id: u64) -> Result<(), Interrupted<Error>> {
        self.report(id, What::Through(Through {}))?;
        match self.reply(id)? {
            Done { failure: None, by_agent: false, .. } => Ok(()),
            done => self.stop(done),
        }
    }

    /// The rank has waited for as long as it may, for these ranks.
    pub(super) fn overdue(&self, id: u64, ranks: Vec<u32>) -> Result<(), Interrupted<Error>> {
        let timeout_ms = milliseconds(self.timeout);
        self.report(id, What::Overdue(Overdue { ranks, timeout_ms }))?;
        self.ended(id)
    }

    /// Another rank has called something else.
    pub(super) fn differs(&self, id: u64, rank: u32, text: String) -> Result<(), Interrupted<Error>> {
        self.report(id, What::Differs(Differs { rank, text }))?;
        self.ended(id)
    }

    /// The rank waits still, if the agent is there, as far as its connection says.
    pub(super) fn still_waits(&self, id: u64) -> Result<(), Interrupted<Error>> {
        self.report(id, What::StillWaits(StillWaits {}))?;
        match self.session.inbox.poll_connection() {
            Some(why) => Err(Interrupted::Failed(self.session.disconnected(self.name, why))),
            None => Ok(()),
        }
    }

    /// Has the agent watch the call; by which number it does.
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
        let number = CallNumber::Collective(Some(self.number));
        let id = session
            .send_call(self.name, number, |id, number| Body::Call(Call { id, number, ..watch }))
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

    /// The agent has something to say about the call that is not that it went well.
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
