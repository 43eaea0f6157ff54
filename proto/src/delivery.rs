//! One end of a session that outlives its connections.
//!
//! Each end buffers the messages that it sent until the other end acknowledges them, so a new
//! connection continues where the previous one broke. Every message is delivered exactly once and
//! in order. Both ends count messages; nothing else is needed for that.
//!
//! This module uses no sockets. The owner of the connection takes outgoing messages and reports
//! incoming ones.

use std::collections::VecDeque;

/// Number of messages, and of their bytes, that may arrive before they must be acknowledged.
const ACK_THRESHOLD: (u64, usize) = (32, 64 << 10);

/// An item that a connection must send to the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutgoingItem<M> {
    /// A message of the session.
    Message(M),
    /// Number of messages received since the session began.
    Received(u64),
}

/// The other end acknowledged more messages than were sent, or fewer than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{claimed} messages were acknowledged, but only {acknowledged} to {sent} are possible")]
pub struct AcknowledgementError {
    /// Number of messages that the other end acknowledged.
    pub claimed: u64,
    /// Number of messages that it had acknowledged before.
    pub acknowledged: u64,
    /// Number of messages that were sent.
    pub sent: u64,
}

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Delivery<M> {
    /// Messages that are not acknowledged, oldest first.
    buffer: VecDeque<M>,
    /// Number of messages before those in `buffer`.
    acknowledged: u64,
    /// Number of messages in `buffer` that have been passed to the current connection.
    taken: usize,
    /// Number of messages received from the other end.
    received: u64,
    /// Number of received messages that were acknowledged to the other end.
    reported: u64,
    /// Bytes received since the last acknowledgement.
    unreported_bytes: usize,
}

impl<M> Default for Delivery<M> {
    fn default() -> Delivery<M> {
        Delivery {
            buffer: VecDeque::new(),
            acknowledged: 0,
            taken: 0,
            received: 0,
            reported: 0,
            unreported_bytes: 0,
        }
    }
}

impl<M: Clone> Delivery<M> {
    /// Queues a message.
    pub fn send(&mut self, message: M) {
        self.buffer.push_back(message);
    }

    /// Returns the next item that the connection should send, or `None` if there is none.
    pub fn take(&mut self) -> Option<OutgoingItem<M>> {
        if self.received - self.reported >= ACK_THRESHOLD.0 || self.unreported_bytes >= ACK_THRESHOLD.1 {
            return Some(OutgoingItem::Received(self.report_received()));
        }
        let message = self.buffer.get(self.taken)?.clone();
        self.taken += 1;
        Some(OutgoingItem::Message(message))
    }

    /// Returns how many messages were received. The caller must send this number to the other end,
    /// because it counts as acknowledged from now on.
    pub fn report_received(&mut self) -> u64 {
        (self.reported, self.unreported_bytes) = (self.received, 0);
        self.received
    }

    /// Counts a received message of `bytes` bytes.
    pub fn receive(&mut self, bytes: usize) {
        self.received += 1;
        self.unreported_bytes += bytes;
    }

    /// Handles an acknowledgement: the other end has received `claimed` messages.
    ///
    /// # Errors
    /// Returns an error if that number is impossible.
    pub fn acknowledge(&mut self, claimed: u64) -> Result<(), AcknowledgementError> {
        let sent = self.sent();
        if claimed < self.acknowledged || claimed > sent {
            return Err(AcknowledgementError { claimed, acknowledged: self.acknowledged, sent });
        }
        let delivered = (claimed - self.acknowledged) as usize;
        self.buffer.drain(..delivered);
        (self.acknowledged, self.taken) = (claimed, self.taken.saturating_sub(delivered));
        Ok(())
    }

    /// Continues on a new connection: the other end has received `claimed` messages, and the rest
    /// is sent again.
    ///
    /// # Errors
    /// Returns an error if that number is impossible.
    pub fn resume(&mut self, claimed: u64) -> Result<(), AcknowledgementError> {
        self.acknowledge(claimed)?;
        self.taken = 0;
        Ok(())
    }

