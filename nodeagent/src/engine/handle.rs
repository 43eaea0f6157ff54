//! The engine as the rest of the agent sees it: a handle to a thread of its own.

use super::{CallRequest, Refusals, TrafficCounters, TransferRequest};
use crate::fault_injection::Losses;
use crate::net;
use crate::shared_segment::SharedSegment;
use cool_engine::{CallRecord, DEFAULT_PEER_TIMEOUT, GroupSpec, WatchReport};
use cool_proto::local::{Failure, Stats, failure::Kind};
use cool_types::Key;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Where an agent moves data.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The node's name, unique among the agents of a network.
    pub node: String,
    /// Address of the data interface; multicast leaves and enters by it.
    pub ip: IpAddr,
    /// Port for repair and for multicast that the agent sends; 0 takes a free one.
    pub udp_port: u16,
    /// Port for unicast steps; 0 takes a free one.
    pub tcp_port: u16,
    /// How long a node may be silent while calls wait; then it is gone.
    pub peer_timeout: Duration,
    /// Whether it speaks with other agents only over encrypted connections.
    pub encrypt: bool,
    /// Which datagrams are thrown away as they come, in tests.
    pub losses: Option<Losses>,
}

impl EngineConfig {
    /// A node of this machine alone, on free ports.
    pub fn on_loopback(node: &str) -> EngineConfig {
        EngineConfig {
            node: node.to_owned(),
            ip: Ipv4Addr::LOCALHOST.into(),
            udp_port: 0,
            tcp_port: 0,
            peer_timeout: DEFAULT_PEER_TIMEOUT,
            encrypt: false,
            losses: None,
        }
    }
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot use {protocol} {address}: {source}; is another agent running, or the interface down?")]
    Bind {
        /// UDP or TCP.
        protocol: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system has no random number for the agent's key.
    #[error("cannot make a key for this agent: {0}")]
    Random(getrandom::Error),
    /// The engine's thread cannot be made.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
}

/// Why a group cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// The engine refuses it.
    #[error(transparent)]
    Refused(#[from] cool_engine::GroupError),
    /// A multicast group cannot be joined.
    #[error("group {group}: cannot receive from {address} on the data interface {ip}: {reason}")]
    Multicast {
        /// The group.
        group: u64,
        /// The tree's address.
        address: IpAddr,
        /// This node's address.
        ip: IpAddr,
        /// What the system says.
        reason: String,
    },
    /// The engine has stopped.
    #[error("the data engine of this agent has stopped; see the agent's log")]
    Stopped,
}

/// What the handle asks of the engine's thread.
pub(crate) enum Command {
    MakeGroup(GroupSpec, oneshot::Sender<Result<(), GroupError>>),
    ReleaseGroup(u64),
    Call(CallRequest, oneshot::Sender<Result<Stats, Failure>>),
    Transfer(TransferRequest, oneshot::Sender<Result<Stats, Failure>>),
    Cancel { group: u64, rank: u32, id: u64 },
    Watch(CallRequest, oneshot::Sender<Result<bool, Failure>>),
    Watched { group: u64, rank: u32, number: u64, report: WatchReport },
    Share { group: u64, segment: Arc<SharedSegment> },
    Quick { group: u64, able: bool },
    LoseRank { group: u64, rank: u32, why: String, through: Option<u64> },
    Revoke { group: u64, rank: u32 },
    Lost { group: u64, reply: oneshot::Sender<Vec<u32>> },
    Trace { last: usize, group: Option<u64>, reply: oneshot::Sender<Trace> },
}

/// What the latest calls cost.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The engine's time zero, by this node's clock.
    pub origin: SystemTime,
    /// The calls, oldest first.
    pub records: Vec<Arc<CallRecord>>,
}

/// The engine of one agent. Clones reach the same engine; it stops when the last one is dropped.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::UnboundedSender<Command>,
    udp_port: u16,
    tcp_port: u16,
    incarnation: u64,
    key: Key,
    runtime: Handle,
    traffic: Arc<TrafficCounters>,
    refusals: Arc<Refusals>,
}

