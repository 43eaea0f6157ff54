//! Capacity of a switch: as the switch reports it, and as the operator limits it.

use crate::api::TableCapacity;
use crate::intent::tables::RuleCounts;
use core::fmt;
use rs_openflow::{GroupType, MeterFeatures, MultipartReply, MultipartRequest, TableId};

/// A table that is full.
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
    /// Returns the smaller of both limits.
    pub(crate) fn within(self, other: TableCapacity) -> TableCapacity {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        TableCapacity {
            groups: least(self.groups, other.groups),
            failovers: least(self.failovers, other.failovers),
            flows: least(self.flows, other.flows),
            meters: least(self.meters, other.meters),
        }
    }

    /// Returns the maximum number of failover groups. At least half of all groups must remain for
    /// trees.
    pub(crate) fn failovers(self) -> usize {
        let most = [self.failovers, self.groups.map(|groups| groups / 2)].into_iter().flatten().min();
        most.map_or(usize::MAX, |most| most as usize)
    }

    /// Returns the table that has no room for `more` entries in addition to those in use.
    pub(crate) fn exhausted_by(self, used: RuleCounts, more: RuleCounts) -> Option<TableExhausted> {
        let exhausted = |what, most: Option<u32>, used: usize, more: usize| {
            let most = most.filter(|most| more > 0 && used + more > *most as usize)?;
            Some(TableExhausted { what, used, most })
        };
        exhausted("group entries", self.groups, used.groups, more.groups)
            .or_else(|| exhausted("flows", self.flows, used.flows, more.flows))
    }
}

/// Requests for the capacity of a switch, and the replies.
#[derive(Debug, Default)]
pub(crate) struct CapacityQuery {
    request_xids: [Option<u32>; 2],
    /// Whether the switch has groups of the type that trees need.
    pub(crate) group_tables: Option<bool>,
    /// Whether it is Open vSwitch.
    is_open_vswitch: bool,
    /// Maximum number of bands of a meter.
    meter_bands: u8,
    capacity: TableCapacity,
}

impl CapacityQuery {
    /// Returns the requests.
    pub(crate) fn requests() -> [MultipartRequest; 2] {
        [MultipartRequest::GroupFeatures, MultipartRequest::TableFeatures(Vec::new())]
    }

    /// Records the transactions of the requests.
    pub(crate) fn requested(&mut self, xids: [u32; 2]) {
        self.request_xids = xids.map(Some);
    }

    /// Records the description of the switch.
    pub(crate) fn describe(&mut self, hardware: &str) {
        self.is_open_vswitch = hardware == "Open vSwitch";
    }

    /// Records the features of meters.
    pub(crate) fn learn_meters(&mut self, features: &MeterFeatures) {
        self.meter_bands = features.max_bands;
    }

    /// Returns whether packets are forwarded by a datapath of Open vSwitch in user space, which
    /// expects that senders have filled in checksums. Open vSwitch does not report its datapath,
    /// but meters have one band in that of the kernel, and 8 in that in user space (`DP_MAX_BANDS`
    /// of net/openvswitch/meter.h, `MAX_BANDS` of lib/dpif-netdev.c).
    pub(crate) fn is_in_user_space(&self) -> bool {
        self.is_open_vswitch && self.meter_bands > 1
    }

    /// Processes a reply.
    pub(crate) fn reply(&mut self, xid: u32, reply: &MultipartReply) {
        match reply {
            MultipartReply::GroupFeatures(features) if self.request_xids[0] == Some(xid) => {
                let most = |kind: GroupType, most: u32| match features.types & (1 << kind.0) {
                    0 => Some(0),
                    // Some switches do not report a number.
                    _ => Some(most).filter(|most| *most > 0),
                };
                self.capacity.groups = most(GroupType::ALL, features.max_groups.all);
                self.capacity.failovers = most(GroupType::FF, features.max_groups.ff);
                self.group_tables = Some(self.capacity.groups != Some(0));
            }
            MultipartReply::TableFeatures(tables) if self.request_xids[1] == Some(xid) => {
                let ours = tables.iter().find(|table| table.table == TableId(0));
                self.capacity.flows =
                    ours.map(|table| table.max_entries).filter(|most| *most > 0).or(self.capacity.flows);
            }
            _ => {}
        }
    }

    /// Records that a request was refused. Returns whether it was one of these.
    pub(crate) fn refused(&mut self, xid: u32) -> bool {
        if self.request_xids[0] == Some(xid) {
            self.group_tables = Some(false);
            (self.capacity.groups, self.capacity.failovers) = (Some(0), Some(0));
            return true;
        }
        self.request_xids[1] == Some(xid)
    }

    /// Returns the capacity that the switch has reported. Meters are handled elsewhere.
    pub(crate) fn room(&self) -> TableCapacity {
        self.capacity
    }
}
