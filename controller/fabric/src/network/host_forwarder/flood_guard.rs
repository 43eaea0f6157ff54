//! Limits frames that are flooded to all edge ports, and detects those that return.
//!
//! Frames are never flooded over links: each switch gets the frame for its own edge ports, so there
//! can be no loop inside the network. Outside, two ports may be connected by a switch without LLDP.
//! A frame that leaves by one of them then returns by the other, and is dropped there.
//!
//! That is not a proof, because a host may send the same bytes that another host sends. The
//! controller therefore floods a probe of its own, which no host can make another port receive. A
//! port is closed only if it receives the probe.

use crate::network::deadlines::Deadlines;
use crate::switch::metering::{BURST_SECONDS, Policer};
use cool_machine::{Duration, Time};
use cool_topology::Port;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Maximum number of flooded frames per second from one port.
const PER_PORT: u32 = 50;
/// Maximum number of copies of flooded frames per second in the whole network. A frame counts as at
/// least [`LEAST`] copies.
const COPIES: u32 = 20_000;
const LEAST: usize = 100;
/// Maximum time until a looping frame returns.
const LOOP_TIME_MAX: Duration = Duration::from_secs(2);
/// Minimum time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a port stays closed after a loop was detected.
const CLOSED: Duration = Duration::from_secs(300);

/// Purpose of a frame. Address resolution has a budget of its own, so that other frames cannot
/// delay it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FloodPurpose {
    Address,
    Other,
}

/// A frame that was flooded.
#[derive(Debug)]
struct FloodedFrame {
    from: Port,
    /// Whether the frame has returned.
    round: bool,
}

/// Budgets, and frames that were flooded recently.
#[derive(Debug)]
pub(crate) struct FloodGuard {
    ports: Policer<Port>,
    /// Budget of the whole network, in copies.
    copies: Policer<FloodPurpose>,
    sent: BTreeMap<u64, FloodedFrame>,
    /// Time of each flooded frame, oldest first.
    order: VecDeque<(Time, u64)>,
    closed: BTreeSet<Port>,
    opening: Deadlines<Port>,
    /// Number of the last probe, and the time at which it was sent.
    probe: Option<(u64, Time)>,
    /// Whether the last probe has returned.
    probe_returned: bool,
}

impl Default for FloodGuard {
    fn default() -> FloodGuard {
        FloodGuard {
            ports: Policer::new(PER_PORT),
            copies: Policer::new(COPIES),
            sent: BTreeMap::new(),
            order: VecDeque::new(),
            closed: BTreeSet::new(),
            opening: Deadlines::default(),
            probe: None,
            probe_returned: false,
        }
    }
}

/// Result of checking a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopCheck {
    /// The frame has not been flooded recently.
    Fresh,
    /// The frame was flooded and has returned, or the port is closed.
    Looped,
    /// The frame was flooded and seems to have returned. A probe must show whether there is a loop.
    Suspicious,
}

impl FloodGuard {
    /// Checks a frame that a port has received.
    pub(crate) fn check(&mut self, now: Time, port: Port, frame: &[u8]) -> LoopCheck {
        self.forget(now);
        if self.closed.contains(&port) {
            return LoopCheck::Looped;
        }
        match self.sent.get_mut(&digest(frame)) {
            Some(sent) if sent.from != port && sent.round => LoopCheck::Looped,
            Some(sent) if sent.from != port => {
                sent.round = true;
                LoopCheck::Suspicious
            }
            _ => LoopCheck::Fresh,
        }
    }

    /// Returns the number of a new probe that must be flooded to all edge ports, unless one was
    /// sent a short time ago.
    pub(crate) fn start_probe(&mut self, now: Time) -> Option<u64> {
        if self.probe.is_some_and(|(_, sent)| now < sent + PROBE_INTERVAL) {
            return None;
        }
        let number = self.probe.map_or(0, |(number, _)| number) + 1;
        (self.probe, self.probe_returned) = (Some((number, now)), false);
        Some(number)
    }

    /// Handles a probe that a port has received. Returns whether the port is closed from now on. It
    /// suffices to close one port, because the same probe may return in the other direction as
    /// well.
    pub(crate) fn probe_received(&mut self, now: Time, port: Port, number: u64) -> bool {
        let is_last = self.probe.is_some_and(|(last, sent)| last == number && now < sent + LOOP_TIME_MAX);
        if !is_last || self.probe_returned || self.closed.contains(&port) {
            return false;
        }
        self.probe_returned = true;
        self.closed.insert(port);
        self.opening.set(port, now + CLOSED);
        true
    }

