//! What a stream's machine counted, for operators and tests.

/// Packets and chunks that one end of a stream has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Chunks that came over the tree and were new; at a source, chunks multicast.
    pub by_tree: u64,
    /// Chunks that came from a node of the chain and were new.
    pub by_chain: u64,
    /// Chunks that were here already.
    pub duplicates: u64,
    /// Chunks sent to nodes that asked for them.
    pub served: u64,
    /// Requests sent.
    pub requests: u64,
    /// Packets of this stream that made no sense: a chunk or a sender that it does not have.
    pub refused: u64,
}
