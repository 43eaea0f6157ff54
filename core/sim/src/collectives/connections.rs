//! Connections between nodes over the simulated links: bytes come whole and in order. What a link drops is sent again after
//! a while, as TCP does; a connection ends when a side closes it, dies, or is not heard for a minute.
//!
//! Here is who has what to send and what has come; the cluster puts segments on the network and tells engines.

use cool_engine::{AgentConnectionId, NodeId};
use cool_machine::{Duration, Time};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of the longest segment.
const SEGMENT: usize = 8 * 1024;

/// Bytes of one direction that are under way at most.
const WINDOW: usize = 4 * SEGMENT;

/// So long after a segment was dropped it is sent again, then after twice as long, and so on.
const FIRST_RETRY: Duration = Duration::from_millis(30);

/// The longest such time.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// What cannot be brought over for so long ends the connection.
const DEAD_AFTER: Duration = Duration::from_secs(60);

/// How long to try to connect, and how long to leave a node alone that refused.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const RECONNECT: Duration = Duration::from_millis(50);

/// What a segment is.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Syn,
    SynAck,
    Bytes(Vec<u8>),
    Fin,
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Content::Bytes(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) node: u16,
    /// The start of the node's agent that has it: a later one knows nothing of it.
    pub(super) life: u32,
    /// By which its engine knows it; none before it is made and after it has ended.
    pub(super) id: Option<AgentConnectionId>,
}

/// One direction.
#[derive(Debug, Default)]
struct Direction {
    queue: VecDeque<u8>,
    /// It ends when the queue is empty.
    closing: bool,
    under_way: usize,
    next_sent: u32,
    next_due: u32,
    /// What has come before its turn.
    early: BTreeMap<u32, Content>,
}

/// Side 0 has asked for the connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    directions: [Direction; 2],
    /// What side 0 calls the other's node.
    pub(super) peer: NodeId,
    /// Until when it tries to connect.
    pub(super) until: Time,
}

/// One side of a connection, by its number.
pub(super) type Side = (usize, usize);

#[derive(Debug)]
struct Segment {
    side: Side,
    serial: u32,
    content: Content,
    first_sent: Time,
    tries: u32,
    /// It is to be sent again: of a packet that was doubled each copy may be lost.
    resting: bool,
}

/// A segment that is to be put on the network: from and to which node, its number, its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) way: (u16, u16),
    pub(super) number: u64,
    pub(super) len: u64,
}

/// What follows when a link has dropped a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Send it again after this time.
    After(Duration),
    /// Its sender gives the connection up.
    GiveUp(Side),
    /// There will be no connection.
    Unreachable(Side),
    /// It has come by another way, or is sent again anyway.
    No,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    all: Vec<Connection>,
    by_id: BTreeMap<(u16, AgentConnectionId), Side>,
    segments: BTreeMap<u64, Segment>,
    last: u64,
    last_id: u64,
}

