//! What a stream's machine counted and how it does, for operators and tests.

use cool_machine::Duration;

/// Packets and chunks that one end of a stream has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Chunks that came over the tree and were new; at a source, chunks multicast.
    pub by_tree: u64,
    /// Chunks that came from a node of the chain and were new.
    pub by_chain: u64,
    /// Chunks that were here already.
    pub duplicates: u64,
    /// Chunks sent to nodes that asked for them.
    pub served: u64,
    /// Requests for chunks (NAKs) sent.
    pub naks: u64,
    /// Packets of this stream that made no sense: a chunk or a sender that it does not have.
    pub refused: u64,
    /// The rate of a source's multicast in bytes per second of Ethernet frames; zero at a receiver, and without a tree.
    pub rate: u64,
    /// How long even the quickest chunk of the round that was reported last waited in queues; at a source.
    pub queueing_delay: Duration,
    /// What a source's rate control is at.
    pub phase: RatePhase,
}

/// What the rate control of a source is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RatePhase {
    /// There is no rate to control: a receiver, or a source without a tree.
    #[default]
    None,
    /// The spacing of the first packets is to tell what the path carries.
    PacketTrain,
    /// Doubles the rate while more arrives.
    SlowStart,
    /// Raises the rate until a queue forms.
    Increasing,
    /// Lets its own queue drain.
    Draining,
    /// Others keep a queue: goes by loss, as TCP does.
    Competing,
    /// In the background: gives way to others.
    Yielding,
}
