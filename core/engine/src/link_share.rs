//! How the streams that a node sends for the first time share its link.

use cool_collective::{Layout, Stripe};

/// A source's claim on this node's link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkShare {
    /// What it may send over its tree and what over its node's link, were it alone on that; as far as these are known.
    pub(crate) tree: Option<u64>,
    pub(crate) host: Option<u64>,
    /// Whether paths are known to carry as much.
    pub(crate) verified: bool,
    /// Among how many ranks the schedule shares the receivers' links.
    pub(crate) concurrent_senders: u32,
    /// Which part of a message it is.
    pub(crate) stripe: Stripe,
}

/// The streams that a node is sending for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkUsage {
    /// Of each stripe.
    streams: [u64; Layout::MOST_STRIPES as usize],
    /// In parts of [`WHOLE`].
    parts: u64,
}

/// Parts of a whole message's stream, in which streams are counted: any number of stripes divides it.
const WHOLE: u64 = 840;

impl LinkShare {
    /// What it may send beside what else this node sends.
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
    /// These and one more.
    pub(crate) fn with(mut self, share: &LinkShare) -> LinkUsage {
        self.streams[share.stripe.index as usize] += 1;
        self.parts += share.parts();
        self
    }

    /// One of these has ended.
    pub(crate) fn remove(&mut self, share: &LinkShare) {
        self.streams[share.stripe.index as usize] -= 1;
        self.parts -= share.parts();
    }
}
