//! The queriers of a node's network: whether one is heard, and when this node queries itself.
//!
//! A node queries only while the controller has appointed it, and only until it hears another
//! querier.

use crate::membership_query::QUERY_INTERVAL_SECONDS;
use cool_machine::{Duration, Machine, Poll, Time, earliest};
use core::net::IpAddr;

const QUERY_INTERVAL: Duration = Duration::from_secs(QUERY_INTERVAL_SECONDS as u64);
/// Number of queries at the beginning, and the time between them (RFC 3376, 8.6 and 8.7).
const STARTUP_QUERIES: u32 = 2;
const STARTUP_INTERVAL: Duration = QUERY_INTERVAL.checked_div(4).unwrap();
/// Time after which a querier that sends no query is gone: two intervals and half of the default
/// response time (RFC 3376, 8.5).
const QUERIER_TIMEOUT: Duration = Duration::from_secs(2 * QUERY_INTERVAL_SECONDS as u64 + 5);

/// An event for a [`QuerierMonitor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuerierInput {
    /// Another host or switch with this address has sent a general query.
    Heard(IpAddr),
    /// Whether the controller appoints this node as querier.
    Appointed(bool),
}

/// An action that a [`QuerierMonitor`] requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuerierOutput {
    /// Send a general query.
    Query,
    /// Report that this querier is heard now, or none.
    Changed(Option<IpAddr>),
}

/// The queriers that a node hears, and its own queries.
#[derive(Debug, Default)]
pub struct QuerierMonitor {
    /// The querier that was heard last, and when it counts as gone.
    heard: Option<(IpAddr, Time)>,
    reported: Option<IpAddr>,
    is_appointed: bool,
    /// The next query, and the number of queries that have been sent since the appointment.
    next_query: Option<Time>,
    sent: u32,
}

impl Machine for QuerierMonitor {
    type Input<'a> = QuerierInput;
    type Output = QuerierOutput;

    fn handle(&mut self, now: Time, input: QuerierInput) {
        match input {
            QuerierInput::Heard(from) => {
                self.heard = Some((from, now + QUERIER_TIMEOUT));
                self.next_query = None;
            }
            QuerierInput::Appointed(is_appointed) => {
                self.is_appointed = is_appointed;
                (self.next_query, self.sent) = (is_appointed.then_some(now), 0);
                if is_appointed {
                    // The controller knows that this querier has ended.
                    self.heard = None;
                }
            }
        }
    }

    fn poll(&mut self, now: Time) -> Poll<QuerierOutput> {
        if self.heard.is_some_and(|(_, until)| until <= now) {
            self.heard = None;
            (self.next_query, self.sent) = (self.is_appointed.then_some(now), 0);
        }
        let heard = self.heard.map(|(from, _)| from);
        if heard != self.reported {
            self.reported = heard;
            return Poll::Output(QuerierOutput::Changed(heard));
        }
        if self.next_query.is_some_and(|at| at <= now) {
            self.sent += 1;
            let interval = if self.sent < STARTUP_QUERIES { STARTUP_INTERVAL } else { QUERY_INTERVAL };
            self.next_query = Some(now + interval);
            return Poll::Output(QuerierOutput::Query);
        }
        Poll::Idle(earliest(self.next_query, self.heard.map(|(_, until)| until)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use QuerierInput::{Appointed, Heard};
    use QuerierOutput::{Changed, Query};

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    /// Returns the outputs until a time, each with its second.
    fn outputs(monitor: &mut QuerierMonitor, from: u64, until: u64) -> Vec<(u64, QuerierOutput)> {
        let mut now = at(from);
        let mut found = Vec::new();
        loop {
            match monitor.poll(now) {
                Poll::Output(output) => found.push((now.since(Time::ZERO).as_secs(), output)),
                Poll::Idle(Some(next)) if next <= at(until) => now = next,
                Poll::Idle(_) => return found,
            }
        }
    }

    #[test]
    fn an_appointed_node_queries_at_the_intervals_of_the_standard() {
        let mut monitor = QuerierMonitor::default();
        assert_eq!(outputs(&mut monitor, 0, 10_000), []);
        monitor.handle(at(10), Appointed(true));
        assert_eq!(outputs(&mut monitor, 10, 300), [(10, Query), (41, Query), (166, Query), (291, Query)]);
        monitor.handle(at(300), Appointed(false));
        assert_eq!(outputs(&mut monitor, 300, 10_000), []);
    }

    #[test]
    fn another_querier_is_reported_and_ends_the_queries() {
        let mut monitor = QuerierMonitor::default();
        let router: IpAddr = "10.0.0.254".parse().unwrap();
        monitor.handle(at(0), Appointed(true));
        monitor.handle(at(1), Heard(router));
        assert_eq!(outputs(&mut monitor, 1, 200), [(1, Changed(Some(router)))]);
        monitor.handle(at(200), Heard(router));
        // When the querier has been silent for too long, the node queries again.
        let after = [(455, Changed(None)), (455, Query), (486, Query)];
        assert_eq!(outputs(&mut monitor, 200, 500), after);
    }

    #[test]
    fn an_appointment_means_that_the_earlier_querier_is_gone() {
        let mut monitor = QuerierMonitor::default();
        let other: IpAddr = "0.0.0.0".parse().unwrap();
        monitor.handle(at(0), Heard(other));
        assert_eq!(outputs(&mut monitor, 0, 1), [(0, Changed(Some(other)))]);
        monitor.handle(at(1), Appointed(true));
        assert_eq!(outputs(&mut monitor, 1, 2), [(1, Changed(None)), (1, Query)]);
    }
}
