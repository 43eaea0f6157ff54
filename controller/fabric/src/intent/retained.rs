//! Which stale entries of an earlier controller a switch keeps.

use super::cookies::{
    FOR_EDGE, FOR_HOST, FOR_HOST_HERE, FOR_LINK, FOR_NODE, FOR_NODE_PORT, FOR_NORMAL, FOR_RACK, tree_of,
};
use super::failover::FAILOVERS;
use super::tables::{FlowEntry, FlowKey};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Stale entries that are retained though they are not desired, as in a graceful restart (RFC 4724, section 4.2): a
/// controller that has just started does not know everything yet, and must not interrupt what goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleEntries {
    /// All that follows from links and nodes: the switch's neighbourhood is still being discovered.
    pub(crate) unicast: bool,
    /// All of these trees: whose they are is not known yet.
    pub(crate) trees: Arc<BTreeSet<u32>>,
}

/// What a switch retains of its stale entries: not those that were withdrawn since.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedEntries {
    pub(crate) stale: StaleEntries,
    /// Flows of unicast that were desired in the meantime, or that must not be there.
    pub(crate) withdrawn: BTreeSet<FlowKey>,
}

impl RetainedEntries {
    pub(crate) fn flow(&self, key: &FlowKey, flow: &FlowEntry) -> bool {
        match tree_of(flow) {
            Some(number) => self.stale.trees.contains(&number),
            None => {
                self.stale.unicast
                    && !self.withdrawn.contains(key)
                    && matches!(
                        flow.cookie & 0xff00_0000,
                        FOR_RACK
                            | FOR_NODE
                            | FOR_NODE_PORT
                            | FOR_LINK
                            | FOR_NORMAL
                            | FOR_HOST
                            | FOR_HOST_HERE
                            | FOR_EDGE
                    )
            }
        }
    }

    pub(crate) fn group(&self, number: u32) -> bool {
        self.stale.trees.contains(&number) || (self.stale.unicast && FAILOVERS.contains(&number))
    }
}
