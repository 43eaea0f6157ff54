//! Counters and state of a stream's machine, for operators and tests.

use cool_machine::Duration;

/// Packets and chunks that one end of a stream has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// New chunks that arrived over the tree; at a source, chunks multicast.
    pub by_tree: u64,
    /// New chunks that arrived from a node of the chain.
    pub by_chain: u64,
    /// Chunks that were already stored.
    pub duplicates: u64,
    /// Chunks that were retransmitted on NAKs.
    pub served: u64,
    /// NAKs sent.
    pub naks: u64,
    /// Packets of this stream that were invalid, for example because of an unknown chunk or sender.
    pub refused: u64,
    /// The rate of a source's multicast in bytes per second of Ethernet frames. It is zero at a
    /// receiver, and without a tree.
    pub rate: u64,
    /// At a source, the queueing delay of the quickest chunk in the round that was reported last.
    pub queueing_delay: Duration,
    /// At a source, the phase of rate control.
    pub phase: RatePhase,
}

/// The phase of a source's rate control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RatePhase {
    /// The rate is not controlled: a receiver, or a source without a tree.
    #[default]
    None,
    /// The spacing of the first packets is measured to estimate the rate of the path.
    PacketTrain,
    /// The rate doubles while more arrives.
    SlowStart,
    /// The rate increases until a queue forms.
    Increasing,
    /// The source lets its own queue drain.
    Draining,
    /// Other traffic keeps a queue, so the rate follows losses as in TCP.
    Competing,
    /// A background stream yields to other traffic.
    Yielding,
}
