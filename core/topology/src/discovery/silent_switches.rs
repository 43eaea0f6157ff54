//! Silent switches, and switches that send more than this program can process: decides which
//! announcements they could not have reported, and how long they stay without a session.

use super::{DiscoveredPort, Discovery, MISSED_MAX};
use crate::lldp::Announcement;
use crate::{DatapathId, Port};
use std::collections::BTreeSet;

/// Number of intervals for which decisions about silent ports are deferred while this program is
/// behind.
pub(super) const DEFERRED_INTERVALS_MAX: u8 = 32;

/// Returns the switches that would have handed in frames in an interval: those that handed in one,
/// or at least answered. Returns none if no switch handed in any, because then the connection to
/// the switches is more likely to blame than all links at once.
pub(super) fn reporting(
    vocal: &BTreeSet<DatapathId>,
    caught_up: &BTreeSet<DatapathId>,
) -> BTreeSet<DatapathId> {
    if vocal.is_empty() { BTreeSet::new() } else { vocal | caught_up }
}

impl DiscoveredPort {
    /// Returns whether `switches` contains the port's switch or its neighbor's.
    pub(super) fn concerns(&self, port: Port, switches: &BTreeSet<DatapathId>) -> bool {
        self.switches(port).any(|switch| switches.contains(&switch))
    }

    /// Returns whether nothing follows from a missed announcement, because the port's switch or the
    /// neighbor's is not among those that were `reporting`. It may be disconnected, which its
    /// session reveals only later.
    pub(super) fn could_not_report(&self, port: Port, reporting: &BTreeSet<DatapathId>) -> bool {
        self.switches(port).any(|switch| !reporting.contains(&switch))
    }

    /// Returns the port's switch, and that of its neighbor.
    fn switches(&self, port: Port) -> impl Iterator<Item = DatapathId> {
        let peer = match self.neighbor {
            Some(Announcement::Switch { switch, .. }) => Some(switch),
            _ => None,
        };
        core::iter::once(port.switch).chain(peer)
    }
}

impl Discovery {
    /// Ends the session of a switch, which keeps its place for a while.
    pub(super) fn session_ended(&mut self, switch: DatapathId) {
        if !self.graph.contains(switch) {
            return;
        }
        self.absent.entry(switch).or_insert(0);
        // None of its frames waits any longer, and its silence means nothing.
        self.vocal.remove(&switch);
        self.caught_up.remove(&switch);
        self.behind.remove(&switch);
    }

    /// Returns, at the end of an interval, the switches with frames that may still wait to be
    /// processed, except those of which frames have waited too long. In the interval, some switches
    /// were `vocal`, and everything of those in `caught_up` was processed.
    pub(super) fn unprocessed(
        &mut self,
        vocal: &BTreeSet<DatapathId>,
        caught_up: &BTreeSet<DatapathId>,
    ) -> BTreeSet<DatapathId> {
        self.behind.retain(|switch, _| self.graph.contains(*switch) && !caught_up.contains(switch));
        for switch in vocal - caught_up {
            self.behind.entry(switch).or_default();
        }
        self.behind.values_mut().for_each(|intervals| *intervals = intervals.saturating_add(1));
        let unprocessed = self.behind.iter().filter(|(_, intervals)| **intervals <= DEFERRED_INTERVALS_MAX);
        unprocessed.map(|(switch, _)| *switch).collect()
    }

    /// Returns, at the end of an interval, the switches that have been without a session for too
    /// long. Returns none while no switch has a session.
    pub(super) fn lost_switches(&mut self) -> Vec<DatapathId> {
        if self.absent.len() >= self.graph.switches().count() {
            return Vec::new();
        }
        self.absent.values_mut().for_each(|missed| *missed += 1);
        let linked = |switch: DatapathId| self.graph.neighbors(switch).next().is_some();
        let most =
            |switch| if linked(switch) { self.grace.max(MISSED_MAX.into()) } else { MISSED_MAX.into() };
        let lost = self.absent.iter().filter(|(switch, missed)| **missed > most(**switch));
        lost.map(|(switch, _)| *switch).collect()
    }
}
