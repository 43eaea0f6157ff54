//! Switches that say nothing, or more than this program gets to: what only they could tell is not missed, and how long they stay without a session.

use super::{Discovery, Entry, MISSED};
use crate::lldp::Announcement;
use crate::{DatapathId, Port};
use std::collections::BTreeSet;

/// Intervals for which this program may be behind with a switch, and put off to judge who is silent there.
pub(super) const PUT_OFF: u8 = 32;

/// The switches that would have handed in what there was in an interval: they have handed in a frame, or at least answered. If none has
/// handed in any, the way here is rather to blame than all links at once.
pub(super) fn there(vocal: &BTreeSet<DatapathId>, caught_up: &BTreeSet<DatapathId>) -> BTreeSet<DatapathId> {
    if vocal.is_empty() { BTreeSet::new() } else { vocal | caught_up }
}

impl Entry {
    /// Whether one of these is the port's switch, or the one that it should hear.
    pub(super) fn concerns(&self, port: Port, switches: &BTreeSet<DatapathId>) -> bool {
        self.switches(port).any(|switch| switches.contains(&switch))
    }

    /// Whether what a port missed in an interval tells nothing: its switch, or the one that it should hear, is not among those that were
    /// `there`. It may be cut off from here, which sessions show only later.
    pub(super) fn is_mute(&self, port: Port, there: &BTreeSet<DatapathId>) -> bool {
        self.switches(port).any(|switch| !there.contains(&switch))
    }

    /// The port's switch, and the one that it should hear, if a switch is its neighbour.
    fn switches(&self, port: Port) -> impl Iterator<Item = DatapathId> {
        let peer = match self.neighbour {
            Some(Announcement::Switch { switch, .. }) => Some(switch),
            _ => None,
        };
        core::iter::once(port.switch).chain(peer)
    }
}

impl Discovery {
    /// A switch's session has ended; it keeps its place for a while.
    pub(super) fn session_ended(&mut self, switch: DatapathId) {
        if !self.graph.contains(switch) {
            return;
        }
        self.gone.entry(switch).or_insert(0);
        // Nothing more of it waits, nor is it there to be missed.
        self.vocal.remove(&switch);
        self.caught_up.remove(&switch);
        self.behind.remove(&switch);
    }

    /// An interval is over, in which these were `vocal` and these `caught_up` with; those of which more may wait to be told, unless it
    /// has for too long.
    pub(super) fn waited_for(
        &mut self,
        vocal: &BTreeSet<DatapathId>,
        caught_up: &BTreeSet<DatapathId>,
    ) -> BTreeSet<DatapathId> {
        self.behind.retain(|switch, _| self.graph.contains(*switch) && !caught_up.contains(switch));
        for switch in vocal - caught_up {
            self.behind.entry(switch).or_default();
        }
        self.behind.values_mut().for_each(|intervals| *intervals = intervals.saturating_add(1));
        let waited_for = self.behind.iter().filter(|(_, intervals)| **intervals <= PUT_OFF);
        waited_for.map(|(switch, _)| *switch).collect()
    }

    /// An interval is over; those that have had no session for too long by now.
    pub(super) fn lost_switches(&mut self) -> Vec<DatapathId> {
        if self.gone.len() >= self.graph.switches().count() {
            return Vec::new();
        }
        self.gone.values_mut().for_each(|missed| *missed += 1);
        let linked = |switch: DatapathId| self.graph.neighbours(switch).next().is_some();
        let most = |switch| if linked(switch) { self.grace.max(MISSED.into()) } else { MISSED.into() };
        let lost = self.gone.iter().filter(|(switch, missed)| **missed > most(**switch));
        lost.map(|(switch, _)| *switch).collect()
    }
}
