//! Outgoing datagrams. Datagrams of the same length to the same address are sent together (GSO).
//! Datagrams for which the system has no room wait here, in order and up to a limit.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// The size of socket buffers in bytes, for data that arrives while the engine is busy: some
/// seconds at 20 Mbit/s, or some tens of milliseconds at 1 Gbit/s.
pub(super) const BUFFER: usize = 8 * 1024 * 1024;

/// The maximum UDP payload in bytes, which also limits the datagrams that are sent together.
const LONGEST: usize = 65_507;

/// A destination of datagrams.
pub(super) trait DatagramSink {
    /// Returns the maximum number of datagrams that it accepts at once.
    fn segments(&self) -> usize;

    /// Sends datagrams if there is room for them, and returns their memory for reuse. Datagrams
    /// that the network refuses are lost, as they may be later on their path.
    ///
    /// # Errors
    /// Returns the rest of the batch if there is no room for it.
    fn send(&self, batch: DatagramBatch) -> Result<Vec<u8>, DatagramBatch>;
}

/// Datagrams to one address, of `segment` bytes each, except that the last one may be shorter.
#[derive(Debug)]
pub(super) struct DatagramBatch {
    pub(super) to: SocketAddr,
    pub(super) bytes: Vec<u8>,
    pub(super) segment: usize,
}

/// The maximum number of bytes that wait for room in the system. Further datagrams are lost, as
/// they may be on their path. It is the size of a socket's buffer.
const BLOCKED_BYTES: usize = BUFFER;

/// Outgoing datagrams, which are sent together where possible. If the system has no room, they wait
/// here, so that the caller never has to wait.
#[derive(Default)]
pub(super) struct DatagramOutbox {
    open: Option<DatagramBatch>,
    /// The memory of a batch that was sent, for reuse.
    spare: Vec<u8>,
    /// The datagrams for which the system had no room.
    blocked: VecDeque<DatagramBatch>,
    blocked_bytes: usize,
}

impl DatagramOutbox {
    /// Returns the buffer to which the caller must append a datagram of `len` bytes. The datagram
    /// is sent together with others like it, at the latest when [`DatagramOutbox::flush`] is
    /// called.
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

    /// Sends the datagrams that wait for others.
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

    /// Returns whether datagrams are waiting for room in the system.
    pub(super) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Sends the datagrams for which the system had no room, until it has no more room.
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
    /// Returns whether a datagram can be sent together with this batch: it needs the same address
    /// and size, or a smaller size if it is the last.
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
    fn datagrams_without_room_are_sent_later_in_order() {
        let (mut outbox, room) = (DatagramOutbox::default(), Room::default());
        for datagram in 0..6 {
            send(&mut outbox, &room, &[datagram; 3]);
        }
        outbox.flush(&room);
        assert!(outbox.is_blocked() && room.sent.borrow().is_empty());
        room.batches.set(2);
        outbox.resume(&room);
        // A new datagram must wait behind earlier ones, even if there is room.
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
    fn a_full_system_costs_bounded_memory() {
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
