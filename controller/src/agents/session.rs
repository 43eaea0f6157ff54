//! A node's session with its agent, from the registration until the node is gone. Connections come and go meanwhile; while there
//! is none, the agent is away, and messages to it are kept until it has acknowledged them ([`cool_proto::delivery`]).

use super::{Agent, OUTBOX};
use cool_proto::control::controller_message::Body;
use cool_proto::control::{Acknowledged, ControllerMessage, Registered};
use cool_proto::delivery::{self, AcknowledgementError, Delivery};
use cool_topology::Key;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use tokio::sync::{OnceCell, watch};
use tokio_stream::Stream;
use tonic::Status;

/// A message cannot reach an agent any more: its session has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent of node {0} is gone")]
pub struct Gone(pub String);

/// A node that has registered.
#[derive(Debug)]
pub struct Session {
    /// Never used twice.
    pub number: u32,
    /// What it offers.
    pub agent: Agent,
    /// What proves the node's LLDP during this session.
    pub lldp_key: Key,
    link: Mutex<Link>,
    phase: watch::Sender<Phase>,
    /// Held by whoever reads what the agent says, so that one connection's messages are dealt with before the next one's.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Whether the survivors of a group have gone on without a rank of the node, since a job was last started on it.
    left_behind: AtomicBool,
    /// Set when all know that the node is gone.
    gone: OnceCell<()>,
}

#[derive(Debug, Default)]
struct Link {
    delivery: Delivery<Body>,
    waker: Option<Waker>,
}

/// How a session stands.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// The number of the latest connection.
    connection: u64,
    /// Whether that one stands.
    connected: bool,
    /// The controller stops: the connection ends when the agent has been told all, and how much of what it said has come.
    stopping: bool,
    /// Nothing is said any more.
    ended: bool,
}

/// One connection of a session, which alone reads what the agent says on it.
#[derive(Debug)]
pub struct Connection {
    number: u64,
    _reading: tokio::sync::OwnedMutexGuard<()>,
}

/// What a connection says to the agent.
#[derive(Debug)]
pub struct ControllerMessages {
    session: Arc<Session>,
    connection: u64,
    registered: Option<Registered>,
}

impl Session {
    pub(super) fn new(number: u32, agent: Agent, lldp_key: Key) -> Session {
        Session {
            number,
            agent,
            lldp_key,
            link: Mutex::default(),
            // Whoever registered it is about to connect.
            phase: watch::Sender::new(Phase { connected: true, ..Phase::default() }),
            gone: OnceCell::new(),
            reading: Arc::default(),
            left_behind: AtomicBool::new(false),
        }
    }

