//! Decides when a connection notifies the network that all messages of its switch have been read:
//! soon after each message, but at most once per interval.

use cool_machine::{Duration, Time};

/// Whether and when the network must be notified.
#[derive(Clone, Debug)]
pub(crate) struct CatchUpNotifier {
    /// Minimum time between notifications.
    interval: Duration,
    next: Time,
    /// Whether messages have arrived since the last notification.
    pending: bool,
}

impl CatchUpNotifier {
    pub(crate) fn new(interval: Duration, now: Time) -> CatchUpNotifier {
        CatchUpNotifier { interval, next: now, pending: false }
    }

    /// Records a message. Its frame, if any, has already been passed to the network.
    pub(crate) fn on_message(&mut self) {
        self.pending = true;
    }

    /// Returns the time from which on the network must be notified, as soon as nothing remains to
    /// be read. `None` if there is nothing to notify.
    pub(crate) fn due(&self) -> Option<Time> {
        self.pending.then_some(self.next)
    }

    /// Records that the network was notified.
    pub(crate) fn notified(&mut self, now: Time) {
        (self.pending, self.next) = (false, now + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_notified_after_messages_but_seldom_enough() {
        let interval = Duration::from_millis(50);
        let mut now = Time::ZERO;
        let mut catch_up = CatchUpNotifier::new(interval, now);
        assert_eq!(catch_up.due(), None);
        for _ in 0..3 {
            catch_up.on_message();
            assert_eq!(catch_up.due(), Some(now));
            catch_up.notified(now);
            assert_eq!(catch_up.due(), None);
            // A message right behind a notification must not be forgotten.
            catch_up.on_message();
            catch_up.on_message();
            assert_eq!(catch_up.due(), Some(now + interval));
            now += interval;
            catch_up.notified(now);
            now += interval;
        }
    }
}
