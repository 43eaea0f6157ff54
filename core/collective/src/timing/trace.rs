//! Records when each message is in transit.

use crate::schedule::Rank;
use core::time::Duration;
use std::collections::BTreeMap;

/// The timing of one message to one of its receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageTiming {
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// Whether it is sent over a tree.
    pub multicast: bool,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its turn begins, relative to the call: not before all earlier messages between the two
    /// ranks have left.
    pub begun: Duration,
    /// When its last byte has arrived.
    pub arrived: Duration,
}

/// The messages recorded so far.
#[derive(Debug, Default)]
pub(super) struct MessageTrace {
    /// The beginning of each message.
    begun: BTreeMap<u32, u64>,
    /// When the last message of each sender and receiver has left.
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