    /// Returns whether a frame from this port may be flooded to `copies` edge ports.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        from: Port,
        frame: &[u8],
        purpose: FloodPurpose,
        copies: usize,
    ) -> bool {
        self.forget(now);
        // A frame that exceeds the whole burst is admitted when the budget is full.
        let cost = copies.clamp(LEAST, (BURST_SECONDS * COPIES) as usize) as u32;
        if !self.copies.has_room(now, purpose, cost) || !self.ports.admit(now, from) {
            return false;
        }
        self.copies.take(purpose, cost);
        let digest = digest(frame);
        if self.sent.insert(digest, FloodedFrame { from, round: false }).is_none() {
            self.order.push_back((now, digest));
        }
        true
    }

    fn forget(&mut self, now: Time) {
        while let Some((then, digest)) = self.order.front().copied()
            && then + LOOP_TIME_MAX <= now
        {
            self.order.pop_front();
            self.sent.remove(&digest);
        }
    }

    /// Returns whether a port is closed: frames from it are dropped, and none are flooded to it.
    pub(crate) fn is_closed(&self, port: Port) -> bool {
        self.closed.contains(&port)
    }

    /// Returns the closed ports.
    pub(crate) fn closed(&self) -> impl Iterator<Item = Port> + '_ {
        self.closed.iter().copied()
    }

    /// Forgets a port that went down. Returns whether it was closed.
    pub(crate) fn port_down(&mut self, port: Port) -> bool {
        self.ports.forget(port);
        self.opening.clear(port);
        self.closed.remove(&port)
    }

    /// Reopens a port when its closure ends, and returns it.
    pub(crate) fn opened(&mut self, now: Time) -> Option<Port> {
        let port = self.opening.expired(now)?;
        self.closed.remove(&port);
        Some(port)
    }

    /// Returns when the next port reopens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.opening.next()
    }
}

fn digest(frame: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool_topology::DatapathId;

    fn port(number: u32) -> Port {
        Port { switch: DatapathId(1), number }
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn only_a_probe_that_returns_closes_a_port() {
        let mut floods = FloodGuard::default();
        let frame = [7; 60];
        for ms in [0, 1000, 1500] {
            assert_eq!(floods.check(at(ms), port(1), &frame), LoopCheck::Fresh);
            assert!(floods.admit(at(ms), port(1), &frame, FloodPurpose::Other, 3));
        }
        assert_eq!(floods.check(at(1600), port(2), &frame), LoopCheck::Suspicious);
        assert_eq!((floods.start_probe(at(1600)), floods.start_probe(at(1601))), (Some(1), None));
        // The frame returns in the other direction, too.
        assert_eq!(floods.check(at(1601), port(3), &frame), LoopCheck::Looped);
        assert!(!floods.probe_received(at(1602), port(2), 9), "no such probe was sent");
        assert!(floods.probe_received(at(1602), port(2), 1));
        assert!(!floods.probe_received(at(1602), port(1), 1), "one closed port suffices");
        assert_eq!(floods.check(at(1603), port(2), &[8; 60]), LoopCheck::Looped);
        assert_eq!(floods.closed().collect::<Vec<_>>(), [port(2)]);
        assert_eq!((floods.opened(at(301_601)), floods.opened(at(301_602))), (None, Some(port(2))));
        assert_eq!(floods.check(at(301_603), port(2), &frame), LoopCheck::Fresh);
        assert_eq!(floods.start_probe(at(301_603)), Some(2));
        assert!(!floods.probe_received(at(303_603), port(2), 2), "too late");
    }

    #[test]
    fn floods_are_limited_per_port_in_all_and_by_purpose() {
        let mut floods = FloodGuard::default();
        let mut admitted = |from: u32, purpose, copies: usize| {
            let frames = (0..1000u32).filter(|n| {
                floods.admit(
                    at(0),
                    port(from),
                    &[&from.to_be_bytes()[..], &n.to_be_bytes()].concat(),
                    purpose,
                    copies,
                )
            });
            frames.count()
        };
        assert_eq!(admitted(1, FloodPurpose::Other, 1), 2 * PER_PORT as usize);
        let all = (2..50).map(|port| admitted(port, FloodPurpose::Other, 1)).sum::<usize>();
        assert_eq!(all + 100, 2 * COPIES as usize / LEAST);
        assert_eq!(admitted(60, FloodPurpose::Address, 10_000), 4);
        assert_eq!(admitted(61, FloodPurpose::Address, 1_000_000), 0);
        assert!(floods.admit(at(2000), port(61), &[1], FloodPurpose::Address, 1_000_000));
    }
}
