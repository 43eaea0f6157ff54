//! How the streams that a node sends for the first time share the node's link.

use cool_collective::{Layout, Stripe};

/// A stream's claim on this node's link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkShare {
    /// The rates at which the stream could send over its tree and over the node's link, in bytes
    /// per second, if it were the only stream; `None` if unknown.
    pub(crate) tree: Option<u64>,
    pub(crate) host: Option<u64>,
    /// Whether the paths were configured or measured to carry these rates.
    pub(crate) verified: bool,
    /// The number of ranks among which the schedule shares the receivers' links.
    pub(crate) concurrent_senders: u32,
    /// The stripe of the message that the stream carries.
    pub(crate) stripe: Stripe,
}

/// The streams that a node is currently sending for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkUsage {
    /// The number of streams of each stripe.
    streams: [u64; Layout::MOST_STRIPES as usize],
    /// The sum of the streams' sizes, in units of 1/[`WHOLE`] of an unstriped stream.
    parts: u64,
}

/// The size of an unstriped stream. It is divisible by every possible number of stripes.
const WHOLE: u64 = 840;

impl LinkShare {
    /// Returns the rate at which the stream may send next to the node's other streams, in bytes per
    /// second.
    pub(crate) fn ceiling(&self, sending: &LinkUsage) -> Option<u64> {
        let streams = sending.streams[self.stripe.index as usize].max(1);
        let tree = self.tree.map(|rate| rate / streams);
        let sharing = (u64::from(self.concurrent_senders) * WHOLE).max(sending.parts).max(WHOLE);
        let of_host = |rate: u64| u128::from(rate) * u128::from(self.parts()) / u128::from(sharing);
        let host = self.host.map(|rate| of_host(rate) as u64);
        tree.into_iter().chain(host).min().map(|rate| rate.max(1))
    }

    fn parts(&self) -> u64 {
        WHOLE / u64::from(self.stripe.of)
    }
}

impl LinkUsage {
    /// Returns these streams and one more.
    pub(crate) fn with(mut self, share: &LinkShare) -> LinkUsage {
        self.streams[share.stripe.index as usize] += 1;
        self.parts += share.parts();
        self
    }

    /// Removes a stream that has ended.
    pub(crate) fn remove(&mut self, share: &LinkShare) {
        self.streams[share.stripe.index as usize] -= 1;
        self.parts -= share.parts();
    }
}
