//! Where packets are lost now and again, each message is sent twice at once: of two a receiver seldom lacks both, and to find that something
//! lacks and to ask for it takes ten times as long as a call. One packet more for each message is little beside that.

/// As often as this within [`RECENT_MESSAGES`] messages the agent has had to send one again: then all are sent twice for a while.
const RETRANSMISSIONS: u64 = 2;
const RECENT_MESSAGES: u32 = 16;

/// For as many messages. If one had to be sent again nevertheless, for as many more.
const DUPLICATED_MESSAGES: u32 = 256;

/// How often a rank sends its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Duplication {
    /// Messages that had to be sent again, as far as is known.
    retransmitted: u64,
    /// As many of them lately.
    recent: u64,
    /// Messages sent since that was counted anew.
    sent: u32,
    /// Messages that are to be sent twice.
    twice: u32,
}

impl Duplication {
    /// As many of the rank's messages had to be sent again so far.
    pub(crate) fn on_retransmitted(&mut self, total: u64) {
        self.recent += total.saturating_sub(self.retransmitted);
        self.retransmitted = total;
        if self.recent >= RETRANSMISSIONS || (self.twice > 0 && self.recent > 0) {
            (self.twice, self.recent, self.sent) = (DUPLICATED_MESSAGES, 0, 0);
        }
    }

    /// How often the next message is to be sent.
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
        let mut duplication = Duplication::default();
        let once = |duplication: &mut Duplication, messages: u32| {
            assert!((0..messages).all(|_| duplication.copies() == 1));
        };
        once(&mut duplication, 5);
        duplication.on_retransmitted(1);
        once(&mut duplication, RECENT_MESSAGES);
        // The first was too long ago.
        duplication.on_retransmitted(2);
        once(&mut duplication, 1);
        duplication.on_retransmitted(3);
        assert!((0..100).all(|_| duplication.copies() == 2));
        duplication.on_retransmitted(4);
        assert!((0..DUPLICATED_MESSAGES).all(|_| duplication.copies() == 2));
        once(&mut duplication, 3 * RECENT_MESSAGES);
        duplication.on_retransmitted(4);
        once(&mut duplication, RECENT_MESSAGES);
    }
}
