//! One end of a session that outlives its connections: what was sent is buffer until the other end has claimed that it has come,
//! so that another connection goes on where one broke. Nothing is lost, comes twice, or overtakes.
//!
//! Both ends count. No sockets: whoever has the connection takes what is to go out, and says what has come in.

use std::collections::VecDeque;

/// So much may come in until the other end is reported, and keeps it meanwhile: messages, and their bytes.
const ACK_THRESHOLD: (u64, usize) = (32, 64 << 10);

/// What is to go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing<M> {
    /// A message of the session.
    Message(M),
    /// How many messages have come in since the session began.
    Received(u64),
}

/// The other end says that more has come there than was sent, or less than it claimed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{claimed} messages are claimed to have come; it is {acknowledged} at least, and {sent} were sent")]
pub struct AcknowledgementError {
    /// What it says.
    pub claimed: u64,
    /// What it has claimed before.
    pub acknowledged: u64,
    /// What there was to come.
    pub sent: u64,
}

/// One end of a session.
#[derive(Clone, Debug)]
pub struct Delivery<M> {
    /// What has not been acknowledged, oldest first.
    buffer: VecDeque<M>,
    /// Messages before those.
    acknowledged: u64,
    /// Of those that are buffer, how many this connection has taken.
    taken: usize,
    /// Messages that have come in.
    received: u64,
    /// What the other end knows of that.
    reported: u64,
    /// Bytes that have come in since.
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
    /// A message is to go out.
    pub fn send(&mut self, message: M) {
        self.buffer.push_back(message);
    }

    /// What the connection is to send next.
    pub fn take(&mut self) -> Option<Outgoing<M>> {
        if self.received - self.reported >= ACK_THRESHOLD.0 || self.unreported_bytes >= ACK_THRESHOLD.1 {
            return Some(Outgoing::Received(self.report_received()));
        }
        let message = self.buffer.get(self.taken)?.clone();
        self.taken += 1;
        Some(Outgoing::Message(message))
    }

    /// How many messages have come in; the other end is being reported.
    pub fn report_received(&mut self) -> u64 {
        (self.reported, self.unreported_bytes) = (self.received, 0);
        self.received
    }

    /// A message of `bytes` bytes has come in.
    pub fn receive(&mut self, bytes: usize) {
        self.received += 1;
        self.unreported_bytes += bytes;
    }

    /// The other end has got `claimed` messages.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn acknowledge(&mut self, claimed: u64) -> Result<(), AcknowledgementError> {
        let sent = self.acknowledged + self.buffer.len() as u64;
        if claimed < self.acknowledged || claimed > sent {
            return Err(AcknowledgementError { claimed, acknowledged: self.acknowledged, sent });
        }
        let delivered = (claimed - self.acknowledged) as usize;
        self.buffer.drain(..delivered);
        (self.acknowledged, self.taken) = (claimed, self.taken.saturating_sub(delivered));
        Ok(())
    }

    /// Another connection goes on: the other end has got `claimed` messages, and will be sent the rest.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn resume(&mut self, claimed: u64) -> Result<(), AcknowledgementError> {
        self.acknowledge(claimed)?;
        self.taken = 0;
        Ok(())
    }

    /// Messages that are buffer: the other end has not claimed that they have come.
    pub fn unacknowledged(&self) -> usize {
        self.buffer.len()
    }

    /// Messages that this connection has not taken yet.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.taken
    }

    /// What was not acknowledged, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &M> {
        self.buffer.iter()
    }

    /// The session is over: what was not acknowledged, oldest first.
    pub fn end(self) -> VecDeque<M> {
        self.buffer
    }
}

/// How many bytes a message takes on its way.
pub fn bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_receiver_tells_after_so_many_messages_or_bytes() {
        let mut end = Delivery::<u32>::default();
        (1..ACK_THRESHOLD.0).for_each(|_| end.receive(1));
        assert_eq!(end.take(), None);
        end.receive(1);
        assert_eq!((end.take(), end.take()), (Some(Outgoing::Received(ACK_THRESHOLD.0)), None));
        end.receive(ACK_THRESHOLD.1);
        assert_eq!(end.take(), Some(Outgoing::Received(ACK_THRESHOLD.0 + 1)));
    }

    #[test]
    fn what_was_sent_is_kept_until_it_has_come_and_numbers_that_cannot_be_are_refused() {
        let mut end = Delivery::default();
        (0..3).for_each(|message| end.send(message));
        assert_eq!(end.take(), Some(Outgoing::Message(0)));
        assert_eq!((end.unacknowledged(), end.waiting()), (3, 2));
        // More may have come than this connection took: an earlier one did.
        end.acknowledge(2).unwrap();
        assert_eq!((end.unacknowledged(), end.waiting(), end.take()), (1, 1, Some(Outgoing::Message(2))));
        assert_eq!(end.acknowledge(4), Err(AcknowledgementError { claimed: 4, acknowledged: 2, sent: 3 }));
        assert_eq!(end.resume(1), Err(AcknowledgementError { claimed: 1, acknowledged: 2, sent: 3 }));
        end.resume(2).unwrap();
        assert_eq!(end.take(), Some(Outgoing::Message(2)));
        assert_eq!(end.end(), [2]);
    }

    /// What happens between two ends.
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
        /// On the way from each.
        flying: [VecDeque<Outgoing<u32>>; 2],
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
                    Some(Outgoing::Message(message)) => {
                        self.ends[1 - from].receive(ACK_THRESHOLD.1 / 3);
                        self.heard[1 - from].push(message);
                    }
                    Some(Outgoing::Received(count)) => self.ends[1 - from].acknowledge(count).unwrap(),
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
        fn each_message_comes_once_and_in_order_whenever_connections_break(
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
