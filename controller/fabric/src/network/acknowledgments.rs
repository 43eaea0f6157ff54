//! Tracks which switches still have to acknowledge, by a barrier (OpenFlow 1.3.5, 6.2), the entries
//! that they were sent, and which trees, routes and hosts wait for that.

use crate::intent::hosts::HostKey;
use cool_topology::DatapathId;
use std::collections::{BTreeMap, BTreeSet};

/// A part of the desired state that waits for switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AckWaiter {
    /// The tree with this group number.
    Tree(u32),
    /// The deferred route updates towards this rack.
    Rack(u32),
    /// The host from which flows are being withdrawn.
    Host(HostKey),
}

/// The outstanding acknowledgments of switches.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgments {
    /// By switch and waiter, the version that must be acknowledged; `None` for the next one that is
    /// sent.
    by_switch: BTreeMap<DatapathId, BTreeMap<AckWaiter, Option<u64>>>,
    by_waiter: BTreeMap<AckWaiter, BTreeSet<DatapathId>>,
    /// Waiters for which something has changed.
    touched: BTreeSet<AckWaiter>,
}

impl Acknowledgments {
    /// Makes a waiter wait until the switch acknowledges the next version that it is sent.
    pub(crate) fn expect(&mut self, waiter: AckWaiter, switch: DatapathId) {
        self.by_switch.entry(switch).or_default().insert(waiter, None);
        self.by_waiter.entry(waiter).or_default().insert(switch);
    }

    /// Records that the switch was sent this version.
    pub(crate) fn sent(&mut self, switch: DatapathId, version: u64) {
        for needed in self.by_switch.get_mut(&switch).into_iter().flat_map(BTreeMap::values_mut) {
            needed.get_or_insert(version);
        }
    }

    /// Records that the switch has acknowledged this version, and thereby all earlier ones.
    pub(crate) fn acknowledged(&mut self, switch: DatapathId, version: u64) {
        let over = |needed: &Option<u64>| needed.is_some_and(|needed| needed <= version);
        self.settle(switch, over);
    }

    /// Removes a switch. The waiters no longer wait for it.
    pub(crate) fn switch_removed(&mut self, switch: DatapathId) {
        self.settle(switch, |_| true);
    }

    fn settle(&mut self, switch: DatapathId, over: impl Fn(&Option<u64>) -> bool) {
        let Some(waiters) = self.by_switch.get(&switch) else { return };
        let over: Vec<AckWaiter> =
            waiters.iter().filter(|(_, needed)| over(needed)).map(|(w, _)| *w).collect();
        for waiter in over {
            self.excuse(waiter, switch);
            self.touched.insert(waiter);
        }
    }

    /// Makes a waiter no longer wait for a switch.
    pub(crate) fn excuse(&mut self, waiter: AckWaiter, switch: DatapathId) {
        if let Some(waiters) = self.by_switch.get_mut(&switch) {
            waiters.remove(&waiter);
            if waiters.is_empty() {
                self.by_switch.remove(&switch);
            }
        }
        if let Some(switches) = self.by_waiter.get_mut(&waiter) {
            switches.remove(&switch);
            if switches.is_empty() {
                self.by_waiter.remove(&waiter);
            }
        }
    }

    /// Removes a waiter from all switches for which it waits.
    pub(crate) fn forget(&mut self, waiter: AckWaiter) {
        for switch in self.missing(waiter).collect::<Vec<_>>() {
            self.excuse(waiter, switch);
        }
        self.touched.remove(&waiter);
    }

    /// Marks a waiter as changed, even if no switch acknowledges anything.
    pub(crate) fn touch(&mut self, waiter: AckWaiter) {
        self.touched.insert(waiter);
    }

    /// Returns the waiters that have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<AckWaiter> {
        core::mem::take(&mut self.touched)
    }

    /// Returns whether all switches have acknowledged.
    pub(crate) fn is_acknowledged(&self, waiter: AckWaiter) -> bool {
        !self.by_waiter.contains_key(&waiter)
    }

    /// Returns the switches that have not acknowledged.
    pub(crate) fn missing(&self, waiter: AckWaiter) -> impl Iterator<Item = DatapathId> + '_ {
        self.by_waiter.get(&waiter).into_iter().flatten().copied()
    }

    /// Returns whether nothing waits.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_switch.is_empty() && self.by_waiter.is_empty() && self.touched.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_version_sent_after_it_was_asked_for_confirms() {
        let (tree, one, two) = (AckWaiter::Tree(7), DatapathId(1), DatapathId(2));
        let mut acknowledgments = Acknowledgments::default();
        acknowledgments.expect(tree, one);
        acknowledgments.expect(tree, two);
        acknowledgments.acknowledged(one, 4);
        acknowledgments.sent(one, 5);
        acknowledgments.sent(one, 6);
        acknowledgments.acknowledged(one, 4);
        assert_eq!(acknowledgments.missing(tree).collect::<Vec<_>>(), [one, two]);
        acknowledgments.acknowledged(one, 5);
        assert_eq!(acknowledgments.missing(tree).collect::<Vec<_>>(), [two]);
        acknowledgments.switch_removed(two);
        assert!(acknowledgments.is_acknowledged(tree));
        assert_eq!(acknowledgments.take_touched(), [tree].into());
        acknowledgments.expect(tree, one);
        acknowledgments.forget(tree);
        assert!(acknowledgments.is_empty());
    }
}
