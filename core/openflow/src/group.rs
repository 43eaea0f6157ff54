//! Entries of the group table.

use crate::action::Action;
use crate::macros::{layout, number};
use crate::value::{GroupId, PortNo};

number! {
    /// Command of a group modification.
    pub struct GroupCommand(u16) as "{}" {
        ADD = 0 "add",
        MODIFY = 1 "modify",
        DELETE = 2 "delete",
    }
}

number! {
    /// Type of a group, which determines how it uses its buckets.
    pub struct GroupType(u8) as "{}" {
        /// A copy of the packet is processed by every bucket.
        ALL = 0 "all",
        /// The packet is processed by one bucket that the switch selects.
        SELECT = 1 "select",
        /// The packet is processed by the only bucket.
        INDIRECT = 2 "indirect",
        /// The packet is processed by the first live bucket.
        FF = 3 "ff",
    }
}

layout! {
    /// A list of actions of a group.
    pub struct Bucket = "bucket" sized(0) {
        /// For groups of type select: weight of the bucket.
        weight: u16,
        /// For groups of type fast failover: the bucket is live while this port is up.
        watch_port: PortNo,
        /// For groups of type fast failover: the bucket is live while this group is live.
        watch_group: GroupId => pad 4,
        /// Actions for the packet.
        actions: Vec<Action>,
    }
}

impl Bucket {
    /// Returns a bucket for groups of type all, which watches nothing and has no weight.
    #[must_use]
    pub fn new(actions: Vec<Action>) -> Self {
        Self { weight: 0, watch_port: PortNo::ANY, watch_group: GroupId::ANY, actions }
    }

    /// Returns a bucket for groups of type fast failover, which is live while a port is up.
    #[must_use]
    pub fn watching(port: PortNo, actions: Vec<Action>) -> Self {
        Self { watch_port: port, ..Self::new(actions) }
    }
}

layout! {
    /// Changes the group table.
    pub struct GroupMod = "group modification" {
        /// Command to execute.
        command: GroupCommand,
        /// Type of the group.
        kind: GroupType => pad 1,
        /// The group; [`GroupId::ALL`] to delete all.
        group: GroupId,
        /// Buckets of the group.
        buckets: Vec<Bucket>,
    }
}