impl EngineHandle {
    /// Binds the sockets of `config` and starts the engine on a thread of its own.
    ///
    /// # Errors
    /// If an address cannot be bound or the thread cannot be made.
    pub fn start(config: EngineConfig) -> Result<EngineHandle, StartError> {
        let (commands, queue) = mpsc::unbounded_channel();
        let bound = net::start(config, queue)?;
        let net::Bound { udp_port, tcp_port, incarnation, key, runtime, traffic, refusals } = bound;
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
    pub(crate) fn refusals(&self) -> Arc<Refusals> {
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
    pub async fn make_group(&self, spec: GroupSpec) -> Result<(), GroupError> {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::MakeGroup(spec, reply)).is_err() {
            return Err(GroupError::Stopped);
        }
        answer.await.unwrap_or(Err(GroupError::Stopped))
    }

    /// Forgets a group. Calls still running on it fail, here and at the other agents.
    pub fn release_group(&self, group: u64) {
        // A stopped engine has no groups left.
        let _ = self.commands.send(Command::ReleaseGroup(group));
    }

    /// Runs one collective for a local rank. Calls of a rank on a group are numbered in the order in
    /// which this is called (not: awaited); ranks must call alike. The collective runs to its end even
    /// if the future is dropped.
    pub fn call(&self, request: CallRequest) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        answered(self.commands.send(Command::Call(request, reply)).is_ok(), answer)
    }

    /// Sends or receives a message for a local rank. Messages from one rank to another are sent in the order in which
    /// this is called. They go on if the future is dropped.
    pub fn transfer(
        &self,
        request: TransferRequest,
    ) -> impl Future<Output = Result<Stats, Failure>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        answered(self.commands.send(Command::Transfer(request, reply)).is_ok(), answer)
    }

    /// A local rank cancels a receive or probe, which fails unless it has its message.
    pub fn cancel(&self, group: u64, rank: u32, id: u64) {
        // A stopped engine has failed all messages already.
        let _ = self.commands.send(Command::Cancel { group, rank, id });
    }

    /// A local rank waits in a call that the ranks carry out themselves, until [`EngineHandle::watched`] or something concerns it;
    /// then whether others have the engine carry it out.
    pub fn watch(&self, request: CallRequest) -> impl Future<Output = Result<bool, Failure>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        answered(self.commands.send(Command::Watch(request, reply)).is_ok(), answer)
    }

    /// A local rank says what has become of a watched call, by its number.
    pub fn watched(&self, group: u64, rank: u32, number: u64, report: WatchReport) {
        // A stopped engine has failed all calls already.
        let _ = self.commands.send(Command::Watched { group, rank, number, report });
    }

    /// Ranks of a group carry out calls in this segment: they are woken if the group fails or is released.
    pub(crate) fn share(&self, group: u64, segment: Arc<SharedSegment>) {
        // A rank that waits in it looks after its connection, which ends with the engine.
        let _ = self.commands.send(Command::Share { group, segment });
    }

    /// Whether the rank of this node in a group for quick calls can carry them out. The segment that is shared before the others have said
    /// so of theirs is told whether all can.
    pub(crate) fn quick(&self, group: u64, able: bool) {
        // As above.
        let _ = self.commands.send(Command::Quick { group, able });
    }

    /// What the last calls of a group, or of all, cost; `None` if the engine has stopped.
    pub async fn trace(&self, last: usize, group: Option<u64>) -> Option<Trace> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Trace { last, group, reply }).ok()?;
        answer.await.ok()
    }

    /// Says that a local rank is gone, which was `through` as many calls if it carried calls out itself. If it has calls open or
    /// others wait for it, they fail: the group is unusable from here on.
    pub fn lose_rank(&self, group: u64, rank: u32, why: String, through: Option<u64>) {
        // As above.
        let _ = self.commands.send(Command::LoseRank { group, rank, why, through });
    }

    /// The ranks by whose loss a group has failed; none if it has not, or for another reason.
    pub async fn lost(&self, group: u64) -> Vec<u32> {
        let (reply, answer) = oneshot::channel();
        // A stopped engine knows of nobody.
        let _ = self.commands.send(Command::Lost { group, reply });
        answer.await.unwrap_or_default()
    }

    /// A local rank revokes its group: calls that are open or come later fail, at every rank.
    pub fn revoke(&self, group: u64, rank: u32) {
        // As above.
        let _ = self.commands.send(Command::Revoke { group, rank });
    }
}

async fn answered<T>(sent: bool, answer: oneshot::Receiver<Result<T, Failure>>) -> Result<T, Failure> {
    if !sent {
        return Err(stopped());
    }
    answer.await.unwrap_or_else(|_| Err(stopped()))
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
