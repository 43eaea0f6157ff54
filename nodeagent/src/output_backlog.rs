//! What ranks print while no controller takes it.

use cool_proto::control::agent_message::Body;
use std::collections::VecDeque;

/// Bytes of output kept for a controller that is away; beyond, the oldest lines are lost.
const MAX_OUTPUT: usize = 1 << 20;

/// Output of ranks for a controller that is away.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lines: VecDeque<Body>,
    bytes: usize,
    lost: u64,
}

impl Backlog {
    /// Keeps the newest line.
    pub(crate) fn keep(&mut self, event: Body) {
        self.bytes += size(&event);
        self.lines.push_back(event);
        self.drop_oldest();
    }

    /// Keeps the lines among events that were taken from here, or came after all that was, and were not sent.
    pub(crate) fn put_back(&mut self, events: Vec<Body>) {
        for event in events.into_iter().rev().filter(|event| matches!(event, Body::Output(_))) {
            self.bytes += size(&event);
            self.lines.push_front(event);
        }
        self.drop_oldest();
    }

    fn drop_oldest(&mut self) {
        while self.bytes > MAX_OUTPUT {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.lost += 1;
        }
    }

    /// The oldest line.
    pub(crate) fn take(&mut self) -> Option<Body> {
        let event = self.lines.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    /// How many lines were lost since this was asked last.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

fn size(event: &Body) -> usize {
    match event {
        Body::Output(output) => output.line.len() + 64,
        _ => 64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_proto::control::Output;

    #[test]
    fn the_newest_lines_are_kept() {
        let mut backlog = Backlog::default();
        for rank in 0..100 {
            backlog.keep(Body::Output(Output { rank, line: vec![0; MAX_OUTPUT / 10], ..Output::default() }));
        }
        let Some(Body::Output(first)) = backlog.take() else { panic!("nothing kept") };
        let lost = backlog.take_lost();
        assert_eq!(u64::from(first.rank), lost);
        assert!((85..=95).contains(&lost), "{lost}");
        assert_eq!(std::iter::from_fn(|| backlog.take()).count() as u64, 99 - lost);
        assert_eq!(backlog.bytes, 0);
    }

    #[test]
    fn lines_that_were_not_sent_go_before_those_that_came_later() {
        let line = |rank| Body::Output(Output { rank, ..Output::default() });
        let mut backlog = Backlog::default();
        backlog.keep(line(3));
        backlog.put_back(vec![line(1), Body::Exited(cool_proto::control::Exited::default()), line(2)]);
        assert_eq!(std::iter::from_fn(|| backlog.take()).collect::<Vec<_>>(), [line(1), line(2), line(3)]);
        assert_eq!((backlog.bytes, backlog.take_lost()), (0, 0));
    }
}
