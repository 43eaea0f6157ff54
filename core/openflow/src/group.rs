//! Entries of the group table.

use crate::action::Action;
use crate::macros::{layout, number};
use crate::value::{GroupId, PortNo};

number! {
    /// What to do to the group table.
    pub struct GroupCommand(u16) as "{}" {
        ADD = 0 "add",
        MODIFY = 1 "modify",
        DELETE = 2 "delete",
    }
}

number! {
    /// What a group does with its buckets.
    pub struct GroupType(u8) as "{}" {
        /// A copy of the packet goes through every bucket.
        ALL = 0 "all",
        /// The packet goes through one bucket, of the switch's choice.
        SELECT = 1 "select",
        /// The packet goes through the one bucket.
        INDIRECT = 2 "indirect",
        /// The packet goes through the first bucket that is alive.
        FF = 3 "ff",
    }
}

layout! {
    /// One set of actions of a group.
    pub struct Bucket = "bucket" sized(0) {
        /// In a group of type select: its share.
        weight: u16,
        /// In a group of type fast failover: it is alive while this port is.
        watch_port: PortNo,
        /// In a group of type fast failover: it is alive while this group is.
        watch_group: GroupId => pad 4,
        /// What it does to its copy of the packet.
        actions: Vec<Action>,
    }
}

impl Bucket {
    /// A bucket that watches nothing and has no weight, as groups of type all want it.
    #[must_use]
    pub fn new(actions: Vec<Action>) -> Self {
        Self { weight: 0, watch_port: PortNo::ANY, watch_group: GroupId::ANY, actions }
    }

    /// A bucket that is alive while a port is, as groups of type fast failover want it.
    #[must_use]
    pub fn watching(port: PortNo, actions: Vec<Action>) -> Self {
        Self { watch_port: port, ..Self::new(actions) }
    }
}

layout! {
    /// Changes the group table.
    pub struct GroupMod = "group modification" {
        /// What to do.
        command: GroupCommand,
        /// What the group does with its buckets.
        kind: GroupType => pad 1,
        /// The group; [`GroupId::ALL`] to delete all.
        group: GroupId,
        /// Its buckets.
        buckets: Vec<Bucket>,
    }
}