    /// Returns the number of messages that have been queued since the session began.
    pub fn sent(&self) -> u64 {
        self.acknowledged + self.buffer.len() as u64
    }

    /// Returns the number of messages that the other end has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the number of messages that the other end has not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the number of messages that have not been passed to the current connection yet.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// Returns the messages that were not acknowledged, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &M> {
        self.buffer.iter()
    }

    /// Ends the session and returns the messages that were not acknowledged, oldest first.
    pub fn end(self) -> VecDeque<M> {
        self.buffer
    }
}

/// Returns the encoded length of a message, in bytes.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_receiver_acknowledges_after_a_number_of_messages_or_bytes() {
        let mut end = Delivery::<u32>::default();
        (1..ACK_THRESHOLD.0).for_each(|_| end.receive(1));
        assert_eq!(end.take(), None);
        end.receive(1);
        assert_eq!((end.take(), end.take()), (Some(OutgoingItem::Received(ACK_THRESHOLD.0)), None));
        end.receive(ACK_THRESHOLD.1);
        assert_eq!(end.take(), Some(OutgoingItem::Received(ACK_THRESHOLD.0 + 1)));
    }

    #[test]
    fn messages_are_buffered_until_a_valid_acknowledgement() {
        let mut end = Delivery::default();
        (0..3).for_each(|message| end.send(message));
        assert_eq!(end.take(), Some(OutgoingItem::Message(0)));
        assert_eq!((end.unacknowledged(), end.waiting()), (3, 2));
        // The other end may have received more than this connection took, through an earlier
        // connection.
        end.acknowledge(2).unwrap();
        assert_eq!((end.unacknowledged(), end.waiting(), end.take()), (1, 1, Some(OutgoingItem::Message(2))));
        assert_eq!(end.acknowledge(4), Err(AcknowledgementError { claimed: 4, acknowledged: 2, sent: 3 }));
        assert_eq!(end.resume(1), Err(AcknowledgementError { claimed: 1, acknowledged: 2, sent: 3 }));
        end.resume(2).unwrap();
        assert_eq!(end.take(), Some(OutgoingItem::Message(2)));
        assert_eq!(end.end(), [2]);
    }

    /// An event between two ends.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Say(usize),
        Carry(usize),
        Arrive(usize),
        Break,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..2usize).prop_map(Step::Say),
            (0..2usize).prop_map(Step::Carry),
            (0..2usize).prop_map(Step::Arrive),
            Just(Step::Break),
        ]
    }

    #[derive(Default)]
    struct World {
        ends: [Delivery<u32>; 2],
        /// Items in flight from each end.
        flying: [VecDeque<OutgoingItem<u32>>; 2],
        said: [u32; 2],
        heard: [Vec<u32>; 2],
    }

    impl World {
        fn go(&mut self, step: Step) {
            match step {
                Step::Say(end) => {
                    self.ends[end].send(self.said[end]);
                    self.said[end] += 1;
                }
                Step::Carry(end) => self.flying[end].extend(self.ends[end].take()),
                Step::Arrive(from) => match self.flying[from].pop_front() {
                    Some(OutgoingItem::Message(message)) => {
                        self.ends[1 - from].receive(ACK_THRESHOLD.1 / 3);
                        self.heard[1 - from].push(message);
                    }
                    Some(OutgoingItem::Received(count)) => self.ends[1 - from].acknowledge(count).unwrap(),
                    None => {}
                },
                Step::Break => {
                    self.flying = Default::default();
                    for end in 0..2 {
                        let received = self.ends[1 - end].report_received();
                        self.ends[end].resume(received).unwrap();
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn delivery_is_exactly_once_and_in_order_over_connections(
            steps in prop::collection::vec(step(), 0..300)
        ) {
            let mut world = World::default();
            steps.into_iter().for_each(|step| world.go(step));
            world.go(Step::Break);
            for end in [0, 1] {
                for _ in 0..1000 {
                    world.go(Step::Carry(end));
                    world.go(Step::Arrive(end));
                }
            }
            for end in [0, 1] {
                prop_assert_eq!(&world.heard[1 - end], &(0..world.said[end]).collect::<Vec<_>>());
            }
        }
    }
}
