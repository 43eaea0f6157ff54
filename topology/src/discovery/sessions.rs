//! Switches without a session: what only they could tell is not missed, and how long they stay.

use super::{Discovery, Entry, MISSED};
use crate::lldp::Announcement;
use crate::{DatapathId, Port};
use std::collections::BTreeMap;

/// Whether a switch without a session would have to hear what is missed at a port, or to be heard there.
pub(super) fn is_mute(gone: &BTreeMap<DatapathId, u32>, port: Port, entry: &Entry) -> bool {
    gone.contains_key(&port.switch) || entry.peer().is_some_and(|peer| gone.contains_key(&peer))
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
    /// A switch has a session again: what it and its neighbours are to hear of each other is missed from now on.
    pub(super) fn hear_anew(&mut self, switch: DatapathId) {
        let concerned =
            |(port, entry): &(&Port, &mut Entry)| port.switch == switch || entry.peer() == Some(switch);
        self.ports.iter_mut().filter(concerned).for_each(|(_, entry)| entry.missed = 0);
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
