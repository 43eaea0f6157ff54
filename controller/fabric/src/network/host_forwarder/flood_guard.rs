//! Limits frames that are flooded to all edge ports, and detects those that return.
//!
//! Frames are never flooded over links: each switch gets the frame for its own edge ports, so there
//! can be no loop inside the network. Outside, two ports may be connected by a switch without LLDP.
//! A frame that leaves by one of them then returns by the other, and is dropped there.
//!
//! That is not a proof, because a host may send the same bytes that another host sends. The
//! controller therefore sends a probe of its own out of each edge port. A port is closed only if it
//! receives the probe of another port, and reopened when it no longer does.

use crate::frames::loop_probe::LoopProbe;
use crate::frames::vlan::Tag;
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
/// Time between the rounds of probes that show whether closed ports are still part of a loop.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of rounds in a row after which a closed port that has received no probe is reopened.
const SILENT_ROUNDS_MAX: u32 = 3;

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

/// A port that is closed because it is part of a loop.
#[derive(Debug)]
struct ClosedPort {
    /// Tag of the frames that have returned.
    tag: Tag,
    /// Whether the port has received a probe of the current round.
    heard: bool,
    /// Number of rounds in a row of which the port has received no probe.
    silent_rounds: u32,
}

/// A round of probes, one out of each edge port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeRound {
    pub(crate) number: u64,
    /// Tags of the VLANs in which probes must be sent.
    pub(crate) tags: BTreeSet<Tag>,
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
    closed: BTreeMap<Port, ClosedPort>,
    /// When closed ports are checked next.
    next_check: Option<Time>,
    /// The last round of probes, and the time at which it was sent.
    round: Option<(ProbeRound, Time)>,
    /// Whether the last round has closed a port.
    round_closed: bool,
}

