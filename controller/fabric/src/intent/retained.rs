//! Stale entries of an earlier controller that a switch must keep for a while.

use super::cookies::{
    FOR_EDGE, FOR_HOST, FOR_HOST_HERE, FOR_LINK, FOR_NODE, FOR_NODE_PORT, FOR_NORMAL, FOR_NORMAL_PROBE,
    FOR_RACK, tree_of,
};
use super::failover::FAILOVERS;
use super::tables::{FlowEntry, FlowKey};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries that are retained though they are not desired, as in a graceful restart (RFC 4724,
/// section 4.2): a controller that has just started does not know the whole network, and must not
/// interrupt traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleEntries {
    /// Entries for links and nodes, while the neighborhood of the switch is being discovered.
    pub(crate) unicast: bool,
    /// Entries of these trees, while their groups are unknown.
    pub(crate) trees: Arc<BTreeSet<u32>>,
}

/// Stale entries of one switch that are retained, without those that were withdrawn since.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedEntries {
    pub(crate) stale: StaleEntries,
    /// Unicast flows that were desired in the meantime, or must not exist.
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
                            | FOR_NORMAL_PROBE
                    )
            }
        }
    }

    pub(crate) fn group(&self, number: u32) -> bool {
        self.stale.trees.contains(&number) || (self.stale.unicast && FAILOVERS.contains(&number))
    }
}