impl Connections {
    /// A node wants a connection; its number.
    pub(super) fn open(&mut self, from: (u16, u32), to: (u16, u32), peer: NodeId, until: Time) -> usize {
        let end = |(node, life)| End { node, life, id: None };
        let directions = Default::default();
        self.all.push(Connection { ends: [end(from), end(to)], directions, peer, until });
        self.all.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> &Connection {
        &self.all[number]
    }

    pub(super) fn end(&self, (number, side): Side) -> End {
        self.all[number].ends[side]
    }

    /// The connections of a node that are open.
    pub(super) fn of_node(&self, node: u16) -> Vec<Side> {
        self.by_id.iter().filter(|((of, _), _)| *of == node).map(|(_, side)| *side).collect()
    }

    pub(super) fn side(&self, node: u16, id: AgentConnectionId) -> Option<Side> {
        self.by_id.get(&(node, id)).copied()
    }

    /// An end is there from now on, of this start of its node's agent.
    pub(super) fn establish(&mut self, side: Side, life: u32) -> AgentConnectionId {
        self.last_id += 1;
        let id = AgentConnectionId(self.last_id);
        let end = &mut self.all[side.0].ends[side.1];
        (end.id, end.life) = (Some(id), life);
        self.by_id.insert((end.node, id), side);
        id
    }

    /// An end is gone: by what its engine knew it, if it was there.
    pub(super) fn drop_end(&mut self, side: Side) -> Option<AgentConnectionId> {
        let end = &mut self.all[side.0].ends[side.1];
        let id = end.id.take()?;
        self.by_id.remove(&(end.node, id));
        Some(id)
    }

    /// A side has bytes to send.
    pub(super) fn write(&mut self, (number, side): Side, bytes: &[u8]) {
        self.all[number].directions[side].queue.extend(bytes);
    }

    /// A side sends what it has still to send, then no more.
    pub(super) fn finish(&mut self, (number, side): Side) {
        self.all[number].directions[side].closing = true;
    }

    /// A side sends nothing of what it has still to send.
    pub(super) fn discard(&mut self, (number, side): Side) {
        let direction = &mut self.all[number].directions[side];
        direction.queue.clear();
        direction.closing = false;
    }

    /// The next segment of bytes or of the end that a side may send, and the bytes in it.
    pub(super) fn next(&mut self, now: Time, (number, side): Side) -> Option<(Departure, usize)> {
        let direction = &mut self.all[number].directions[side];
        let bytes = direction.queue.len().min(SEGMENT).min(WINDOW - direction.under_way);
        let content = match bytes {
            0 if direction.queue.is_empty() && std::mem::take(&mut direction.closing) => Content::Fin,
            0 => return None,
            _ => Content::Bytes(direction.queue.drain(..bytes).collect()),
        };
        Some((self.send(now, (number, side), content), bytes))
    }

    /// Sends what is in its turn after all that was sent before.
    pub(super) fn send(&mut self, now: Time, side: Side, content: Content) -> Departure {
        let direction = &mut self.all[side.0].directions[side.1];
        let serial = direction.next_sent;
        direction.next_sent += 1;
        direction.under_way += content.len();
        self.last += 1;
        let segment = Segment { side, serial, content, first_sent: now, tries: 0, resting: false };
        self.segments.insert(self.last, segment);
        self.departure(self.last, side)
    }

    fn departure(&self, number: u64, (connection, side): Side) -> Departure {
        let ends = &self.all[connection].ends;
        let len = self.segments.get(&number).map_or(0, |segment| segment.content.len()) as u64;
        Departure { way: (ends[side].node, ends[1 - side].node), number, len }
    }

    /// A segment that was dropped, once more; none if it is of no use any more.
    pub(super) fn again(&mut self, number: u64) -> Option<Departure> {
        let segment = self.segments.get_mut(&number)?;
        segment.resting = false;
        let side = segment.side;
        Some(self.departure(number, side))
    }

    /// Who has sent a segment that has not arrived.
    pub(super) fn sender(&self, number: u64) -> Option<Side> {
        self.segments.get(&number).map(|segment| segment.side)
    }

    /// What is done about a segment that a link has dropped.
    pub(super) fn lost(&mut self, now: Time, number: u64) -> Retry {
        let Some(segment) = self.segments.get_mut(&number).filter(|segment| !segment.resting) else {
            return Retry::No;
        };
        let asking = matches!(segment.content, Content::Syn);
        if now - segment.first_sent >= if asking { CONNECT_TIMEOUT } else { DEAD_AFTER } {
            let side = segment.side;
            self.segments.remove(&number);
            return if asking { Retry::Unreachable(side) } else { Retry::GiveUp(side) };
        }
        segment.tries += 1;
        segment.resting = true;
        Retry::After((FIRST_RETRY * (1 << (segment.tries - 1).min(6))).min(LONGEST_RETRY))
    }

    /// Forgets a segment that will never arrive.
    pub(super) fn forget(&mut self, number: u64) {
        self.segments.remove(&number);
    }

    /// A segment has arrived: what is now in its turn, in order.
    pub(super) fn arrived(&mut self, number: u64) -> Vec<Content> {
        let Some(Segment { side, serial, content, .. }) = self.segments.remove(&number) else {
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

    fn bytes(content: &[Content]) -> Vec<u8> {
        let bytes = content.iter().flat_map(|content| match content {
            Content::Bytes(bytes) => bytes.clone(),
            _ => Vec::new(),
        });
        bytes.collect()
    }

    #[test]
    fn bytes_come_in_order_whatever_is_lost_and_no_more_than_a_window_is_under_way() {
        let mut connections = Connections::default();
        let number = connections.open((0, 0), (1, 0), NodeId(1), Time::ZERO);
        let (side, now) = ((number, 0), Time::ZERO);
        let sent: Vec<u8> = (0..50_000).map(|i| (i / 7) as u8).collect();
        connections.write(side, &sent);
        connections.finish(side);
        let mut under_way: VecDeque<Departure> = VecDeque::new();
        let mut came = Vec::new();
        let mut round = 0;
        while came.len() < sent.len() {
            while let Some((departure, _)) = connections.next(now, side) {
                under_way.push_back(departure);
            }
            assert!(under_way.iter().map(|d| d.len).sum::<u64>() <= WINDOW as u64);
            // Every other segment is dropped once and comes after the others.
            let departure = under_way.pop_front().expect("something is under way");
            round += 1;
            if round % 2 == 0 && connections.lost(now, departure.number) == Retry::After(FIRST_RETRY) {
                under_way.extend(connections.again(departure.number));
            } else {
                came.extend(bytes(&connections.arrived(departure.number)));
            }
        }
        assert_eq!(came, sent);
    }

    #[test]
    fn what_does_not_get_through_for_a_minute_ends_the_connection() {
        let mut connections = Connections::default();
        let side = (connections.open((0, 0), (1, 0), NodeId(1), Time::ZERO), 0);
        let departure = connections.send(Time::ZERO, side, Content::Fin);
        let mut now = Time::ZERO;
        while let Retry::After(time) = connections.lost(now, departure.number) {
            assert_eq!(connections.lost(now, departure.number), Retry::No, "one copy is sent again");
            now += time;
            assert!(connections.again(departure.number).is_some());
        }
        assert_eq!(now.as_nanos() / 1_000_000_000, 60);
        assert_eq!(connections.lost(now, departure.number), Retry::No);
    }
}
