//! Where packets are lost now and again, each message is sent twice at once: of two a receiver seldom lacks both, and to find that something
//! lacks and to ask for it takes ten times as long as a call. One packet more for each message is little beside that.

/// As often as this within [`RECENT`] messages the agent has had to send one again: then all are sent twice for a while.
const REPAIRS: u64 = 2;
const RECENT: u32 = 16;

/// For as many messages. If one had to be sent again nevertheless, for as many more.
const TWICE: u32 = 256;

/// How often a rank sends its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Redundancy {
    /// Messages that had to be sent again, as far as is known.
    repaired: u64,
    /// As many of them lately.
    lately: u64,
    /// Messages sent since that was counted anew.
    sent: u32,
    /// Messages that are to be sent twice.
    twice: u32,
}

impl Redundancy {
    /// As many of the rank's messages had to be sent again so far.
    pub(crate) fn repaired(&mut self, total: u64) {
        self.lately += total.saturating_sub(self.repaired);
        self.repaired = total;
        if self.lately >= REPAIRS || (self.twice > 0 && self.lately > 0) {
            (self.twice, self.lately, self.sent) = (TWICE, 0, 0);
        }
    }

    /// How often the next message is to be sent.
    pub(crate) fn copies(&mut self) -> u8 {
        self.sent += 1;
        if self.sent == RECENT {
            (self.sent, self.lately) = (0, 0);
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
    fn messages_are_sent_twice_while_some_had_to_be_sent_again_lately() {
        let mut redundancy = Redundancy::default();
        let once = |redundancy: &mut Redundancy, messages: u32| {
            assert!((0..messages).all(|_| redundancy.copies() == 1));
        };
        once(&mut redundancy, 5);
        redundancy.repaired(1);
        once(&mut redundancy, RECENT);
        // The first was too long ago.
        redundancy.repaired(2);
        once(&mut redundancy, 1);
        redundancy.repaired(3);
        assert!((0..100).all(|_| redundancy.copies() == 2));
        redundancy.repaired(4);
        assert!((0..TWICE).all(|_| redundancy.copies() == 2));
        once(&mut redundancy, 3 * RECENT);
        redundancy.repaired(4);
        once(&mut redundancy, RECENT);
    }
}
