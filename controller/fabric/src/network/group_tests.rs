//! Tests whether switches leave the ingress port out of groups of type ALL.
//!
//! The standard demands it (OpenFlow 1.3.5, 5.6.1). A switch that does not do so would return the
//! packets of a tree over the link that they came from, endlessly. The test is a packet that the
//! switch must treat as if the port of a link had received it, and a group with this port only. If
//! the other end of the link receives the packet, no tree may cross the switch.

use super::Network;
use crate::api::MacAddr;
use cool_machine::{Duration, Time};
use cool_topology::lldp::Announcement;
use cool_topology::{DatapathId, Key, Port};
use std::collections::BTreeSet;
use tracing::warn;

/// Time within which the packet of a test would arrive.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Source address of the packets.
const SOURCE: MacAddr = MacAddr(0x02, 0xc1, 0, 0, 0, 2);

/// The tests of all switches.
#[derive(Debug)]
pub(crate) struct GroupTests {
    key: Key,
    /// Number of the last test, and the time until which its packet may arrive.
    last: (u64, Time),
    /// Switches that have been tested since they connected.
    tested: BTreeSet<DatapathId>,
    /// Switches that do not leave out the ingress port.
    returning: BTreeSet<DatapathId>,
}

impl GroupTests {
    /// Returns the state without tests. `key` authenticates their packets.
    pub(crate) fn new(key: Key) -> GroupTests {
        GroupTests { key, last: (0, Time::ZERO), tested: BTreeSet::new(), returning: BTreeSet::new() }
    }

    /// Records that a switch has connected, perhaps with other software.
    fn connected(&mut self, switch: DatapathId) {
        self.tested.remove(&switch);
        self.returning.remove(&switch);
    }

    /// Returns the packet for the test of a switch by the port of a link, unless it was tested.
    fn begin(&mut self, now: Time, port: Port) -> Option<Vec<u8>> {
        if !self.tested.insert(port.switch) {
            return None;
        }
        self.last = (self.last.0 + 1, now + TEST_TIMEOUT);
        let announcement = Announcement::Switch { switch: port.switch, port: port.number };
        announcement.encode(SOURCE, &self.key, self.last.0).ok()
    }

    /// Returns the switch that has returned the packet of its test, if this is such a packet.
    fn returned(&self, now: Time, frame: &[u8]) -> Option<DatapathId> {
        if now >= self.last.1 {
            return None;
        }
        let packet = Announcement::decode(frame).ok().filter(|packet| packet.is_authentic(&self.key))?;
        match packet.announcement {
            Announcement::Switch { switch, .. } => Some(switch),
            Announcement::Node { .. } => None,
        }
    }

    /// Returns the switches that do not leave out the ingress port.
    pub(crate) fn returning(&self) -> impl Iterator<Item = DatapathId> + '_ {
        self.returning.iter().copied()
    }
}

impl Network {
    /// Records that a switch has connected.
    pub(super) fn forget_group_test(&mut self, switch: DatapathId) {
        self.group_tests.connected(switch);
    }

    /// Tests the groups of the switch at one end of a new link.
    pub(super) fn test_groups(&mut self, now: Time, end: Port) {
        // The test makes a group.
        if self.config.observes {
            return;
        }
        let Some(packet) = self.group_tests.begin(now, end) else { return };
        self.intent.test_groups(end, packet);
    }

    /// Handles the packet of a test that was received at the other end of the link. Returns whether
    /// it is one.
    pub(super) fn group_test_returned(&mut self, now: Time, frame: &[u8]) -> bool {
        let Some(switch) = self.group_tests.returned(now, frame) else { return false };
        if !self.group_tests.returning.insert(switch) {
            return true;
        }
        warn!(%switch, "switch {} returns packets of groups to their ingress port; no tree crosses it", self.name(switch));
        self.switches.forbid_groups(switch);
        for number in self.intent.trees_of(switch) {
            self.multicast.edit(number, |tree| {
                tree.avoid(&BTreeSet::from([switch]));
                true
            });
        }
        true
    }
}
