//! Fast failover (OpenFlow 1.3.5, 5.6.1): groups by which a switch itself moves to another port
//! when one goes down.
//!
//! Such groups serve unicast only, and only pairs of ports that both lead closer to the
//! destination, so that no choice of the switches can form a loop. All racks that leave a switch by
//! the same two ports share one group, so a switch needs about as many groups as it has uplinks.
//! The number of a group encodes its two ports. It therefore never changes its meaning, neither
//! while switches are updated nor after a restart of the controller.

use crate::intent::tables::{FlowEntry, GroupBuckets};
use cool_topology::routes::NextHops;
use core::ops::Range;
use rs_openflow::{Action, Instruction};
use std::collections::BTreeMap;

/// Numbers of these groups, in addition to those of trees: 12 bits for the port, 12 for its
/// alternate.
pub(crate) const FAILOVERS: Range<u32> = 0xc100_0000..0xc200_0000;
const PORTS: u32 = 1 << 12;

/// Returns the number of the group for next hops; `None` if they have no alternate, or if a port
/// number is above 4095.
fn number(way: NextHops) -> Option<u32> {
    let alternate = way.alternate.filter(|port| *port < PORTS)?;
    (way.port < PORTS).then_some(FAILOVERS.start + way.port * PORTS + alternate)
}

/// Returns the ports of a group in order of preference.
fn ports(number: u32) -> [u32; 2] {
    [number / PORTS % PORTS, number % PORTS]
}

/// Returns the buckets of a group.
pub(crate) fn buckets(number: u32) -> GroupBuckets {
    GroupBuckets::FirstUp(ports(number))
}

/// Returns the port that a group prefers.
pub(crate) fn preferred(number: u32) -> u32 {
    ports(number)[0]
}

/// Returns the failover group to which a flow sends packets.
pub(crate) fn group_of_flow(flow: &FlowEntry) -> Option<u32> {
    match &flow.instructions[..] {
        [Instruction::ApplyActions(actions)] => match actions[..] {
            [Action::Group(group)] if FAILOVERS.contains(&group.0) => Some(group.0),
            _ => None,
        },
        _ => None,
    }
}

/// The failover groups that a switch must have.
#[derive(Debug, Default)]
pub(crate) struct FailoverGroups {
    /// Maximum number of groups.
    pub(crate) most: usize,
    /// Number of racks that use each group.
    racks: BTreeMap<u32, usize>,
}

impl FailoverGroups {
    /// Adds a rack that leaves by these ports. Returns its group, or `None` if the switch cannot
    /// have one.
    pub(crate) fn take(&mut self, way: NextHops) -> Option<u32> {
        let number = number(way)?;
        if !self.racks.contains_key(&number) && self.racks.len() >= self.most {
            return None;
        }
        *self.racks.entry(number).or_default() += 1;
        Some(number)
    }

    /// Removes a rack from a group. Returns whether it was the last.
    pub(crate) fn give_back(&mut self, number: u32) -> bool {
        let left = self.racks.get(&number).map_or(0, |racks| racks - 1);
        match left {
            0 => drop(self.racks.remove(&number)),
            _ => drop(self.racks.insert(number, left)),
        }
        left == 0
    }

    /// Returns the number of groups.
    pub(crate) fn len(&self) -> usize {
        self.racks.len()
    }
}
