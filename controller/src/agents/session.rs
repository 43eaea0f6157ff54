//! The session of a node with its agent, from the registration until the node is lost.
//!
//! A session outlives its connections. While there is no connection, messages to the agent are kept
//! until it has acknowledged them ([`cool_proto::delivery`]).

use super::job_request_queue::JobRequestQueue;
use super::registered_agent::RegisteredAgent;

use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
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

/// Maximum number of unacknowledged messages to an agent. Beyond it, the session ends.
pub const MAX_UNACKNOWLEDGED: usize = 4096;

/// Why a message cannot be sent to an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UndeliverableError {
    /// The session has ended.
    #[error("the session of node {0} has ended")]
    SessionEnded(String),
    /// The agent could not decode the message.
    #[error("a message of {bytes} bytes to node {node}; agents accept at most {CONTROL_MESSAGE_BYTES_MAX}")]
    TooLong {
        /// The node.
        node: String,
        /// Length of the message.
        bytes: usize,
    },
}

/// The session of a registered node.
#[derive(Debug)]
pub struct Session {
    /// Unique number of the session.
    pub number: u32,
    /// The agent's registration.
    pub agent: RegisteredAgent,
    /// Key that authenticates the node's LLDP during this session.
    pub lldp_key: Key,
    queue: Mutex<OutgoingQueue>,
    state: watch::Sender<ConnectionState>,
    /// Held by the reader of the agent's messages, so that all messages of one connection are
    /// processed before those of the next.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Whether survivors of a group have continued without a rank of this node since a job was last
    /// started on it.
    excluded: AtomicBool,
    /// Set once the loss of the node has been reported everywhere.
    finished: OnceCell<()>,
}

#[derive(Debug, Default)]
struct OutgoingQueue {
    delivery: Delivery<Body>,
    requests: JobRequestQueue,
    waker: Option<Waker>,
}

/// State of the session and its current connection.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionState {
    /// Number of the latest connection.
    connection: u64,
    /// Whether the latest connection is open.
    connected: bool,
    /// Whether the controller is shutting down. The connection then ends once the agent has
    /// received all messages, and the number of its own messages that were processed.
    stopping: bool,
    /// Whether the session has ended.
    ended: bool,
}

/// One connection of a session. It has the exclusive right to read the agent's messages.
#[derive(Debug)]
pub struct SessionConnection {
    number: u64,
    _reading: tokio::sync::OwnedMutexGuard<()>,
}

/// The stream of messages to the agent on one connection.
#[derive(Debug)]
pub struct ControllerMessages {
    session: Arc<Session>,
    connection: u64,
    registered: Option<Registered>,
}

impl Session {
    pub(super) fn new(number: u32, agent: RegisteredAgent, lldp_key: Key) -> Session {
        Session {
            number,
            agent,
            lldp_key,
            queue: Mutex::default(),
            // The agent that registers is about to connect.
            state: watch::Sender::new(ConnectionState { connected: true, ..ConnectionState::default() }),
            finished: OnceCell::new(),
            reading: Arc::default(),
            excluded: AtomicBool::new(false),
        }
    }

    /// Queues a message. Does not wait: a disconnected agent receives it after it has reconnected.
    /// An agent with [`MAX_UNACKNOWLEDGED`] unacknowledged messages loses its session.
    ///
    /// # Errors
    /// Returns an error if the session has ended, or if the agent could not decode the message. The
    /// session then continues: a message that ends each connection would be sent again on the next.
    pub fn send(&self, body: Body) -> Result<(), UndeliverableError> {
        let bytes = body.encoded_len();
        if bytes > CONTROL_MESSAGE_BYTES_MAX {
            return Err(UndeliverableError::TooLong { node: self.agent.name.clone(), bytes });
        }
        let mut queue = self.queue.lock();
        if !self.has_ended() && queue.delivery.unacknowledged() < MAX_UNACKNOWLEDGED {
            queue.delivery.send(body);
            queue.wake();
            return Ok(());
        }
        drop(queue);
        self.end();
        Err(UndeliverableError::SessionEnded(self.agent.name.clone()))
    }

    /// Queues a signal to a job's processes on this node. If many signals are unacknowledged,
    /// further ones wait, and equal ones are combined. A session that has ended ignores the signal.
    pub fn send_signal(&self, job: u64, signal: i32) {
        if self.has_ended() {
            return;
        }
        let OutgoingQueue { delivery, requests, waker } = &mut *self.queue.lock();
        requests.send_signal(job, signal, delivery);
        waker.take().into_iter().for_each(Waker::wake);
    }

    /// Queues whether the output of a job's processes on this node is held. If many such requests
    /// are unacknowledged, only the latest of a job waits. A session that has ended ignores it.
    pub fn send_hold(&self, job: u64, held: bool) {
        if self.has_ended() {
            return;
        }
        let OutgoingQueue { delivery, requests, waker } = &mut *self.queue.lock();
        requests.send_hold(job, held, delivery);
        waker.take().into_iter().for_each(Waker::wake);
    }