impl Default for FloodGuard {
    fn default() -> FloodGuard {
        FloodGuard {
            ports: Policer::new(PER_PORT),
            copies: Policer::new(COPIES),
            sent: BTreeMap::new(),
            order: VecDeque::new(),
            closed: BTreeMap::new(),
            next_check: None,
            round: None,
            round_closed: false,
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
        if self.is_closed(port) {
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

    /// Returns a new round of probes after a frame with this tag seems to have returned, unless a
    /// round was sent a short time ago.
    pub(crate) fn start_probes(&mut self, now: Time, tag: Tag) -> Option<ProbeRound> {
        if self.round.as_ref().is_some_and(|(_, sent)| now < *sent + PROBE_INTERVAL) {
            return None;
        }
        Some(self.next_round(now, BTreeSet::from([tag])))
    }

    fn next_round(&mut self, now: Time, tags: BTreeSet<Tag>) -> ProbeRound {
        let number = self.round.as_ref().map_or(0, |(round, _)| round.number) + 1;
        let round = ProbeRound { number, tags };
        (self.round, self.round_closed) = (Some((round.clone(), now)), false);
        round
    }

    /// Handles a probe that a port has received. Returns whether the port is closed from now on. It
    /// suffices to close one port, because probes may return in the other direction as well. A
    /// port that receives its own probe is not closed, because a host there may have returned it.
    pub(crate) fn probe_received(&mut self, now: Time, port: Port, tag: Tag, probe: &LoopProbe) -> bool {
        let is_fresh =
            |(round, sent): &(ProbeRound, Time)| round.number == probe.round && now < *sent + LOOP_TIME_MAX;
        if probe.port == port || !self.round.as_ref().is_some_and(is_fresh) {
            return false;
        }
        if let Some(closed) = self.closed.get_mut(&port) {
            closed.heard = true;
            return false;
        }
        if self.round_closed {
            return false;
        }
        self.round_closed = true;
        self.closed.insert(port, ClosedPort { tag, heard: true, silent_rounds: 0 });
        self.next_check.get_or_insert(now + CHECK_INTERVAL);
        true
    }

    /// Reopens ports that have received no probe for some rounds, and returns them. Also returns
    /// the next round of probes if one is due.
    pub(crate) fn pass_time(&mut self, now: Time) -> (Vec<Port>, Option<ProbeRound>) {
        if self.next_check.take_if(|at| *at <= now).is_none() {
            return (Vec::new(), None);
        }
        for closed in self.closed.values_mut() {
            closed.silent_rounds = if closed.heard { 0 } else { closed.silent_rounds + 1 };
            closed.heard = false;
        }
        let reopened = self.closed.extract_if(.., |_, closed| closed.silent_rounds >= SILENT_ROUNDS_MAX);
        let reopened: Vec<Port> = reopened.map(|(port, _)| port).collect();
        if self.closed.is_empty() {
            return (reopened, None);
        }
        self.next_check = Some(now + CHECK_INTERVAL);
        let tags = self.closed.values().map(|closed| closed.tag).collect();
        (reopened, Some(self.next_round(now, tags)))
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
        self.closed.contains_key(&port)
    }

    /// Returns the closed ports.
    pub(crate) fn closed(&self) -> impl Iterator<Item = Port> + '_ {
        self.closed.keys().copied()
    }

    /// Forgets a port that went down. Returns whether it was closed.
    pub(crate) fn port_down(&mut self, port: Port) -> bool {
        self.ports.forget(port);
        self.closed.remove(&port).is_some()
    }

    /// Returns when closed ports are checked next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.next_check
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
        let (untagged, _) = crate::frames::vlan::untagged(&frame);
        let round = floods.start_probes(at(1600), untagged).unwrap();
        assert_eq!((round.number, floods.start_probes(at(1601), untagged)), (1, None));
        // The frame returns in the other direction, too.
        assert_eq!(floods.check(at(1601), port(3), &frame), LoopCheck::Looped);
        let received = |floods: &mut FloodGuard, ms, to, from, round| {
            floods.probe_received(at(ms), port(to), untagged, &LoopProbe { port: port(from), round })
        };
        assert!(!received(&mut floods, 1602, 2, 1, 9), "no such probe was sent");
        assert!(!received(&mut floods, 1602, 2, 2, 1), "a host may return the probe of its own port");
        assert!(received(&mut floods, 1602, 2, 1, 1));
        assert!(!received(&mut floods, 1602, 1, 2, 1), "one closed port suffices");
        assert_eq!(floods.check(at(1603), port(2), &[8; 60]), LoopCheck::Looped);
        assert_eq!(floods.closed().collect::<Vec<_>>(), [port(2)]);
        let round = floods.start_probes(at(2600), untagged).unwrap();
        assert!(!received(&mut floods, 4600, 3, 1, round.number), "too late");
    }

    #[test]
    fn a_closed_port_opens_once_it_receives_no_probe() {
        let mut floods = FloodGuard::default();
        let (tag, _) = crate::frames::vlan::untagged(&[0; 60]);
        let mut now = at(0);
        let first = floods.start_probes(now, tag).unwrap();
        let probe = |round: &ProbeRound| LoopProbe { port: port(1), round: round.number };
        assert!(floods.probe_received(now, port(2), tag, &probe(&first)));
        // The loop lasts much longer than a few rounds.
        for _ in 0..200 {
            now = floods.deadline().unwrap();
            let (reopened, round) = floods.pass_time(now);
            let round = round.unwrap();
            assert_eq!((reopened, &round.tags), (vec![], &BTreeSet::from([tag])));
            assert!(!floods.probe_received(now, port(2), tag, &probe(&round)));
        }
        let mut rounds = 0;
        while floods.is_closed(port(2)) {
            now = floods.deadline().unwrap();
            let (reopened, _) = floods.pass_time(now);
            rounds += 1;
            assert_eq!(reopened.is_empty(), floods.is_closed(port(2)));
        }
        // The last round of the loop, and the silent ones.
        assert_eq!((rounds, floods.deadline()), (1 + SILENT_ROUNDS_MAX, None));
        assert_eq!(floods.check(now, port(2), &[8; 60]), LoopCheck::Fresh);
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
