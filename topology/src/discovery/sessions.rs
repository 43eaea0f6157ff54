//! Switches that say nothing: what only they could tell is not missed, and how long they stay without a session.

use super::{Discovery, Entry, MISSED};
use crate::lldp::Announcement;
use crate::{DatapathId, Port};
use std::collections::BTreeSet;

/// Whether what a port missed in an interval tells nothing: its switch, or the one that it should hear, has handed in no frame at
/// all of these `vocal` ones. It may be cut off from here, which sessions show only later.
pub(super) fn is_mute(vocal: &BTreeSet<DatapathId>, port: Port, entry: &Entry) -> bool {
    !vocal.contains(&port.switch) || entry.peer().is_some_and(|peer| !vocal.contains(&peer))
}

impl Entry {
    /// The switch that is the port's neighbour.
    fn peer(&self) -> Option<DatapathId> {
        match self.neighbour {
            Some(Announcement::Switch { switch, .. }) => Some(switch),
            _ => None,
        }
    }
}

impl Discovery {
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
