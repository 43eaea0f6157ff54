//! The engine as the rest of the agent sees it: a handle to a thread of its own.

use super::command::{EngineCommand, EngineTrace, MakeGroupError};
use super::config::{EngineConfig, StartError};
use super::reply::EngineReply;
use super::{MappedCallRequest, RefusalCounters, SharedSlice, TrafficCounters};
use crate::net;
use crate::shared_segment::SharedSegment;
use cool_engine::{GroupSpec, Input, RankCommand, RankRequest};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_types::Key;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// The engine of one agent. Clones reach the same engine; it stops when the last one is dropped.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::UnboundedSender<EngineCommand>,
    udp_port: u16,
    tcp_port: u16,
    incarnation: u64,
    key: Key,
    runtime: Handle,
    traffic: Arc<TrafficCounters>,
    refusals: Arc<RefusalCounters>,
}

impl EngineHandle {
    /// Binds the sockets of `config` and starts the engine on a thread of its own.
    ///
    /// # Errors
    /// If an address cannot be bound or the thread cannot be made.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
        let (commands, queue) = mpsc::unbounded_channel();
        let bound = net::start(config, queue)?;
        let net::BoundEngine { udp_port, tcp_port, incarnation, key, runtime, traffic, refusals } = bound;
        Ok(EngineHandle { commands, udp_port, tcp_port, incarnation, key, runtime, traffic, refusals })
    }

    /// Waits for the end of the engine's thread, which while there are handles is a defect: it has panicked, and said why.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Of the engine's thread.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// What this node has sent and repaired for calls, whatever has become of the calls.
    pub(crate) fn traffic(&self) -> Arc<TrafficCounters> {
        Arc::clone(&self.traffic)
    }

    /// What it has refused.
    pub(crate) fn refusals(&self) -> Arc<RefusalCounters> {
        Arc::clone(&self.refusals)
    }

    /// Its own key, for the agents of its groups.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The bound port for repair and multicast that the agent sends.
    pub fn udp_port(&self) -> u16 {
        self.udp_port
    }

    /// The bound port for unicast steps.
    pub fn tcp_port(&self) -> u16 {
        self.tcp_port
    }

    /// Which of the node's engines it is; see [`cool_engine::AgentId`].
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes a group; this node can receive when it returns. The agents' connections are made on the side.
    ///
    /// # Errors
    /// If the group makes no sense, exists, or its trees cannot be joined.
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), MakeGroupError> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(EngineCommand::MakeGroup(spec, reply)).is_err() {
            return Err(MakeGroupError::Stopped);
        }
        answer.await.unwrap_or(Err(MakeGroupError::Stopped))
    }

    /// Forgets a group. Calls still running on it fail, here and at the other agents.
    pub fn release_group(&self, group: u64) {
        self.input(Input::ReleaseGroup { group });
    }

    /// Runs one collective for a local rank; see [`EngineHandle::request`]. Calls of a rank on a group are numbered in the
    /// order in which this is called (not: awaited); ranks must call alike.
    pub fn call(
        &self,
        request: MappedCallRequest,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        self.request(request.into())
    }

    /// Makes a request for a local rank: a collective call, or a message to or from another rank. Messages from one rank
    /// to another are sent in the order in which this is called. The request runs to its end even if the future is dropped.
    pub(crate) fn request(
        &self,
        request: RankRequest<SharedSlice>,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        replied(
            self.commands.send(EngineCommand::Request(request, EngineReply::Stats(sender))).is_ok(),
            receiver,
        )
    }

    /// Starts a watched call for a local rank: the rank waits in a call that the ranks execute themselves, until it reports
    /// otherwise or something concerns it. Returns whether other ranks have the engine execute the call.
    pub(crate) fn watch(
        &self,
        request: MappedCallRequest,
    ) -> impl Future<Output = Result<bool, Failure>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let command = EngineCommand::Request(request.into(), EngineReply::ByAgent(sender));
        replied(self.commands.send(command).is_ok(), receiver)
    }

    /// Makes a request for a local rank, or reports about one. There is no reply.
    pub(crate) fn command(&self, group: u64, rank: u32, command: RankCommand) {
        self.input(Input::Command { group, rank, command });
    }

    fn input(&self, input: Input<'static>) {
        // An engine that has stopped has failed all calls and has no groups left.
        let _ = self.commands.send(EngineCommand::Input(input));
    }

    /// Ranks of a group carry out calls in this segment: they are woken if the group fails or is released.
    pub(crate) fn share(&self, group: u64, segment: Arc<SharedSegment>) {
        // A rank that waits in it looks after its connection, which ends with the engine.
        let _ = self.commands.send(EngineCommand::Share { group, segment });
    }

    /// Whether the rank of this node in a group for quick calls can carry them out. The segment that is shared before the others have said
    /// so of theirs is told whether all can.
    pub(crate) fn quick(&self, group: u64, able: bool) {
        self.input(Input::Quick { group, able });
    }

    /// What the last calls of a group, or of all, cost; `None` if the engine has stopped.
    pub async fn trace(&self, last: usize, group: Option<u64>) -> Option<EngineTrace> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(EngineCommand::Trace { last, group, reply }).ok()?;
        answer.await.ok()
    }

    /// Says that a local rank is gone, which was `through` as many calls if it carried calls out itself. If it has calls open or
    /// others wait for it, they fail: the group is unusable from here on.
    pub(crate) fn lose_rank(&self, group: u64, rank: u32, why: String, completed_calls: Option<u64>) {
        self.command(group, rank, RankCommand::Lost { why, completed_calls });
    }

    /// The ranks by whose loss a group has failed; none if it has not, or for another reason.
    pub async fn lost_ranks(&self, group: u64) -> Vec<u32> {
        let (reply, answer) = oneshot::channel();
        // A stopped engine knows of nobody.
        let _ = self.commands.send(EngineCommand::LostRanks { group, reply });
        answer.await.unwrap_or_default()
    }
}

/// Waits for a reply of the engine, if the request was sent.
async fn replied<T>(sent: bool, reply: oneshot::Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    if !sent {
        return Err(stopped());
    }
    reply.await.unwrap_or_else(|_| Err(stopped()))
}

fn stopped() -> Failure {
    let message = "the data engine of this agent has stopped; see the agent's log".to_owned();
    Failure { kind: Kind::Lost.into(), message, ranks: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    #[tokio::test]
    async fn the_end_of_the_engine_is_told_and_does_not_come_while_it_runs() {
        let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
        let poll = std::pin::pin!(engine.ended()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll, Poll::Pending);
        // As a panic of the driver does: what it owned is dropped.
        let (commands, queue) = mpsc::unbounded_channel();
        drop(queue);
        EngineHandle { commands, ..engine }.ended().await;
    }
}
