//! A handle to the engine, which runs on a thread of its own.

use super::command::{CommandPermit, EngineCommand, EngineTrace, MakeGroupError, QueuedCommand};
use super::config::{EngineConfig, StartError};
use super::reply::EngineReply;
use super::{MappedCallRequest, RefusalCounters, SharedSlice, TrafficCounters};
use crate::datagram_faults::DatagramFaults;
use crate::net;
use crate::shared_segment::SharedSegment;
use cool_engine::{GroupSpec, Input, MissingProbes, RankCommand, RankRequest};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_types::Key;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Number of groups with silent trees that may wait to be reported.
const SILENT_GROUPS: usize = 64;

/// A handle to the engine of one agent. Clones refer to the same engine, which stops when the last
/// one is dropped.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::UnboundedSender<QueuedCommand>,
    udp_port: u16,
    tcp_port: u16,
    incarnation: u64,
    key: Key,
    runtime: Handle,
    traffic: Arc<TrafficCounters>,
    refusals: Arc<RefusalCounters>,
    faults: Arc<DatagramFaults>,
}

/// Reads the number of datagrams that the system has dropped at an engine's sockets. It does not
/// keep the engine running.
#[derive(Clone, Debug)]
pub(crate) struct DroppedDatagrams(mpsc::WeakUnboundedSender<QueuedCommand>);

impl DroppedDatagrams {
    /// Returns a reader for the engine that takes these commands.
    pub(crate) fn new(commands: &mpsc::UnboundedSender<QueuedCommand>) -> DroppedDatagrams {
        DroppedDatagrams(commands.downgrade())
    }

    /// Returns the number of datagrams that were dropped because a receive buffer was full, or
    /// `None` if the engine has stopped.
    pub(crate) async fn read(&self) -> Option<u64> {
        let (reply, answer) = oneshot::channel();
        let command = EngineCommand::DroppedDatagrams(reply);
        self.0.upgrade()?.send(QueuedCommand { command, permit: None }).ok()?;
        answer.await.ok()
    }
}

