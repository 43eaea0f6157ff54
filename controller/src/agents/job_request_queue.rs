//! The requests to the jobs of one node that users cause, and that its agent has not acknowledged:
//! signals, and whether output is held because a caller does not read it.
//!
//! Users cause them at any rate, also while the agent is disconnected. A session ends if too many
//! of its messages are unacknowledged, so these among them must be bounded. Further ones wait: each
//! signal at most once for a job, like the pending signals of a process (signal(7)), and the latest
//! of the requests to hold the output of a job.

use cool_proto::control::{HoldOutput, SignalRequest, controller_message::Body};
use cool_proto::delivery::Delivery;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of unacknowledged requests in a session. Agents acknowledge messages in groups of
/// 32.
pub(super) const UNACKNOWLEDGED_REQUESTS_MAX: usize = 256;

/// The requests of a session that its agent has not acknowledged.
#[derive(Debug, Default)]
pub(super) struct JobRequestQueue {
    /// The numbers in the session of the messages with requests, oldest first.
    sent: VecDeque<u64>,
    /// The jobs and numbers of the signals that will be sent once earlier requests are
    /// acknowledged.
    signals: BTreeSet<(u64, i32)>,
    /// The jobs for which it will be sent then whether their output is held.
    holds: BTreeMap<u64, bool>,
}

impl JobRequestQueue {
    /// Sends a signal, or lets it wait.
    pub(super) fn send_signal(&mut self, job: u64, signal: i32, delivery: &mut Delivery<Body>) {
        self.signals.insert((job, signal));
        self.continue_sending(delivery);
    }

    /// Sends whether the output of a job is held, or lets the request wait.
    pub(super) fn send_hold(&mut self, job: u64, held: bool, delivery: &mut Delivery<Body>) {
        self.holds.insert(job, held);
        self.continue_sending(delivery);
    }

    /// Sends waiting requests as far as earlier ones have been acknowledged.
    pub(super) fn continue_sending(&mut self, delivery: &mut Delivery<Body>) {
        while self.sent.front().is_some_and(|number| *number <= delivery.acknowledged()) {
            self.sent.pop_front();
        }
        while self.sent.len() < UNACKNOWLEDGED_REQUESTS_MAX
            && let Some(request) = self.next_waiting()
        {
            delivery.send(request);
            self.sent.push_back(delivery.sent());
        }
    }

    fn next_waiting(&mut self) -> Option<Body> {
        if let Some((job, held)) = self.holds.pop_first() {
            return Some(Body::Hold(HoldOutput { job, held }));
        }
        self.signals.pop_first().map(|(job, signal)| Body::Signal(SignalRequest { job, signal }))
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
        let (mut queue, mut delivery) = (JobRequestQueue::default(), Delivery::default());
        for _ in 0..5000 {
            [10, 12].into_iter().for_each(|signal| queue.send_signal(7, signal, &mut delivery));
        }
        queue.send_signal(8, 10, &mut delivery);
        assert_eq!(delivery.unacknowledged(), UNACKNOWLEDGED_REQUESTS_MAX);
        assert_eq!(taken(&mut delivery).len(), UNACKNOWLEDGED_REQUESTS_MAX);
        delivery.acknowledge(UNACKNOWLEDGED_REQUESTS_MAX as u64).unwrap();
        queue.continue_sending(&mut delivery);
        assert_eq!(taken(&mut delivery), [(7, 10), (7, 12), (8, 10)]);
    }

    #[test]
    fn the_latest_of_many_holds_is_sent_last() {
        let (mut queue, mut delivery) = (JobRequestQueue::default(), Delivery::default());
        for held in [true, false].repeat(5000) {
            queue.send_hold(7, held, &mut delivery);
        }
        queue.send_hold(7, true, &mut delivery);
        assert_eq!(delivery.unacknowledged(), UNACKNOWLEDGED_REQUESTS_MAX);
        while delivery.take().is_some() {}
        delivery.acknowledge(UNACKNOWLEDGED_REQUESTS_MAX as u64).unwrap();
        queue.continue_sending(&mut delivery);
        let held = Body::Hold(HoldOutput { job: 7, held: true });
        assert_eq!(delivery.take(), Some(OutgoingItem::Message(held)));
        assert_eq!(delivery.take(), None);
    }

    #[test]
    fn few_signals_are_all_sent_in_order() {
        let (mut queue, mut delivery) = (JobRequestQueue::default(), Delivery::default());
        let signals = [(7, 12), (7, 10), (7, 12), (6, 12)];
        signals.into_iter().for_each(|(job, signal)| queue.send_signal(job, signal, &mut delivery));
        assert_eq!(taken(&mut delivery), signals);
    }
}
