//! Checks whether a received announcement must be believed.

use super::{Cause, Discovery};
use crate::Port;
use crate::lldp::{Announcement, LldpError};
use std::collections::VecDeque;

/// Maximum number of announcements of a port that may be in flight.
const IN_FLIGHT_MAX: usize = 8;
/// Maximum number of announcements of a port that may still arrive too late.
const LATE_MAX: usize = 8;

/// Number of refused frames since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedFrames {
    /// Malformed or without an HMAC.
    pub unreadable: u64,
    /// With a wrong HMAC.
    pub forged: u64,
    /// Authentic, but received again or too late.
    pub replayed: u64,
    /// Forwarded by the host of a node.
    pub relayed: u64,
}

impl RefusedFrames {
    pub(super) fn count(&mut self, cause: &Cause) {
        let counter = match cause {
            Cause::Unreadable(_) => &mut self.unreadable,
            Cause::Forged(_) => &mut self.forged,
            Cause::Replayed(_) => &mut self.replayed,
            Cause::Relayed { .. } => &mut self.relayed,
            // These frames are authentic and fresh, so they are not refused, although the network
            // has a fault.
            Cause::SecondNeighbor { .. }
            | Cause::OwnSwitch
            | Cause::NodeElsewhere { .. }
            | Cause::WrongAddress { .. } => return,
        };
        *counter += 1;
    }
}

/// Announcements of a port that may still be received. They are counted, not timed, because frames
/// that wait while this program does not run must stay valid.
#[derive(Clone, Debug)]
pub(super) struct SentAnnouncements {
    /// Announcements up to this number were made before the port came up.
    before: u64,
    /// Those that are believed, the latest first.
    numbers: VecDeque<u64>,
    /// Earlier ones that have not arrived, the latest first.
    late: VecDeque<u64>,
}

/// Freshness of an authentic announcement.
enum Freshness {
    Fresh,
    /// Sent before the last port flap, or arrives after later ones, because a busy switch may
    /// reorder and delay frames: ignored, and not reported as a replay.
    Late,
    Replayed,
}

impl SentAnnouncements {
    /// Starts without announcements. All numbers up to `before` belong to earlier ones.
    pub(super) fn after(before: u64) -> SentAnnouncements {
        SentAnnouncements { before, numbers: VecDeque::new(), late: VecDeque::new() }
    }

    pub(super) fn record(&mut self, number: u64) {
        self.numbers.push_front(number);
        let excess = self.numbers.split_off(self.numbers.len().min(IN_FLIGHT_MAX));
        self.add_late(excess);
    }

    /// Records announcements that are not believed any more. All of them are later than those that
    /// were recorded before.
    fn add_late(&mut self, mut numbers: VecDeque<u64>) {
        numbers.append(&mut self.late);
        numbers.truncate(LATE_MAX);
        self.late = numbers;
    }

    /// Returns how fresh an announcement is. Each is believed only once. None is believed that is
    /// older than one received before, because frames rarely overtake each other on a link.
    fn freshness(&mut self, number: u64) -> Freshness {
        if number <= self.before {
            return Freshness::Late;
        }
        match self.numbers.iter().position(|sent| *sent == number) {
            Some(at) => {
                let mut overtaken = self.numbers.split_off(at);
                overtaken.pop_front();
                self.add_late(overtaken);
                Freshness::Fresh
            }
            None => match self.late.iter().position(|late| *late == number) {
                Some(at) => {
                    self.late.remove(at);
                    Freshness::Late
                }
                None => Freshness::Replayed,
            },
        }
    }
}

impl Discovery {
    /// Returns the announcement of a frame if it must be believed; `None` if the frame must be
    /// ignored.
    ///
    /// # Errors
    /// Returns the reason if the frame must be refused and reported.
    pub(super) fn check(&mut self, port: Port, frame: &[u8]) -> Result<Option<Announcement>, Cause> {
        let unverified = match Announcement::decode(frame) {
            Ok(unverified) => unverified,
            Err(LldpError::Foreign | LldpError::NotLldp(_)) => return Ok(None),
            Err(error) => return Err(Cause::Unreadable(error)),
        };
        match &unverified.announcement {
            Announcement::Node { name, .. } => {
                // The key of an unregistered node is unknown, and its place does not matter.
                let Some(node) = self.registered.get_mut(name) else { return Ok(None) };
                if !unverified.is_authentic(&node.key) {
                    return Err(Cause::Forged(unverified.announcement));
                }
                if unverified.number <= node.last {
                    return Err(Cause::Replayed(unverified.announcement));
                }
                node.last = unverified.number;
            }
            Announcement::Switch { switch, port: number } => {
                if !unverified.is_authentic(&self.key) {
                    return Err(Cause::Forged(unverified.announcement));
                }
                let from = Port { switch: *switch, number: *number };
                let Some(entry) = self.ports.get_mut(&from) else { return Ok(None) };
                match entry.sent.freshness(unverified.number) {
                    Freshness::Fresh => {}
                    Freshness::Late => return Ok(None),
                    Freshness::Replayed => return Err(Cause::Replayed(unverified.announcement)),
                }
                if let Some(node) = self.node_at(from).or_else(|| self.node_at(port)) {
                    return Err(Cause::Relayed { received: unverified.announcement, node });
                }
            }
        }
        Ok(Some(unverified.announcement))
    }

    /// Returns the node at a port: the one from which it receives LLDP. If it receives none, that
    /// is a node that is located there because it states so.
    pub fn node_at(&self, port: Port) -> Option<String> {
        match self.ports.get(&port)?.neighbor.as_ref() {
            Some(Announcement::Node { name, .. }) => Some(name.clone()),
            Some(Announcement::Switch { .. }) => None,
            None => {
                let mut here = self.reported_at.iter().filter(|(_, at)| **at == port).map(|(name, _)| name);
                here.find(|name| self.graph.host(name) == Some(port)).cloned()
            }
        }
    }
}