impl EngineHandle {
    /// Binds the sockets of `config` and starts the engine on a thread of its own.
    ///
    /// # Errors
    /// Returns an error if an address cannot be bound, or if the thread cannot be started.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
        let (commands, queue) = mpsc::unbounded_channel();
        let bound = net::start(config, queue)?;
        let net::BoundEngine { udp_port, tcp_port, incarnation, key, runtime, traffic, refusals, faults } =
            bound;
        Ok(EngineHandle {
            commands,
            udp_port,
            tcp_port,
            incarnation,
            key,
            runtime,
            traffic,
            refusals,
            faults,
        })
    }

    /// Waits until the engine's thread has ended. While there are handles, this happens only if the
    /// thread has panicked, and the log then contains the reason.
    pub async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Returns the runtime of the engine's thread.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the counters of the data that this node has sent and repaired for calls, including
    /// calls that failed.
    pub(crate) fn traffic(&self) -> Arc<TrafficCounters> {
        Arc::clone(&self.traffic)
    }

    /// Returns the counters of refused datagrams and connections.
    pub(crate) fn refusals(&self) -> Arc<RefusalCounters> {
        Arc::clone(&self.refusals)
    }

    /// Returns a reader of the number of datagrams that the system has dropped.
    pub(crate) fn dropped_datagrams(&self) -> DroppedDatagrams {
        DroppedDatagrams::new(&self.commands)
    }

    /// Returns the record of datagrams that do not arrive at this node.
    pub(crate) fn datagram_faults(&self) -> Arc<DatagramFaults> {
        Arc::clone(&self.faults)
    }

    /// Returns the agent's own key, which the agents of its groups need.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the bound UDP port for multicast and repair.
    pub fn udp_port(&self) -> u16 {
        self.udp_port
    }

    /// Returns the bound TCP port for unicast messages.
    pub fn tcp_port(&self) -> u16 {
        self.tcp_port
    }

    /// Returns the engine's incarnation; see [`cool_engine::AgentId`].
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes a group. This node can receive when this returns; the connections between agents are
    /// made later.
    ///
    /// # Errors
    /// Returns an error if the group exists, or if its description is inconsistent.
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), MakeGroupError> {
        let (reply, answer) = oneshot::channel();
        if !self.queue(EngineCommand::MakeGroup(spec, reply), None) {
            return Err(MakeGroupError::Stopped);
        }
        answer.await.unwrap_or(Err(MakeGroupError::Stopped))
    }

    /// Proves that the trees of a group work: sends probes, and returns those of other nodes that
    /// do not arrive within `time_max`, and how many do. The number must be larger than those of
    /// earlier proofs of the group. Probes are sent until
    /// [`conclude_tree_proof`](EngineHandle::conclude_tree_proof). Returns `None` if the group is
    /// unknown or is released meanwhile.
    pub(crate) async fn prove_trees(
        &self,
        group: u64,
        number: u64,
        time_max: Duration,
    ) -> Option<(Vec<MissingProbes>, usize)> {
        let (reply, answer) = oneshot::channel();
        self.queue(EngineCommand::ProveTrees { group, number, time_max, reply }, None);
        answer.await.ok()
    }

    /// Returns the groups with trees from which this node receives nothing although others send, as
    /// they are noticed. Replaces the channel of an earlier call. If nothing is received from it
    /// for long, further groups are left out.
    pub(crate) fn silent_trees(&self) -> mpsc::Receiver<u64> {
        let (groups, noticed) = mpsc::channel(SILENT_GROUPS);
        self.queue(EngineCommand::ReportSilentTrees(groups), None);
        noticed
    }

    /// Concludes a proof. The group uses all trees but those with these addresses.
    pub(crate) fn conclude_tree_proof(&self, group: u64, withdrawn: BTreeSet<IpAddr>) {
        self.input(Input::ConcludeTreeProof { group, withdrawn });
    }

    /// Releases a group. Its running calls fail, here and at the other agents.
    pub fn release_group(&self, group: u64) {
        self.input(Input::ReleaseGroup { group });
    }

    /// Executes one collective for a local rank. The calls of a rank on a group are numbered in the
    /// order in which this method is called (not in which the futures are awaited). All ranks must
    /// make the same calls.
    pub fn call(
        &self,
        request: MappedCallRequest,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        self.request(request.into(), None)
    }

    /// Sends a request of a local rank to the engine: a collective call, or a message to or from
    /// another rank. The future completes with the engine's reply. Messages from one rank to
    /// another are sent in the order in which this method is called. The engine executes the
    /// request even if the future is dropped. A process's request needs a `permit`.
    pub(crate) fn request(
        &self,
        request: RankRequest<SharedSlice>,
        permit: Option<CommandPermit>,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        replied(self.queue(EngineCommand::Request(request, EngineReply::Stats(sender)), permit), receiver)
    }

    /// Registers a call that a local rank executes itself and waits in. The future completes when
    /// the rank reports the end, or earlier with a failure. Its result is whether the rank must
    /// pass the call to the engine, because other ranks have.
    pub(crate) fn watch(
        &self,
        request: MappedCallRequest,
        permit: CommandPermit,
    ) -> impl Future<Output = Result<bool, Failure>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let command = EngineCommand::Request(request.into(), EngineReply::ByAgent(sender));
        replied(self.queue(command, Some(permit)), receiver)
    }

    /// Sends a command of a local rank. There is no reply.
    pub(crate) fn command(&self, group: u64, rank: u32, command: RankCommand, permit: CommandPermit) {
        self.queue(EngineCommand::Input(Input::Command { group, rank, command }), Some(permit));
    }

    fn input(&self, input: Input<'static>) {
        self.queue(EngineCommand::Input(input), None);
    }

    /// Adds a command to the engine's queue. Returns false if the engine has stopped, which means
    /// that it has failed all calls and has no groups left.
    fn queue(&self, command: EngineCommand, permit: Option<CommandPermit>) -> bool {
        self.commands.send(QueuedCommand { command, permit }).is_ok()
    }

    /// Registers the segment in which the ranks of a group execute calls. They are woken if the
    /// group fails or is released.
    pub(crate) fn share(&self, group: u64, segment: Arc<SharedSegment>) {
        // If the engine has stopped, no rank must be woken: its connection ends too.
        self.queue(EngineCommand::Share { group, segment }, None);
    }

    /// Reports whether all ranks of this node in a group for quick calls can execute them. The
    /// result for all nodes is written to the segment, which must therefore be registered before.
    pub(crate) fn quick(&self, group: u64, able: bool) {
        self.input(Input::Quick { group, able });
    }

    /// Returns the records of the last calls of a group, or of all groups; `None` if the engine has
    /// stopped.
    pub async fn trace(&self, last: usize, group: Option<u64>) -> Option<EngineTrace> {
        let (reply, answer) = oneshot::channel();
        let queued = self.queue(EngineCommand::Trace { last, group, reply }, None);
        if queued { answer.await.ok() } else { None }
    }

    /// Reports the loss of a local rank, which had completed `completed_calls` calls if it executed
    /// calls itself. If it has open calls, or other ranks wait for it, the group fails and cannot
    /// be used any more.
    pub(crate) fn lose_rank(&self, group: u64, rank: u32, why: String, completed_calls: Option<u64>) {
        let command = RankCommand::Lost { why, completed_calls };
        self.input(Input::Command { group, rank, command });
    }

    /// Returns the lost ranks that made a group fail; empty if the group has not failed, or for
    /// another reason.
    pub async fn lost_ranks(&self, group: u64) -> Vec<u32> {
        let (reply, answer) = oneshot::channel();
        // A stopped engine has no groups, so the answer is empty.
        self.queue(EngineCommand::LostRanks { group, reply }, None);
        answer.await.unwrap_or_default()
    }
}

/// Returns the engine's reply, or an error if the request could not be sent or the engine has
/// stopped.
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
pub(crate) mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    /// Returns a handle to an engine that takes no command, and the commands in its queue.
    pub(crate) fn stuck_engine() -> (EngineHandle, mpsc::UnboundedReceiver<QueuedCommand>) {
        let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
        let (commands, queue) = mpsc::unbounded_channel();
        (EngineHandle { commands, ..engine }, queue)
    }

    #[tokio::test]
    async fn the_end_of_the_engine_is_reported_once_it_ends() {
        let engine = EngineHandle::start(EngineConfig::on_loopback("h1")).unwrap();
        let poll = std::pin::pin!(engine.ended()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(poll, Poll::Pending);
        // A panic of the driver has the same effect: it drops the driver's state.
        let (commands, queue) = mpsc::unbounded_channel();
        drop(queue);
        EngineHandle { commands, ..engine }.ended().await;
    }
}