    /// Starts a new connection and ends the previous one. Returns once all messages of the previous
    /// connection have been processed. To resume a session, `acknowledged` must be the number of
    /// messages that the agent has received.
    ///
    /// # Errors
    /// Returns an error if the session has ended, or if `acknowledged` is impossible.
    pub async fn connect(
        self: &Arc<Session>,
        acknowledged: Option<u64>,
        registered: Registered,
    ) -> Result<(SessionConnection, ControllerMessages), ConnectError> {
        let mut number = 0;
        self.change(|state| {
            (state.connection, state.connected) = (state.connection + 1, true);
            number = state.connection;
        });
        let connection = SessionConnection { number, _reading: self.reading.clone().lock_owned().await };
        if self.has_ended() || !self.is_current(&connection) {
            return Err(ConnectError::Replaced);
        }
        let resumed = match acknowledged {
            Some(acknowledged) => {
                let mut queue = self.queue.lock();
                queue.delivery.resume(acknowledged)?;
                queue.continue_requests();
                Some(queue.delivery.report_received())
            }
            None => None,
        };
        let registered = Some(Registered { resumed, ..registered });
        Ok((connection, ControllerMessages { session: self.clone(), connection: number, registered }))
    }

    /// Ends a connection. Returns whether the agent is now disconnected.
    pub fn disconnect(&self, connection: &SessionConnection) -> bool {
        let mut away = false;
        self.change(|state| {
            if state.connection == connection.number && !state.stopping {
                state.connected = false;
                away = !state.ended;
            }
        });
        away
    }

    /// Ends the session and closes its connection.
    pub fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// Ends the session if the agent is disconnected. Returns whether it was.
    pub fn end_if_away(&self) -> bool {
        let mut away = false;
        self.change(|state| {
            away = state.is_away();
            state.ended |= away;
        });
        away
    }

    /// Ends the session and runs `notify` once. Concurrent callers wait until it has completed.
    pub async fn finish(&self, notify: impl Future<Output = ()>) {
        self.end();
        self.finished.get_or_init(|| notify).await;
    }

    /// Closes the connection because the controller is shutting down. Returns once all received
    /// messages have been processed.
    pub async fn stop(&self) {
        self.change(|state| state.stopping = true);
        drop(self.reading.lock().await);
        self.change(|state| state.connected = false);
    }

    fn change(&self, change: impl FnOnce(&mut ConnectionState)) {
        self.state.send_modify(change);
        self.queue.lock().wake();
    }

    /// Counts a received message of `bytes` bytes.
    pub fn receive(&self, bytes: usize) {
        let mut queue = self.queue.lock();
        queue.delivery.receive(bytes);
        queue.wake();
    }

    /// Records that the agent has received `acknowledged` messages.
    ///
    /// # Errors
    /// Returns an error if the number is impossible.
    pub fn acknowledge(&self, acknowledged: u64) -> Result<(), AcknowledgementError> {
        let mut queue = self.queue.lock();
        queue.delivery.acknowledge(acknowledged)?;
        queue.continue_requests();
        Ok(())
    }

    /// Records whether survivors have continued without a rank of the node. The end of that rank is
    /// then no failure of its job.
    pub fn set_excluded(&self, excluded: bool) {
        self.excluded.store(excluded, Ordering::Relaxed);
    }

    /// Returns whether survivors have continued without a rank of the node.
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Ordering::Relaxed)
    }

    /// Returns whether the session has ended.
    pub fn has_ended(&self) -> bool {
        self.state.borrow().ended
    }

    /// Returns whether the agent is disconnected and may reconnect.
    pub fn is_away(&self) -> bool {
        self.state.borrow().is_away()
    }

    fn is_current(&self, connection: &SessionConnection) -> bool {
        self.state.borrow().connection == connection.number
    }

    /// Waits until this side has ended a connection. Returns whether the session has ended as well.
    pub async fn closed(&self, connection: &SessionConnection) -> bool {
        let over =
            |state: &ConnectionState| state.ended || state.stopping || state.connection != connection.number;
        // The sender is part of this session, so it cannot have been dropped.
        self.state.subscribe().wait_for(over).await.is_ok_and(|state| state.ended)
    }
}

impl ConnectionState {
    fn is_away(&self) -> bool {
        !self.connected && !self.ended
    }
}

impl OutgoingQueue {
    /// Sends requests to jobs that have waited for acknowledgements.
    fn continue_requests(&mut self) {
        self.requests.continue_sending(&mut self.delivery);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Why a connection cannot use the requested session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The connection has already been replaced, or the session has ended.
    #[error("another connection of this agent has replaced this one, or its session has ended; try again")]
    Replaced,
    /// The agent's acknowledgment does not match the session.
    #[error("the agent's session cannot be resumed: {0}")]
    Unacknowledgeable(#[from] AcknowledgementError),
}

impl Stream for ControllerMessages {
    type Item = Result<ControllerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = |body| Poll::Ready(Some(Ok(ControllerMessage { body: Some(body) })));
        if let Some(registered) = self.registered.take() {
            return message(Body::Registered(registered));
        }
        let session = self.session.clone();
        let mut queue = session.queue.lock();
        // A change of the state wakes this stream afterwards, for which it needs the lock.
        let state = *session.state.borrow();
        if state.connection != self.connection {
            return Poll::Ready(None);
        }
        let acknowledgement = |received, last| Body::Acknowledged(Acknowledged { received, last });
        match queue.delivery.take() {
            Some(delivery::OutgoingItem::Message(body)) => message(body),
            Some(delivery::OutgoingItem::Received(received)) => message(acknowledgement(received, false)),
            None if state.ended => Poll::Ready(None),
            None if state.stopping && !state.connected => {
                let received = queue.delivery.report_received();
                drop(queue);
                // The next poll ends the stream.
                self.connection = 0;
                message(acknowledgement(received, true))
            }
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
