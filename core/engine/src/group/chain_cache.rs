//! The chains that the streams of a group have used.

use cool_collective::MulticastScope;
use cool_transport::Chain;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of chains that a group keeps for later streams. A chain has an entry for each
/// node, so one for each possible source would take memory that grows with the square of the nodes.
const CHAINS_MAX: usize = 256;

/// Chains by scope and source, up to [`CHAINS_MAX`].
#[derive(Debug, Default)]
pub(super) struct ChainCache(BTreeMap<(MulticastScope, usize), Arc<Chain>>);

impl ChainCache {
    /// Returns the chain for a scope and a source, which `make` returns if it is not kept.
    pub(super) fn chain(
        &mut self,
        of: (MulticastScope, usize),
        make: impl FnOnce() -> Arc<Chain>,
    ) -> Arc<Chain> {
        if self.0.len() >= CHAINS_MAX && !self.0.contains_key(&of) {
            // Open streams keep their chains.
            self.0.pop_first();
        }
        Arc::clone(self.0.entry(of).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_transport::Hop;

    #[test]
    fn a_group_keeps_few_chains_however_many_sources_it_has() {
        let mut cache = ChainCache::default();
        let chain = |source| Chain::new(vec![Hop { node: source, rack: 0 }]).unwrap();
        for source in 0..3 * CHAINS_MAX {
            let made = cache.chain((MulticastScope::All, source), || chain(source as u16));
            assert_eq!(made.node(0), source as u16);
            let kept = cache.chain((MulticastScope::All, source), || panic!("the chain is kept"));
            assert!(Arc::ptr_eq(&made, &kept) && cache.0.len() <= CHAINS_MAX);
        }
    }
}
