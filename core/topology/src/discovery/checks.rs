//! Whether what a port hears is to be believed.

use super::{Cause, Discovery};
use crate::Port;
use crate::lldp::{Announcement, LldpError};
use std::collections::VecDeque;

/// Announcements of a port that may be under way.
const UNDER_WAY: usize = 8;

/// Frames that were not believed, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Malformed, or without proof.
    pub unreadable: u64,
    /// With a wrong proof.
    pub forged: u64,
    /// Genuine, but not for the first time, or late.
    pub replayed: u64,
    /// Carried by a node's host.
    pub relayed: u64,
}

impl Refused {
    pub(super) fn count(&mut self, cause: &Cause) {
        let counter = match cause {
            Cause::Unreadable(_) => &mut self.unreadable,
            Cause::Forged(_) => &mut self.forged,
            Cause::Replayed(_) => &mut self.replayed,
            Cause::Relayed { .. } => &mut self.relayed,
            // Believed, though something is wrong.
            Cause::SecondNeighbour { .. }
            | Cause::OwnSwitch
            | Cause::NodeElsewhere { .. }
            | Cause::WrongAddress { .. } => return,
        };
        *counter += 1;
    }
}

/// The announcements of a port that may still be heard. Counted, not timed: if this program was not run for a
/// while, what waits for it is as fresh as before.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// Made before the port came up.
    before: u64,
    numbers: VecDeque<u64>,
}

/// What is to be thought of a genuine announcement.
enum Age {
    Fresh,
    /// Sent before the last port flap: ignored, and not reported as a replay.
    Former,
    Spent,
}

impl Sent {
    /// No announcements yet; all numbers up to `before` are of earlier ones.
    pub(super) fn after(before: u64) -> Sent {
        Sent { before, numbers: VecDeque::new() }
    }

    pub(super) fn note(&mut self, number: u64) {
        self.numbers.truncate(UNDER_WAY - 1);
        self.numbers.push_front(number);
    }

    /// Each is believed once, and none that is older than one believed before: frames do not overtake on a link.
    fn hear(&mut self, number: u64) -> Age {
        if number <= self.before {
            return Age::Former;
        }
        match self.numbers.iter().position(|sent| *sent == number) {
            Some(at) => {
                self.numbers.truncate(at);
                Age::Fresh
            }
            None => Age::Spent,
        }
    }
}

impl Discovery {
    /// What a frame announces, if it is to be believed; `None` if there is nothing to be said of it.
    pub(super) fn check(&mut self, port: Port, frame: &[u8]) -> Result<Option<Announcement>, Cause> {
        let unverified = match Announcement::decode(frame) {
            Ok(unverified) => unverified,
            Err(LldpError::Foreign | LldpError::NotLldp(_)) => return Ok(None),
            Err(error) => return Err(Cause::Unreadable(error)),
        };
        match &unverified.announcement {
            Announcement::Node { name, .. } => {
                // Before it is registered, its key is not known, and its place does not matter.
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
                match entry.sent.hear(unverified.number) {
                    Age::Fresh => {}
                    Age::Former => return Ok(None),
                    Age::Spent => return Err(Cause::Replayed(unverified.announcement)),
                }
                if let Some(node) = self.node_at(from).or_else(|| self.node_at(port)) {
                    return Err(Cause::Relayed { heard: unverified.announcement, node });
                }
            }
        }
        Ok(Some(unverified.announcement))
    }

    /// The node whose LLDP a port hears.
    pub fn node_at(&self, port: Port) -> Option<String> {
        match self.ports.get(&port)?.neighbour.as_ref()? {
            Announcement::Node { name, .. } => Some(name.clone()),
            Announcement::Switch { .. } => None,
        }
    }
}
