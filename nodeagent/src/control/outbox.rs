//! What this agent has to say to its controller, for as long as their session lasts: connections break, and another goes on
//! where one broke ([`cool_proto::delivery`]).

use cool_proto::control::agent_message::Body;
use cool_proto::control::{Acknowledged, AgentMessage, Register};
use cool_proto::delivery::{self, AcknowledgementError, Delivery};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio_stream::Stream;

/// Messages that wait for the connection.
const WAITING: usize = 256;
/// Messages that the controller has not acknowledged, while more events are taken.
const KEPT: usize = 1024;

/// Where messages wait until the controller has them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ControllerOutbox {
    state: Arc<Mutex<OutboxState>>,
    /// There may be room.
    room: Arc<Notify>,
}

#[derive(Debug, Default)]
struct OutboxState {
    delivery: Delivery<Body>,
    /// The number of the connection that takes messages; others have been given up.
    connection: u64,
    /// Whether the controller has said where the session stands.
    joined: bool,
    waker: Option<Waker>,
}

/// What a connection sends: the registration, and what is to go out once the controller has answered it.
#[derive(Debug)]
pub(super) struct AgentMessages {
    outbox: ControllerOutbox,
    connection: u64,
    register: Option<Register>,
}

impl ControllerOutbox {
    /// Another connection begins, by this registration.
    pub(super) fn connect(&self, register: Register) -> AgentMessages {
        let mut state = self.lock();
        (state.connection, state.joined) = (state.connection + 1, false);
        // The one before ends, if only this side has given it up.
        state.wake();
        AgentMessages { outbox: self.clone(), connection: state.connection, register: Some(register) }
    }

    /// A message is to go out.
    pub(super) fn send(&self, body: Body) {
        let mut state = self.lock();
        state.delivery.send(body);
        state.wake();
    }

    /// A message has come in.
    pub(super) fn receive(&self, bytes: usize) {
        let mut state = self.lock();
        state.delivery.receive(bytes);
        state.wake();
    }

    /// How many messages have come in.
    pub(super) fn received(&self) -> u64 {
        self.lock().delivery.report_received()
    }

    /// The controller has got `said` messages.
    pub(super) fn acknowledge(&self, said: u64) -> Result<(), AcknowledgementError> {
        self.lock().delivery.acknowledge(said)?;
        self.room.notify_one();
        Ok(())
    }

    /// The session goes on; the controller has got `said` messages.
    pub(super) fn resume(&self, said: u64) -> Result<(), AcknowledgementError> {
        let mut state = self.lock();
        state.delivery.resume(said)?;
        state.joined = true;
        state.wake();
        Ok(())
    }

    /// The ends of ranks, by job and rank, that no controller has acknowledged.
    pub(super) fn exits(&self) -> BTreeSet<(u64, u32)> {
        self.lock().delivery.pending().filter_map(exit).collect()
    }

    /// Another session begins. What of the one before no controller has acknowledged, oldest first.
    pub(super) fn begin_session(&self) -> Vec<Body> {
        let mut state = self.lock();
        let kept = std::mem::take(&mut state.delivery).end();
        state.joined = true;
        state.wake();
        kept.into()
    }

    /// Waits until the connection has taken most of what is to go out.
    pub(super) async fn room(&self) {
        self.until(|delivery| delivery.waiting() < WAITING).await;
    }

    /// Waits until there is room for what is not asked for.
    pub(super) async fn room_for_events(&self) {
        self.until(|delivery| delivery.waiting() < WAITING && delivery.unacknowledged() < KEPT).await;
    }

    async fn until(&self, condition: impl Fn(&Delivery<Body>) -> bool) {
        while !condition(&self.lock().delivery) {
            self.room.notified().await;
        }
    }

    // A panic elsewhere leaves the state whole: every change to it is one call.
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The job and the rank whose end this tells.
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
            Some(delivery::Outgoing::Message(body)) => {
                drop(state);
                self.outbox.room.notify_one();
                message(body)
            }
            Some(delivery::Outgoing::Received(received)) => {
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
    async fn a_connection_sends_what_the_controller_lacks_once_that_is_known() {
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
