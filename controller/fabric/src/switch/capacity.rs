//! What a switch has room for: as it says itself, and as the operator allows.

use crate::api::TableCapacity;
use crate::intent::tables::RuleCounts;
use core::fmt;
use rs_openflow::{GroupType, MultipartReply, MultipartRequest, TableId};

/// What a switch has no room for, and how much of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableExhausted {
    what: &'static str,
    used: usize,
    most: u32,
}

impl fmt::Display for TableExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of its {} {} are in use", self.used, self.most, self.what)
    }
}

impl TableCapacity {
    /// What both leave.
    pub(crate) fn within(self, other: TableCapacity) -> TableCapacity {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        TableCapacity {
            groups: least(self.groups, other.groups),
            failovers: least(self.failovers, other.failovers),
            flows: least(self.flows, other.flows),
            meters: least(self.meters, other.meters),
        }
    }

    /// Groups for fast failover: at least half of all is left to trees.
    pub(crate) fn failovers(self) -> usize {
        let most = [self.failovers, self.groups.map(|groups| groups / 2)].into_iter().flatten().min();
        most.map_or(usize::MAX, |most| most as usize)
    }

    /// What of `more` does not fit beside what is in use.
    pub(crate) fn exhausted_by(self, used: RuleCounts, more: RuleCounts) -> Option<TableExhausted> {
        let exhausted = |what, most: Option<u32>, used: usize, more: usize| {
            let most = most.filter(|most| more > 0 && used + more > *most as usize)?;
            Some(TableExhausted { what, used, most })
        };
        exhausted("group entries", self.groups, used.groups, more.groups)
            .or_else(|| exhausted("flows", self.flows, used.flows, more.flows))
    }
}

/// The questions to a switch for its room, and what it has answered.
#[derive(Debug, Default)]
pub(crate) struct CapacityQuery {
    asked: [Option<u32>; 2],
    /// Whether it has group tables of the type that trees need.
    pub(crate) group_tables: Option<bool>,
    capacity: TableCapacity,
}

impl CapacityQuery {
    /// What to ask.
    pub(crate) fn questions() -> [MultipartRequest; 2] {
        [MultipartRequest::GroupFeatures, MultipartRequest::TableFeatures(Vec::new())]
    }

    /// These have been asked, and by such numbers the answers are known.
    pub(crate) fn asked(&mut self, xids: [u32; 2]) {
        self.asked = xids.map(Some);
    }

    /// Takes an answer.
    pub(crate) fn reply(&mut self, xid: u32, reply: &MultipartReply) {
        match reply {
            MultipartReply::GroupFeatures(features) if self.asked[0] == Some(xid) => {
                let most = |kind: GroupType, most: u32| match features.types & (1 << kind.0) {
                    0 => Some(0),
                    // Some do not say how many they have.
                    _ => Some(most).filter(|most| *most > 0),
                };
                self.capacity.groups = most(GroupType::ALL, features.max_groups.all);
                self.capacity.failovers = most(GroupType::FF, features.max_groups.ff);
                self.group_tables = Some(self.capacity.groups != Some(0));
            }
            MultipartReply::TableFeatures(tables) if self.asked[1] == Some(xid) => {
                let ours = tables.iter().find(|table| table.table == TableId(0));
                self.capacity.flows =
                    ours.map(|table| table.max_entries).filter(|most| *most > 0).or(self.capacity.flows);
            }
            _ => {}
        }
    }

    /// A question was refused: returns whether it was one of these.
    pub(crate) fn refused(&mut self, xid: u32) -> bool {
        if self.asked[0] == Some(xid) {
            self.group_tables = Some(false);
            (self.capacity.groups, self.capacity.failovers) = (Some(0), Some(0));
            return true;
        }
        self.asked[1] == Some(xid)
    }

    /// What it has room for, as far as it has said. Its meters are another's affair.
    pub(crate) fn room(&self) -> TableCapacity {
        self.capacity
    }
}
