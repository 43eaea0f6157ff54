//! Frames that go to all edge ports: how many may, and whether one has come round.
//!
//! Nothing is flooded over links: each switch is given the frame for its own edge ports, so inside the network nothing can
//! go round. Outside of it two ports may lead to each other, by a switch that hears no LLDP; then a frame that left by
//! one comes in by the other. Whoever sees that closes the other one.

use super::deadlines::Deadlines;
use crate::switch::metering::{BURST_SECONDS, Policer};
use cool_machine::{Duration, Time};
use cool_topology::Port;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Frames per second that one port may have flooded.
const PER_PORT: u32 = 50;
/// Copies per second in all; a frame counts as no fewer than [`LEAST`].
const COPIES: u32 = 20_000;
const LEAST: usize = 100;
/// How long a frame could be on its way round.
const WAY_ROUND: Duration = Duration::from_secs(2);
/// How long a port stays closed by which frames have come round.
const CLOSED: Duration = Duration::from_secs(300);

/// What a frame is for: what asks for addresses is not held up by what does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FloodPurpose {
    Address,
    Other,
}

/// A frame that was flooded.
#[derive(Debug)]
struct FloodedFrame {
    from: Port,
    /// Whether it has come round.
    round: bool,
}

/// What has been flooded of late.
#[derive(Debug)]
pub(crate) struct FloodGuard {
    ports: Policer<Port>,
    /// What there may be in all, in copies.
    copies: Policer<FloodPurpose>,
    sent: BTreeMap<u64, FloodedFrame>,
    /// When each of these was sent, oldest first.
    order: VecDeque<(Time, u64)>,
    closed: BTreeSet<Port>,
    opening: Deadlines<Port>,
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
        }
    }
}

/// What a port is to do with a frame that it has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoopCheck {
    /// It may be new.
    Fresh,
    /// It was flooded, and has come round.
    Looped,
    /// The same, and the port is closed from now on.
    ClosesPort,
}

impl FloodGuard {
    /// A frame has come in by a port.
    pub(crate) fn arrived(&mut self, now: Time, port: Port, frame: &[u8]) -> LoopCheck {
        self.forget(now);
        if self.closed.contains(&port) {
            return LoopCheck::Looped;
        }
        match self.sent.get_mut(&digest(frame)) {
            Some(sent) if sent.from != port && sent.round => LoopCheck::Looped,
            Some(sent) if sent.from != port => {
                // One port of the two is enough: the same frame may come round the other way as well.
                sent.round = true;
                self.closed.insert(port);
                self.opening.set(port, now + CLOSED);
                LoopCheck::ClosesPort
            }
            _ => LoopCheck::Fresh,
        }
    }

    /// Whether a frame that came in by a port may go to as many edge ports as there are copies.
    pub(crate) fn admit(
        &mut self,
        now: Time,
        from: Port,
        frame: &[u8],
        purpose: FloodPurpose,
        copies: usize,
    ) -> bool {
        self.forget(now);
        // What is larger than all that can be left goes when all is.
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
            && then + WAY_ROUND <= now
        {
            self.order.pop_front();
            self.sent.remove(&digest);
        }
    }

    /// Whether nothing is taken from a port, and nothing flooded to it.
    pub(crate) fn is_closed(&self, port: Port) -> bool {
        self.closed.contains(&port)
    }

    /// The ports by which frames have come round.
    pub(crate) fn closed(&self) -> impl Iterator<Item = Port> + '_ {
        self.closed.iter().copied()
    }

    /// The cable is out: whatever is there next is something else.
    pub(crate) fn port_down(&mut self, port: Port) -> bool {
        self.ports.forget(port);
        self.opening.clear(port);
        self.closed.remove(&port)
    }

    /// A port that may be tried again.
    pub(crate) fn opened(&mut self, now: Time) -> Option<Port> {
        let port = self.opening.expired(now)?;
        self.closed.remove(&port);
        Some(port)
    }

    /// When the next may be.
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
    fn a_frame_that_comes_round_closes_one_port_for_a_while_and_one_that_is_said_again_none() {
        let mut floods = FloodGuard::default();
        let frame = [7; 60];
        for ms in [0, 1000, 1500] {
            assert_eq!(floods.arrived(at(ms), port(1), &frame), LoopCheck::Fresh);
            assert!(floods.admit(at(ms), port(1), &frame, FloodPurpose::Other, 3));
        }
        assert_eq!(floods.arrived(at(1600), port(2), &frame), LoopCheck::ClosesPort);
        // Round the other way, and what the closed port says later.
        assert_eq!(floods.arrived(at(1601), port(3), &frame), LoopCheck::Looped);
        assert_eq!(floods.arrived(at(1602), port(2), &[8; 60]), LoopCheck::Looped);
        assert_eq!(floods.closed().collect::<Vec<_>>(), [port(2)]);
        assert_eq!((floods.opened(at(301_599)), floods.opened(at(301_600))), (None, Some(port(2))));
        assert_eq!(floods.arrived(at(301_601), port(2), &frame), LoopCheck::Fresh);
    }

    #[test]
    fn floods_are_bounded_for_each_port_and_in_all_and_questions_apart_from_the_rest() {
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
