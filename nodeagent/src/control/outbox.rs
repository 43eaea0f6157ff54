//! The messages to the controller, for the duration of a session. If a connection breaks, the next
//! one continues where it ended ([`cool_proto::delivery`]).

use cool_proto::control::agent_message::Body;
use cool_proto::control::{Acknowledged, AgentMessage, Register};
use cool_proto::delivery::{self, AcknowledgementError, Delivery};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio_stream::Stream;

/// Number of unsent messages from which on senders that wait for room must wait.
const WAITING: usize = 256;
/// Number of unacknowledged messages above which no more events are accepted.
const KEPT: usize = 1024;

/// The messages that the controller has not acknowledged. Clones are the same outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct ControllerOutbox {
    state: Arc<Mutex<OutboxState>>,
    /// Notified when there may be room.
    room: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OutboxState {
    delivery: Delivery<Body>,
    /// The number of the current connection. Earlier ones have been given up.
    connection: u64,
    /// Whether the controller has reported where the session continues.
    joined: bool,
    waker: Option<Waker>,
}

/// The messages of a connection: first the registration, and the others once the controller has
/// answered it.
#[derive(Debug)]
pub(super) struct AgentMessages {
    outbox: ControllerOutbox,
    connection: u64,
    register: Option<Register>,
}

impl ControllerOutbox {
    /// Begins another connection. Returns its messages, of which the first is this registration.
    /// The stream of the previous connection ends.
    pub(super) fn connect(&self, register: Register) -> AgentMessages {
        let mut state = self.lock();
        (state.connection, state.joined) = (state.connection + 1, false);
        // The previous connection must end, even if only this side has given it up.
        state.wake();
        AgentMessages { outbox: self.clone(), connection: state.connection, register: Some(register) }
    }

    /// Queues a message.
    pub(super) fn send(&self, body: Body) {
        let mut state = self.lock();
        state.delivery.send(body);
        state.wake();
    }

    /// Counts a message of `bytes` bytes that has been received from the controller.
    pub(super) fn receive(&self, bytes: usize) {
        let mut state = self.lock();
        state.delivery.receive(bytes);
        state.wake();
    }

    /// Returns how many messages of the session have been received from the controller.
    pub(super) fn received(&self) -> u64 {
        self.lock().delivery.report_received()
    }

    /// Handles the acknowledgement of `received` messages.
    pub(super) fn acknowledge(&self, received: u64) -> Result<(), AcknowledgementError> {
        self.lock().delivery.acknowledge(received)?;
        self.room.notify_one();
        Ok(())
    }

    /// Continues the session, in which the controller has received `received` messages.
    pub(super) fn resume(&self, received: u64) -> Result<(), AcknowledgementError> {
        let mut state = self.lock();
        state.delivery.resume(received)?;
        state.joined = true;
        state.wake();
        Ok(())
    }

    /// Returns the ends of ranks, by job and rank, that no controller has acknowledged.
    pub(super) fn exits(&self) -> BTreeSet<(u64, u32)> {
        self.lock().delivery.pending().filter_map(exit).collect()
    }

    /// Begins another session. Returns the unacknowledged messages of the previous one, oldest
    /// first.
    pub(super) fn begin_session(&self) -> Vec<Body> {
        let mut state = self.lock();
        let kept = std::mem::take(&mut state.delivery).end();
        state.joined = true;
        state.wake();
        kept.into()
    }

    /// Waits until fewer than `WAITING` messages are unsent.
    pub(super) async fn room(&self) {
        self.until(|delivery| delivery.waiting() < WAITING).await;
    }

    /// Waits until there is room for events: few enough messages are unsent and unacknowledged.
    pub(super) async fn room_for_events(&self) {
        self.until(|delivery| delivery.waiting() < WAITING && delivery.unacknowledged() < KEPT).await;
    }

    async fn until(&self, condition: impl Fn(&Delivery<Body>) -> bool) {
        while !condition(&self.lock().delivery) {
            self.room.notified().await;
        }
    }

    // A panic elsewhere leaves the state consistent, because every change is one call.
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the job and the rank of an event that reports a rank's end.
pub(super) fn exit(event: &Body) -> Option<(u64, u32)> {
    match event {
        Body::Exited(exited) => Some((exited.job, exited.rank)),
        _ => None,
    }
}

impl OutboxState {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Stream for AgentMessages {
    type Item = AgentMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AgentMessage>> {
        let message = |body| Poll::Ready(Some(AgentMessage { body: Some(body) }));
        if let Some(register) = self.register.take() {
            return message(Body::Register(register));
        }
        let mut state = self.outbox.lock();
        if state.connection != self.connection {
            return Poll::Ready(None);
        }
        let next = if state.joined { state.delivery.take() } else { None };
        match next {
            Some(delivery::OutgoingItem::Message(body)) => {
                drop(state);
                self.outbox.room.notify_one();
                message(body)
            }
            Some(delivery::OutgoingItem::Received(received)) => {
                message(Body::Acknowledged(Acknowledged { received, last: false }))
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Output;
    use tokio_stream::StreamExt;

    fn output(rank: u32) -> Body {
        Body::Output(Output { rank, ..Output::default() })
    }

    async fn next(outgoing: &mut AgentMessages) -> Option<Body> {
        outgoing.next().await.and_then(|message| message.body)
    }

    #[tokio::test]
    async fn a_connection_sends_the_unacknowledged_messages() {
        let outbox = ControllerOutbox::default();
        (0..3).for_each(|rank| outbox.send(output(rank)));
        let mut first = outbox.connect(Register::default());
        assert_eq!(next(&mut first).await, Some(Body::Register(Register::default())));
        outbox.resume(0).unwrap();
        assert_eq!([next(&mut first).await, next(&mut first).await], [Some(output(0)), Some(output(1))]);
        let mut second = outbox.connect(Register::default());
        assert_eq!(next(&mut first).await, None);
        next(&mut second).await;
        outbox.resume(1).unwrap();
        assert_eq!(next(&mut second).await, Some(output(1)));
        assert_eq!(outbox.begin_session(), [output(1), output(2)]);
    }

    #[tokio::test]
    async fn events_wait_while_the_controller_acknowledges_nothing() {
        let outbox = ControllerOutbox::default();
        let mut outgoing = outbox.connect(Register::default());
        outbox.begin_session();
        next(&mut outgoing).await;
        for rank in 0..KEPT as u32 {
            outbox.room_for_events().await;
            outbox.send(output(rank));
            next(&mut outgoing).await;
        }
        let mut waits = std::pin::pin!(outbox.room_for_events());
        assert!(poll_once(&mut waits).is_pending());
        outbox.room().await;
        outbox.acknowledge(1).unwrap();
        waits.await;
    }

    fn poll_once(future: &mut Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }
}
