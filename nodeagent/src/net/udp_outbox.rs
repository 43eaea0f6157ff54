//! Datagrams on their way out: those of a place that have one length leave together (GSO), and what the system has no room for
//! waits here, in order and within bounds.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// Room for what comes while the engine is busy: some seconds at 20 Mbit/s, some tens of milliseconds at
/// 1 Gbit/s.
pub(super) const BUFFER: usize = 8 * 1024 * 1024;

/// The longest UDP payload, also of all datagrams that the system is handed as one.
const LONGEST: usize = 65_507;

/// What takes datagrams.
pub(super) trait DatagramSink {
    /// How many it takes as one.
    fn segments(&self) -> usize;

    /// Sends datagrams if there is room for them, and gives back their memory. What the network does not take is lost, as it
    /// may be later on the way.
    ///
    /// # Errors
    /// Not an error but a rest: what there is no room for.
    fn send(&self, batch: DatagramBatch) -> Result<Vec<u8>, DatagramBatch>;
}

/// Datagrams to one place, of `segment` bytes each, the last one perhaps shorter.
#[derive(Debug)]
pub(super) struct DatagramBatch {
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) segment: usize,
}

/// Bytes that wait for room in the system; beyond it datagrams are lost, as they may be on the way. As many as a socket's
/// buffer holds.
const BLOCKED_BYTES: usize = BUFFER;

/// Datagrams on their way out: those of a place leave as one as far as they can. Nobody waits for the system to have room:
/// what it has none for stays here.
#[derive(Default)]
pub(super) struct DatagramOutbox {
    open: Option<DatagramBatch>,
    /// Memory of a batch that has left.
    spare: Vec<u8>,
    /// What the system had no room for.
    blocked: VecDeque<DatagramBatch>,
    blocked_bytes: usize,
}

impl DatagramOutbox {
    /// Where to append a datagram of `len` bytes, all of them. It is sent with others like it: now, or when
    /// [`DatagramOutbox::flush`] is called.
    pub(super) fn datagram(&mut self, sink: &impl DatagramSink, to: SocketAddr, len: usize) -> &mut Vec<u8> {
        let segments = sink.segments();
        if !self.open.as_ref().is_some_and(|open| open.fits(segments, to, len)) {
            self.flush(sink);
        }
        let spare = &mut self.spare;
        let open =
            self.open.get_or_insert_with(|| DatagramBatch { to, bytes: std::mem::take(spare), segment: len });
        &mut open.bytes
    }

    /// Sends all that waits for others.
    pub(super) fn flush(&mut self, sink: &impl DatagramSink) {
        let Some(batch) = self.open.take() else { return };
        if self.blocked.is_empty() {
            match sink.send(batch) {
                Ok(mut bytes) => {
                    bytes.clear();
                    self.spare = bytes;
                }
                Err(batch) => self.block(batch),
            }
        } else {
            self.block(batch);
        }
    }

    fn block(&mut self, batch: DatagramBatch) {
        if self.blocked_bytes + batch.bytes.len() > BLOCKED_BYTES {
            tracing::debug!(to = %batch.to, "lost datagrams for which the system had no room");
            return;
        }
        self.blocked_bytes += batch.bytes.len();
        self.blocked.push_back(batch);
    }

    /// Whether the system had no room for something.
    pub(super) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Sends what the system had no room for, as far as it has now.
    pub(super) fn resume(&mut self, sink: &impl DatagramSink) {
        while let Some(batch) = self.blocked.pop_front() {
            self.blocked_bytes -= batch.bytes.len();
            if let Err(batch) = sink.send(batch) {
                self.blocked_bytes += batch.bytes.len();
                return self.blocked.push_front(batch);
            }
        }
    }
}

impl DatagramBatch {
    /// Whether a datagram goes to the same place and has the same size: only the last may be shorter.
    fn fits(&self, segments: usize, to: SocketAddr, len: usize) -> bool {
        self.to == to
            && len <= self.segment
            && self.bytes.len().is_multiple_of(self.segment)
            && self.bytes.len() < segments * self.segment
            && self.bytes.len() + len <= LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::net::{IpAddr, Ipv4Addr};

    /// A system with room for some batches.
    #[derive(Default)]
    struct Room {
        batches: Cell<usize>,
        sent: RefCell<Vec<(SocketAddr, Vec<u8>)>>,
    }

    impl DatagramSink for Room {
        fn segments(&self) -> usize {
            2
        }

        fn send(&self, batch: DatagramBatch) -> Result<Vec<u8>, DatagramBatch> {
            match self.batches.get().checked_sub(1) {
                None => Err(batch),
                Some(left) => {
                    self.batches.set(left);
                    self.sent.borrow_mut().push((batch.to, batch.bytes.clone()));
                    Ok(batch.bytes)
                }
            }
        }
    }

    const TO: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7420);

    fn send(outbox: &mut DatagramOutbox, room: &Room, datagram: &[u8]) {
        outbox.datagram(room, TO, datagram.len()).extend_from_slice(datagram);
    }

    #[test]
    fn what_a_full_system_does_not_take_leaves_later_in_order() {
        let (mut outbox, room) = (DatagramOutbox::default(), Room::default());
        for datagram in 0..6 {
            send(&mut outbox, &room, &[datagram; 3]);
        }
        outbox.flush(&room);
        assert!(outbox.is_blocked() && room.sent.borrow().is_empty());
        room.batches.set(2);
        outbox.resume(&room);
        // What comes now waits behind what has waited, even if there is room.
        room.batches.set(1);
        send(&mut outbox, &room, &[9]);
        outbox.flush(&room);
        assert!(outbox.is_blocked());
        outbox.resume(&room);
        assert!(outbox.is_blocked(), "there was room for one");
        room.batches.set(9);
        outbox.resume(&room);
        assert!(!outbox.is_blocked());
        let sent: Vec<u8> = room.sent.borrow().iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        assert_eq!(sent, [&[0; 3][..], &[1; 3], &[2; 3], &[3; 3], &[4; 3], &[5; 3], &[9]].concat());
    }

    #[test]
    fn a_system_that_stays_full_costs_bounded_memory_and_the_first_datagrams_are_kept() {
        let (mut outbox, room) = (DatagramOutbox::default(), Room::default());
        let long = |tag| vec![tag; LONGEST];
        for tag in 0..=255 {
            send(&mut outbox, &room, &long(tag));
        }
        outbox.flush(&room);
        assert!(outbox.blocked_bytes <= BLOCKED_BYTES && outbox.blocked_bytes + LONGEST > BLOCKED_BYTES);
        room.batches.set(usize::MAX);
        outbox.resume(&room);
        assert_eq!(outbox.blocked_bytes, 0);
        let sent = room.sent.borrow();
        assert_eq!(sent.len(), BLOCKED_BYTES / LONGEST);
        assert!((0..).zip(sent.iter()).all(|(tag, (_, bytes))| *bytes == long(tag)));
    }
}
