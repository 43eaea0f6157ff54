//! The signals to the jobs of one node that its agent has not acknowledged.
//!
//! Users send signals at any rate, also while the agent is disconnected. A session ends if too many
//! of its messages are unacknowledged, so the signals among them must be bounded. Further ones
//! wait, each at most once for a job, like the pending signals of a process (signal(7)).

use cool_proto::control::{SignalRequest, controller_message::Body};
use cool_proto::delivery::Delivery;
use std::collections::{BTreeSet, VecDeque};

/// Maximum number of unacknowledged signals in a session. Agents acknowledge messages in groups of
/// 32.
pub(super) const UNACKNOWLEDGED_SIGNALS_MAX: usize = 256;

/// The signals of a session that its agent has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct SignalQueue {
    /// The numbers in the session of the messages with signals, oldest first.
    sent: VecDeque<u64>,
    /// The jobs and numbers of the signals that will be sent once earlier ones are acknowledged.
    waiting: BTreeSet<(u64, i32)>,
}

impl SignalQueue {
    /// Sends a signal, or lets it wait.
    pub(super) fn send(&mut self, job: u64, signal: i32, delivery: &mut Delivery<Body>) {
        self.waiting.insert((job, signal));
        self.continue_sending(delivery);
    }

    /// Sends waiting signals as far as earlier ones have been acknowledged.
    pub(super) fn continue_sending(&mut self, delivery: &mut Delivery<Body>) {
        while self.sent.front().is_some_and(|number| *number <= delivery.acknowledged()) {
            self.sent.pop_front();
        }
        while self.sent.len() < UNACKNOWLEDGED_SIGNALS_MAX
            && let Some((job, signal)) = self.waiting.pop_first()
        {
            delivery.send(Body::Signal(SignalRequest { job, signal }));
            self.sent.push_back(delivery.sent());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::delivery::OutgoingItem;

    /// Takes all messages that the connection can send now.
    fn taken(delivery: &mut Delivery<Body>) -> Vec<(u64, i32)> {
        let items = std::iter::from_fn(|| delivery.take());
        let signal = |item| match item {
            OutgoingItem::Message(Body::Signal(SignalRequest { job, signal })) => (job, signal),
            other => panic!("{other:?}"),
        };
        items.map(signal).collect()
    }

    #[test]
    fn many_signals_are_bounded_and_the_last_of_each_arrives() {
        let (mut queue, mut delivery) = (SignalQueue::default(), Delivery::default());
        for _ in 0..5000 {
            [10, 12].into_iter().for_each(|signal| queue.send(7, signal, &mut delivery));
        }
        queue.send(8, 10, &mut delivery);
        assert_eq!(delivery.unacknowledged(), UNACKNOWLEDGED_SIGNALS_MAX);
        assert_eq!(taken(&mut delivery).len(), UNACKNOWLEDGED_SIGNALS_MAX);
        delivery.acknowledge(UNACKNOWLEDGED_SIGNALS_MAX as u64).unwrap();
        queue.continue_sending(&mut delivery);
        assert_eq!(taken(&mut delivery), [(7, 10), (7, 12), (8, 10)]);
    }

    #[test]
    fn few_signals_are_all_sent_in_order() {
        let (mut queue, mut delivery) = (SignalQueue::default(), Delivery::default());
        let signals = [(7, 12), (7, 10), (7, 12), (6, 12)];
        signals.into_iter().for_each(|(job, signal)| queue.send(job, signal, &mut delivery));
        assert_eq!(taken(&mut delivery), signals);
    }
}
