//! When a connection tells the network that its switch speaks and all its frames are told: soon after each message, and not too often.

use cool_machine::{Duration, Time};

/// Whether, and from when on, the network is to be told so.
#[derive(Clone, Debug)]
pub(crate) struct CatchUpNotifier {
    /// The least time between two times.
    interval: Duration,
    next: Time,
    /// There were messages since.
    owes: bool,
}

impl CatchUpNotifier {
    pub(crate) fn new(interval: Duration, now: Time) -> CatchUpNotifier {
        CatchUpNotifier { interval, next: now, owes: false }
    }

    /// A message came, and the network is told of its frame if it has one.
    pub(crate) fn heard(&mut self) {
        self.owes = true;
    }

    /// From when on the network is to be told, as soon as nothing more is there to be read.
    pub(crate) fn due(&self) -> Option<Time> {
        self.owes.then_some(self.next)
    }

    /// The network is told now.
    pub(crate) fn told(&mut self, now: Time) {
        (self.owes, self.next) = (false, now + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_every_message_the_network_is_told_and_seldom_enough() {
        let interval = Duration::from_millis(50);
        let mut now = Time::ZERO;
        let mut catching_up = CatchUpNotifier::new(interval, now);
        assert_eq!(catching_up.due(), None);
        for _ in 0..3 {
            catching_up.heard();
            assert_eq!(catching_up.due(), Some(now));
            catching_up.told(now);
            assert_eq!(catching_up.due(), None);
            // One right behind is not forgotten.
            catching_up.heard();
            catching_up.heard();
            assert_eq!(catching_up.due(), Some(now + interval));
            now += interval;
            catching_up.told(now);
            now += interval;
        }
    }
}
