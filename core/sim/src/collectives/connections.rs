//! Connections between nodes over the simulated links. Bytes arrive completely and in order.
//! Segments that a link drops are retransmitted after a while, as in TCP. A connection ends when
//! one side closes it, crashes, or cannot be reached for a minute.
//!
//! This module records the data to send and the data that has arrived. The cluster sends the
//! segments over the network and reports to the engines.

use cool_engine::{AgentConnectionId, NodeId};
use cool_machine::{Duration, Time};
use std::collections::{BTreeMap, VecDeque};

/// Maximum size of a segment in bytes.
const SEGMENT: usize = 8 * 1024;

/// Maximum number of bytes in flight in one direction.
const WINDOW: usize = 4 * SEGMENT;

/// Time after which a dropped segment is retransmitted. It doubles with each attempt.
const FIRST_RETRY: Duration = Duration::from_millis(30);

/// The longest time between two attempts.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Time after which a connection ends if a segment cannot be delivered.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// Timeout for connecting, and the pause after a refused attempt.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const RECONNECT: Duration = Duration::from_millis(50);

/// The content of a segment.
#[derive(Clone, Debug)]
pub(super) enum SegmentContent {
    Syn,
    SynAck,
    Bytes(Vec<u8>),
    Fin,
}

impl SegmentContent {
    fn len(&self) -> usize {
        match self {
            SegmentContent::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedEnd {
    pub(super) node: u16,
    /// The incarnation of the agent that has this end. Later ones do not know the connection.
    pub(super) life: u32,
    /// The engine's identifier of the connection; none before it is established and after it has
    /// ended.
    pub(super) id: Option<AgentConnectionId>,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    queue: VecDeque<u8>,
    /// Whether the direction ends once the queue is empty.
    closing: bool,
    under_way: usize,
    next_sent: u32,
    next_due: u32,
    /// Segments that arrived before their turn.
    early: BTreeMap<u32, SegmentContent>,
}

/// A connection. Side 0 requested it.
#[derive(Debug)]
pub(super) struct SimulatedConnection {
    pub(super) ends: [SimulatedEnd; 2],
    directions: [Direction; 2],
    /// The node of side 1, as side 0 identifies it.
    pub(super) peer: NodeId,
    /// When side 0 stops trying to connect.
    pub(super) until: Time,
}

/// One side of a connection: the number of the connection, and 0 or 1.
pub(super) type Side = (usize, usize);

#[derive(Debug)]
struct ConnectionSegment {
    side: Side,
    serial: u32,
    content: SegmentContent,
    first_sent: Time,
    tries: u32,
    /// Whether a retransmission is already scheduled. Each copy of a duplicated packet may be lost.
    resting: bool,
}

/// A segment that must be sent over the network: sender and receiver, number, and length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) way: (u16, u16),
    pub(super) number: u64,
    pub(super) len: u64,
}

/// The reaction to a dropped segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Retransmit it after this time.
    After(Duration),
    /// The sender gives up the connection.
    GiveUp(Side),
    /// The connection cannot be established.
    Unreachable(Side),
    /// Nothing: another copy has arrived, or a retransmission is already scheduled.
    No,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<SimulatedConnection>,
    by_id: BTreeMap<(u16, AgentConnectionId), Side>,
    segments: BTreeMap<u64, ConnectionSegment>,
    last: u64,
    last_id: u64,
}

impl Connections {
    /// Opens a connection. Returns its number.
    pub(super) fn open(&mut self, from: (u16, u32), to: (u16, u32), peer: NodeId, until: Time) -> usize {
        let end = |(node, life)| SimulatedEnd { node, life, id: None };
        let directions = Default::default();
        self.all.push(SimulatedConnection { ends: [end(from), end(to)], directions, peer, until });
        self.all.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> &SimulatedConnection {
        &self.all[number]
    }

    pub(super) fn end(&self, (number, side): Side) -> SimulatedEnd {
        self.all[number].ends[side]
    }

    /// Returns the established connections of a node.
    pub(super) fn of_node(&self, node: u16) -> Vec<Side> {
        self.by_id.iter().filter(|((of, _), _)| *of == node).map(|(_, side)| *side).collect()
    }

    pub(super) fn side(&self, node: u16, id: AgentConnectionId) -> Option<Side> {
        self.by_id.get(&(node, id)).copied()
    }

    /// Establishes an end for an incarnation of its node's agent. Returns the engine's identifier.
    pub(super) fn establish(&mut self, side: Side, life: u32) -> AgentConnectionId {
        self.last_id += 1;
        let id = AgentConnectionId(self.last_id);
        let end = &mut self.all[side.0].ends[side.1];
        (end.id, end.life) = (Some(id), life);
        self.by_id.insert((end.node, id), side);
        id
    }

    /// Removes an end. Returns the engine's identifier if the end was established.
    pub(super) fn drop_end(&mut self, side: Side) -> Option<AgentConnectionId> {
        let end = &mut self.all[side.0].ends[side.1];
        let id = end.id.take()?;
        self.by_id.remove(&(end.node, id));
        Some(id)
    }

    /// Queues bytes to send from a side. The cluster must then send the segments that
    /// [`Connections::next`] returns.
    pub(super) fn write(&mut self, (number, side): Side, bytes: &[u8]) {
        self.all[number].directions[side].queue.extend(bytes);
    }

    /// Closes a side once its queued bytes have been sent.
    pub(super) fn finish(&mut self, (number, side): Side) {
        self.all[number].directions[side].closing = true;
    }

    /// Drops the queued bytes of a side.
    pub(super) fn discard(&mut self, (number, side): Side) {
        let direction = &mut self.all[number].directions[side];
        direction.queue.clear();
        direction.closing = false;
    }

    /// Returns the next segment (of bytes, or the final one) that a side may send, and its length.
    pub(super) fn next(&mut self, now: Time, (number, side): Side) -> Option<(Departure, usize)> {
        let direction = &mut self.all[number].directions[side];
        let bytes = direction.queue.len().min(SEGMENT).min(WINDOW - direction.under_way);
        let content = match bytes {
            0 if direction.queue.is_empty() && std::mem::take(&mut direction.closing) => SegmentContent::Fin,
            0 => return None,
            _ => SegmentContent::Bytes(direction.queue.drain(..bytes).collect()),
        };
        Some((self.send(now, (number, side), content), bytes))
    }

    /// Sends content after everything that was sent before.
    pub(super) fn send(&mut self, now: Time, side: Side, content: SegmentContent) -> Departure {
        let direction = &mut self.all[side.0].directions[side.1];
        let serial = direction.next_sent;
        direction.next_sent += 1;
        direction.under_way += content.len();
        self.last += 1;
        let segment = ConnectionSegment { side, serial, content, first_sent: now, tries: 0, resting: false };
        self.segments.insert(self.last, segment);
        self.departure(self.last, side)
    }

    fn departure(&self, number: u64, (connection, side): Side) -> Departure {
        let ends = &self.all[connection].ends;
        let len = self.segments.get(&number).map_or(0, |segment| segment.content.len()) as u64;
        Departure { way: (ends[side].node, ends[1 - side].node), number, len }
    }

    /// Returns a dropped segment for retransmission, or none if it is no longer needed.
    pub(super) fn again(&mut self, number: u64) -> Option<Departure> {
        let segment = self.segments.get_mut(&number)?;
        segment.resting = false;
        let side = segment.side;
        Some(self.departure(number, side))
    }

    /// Returns the sender of a segment that has not arrived.
    pub(super) fn sender(&self, number: u64) -> Option<Side> {
        self.segments.get(&number).map(|segment| segment.side)
    }

    /// Records that a link dropped a segment. Returns the reaction.
    pub(super) fn lost(&mut self, now: Time, number: u64) -> Retry {
        let Some(segment) = self.segments.get_mut(&number).filter(|segment| !segment.resting) else {
            return Retry::No;
        };
        let asking = matches!(segment.content, SegmentContent::Syn);
        if now - segment.first_sent >= if asking { CONNECT_TIMEOUT } else { DEAD_AFTER } {
            let side = segment.side;
            self.segments.remove(&number);
            return if asking { Retry::Unreachable(side) } else { Retry::GiveUp(side) };
        }
        segment.tries += 1;
        segment.resting = true;
        Retry::After((FIRST_RETRY * (1 << (segment.tries - 1).min(6))).min(LONGEST_RETRY))
    }

    /// Removes a segment that will never arrive.
    pub(super) fn forget(&mut self, number: u64) {
        self.segments.remove(&number);
    }

    /// Records the arrival of a segment. Returns all content that is now in order.
    pub(super) fn arrived(&mut self, number: u64) -> Vec<SegmentContent> {
        let Some(ConnectionSegment { side, serial, content, .. }) = self.segments.remove(&number) else {
            return Vec::new();
        };
        let direction = &mut self.all[side.0].directions[side.1];
        direction.under_way -= content.len();
        direction.early.insert(serial, content);
        let mut due = Vec::new();
        while let Some(content) = direction.early.remove(&direction.next_due) {
            direction.next_due += 1;
            due.push(content);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &[SegmentContent]) -> Vec<u8> {
        let bytes = content.iter().flat_map(|content| match content {
            SegmentContent::Bytes(bytes) => bytes.clone(),
            _ => Vec::new(),
        });
        bytes.collect()
    }

    #[test]
    fn bytes_arrive_in_order_and_at_most_a_window_is_in_flight() {
        let mut connections = Connections::default();
        let number = connections.open((0, 0), (1, 0), NodeId(1), Time::ZERO);
        let (side, now) = ((number, 0), Time::ZERO);
        let sent: Vec<u8> = (0..50_000).map(|i| (i / 7) as u8).collect();
        connections.write(side, &sent);
        connections.finish(side);
        let mut under_way: VecDeque<Departure> = VecDeque::new();
        let mut received = Vec::new();
        let mut round = 0;
        while received.len() < sent.len() {
            while let Some((departure, _)) = connections.next(now, side) {
                under_way.push_back(departure);
            }
            assert!(under_way.iter().map(|d| d.len).sum::<u64>() <= WINDOW as u64);
            // Every second segment is dropped once and arrives after the others.
            let departure = under_way.pop_front().expect("a segment is in flight");
            round += 1;
            if round % 2 == 0 && connections.lost(now, departure.number) == Retry::After(FIRST_RETRY) {
                under_way.extend(connections.again(departure.number));
            } else {
                received.extend(bytes(&connections.arrived(departure.number)));
            }
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn a_segment_that_is_lost_for_a_minute_ends_the_connection() {
        let mut connections = Connections::default();
        let side = (connections.open((0, 0), (1, 0), NodeId(1), Time::ZERO), 0);
        let departure = connections.send(Time::ZERO, side, SegmentContent::Fin);
        let mut now = Time::ZERO;
        while let Retry::After(time) = connections.lost(now, departure.number) {
            assert_eq!(
                connections.lost(now, departure.number),
                Retry::No,
                "a retransmission is already scheduled"
            );
            now += time;
            assert!(connections.again(departure.number).is_some());
        }
        assert_eq!(now.as_nanos() / 1_000_000_000, 60);
        assert_eq!(connections.lost(now, departure.number), Retry::No);
    }
}
