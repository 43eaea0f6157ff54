//! Events, including the output of ranks, that occur while there is no connection to the
//! controller.

use cool_proto::control::agent_message::Body;
use std::collections::VecDeque;

/// The number of bytes of output that are kept. Beyond it, the oldest lines are dropped.
const MAX_OUTPUT: usize = 1 << 20;
/// The number of other events that are kept. Beyond it, the session must be given up.
const MAX_EVENTS: usize = 1 << 16;

/// The events that wait for a connection to a controller, oldest first.
#[derive(Debug, Default)]
pub(crate) struct OutputBacklog {
    events: VecDeque<Body>,
    /// The number of bytes of output among the events.
    bytes: usize,
    lost: u64,
}

impl OutputBacklog {
    /// Keeps the newest event. Returns false if there are too many events, so that the session must
    /// be given up.
    pub(crate) fn keep(&mut self, event: Body) -> bool {
        self.bytes += size(&event);
        self.events.push_back(event);
        self.drop_oldest();
        self.events.len() <= MAX_EVENTS
    }

    /// Ends the session. Its unacknowledged messages are `events`. Of these and of the events kept
    /// here, keeps the output and the ends of ranks for the next controller, and drops the others.
    pub(crate) fn put_back(&mut self, events: Vec<Body>) {
        self.events = events.into_iter().chain(std::mem::take(&mut self.events)).filter(is_of_rank).collect();
        self.bytes = self.events.iter().map(size).sum();
        self.drop_oldest();
    }

    fn drop_oldest(&mut self) {
        while self.bytes > MAX_OUTPUT {
            let Some(oldest) = self.events.iter().position(is_line) else { break };
            self.bytes -= self.events.remove(oldest).as_ref().map_or(0, size);
            self.lost += 1;
        }
    }

    /// Returns all events, oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Body> {
        self.events.iter()
    }

    /// Removes and returns the oldest event.
    pub(crate) fn take(&mut self) -> Option<Body> {
        let event = self.events.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    /// Returns how many lines were dropped since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

fn is_of_rank(event: &Body) -> bool {
    matches!(event, Body::Output(_) | Body::Exited(_))
}

fn is_line(event: &Body) -> bool {
    matches!(event, Body::Output(_))
}

/// Returns the size of an event that counts against the limit for output.
fn size(event: &Body) -> usize {
    match event {
        Body::Output(output) => output.line.len() + 64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::{Exited, Output, Probed, Withdraw};

    fn line(rank: u32) -> Body {
        Body::Output(Output { rank, ..Output::default() })
    }

    #[test]
    fn the_newest_lines_are_kept_and_all_that_is_no_line() {
        let mut backlog = OutputBacklog::default();
        backlog.keep(Body::Exited(Exited::default()));
        for rank in 0..100 {
            backlog.keep(Body::Output(Output { rank, line: vec![0; MAX_OUTPUT / 10], ..Output::default() }));
        }
        assert_eq!(backlog.take(), Some(Body::Exited(Exited::default())));
        let Some(Body::Output(first)) = backlog.take() else { panic!("nothing kept") };
        let lost = backlog.take_lost();
        assert_eq!(u64::from(first.rank), lost);
        assert!((85..=95).contains(&lost), "{lost}");
        assert_eq!(std::iter::from_fn(|| backlog.take()).count() as u64, 99 - lost);
        assert_eq!(backlog.bytes, 0);
    }

    #[test]
    fn the_next_controller_gets_output_before_exits() {
        let mut backlog = OutputBacklog::default();
        backlog.keep(line(3));
        backlog.keep(Body::Exited(Exited::default()));
        backlog.keep(Body::Withdraw(Withdraw::default()));
        backlog.put_back(vec![line(1), Body::Probed(Probed::default()), line(2)]);
        let expected = [line(1), line(2), line(3), Body::Exited(Exited::default())];
        assert_eq!(std::iter::from_fn(|| backlog.take()).collect::<Vec<_>>(), expected);
        assert_eq!((backlog.bytes, backlog.take_lost()), (0, 0));
    }

    #[test]
    fn a_session_with_too_many_kept_events_is_given_up() {
        let mut backlog = OutputBacklog::default();
        let kept: Vec<bool> =
            (0..=MAX_EVENTS).map(|_| backlog.keep(Body::Exited(Exited::default()))).collect();
        assert_eq!((kept[MAX_EVENTS - 1], kept[MAX_EVENTS]), (true, false));
    }
}
