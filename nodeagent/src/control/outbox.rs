//! Messages on their way to the controller. What the connection has not taken when a session breaks comes back.

use cool_proto::control::AgentMessage;
use cool_proto::control::agent_message::Body;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio_stream::Stream;

/// Messages that wait for the connection.
const MESSAGES: usize = 256;

/// Where messages of a session wait.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) sender: mpsc::Sender<AgentMessage>,
    queue: Outgoing,
}

/// The same messages as the connection takes them. Clones take from the same ones.
#[derive(Clone, Debug)]
pub(super) struct Outgoing(Arc<Mutex<mpsc::Receiver<AgentMessage>>>);

impl Outbox {
    /// An empty one, and what its connection takes.
    pub(super) fn open() -> (Outbox, Outgoing) {
        let (sender, receiver) = mpsc::channel(MESSAGES);
        let queue = Outgoing(Arc::new(Mutex::new(receiver)));
        (Outbox { sender, queue: queue.clone() }, queue)
    }

    /// The session is over: what the connection has not taken, oldest first.
    pub(super) fn untaken(self) -> Vec<Body> {
        let mut queue = self.queue.lock();
        queue.close();
        std::iter::from_fn(|| queue.try_recv().ok()).filter_map(|message| message.body).collect()
    }
}

impl Outgoing {
    // A panic elsewhere leaves the queue whole.
    fn lock(&self) -> MutexGuard<'_, mpsc::Receiver<AgentMessage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for Outgoing {
    type Item = AgentMessage;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AgentMessage>> {
        self.lock().poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Output;
    use tokio_stream::StreamExt;

    #[tokio::test]
    async fn what_the_connection_has_not_taken_comes_back_in_order() {
        let (outbox, mut outgoing) = Outbox::open();
        let output = |rank| Body::Output(Output { rank, ..Output::default() });
        for rank in 0..3 {
            outbox.sender.send(AgentMessage { body: Some(output(rank)) }).await.unwrap();
        }
        assert_eq!(outgoing.next().await.and_then(|message| message.body), Some(output(0)));
        assert_eq!(outbox.untaken(), [output(1), output(2)]);
        assert_eq!(outgoing.next().await, None);
    }
}
