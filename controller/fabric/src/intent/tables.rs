//! What one switch holds for us, as plain data: flows of table 0 and groups.

use rs_openflow::{Instruction, Match};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Groups have no cookie: those with these numbers are ours, one for each multicast address. So are those of
/// [`FAILOVERS`](crate::intent::failover::FAILOVERS).
pub(crate) const GROUPS: core::ops::Range<u32> = 0xc000_0000..0xc004_0000;

/// What makes a flow the same flow. Cheap to clone: several tables share one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) priority: u16,
    /// Fields in ascending order, since a switch may tell them in another order than it was given.
    pub(crate) matching: Arc<Match>,
}

impl FlowKey {
    pub(crate) fn new(priority: u16, mut matching: Match) -> FlowKey {
        matching.fields.sort_unstable();
        FlowKey { priority, matching: Arc::new(matching) }
    }
}

/// What a flow does. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowEntry {
    pub(crate) cookie: u64,
    pub(crate) instructions: Arc<[Instruction]>,
}

/// What a group does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupBuckets {
    /// Type ALL: a copy leaves by each of these ports.
    All(BTreeSet<u32>),
    /// Type FF: it leaves by the first of these ports that is up.
    FirstUp([u32; 2]),
}

/// Flows and groups of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchTables {
    pub(crate) flows: BTreeMap<FlowKey, FlowEntry>,
    /// `None` for one that is of neither form.
    pub(crate) groups: BTreeMap<u32, Option<GroupBuckets>>,
}

/// How many entries a switch is to hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Flows.
    pub flows: usize,
    /// Entries of its group table.
    pub groups: usize,
}

/// A change of tables: entries by key, with `None` for those that are to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableDelta {
    pub(crate) flows: BTreeMap<FlowKey, Option<FlowEntry>>,
    pub(crate) groups: BTreeMap<u32, Option<GroupBuckets>>,
}

impl TableDelta {
    /// Makes these tables of empty ones.
    pub(crate) fn from_empty(tables: &SwitchTables) -> TableDelta {
        TableDelta {
            flows: tables.flows.iter().map(|(key, flow)| (key.clone(), Some(flow.clone()))).collect(),
            groups: tables.groups.iter().map(|(id, buckets)| (*id, buckets.clone())).collect(),
        }
    }

    /// Does afterwards what a later change does.
    pub(crate) fn append(&mut self, later: TableDelta) {
        self.flows.extend(later.flows);
        self.groups.extend(later.groups);
    }
}
