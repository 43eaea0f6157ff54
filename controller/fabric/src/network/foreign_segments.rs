//! Finds ports that are connected to each other outside of the network, by switches without
//! OpenFlow.
//!
//! LLDP does not show this, because bridges do not forward it (IEEE 802.1Q, 8.6.3). The controller
//! therefore also sends probes that they forward. A port that receives the probe of another port is
//! on one segment with it, until it misses the probes of some rounds.

use crate::frames::loop_probe::LoopProbe;
use cool_topology::{DatapathId, Port};
use std::collections::{BTreeMap, BTreeSet};

/// Number of rounds after which a probe that has not been received again is missed.
const MISSED_ROUNDS_MAX: u32 = 3;

/// The probes that ports receive from each other.
#[derive(Debug, Default)]
pub(crate) struct ForeignSegments {
    /// For each receiver and sender, the number of rounds since the last probe was received.
    receptions: BTreeMap<(Port, Port), u32>,
    /// Number of the current round, and the ports that were probed in it.
    round: u64,
    probed_ports: BTreeSet<Port>,
}

impl ForeignSegments {
    /// Handles a probe that a port has received. Returns whether the segments have changed.
    pub(crate) fn received(&mut self, port: Port, probe: &LoopProbe) -> bool {
        // A host at the port may return the port's own probe, which proves nothing.
        let is_fresh = (self.round.saturating_sub(1)..=self.round).contains(&probe.round);
        is_fresh && probe.port != port && self.receptions.insert((port, probe.port), 0).is_none()
    }

    /// Begins a round in which these ports are probed. A probe of the last round is missed only if
    /// the receiver's switch `reports`. Returns the probes, and whether the segments have changed.
    pub(crate) fn begin_round(
        &mut self,
        probed: BTreeSet<Port>,
        reports: impl Fn(DatapathId) -> bool,
    ) -> (Vec<LoopProbe>, bool) {
        let before = self.receptions.len();
        let last = core::mem::replace(&mut self.probed_ports, probed);
        let mut expired = BTreeSet::new();
        self.receptions.retain(|(receiver, sender), rounds| {
            let both_report = reports(receiver.switch) && reports(sender.switch);
            *rounds += u32::from(last.contains(sender) && reports(receiver.switch));
            // Two blocked ports prove nothing about each other.
            let are_blocked = both_report && !last.contains(receiver) && !last.contains(sender);
            let is_kept = *rounds <= MISSED_ROUNDS_MAX && !are_blocked;
            if !is_kept {
                expired.insert((*receiver, *sender));
            }
            is_kept
        });
        // A blocked port is not probed. Whether it is still on the segment shows in the opposite
        // direction only.
        self.receptions.retain(|(receiver, sender), _| {
            last.contains(sender) || !expired.contains(&(*sender, *receiver))
        });
        self.round += 1;
        let probe = |port: &Port| LoopProbe { port: *port, round: self.round };
        (self.probed_ports.iter().map(probe).collect(), self.receptions.len() < before)
    }

    #[cfg(test)]
    pub(crate) fn current_round(&self) -> u64 {
        self.round
    }

    /// Forgets the ports for which `is_gone` returns true.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(Port) -> bool) {
        self.receptions.retain(|(receiver, sender), _| !is_gone(*receiver) && !is_gone(*sender));
    }

    /// Returns whether a port has received a probe, or another port has received its probe.
    pub(crate) fn contains(&self, port: Port) -> bool {
        self.receptions.keys().any(|(receiver, sender)| *receiver == port || *sender == port)
    }

    /// Returns the segments, each as the ports that are connected to it. Pairs of ports for which
    /// `is_link` returns true are connected by a link of the network.
    pub(crate) fn all(&self, is_link: impl Fn(Port, Port) -> bool) -> Vec<BTreeSet<Port>> {
        let mut segments: Vec<BTreeSet<Port>> = Vec::new();
        for (receiver, sender) in self.receptions.keys().filter(|(one, other)| !is_link(*one, *other)) {
            let joined = segments.extract_if(.., |ports| ports.contains(receiver) || ports.contains(sender));
            let mut segment: BTreeSet<Port> = joined.flatten().collect();
            segment.extend([*receiver, *sender]);
            segments.push(segment);
        }
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u32) -> Port {
        Port { switch: DatapathId(number.into()), number }
    }

    #[test]
    fn ports_share_a_segment_until_they_miss_some_rounds() {
        let mut segments = ForeignSegments::default();
        let all: BTreeSet<Port> = (1..=4).map(port).collect();
        let begin = |segments: &mut ForeignSegments, silent: u64| {
            segments.begin_round(all.clone(), |switch| switch != DatapathId(silent))
        };
        let (probes, _) = begin(&mut segments, 0);
        assert_eq!(probes.len(), 4);
        assert!(!segments.received(port(1), &probes[0]), "its own probe");
        assert!(segments.received(port(2), &probes[0]) && !segments.received(port(2), &probes[0]));
        segments.received(port(2), &probes[2]);
        assert_eq!(segments.all(|_, _| false), [(1..=3).map(port).collect()]);
        assert_eq!(segments.all(|_, sender| sender == port(1)), [[port(2), port(3)].into()]);
        // While its switch is away, a port cannot report probes.
        for _ in 0..10 {
            assert!(!begin(&mut segments, 2).1);
        }
        assert!(!segments.received(port(4), &probes[0]), "a probe of an earlier round");
        let missed = (0..).take_while(|_| !begin(&mut segments, 0).1).count();
        assert_eq!((missed, segments.all(|_, _| false)), (MISSED_ROUNDS_MAX as usize, Vec::new()));
        let (probes, _) = begin(&mut segments, 0);
        segments.received(port(4), &probes[0]);
        assert!(segments.contains(port(1)) && segments.contains(port(4)) && !segments.contains(port(2)));
        segments.forget(|gone| gone == port(1));
        assert!(!segments.contains(port(4)));
    }
}
