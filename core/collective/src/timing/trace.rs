//! Where messages are when, for those who want to see it.

use crate::schedule::Rank;
use core::time::Duration;
use std::collections::BTreeMap;

/// One message on its way to one of its receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTiming {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Whether it goes along a tree.
    pub multicast: bool,
    /// Its length.
    pub bytes: u64,
    /// When its turn comes, from the call on: after all that was to go before it between the two.
    pub begun: Duration,
    /// When its last byte is there.
    pub arrived: Duration,
}

/// What happened so far.
#[derive(Debug, Default)]
pub(super) struct MessageTrace {
    /// By message.
    begun: BTreeMap<u32, u64>,
    /// By sender and receiver: when the last one has left.
    left: BTreeMap<(u32, u32), u64>,
    pub(super) messages: Vec<MessageTiming>,
}

impl MessageTrace {
    pub(super) fn begins(&mut self, transfer: u32, now: u64) {
        self.begun.entry(transfer).or_insert(now);
    }

    pub(super) fn leaves(&mut self, transfer: u32, now: u64, ends: (u32, u32)) {
        let before = self.left.insert(ends, now).unwrap_or(0);
        let begun = self.begun.entry(transfer).or_insert(before);
        *begun = before.max(*begun);
    }

    pub(super) fn arrives(
        &mut self,
        transfer: u32,
        now: u64,
        (from, to): (u32, u32),
        multicast: bool,
        bytes: u64,
    ) {
        let begun = Duration::from_nanos(self.begun.get(&transfer).copied().unwrap_or(now));
        let arrived = Duration::from_nanos(now);
        self.messages.push(MessageTiming {
            from: Rank(from),
            to: Rank(to),
            multicast,
            bytes,
            begun,
            arrived,
        });
    }
}