    /// Sends a message, without waiting: if the agent is away, it gets it when it is back. One that has [`OUTBOX`] messages to
    /// get is given up.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn send(&self, body: Body) -> Result<(), Gone> {
        let mut link = self.link.lock();
        if !self.has_ended() && link.delivery.unacknowledged() < OUTBOX {
            link.delivery.send(body);
            link.wake();
            return Ok(());
        }
        drop(link);
        self.end();
        Err(Gone(self.agent.name.clone()))
    }

    /// Another connection begins, and the one before ends; returns when all that came on that has been dealt with. `said` is
    /// how many messages the agent has got, if its session goes on.
    ///
    /// # Errors
    /// If the session has ended, or the agent is not where it can be.
    pub async fn connect(
        self: &Arc<Session>,
        said: Option<u64>,
        registered: Registered,
    ) -> Result<(Connection, ControllerMessages), AttachError> {
        let mut number = 0;
        self.change(|phase| {
            (phase.connection, phase.connected) = (phase.connection + 1, true);
            number = phase.connection;
        });
        let connection = Connection { number, _reading: self.reading.clone().lock_owned().await };
        if self.has_ended() || !self.is_current(&connection) {
            return Err(AttachError::Replaced);
        }
        let resumed = match said {
            Some(said) => {
                let mut link = self.link.lock();
                link.delivery.resume(said)?;
                Some(link.delivery.report_received())
            }
            None => None,
        };
        let registered = Some(Registered { resumed, ..registered });
        Ok((connection, ControllerMessages { session: self.clone(), connection: number, registered }))
    }

    /// A connection is over; returns whether the agent is away now.
    pub fn disconnect(&self, connection: &Connection) -> bool {
        let mut away = false;
        self.change(|phase| {
            if phase.connection == connection.number && !phase.stopping {
                phase.connected = false;
                away = !phase.ended;
            }
        });
        away
    }

    /// Ends the session: the agent is hung up on.
    pub fn end(&self) {
        self.change(|phase| phase.ended = true);
    }

    /// Ends the session if the agent is away; returns whether it was.
    pub fn end_if_away(&self) -> bool {
        let mut away = false;
        self.change(|phase| {
            away = phase.is_away();
            phase.ended |= away;
        });
        away
    }

    /// Ends the session for good: the first who does tells all, and others wait for that.
    pub async fn bury(&self, tell: impl Future<Output = ()>) {
        self.end();
        self.gone.get_or_init(|| tell).await;
    }

    /// The controller stops: the connection ends in order. Returns when all that has come on it was dealt with.
    pub async fn stop(&self) {
        self.change(|phase| phase.stopping = true);
        drop(self.reading.lock().await);
        self.change(|phase| phase.connected = false);
    }

    fn change(&self, change: impl FnOnce(&mut Phase)) {
        self.phase.send_modify(change);
        self.link.lock().wake();
    }

    /// A message of `bytes` bytes has come from the agent.
    pub fn receive(&self, bytes: usize) {
        let mut link = self.link.lock();
        link.delivery.receive(bytes);
        link.wake();
    }

    /// The agent has got `said` messages.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn acknowledge(&self, said: u64) -> Result<(), AcknowledgementError> {
        self.link.lock().delivery.acknowledge(said)
    }

    /// Says whether others have gone on without a rank of the node, whose end is then no failure of theirs.
    pub fn set_left_behind(&self, left_behind: bool) {
        self.left_behind.store(left_behind, Ordering::Relaxed);
    }

    /// Whether others have gone on without a rank of the node.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind.load(Ordering::Relaxed)
    }

    /// Whether nothing can be said any more.
    pub fn has_ended(&self) -> bool {
        self.phase.borrow().ended
    }

    /// Whether the agent has no connection, and may come back.
    pub fn is_away(&self) -> bool {
        self.phase.borrow().is_away()
    }

    fn is_current(&self, connection: &Connection) -> bool {
        self.phase.borrow().connection == connection.number
    }

    /// Resolves when this side has ended a connection; true if the session has ended with it.
    pub async fn closed(&self, connection: &Connection) -> bool {
        let over = |phase: &Phase| phase.ended || phase.stopping || phase.connection != connection.number;
        // The sender is ours.
        self.phase.subscribe().wait_for(over).await.is_ok_and(|phase| phase.ended)
    }
}

impl Phase {
    fn is_away(&self) -> bool {
        !self.connected && !self.ended
    }
}

impl Link {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Why a connection does not become one of the session that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// It is over already.
    #[error("another connection of this agent came meanwhile, or its session has ended; try again")]
    Replaced,
    /// The agent does not remember what was said.
    #[error("the agent's session cannot go on: {0}")]
    AcknowledgementError(#[from] AcknowledgementError),
}

impl Stream for ControllerMessages {
    type Item = Result<ControllerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = |body| Poll::Ready(Some(Ok(ControllerMessage { body: Some(body) })));
        if let Some(registered) = self.registered.take() {
            return message(Body::Registered(registered));
        }
        let session = self.session.clone();
        let mut link = session.link.lock();
        // Whoever changes it wakes afterwards, and needs the lock for that.
        let phase = *session.phase.borrow();
        if phase.connection != self.connection {
            return Poll::Ready(None);
        }
        let acknowledged = |received, last| Body::Acknowledged(Acknowledged { received, last });
        match link.delivery.take() {
            Some(delivery::Outgoing::Message(body)) => message(body),
            Some(delivery::Outgoing::Received(received)) => message(acknowledged(received, false)),
            None if phase.ended => Poll::Ready(None),
            None if phase.stopping && !phase.connected => {
                let received = link.delivery.report_received();
                drop(link);
                // The next poll ends the stream.
                self.connection = 0;
                message(acknowledged(received, true))
            }
            None => {
                link.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
