//! Redundant sending: each message is sent twice while the network loses packets. A receiver
//! seldom misses both copies, whereas detecting a loss and sending a NAK takes ten times as long as
//! a call. A second packet per message is cheap in comparison.

/// If this many of the last [`RECENT_MESSAGES`] messages needed a retransmission, all messages are
/// sent twice for a while.
const RETRANSMISSIONS: u64 = 2;
const RECENT_MESSAGES: u32 = 16;

/// Number of messages that are then sent twice. A retransmission within this period starts it
/// again.
const DUPLICATED_MESSAGES: u32 = 256;

/// Decides how many copies of each message are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RedundantSending {
    /// Messages that were retransmitted, as last reported.
    retransmitted: u64,
    /// Messages that were retransmitted recently.
    recent: u64,
    /// Messages sent since `recent` was reset.
    sent: u32,
    /// Messages that are still to be sent twice.
    twice: u32,
}

impl RedundantSending {
    /// Receives the total number of the rank's messages that were retransmitted.
    pub(crate) fn on_retransmitted(&mut self, total: u64) {
        self.recent += total.saturating_sub(self.retransmitted);
        self.retransmitted = total;
        if self.recent >= RETRANSMISSIONS || (self.twice > 0 && self.recent > 0) {
            (self.twice, self.recent, self.sent) = (DUPLICATED_MESSAGES, 0, 0);
        }
    }

    /// Returns the number of copies of the next message.
    pub(crate) fn copies(&mut self) -> u8 {
        self.sent += 1;
        if self.sent == RECENT_MESSAGES {
            (self.sent, self.recent) = (0, 0);
        }
        let twice = self.twice > 0;
        self.twice = self.twice.saturating_sub(1);
        1 + u8::from(twice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_duplicated_after_recent_retransmissions() {
        let mut redundant_sending = RedundantSending::default();
        let once = |redundant_sending: &mut RedundantSending, messages: u32| {
            assert!((0..messages).all(|_| redundant_sending.copies() == 1));
        };
        once(&mut redundant_sending, 5);
        redundant_sending.on_retransmitted(1);
        once(&mut redundant_sending, RECENT_MESSAGES);
        // The first retransmission is no longer recent.
        redundant_sending.on_retransmitted(2);
        once(&mut redundant_sending, 1);
        redundant_sending.on_retransmitted(3);
        assert!((0..100).all(|_| redundant_sending.copies() == 2));
        redundant_sending.on_retransmitted(4);
        assert!((0..DUPLICATED_MESSAGES).all(|_| redundant_sending.copies() == 2));
        once(&mut redundant_sending, 3 * RECENT_MESSAGES);
        redundant_sending.on_retransmitted(4);
        once(&mut redundant_sending, RECENT_MESSAGES);
    }
}
