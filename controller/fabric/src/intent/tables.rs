//! The entries of one switch as plain data: flows of table 0, and groups.

use rs_openflow::{Instruction, Match};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Numbers of the groups for trees, one for each multicast address. They show that a group belongs
/// to this controller, because groups have no cookie.
/// [`FAILOVERS`](crate::intent::failover::FAILOVERS) has further numbers.
pub(crate) const GROUPS: core::ops::Range<u32> = 0xc000_0000..0xc004_0000;

/// Number of the group that serves to test groups, next to those of trees.
pub(crate) const TEST_GROUP: u32 = GROUPS.end;

/// Identity of a flow. Cheap to clone, because several tables share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) priority: u16,
    /// Fields in ascending order, because a switch may report them in any order.
    pub(crate) matching: Arc<Match>,
}

impl FlowKey {
    pub(crate) fn new(priority: u16, mut matching: Match) -> FlowKey {
        matching.fields.sort_unstable();
        FlowKey { priority, matching: Arc::new(matching) }
    }
}

/// Cookie and instructions of a flow. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowEntry {
    pub(crate) cookie: u64,
    pub(crate) instructions: Arc<[Instruction]>,
}

/// Buckets of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupBuckets {
    /// Type ALL: a copy is sent out of each of these ports.
    All(BTreeSet<u32>),
    /// Type FF: the packet is sent out of the first of these ports that is up.
    FirstUp([u32; 2]),
}

/// Flows and groups of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchTables {
    pub(crate) flows: BTreeMap<FlowKey, FlowEntry>,
    /// `None` for a group that has neither of these forms.
    pub(crate) groups: BTreeMap<u32, Option<GroupBuckets>>,
}

/// Number of entries that a switch must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Flow entries.
    pub flows: usize,
    /// Group entries.
    pub groups: usize,
}

/// A change of tables and ports: entries by key, `None` for entries to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableDelta {
    pub(crate) flows: BTreeMap<FlowKey, Option<FlowEntry>>,
    pub(crate) groups: BTreeMap<u32, Option<GroupBuckets>>,
    /// Ports that the switch must block, or not block any longer.
    pub(crate) blocked: BTreeMap<u32, bool>,
    /// Test of the switch's groups: the port and the packet.
    pub(crate) group_test: Option<(u32, Vec<u8>)>,
}

impl TableDelta {
    /// Returns the change from empty tables to these.
    pub(crate) fn from_empty(tables: &SwitchTables) -> TableDelta {
        TableDelta {
            flows: tables.flows.iter().map(|(key, flow)| (key.clone(), Some(flow.clone()))).collect(),
            groups: tables.groups.iter().map(|(id, buckets)| (*id, buckets.clone())).collect(),
            blocked: BTreeMap::new(),
            group_test: None,
        }
    }

    /// Merges a later change into this one.
    pub(crate) fn append(&mut self, later: TableDelta) {
        self.flows.extend(later.flows);
        self.groups.extend(later.groups);
        self.blocked.extend(later.blocked);
        self.group_test = later.group_test.or(self.group_test.take());
    }
}
