//! A rank's membership in a group, through which its session sends requests to the engine. It
//! counts calls in the metrics, and adds the rank's identity to commands.

use super::Agent;
use super::groups::LeaveOutcome;
use crate::engine::{CommandPermit, MappedCallRequest, RankCommand, RankRequest, SharedSlice};
use crate::shared_segment::SharedSegment;
use cool_proto::control::RanksLeft;
use cool_proto::control::agent_message::Body;
use cool_proto::local::{self, Failure, Place, Stats};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The abilities that a process reports when it attaches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Abilities {
    /// It can execute calls together with others in the segment of their group.
    pub(crate) segment: bool,
    /// It can execute such calls with ranks of other nodes, by datagrams between the leaders of the
    /// nodes.
    pub(crate) quick: bool,
    /// Its quick calls may have long messages, which it sends and receives in parts.
    pub(crate) long_quick: bool,
}

/// An attached rank. Its owner must call [`Attachment::leave`] when the rank has left.
#[derive(Debug)]
pub(crate) struct Attachment {
    agent: Agent,
    group: u64,
    rank: u32,
    places: Arc<[Place]>,
    /// The segment in which the rank executes calls together with other ranks.
    segment: Option<Arc<SharedSegment>>,
}

impl Attachment {
    pub(super) fn new(agent: Agent, group: u64, rank: u32, places: Arc<[Place]>) -> Attachment {
        Attachment { agent, group, rank, places, segment: None }
    }

    pub(crate) fn group(&self) -> u64 {
        self.group
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Lets the rank execute calls together with the others, in a segment or by datagrams, if all
    /// of them are able to. If they use datagrams, returns how the leaders of nodes reach each
    /// other, and, for a leader, its socket.
    pub(crate) fn share(&mut self, abilities: Abilities) -> Option<(local::Quick, Option<OwnedFd>)> {
        let shared = self.agent.share(self.group, self.rank, abilities)?;
        self.segment = Some(shared.segment);
        shared.quick
    }

    /// Returns the segment in which the rank executes calls together with other ranks.
    pub(crate) fn segment(&self) -> Option<&SharedSegment> {
        self.segment.as_deref()
    }

    /// Sends a request to the engine. The future completes with the result, which is counted in the
    /// metrics if the request is a collective call.
    pub(crate) fn request(
        &self,
        request: RankRequest<SharedSlice>,
        permit: CommandPermit,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let operation = match &request {
            RankRequest::Call(call) => Some(call.operation),
            RankRequest::Transfer(_) => None,
        };
        let (metrics, reply) = (self.agent.metrics.clone(), self.agent.engine.request(request, Some(permit)));
        async move {
            let result = reply.await;
            operation.into_iter().for_each(|operation| metrics.called(operation, &result));
            result
        }
    }

    /// Starts a watched call; see [`crate::engine::EngineHandle::watch`]. It is counted here only
    /// if it fails, because the rank itself counts a successful one.
    pub(crate) fn watch(
        &self,
        request: MappedCallRequest,
        permit: CommandPermit,
    ) -> impl Future<Output = Result<bool, Failure>> + Send + use<> {
        let (group, operation, metrics) = (self.group, request.operation, self.agent.metrics.clone());
        let watched = self.agent.engine.watch(request, permit);
        async move {
            let result = watched.await;
            if let Err(failure) = &result {
                metrics.failed(operation, failure);
                metrics.rank_calls().failed(group, &failure.message);
            }
            result
        }
    }

    /// Sends a command, which has no reply, to the engine.
    pub(crate) fn command(&self, command: RankCommand, permit: CommandPermit) {
        self.agent.engine.command(self.group, self.rank, command, permit);
    }

    /// Leaves the group. The ranks that wait for this one receive the reason.
    pub(crate) async fn leave(self, why: String) {
        let Attachment { agent, group, rank, segment, .. } = self;
        let completed_calls = segment.map(|segment| segment.part(rank).completed_calls());
        agent.engine.lose_rank(group, rank, why, completed_calls);
        match agent.groups.leave(group) {
            LeaveOutcome::Released => {}
            LeaveOutcome::Tell { unused } => {
                agent.report(Body::Left(RanksLeft { group, ranks: vec![rank], unused })).await;
            }
        }
    }
}
