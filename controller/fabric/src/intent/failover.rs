//! Fast failover (OpenFlow 1.3.5, 5.6.1): groups by which a switch itself takes another port when one goes down.
//!
//! Unicast only, and only between ports that both lead nearer, so that nothing goes round whichever of them each
//! switch takes. All racks that leave a switch by the same two ports share one group, so a switch needs about as many
//! as it has uplinks. What a group does is in its number, which therefore never means two things: not while switches
//! change, and not to a controller that starts anew.

use crate::intent::tables::{FlowEntry, GroupBuckets};
use cool_topology::routes::NextHops;
use core::ops::Range;
use rs_openflow::{Action, Instruction};
use std::collections::BTreeMap;

/// Ours as well, beside those of trees: 12 bits say the port, 12 the one that stands in for it.
pub(crate) const FAILOVERS: Range<u32> = 0xc100_0000..0xc200_0000;
const PORTS: u32 = 1 << 12;

/// The group for a way that has an alternate; there is none for ports above 4095.
fn number(way: NextHops) -> Option<u32> {
    let alternate = way.alternate.filter(|port| *port < PORTS)?;
    (way.port < PORTS).then_some(FAILOVERS.start + way.port * PORTS + alternate)
}

/// The ports of a group in the order of preference.
fn ports(number: u32) -> [u32; 2] {
    [number / PORTS % PORTS, number % PORTS]
}

/// What is in a group of this number.
pub(crate) fn buckets(number: u32) -> GroupBuckets {
    GroupBuckets::FirstUp(ports(number))
}

/// The port that a group prefers.
pub(crate) fn preferred(number: u32) -> u32 {
    ports(number)[0]
}

/// The group that a flow goes to, if it is one of these.
pub(crate) fn group_of_flow(flow: &FlowEntry) -> Option<u32> {
    match &flow.instructions[..] {
        [Instruction::ApplyActions(actions)] => match actions[..] {
            [Action::Group(group)] if FAILOVERS.contains(&group.0) => Some(group.0),
            _ => None,
        },
        _ => None,
    }
}

/// The groups that a switch is to have.
#[derive(Debug, Default)]
pub(crate) struct FailoverGroups {
    /// How many it may have.
    pub(crate) most: usize,
    /// How many racks leave it by each.
    racks: BTreeMap<u32, usize>,
}

impl FailoverGroups {
    /// One more rack leaves by this way: by which group, if it can have one.
    pub(crate) fn take(&mut self, way: NextHops) -> Option<u32> {
        let number = number(way)?;
        if !self.racks.contains_key(&number) && self.racks.len() >= self.most {
            return None;
        }
        *self.racks.entry(number).or_default() += 1;
        Some(number)
    }

    /// One rack less leaves by a group: whether it was the last.
    pub(crate) fn give_back(&mut self, number: u32) -> bool {
        let left = self.racks.get(&number).map_or(0, |racks| racks - 1);
        match left {
            0 => drop(self.racks.remove(&number)),
            _ => drop(self.racks.insert(number, left)),
        }
        left == 0
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.racks.len()
    }
}
