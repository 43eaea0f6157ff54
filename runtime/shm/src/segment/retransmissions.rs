//! The retransmission buffer: the datagrams that the leader of a node has sent, of which its agent
//! sends some again.
//!
//! The buffer takes the place of the rings in a part that does not use them. It begins with
//! [`RETRANSMISSION_SLOTS`] slots. Each slot has a header: the number of the call plus one, then
//! the transfer and the length. A message of at most [`DATAGRAM_BYTES`] follows its header. The
//! bytes of a longer one are in a ring after the slots, and the header is followed by the offset of
//! the bytes in this ring. Agents of releases without the ring ignore such a message, because of
//! its length.
//!
//! A long message is stored in one piece: if it does not fit before the end of the ring, it is
//! stored at the start. It may overwrite older long messages, whose slots the leader clears first.
//! The agent reads at any time. It compares the call in the slot before and after it copies, so it
//! never returns a message that the leader overwrites.
//!
//! The agent must not trust the content, so it checks lengths and offsets.

use super::{OutOfBounds, RING_BYTES, RINGS, RankPart, SegmentMemory, SharedWord};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Maximum size of a datagram that is stored in a slot, in bytes. A longer one is a long message.
pub const DATAGRAM_BYTES: usize = 4096 + 64;

/// Maximum size of a stored datagram, in bytes.
pub const LONG_MESSAGE_BYTES: usize = 61_440;

/// Number of datagrams that are stored, long or not: the size of the retransmission buffer.
pub const RETRANSMISSION_SLOTS: u64 = 128;

/// Number of bytes of the latest long messages that are always stored.
///
/// If the lengths of the latest long messages add up to at most this number, and all of them are
/// among the latest [`RETRANSMISSION_SLOTS`] datagrams, all of them are stored. This is less than
/// the size of the ring, because a message that does not fit before its end leaves these bytes
/// unused, which are fewer than those of the message.
pub const LONG_RETRANSMISSION_BYTES: u64 = LONG_RING_BYTES - LONG_MESSAGE_BYTES as u64;

/// Header of a stored datagram: the number of its call plus one, then its transfer and its length.
pub(super) const DATAGRAM_HEADER_BYTES: u64 = 16;
const DATAGRAM_SLOT_BYTES: u64 = DATAGRAM_HEADER_BYTES + DATAGRAM_BYTES as u64;

/// Offset of the ring of long messages within a part, and its size.
pub(super) const LONG_RING: u64 =
    RINGS + (RETRANSMISSION_SLOTS * DATAGRAM_SLOT_BYTES).next_multiple_of(super::CACHE_LINE_BYTES);
pub(super) const LONG_RING_BYTES: u64 = RINGS + 2 * RING_BYTES - LONG_RING;

const _: () = assert!(DATAGRAM_SLOT_BYTES.is_multiple_of(8) && DATAGRAM_BYTES < LONG_MESSAGE_BYTES);
const _: () = assert!(LONG_RING <= RINGS + 2 * RING_BYTES && LONG_MESSAGE_BYTES as u64 <= LONG_RING_BYTES);

/// How far a leader has filled its retransmission buffer.
///
/// Only the leader knows this. The default is the position in the buffer of a new segment.
#[derive(Debug, Default)]
pub struct RetransmissionPosition {
    /// Number of datagrams stored so far.
    pub(super) datagrams: u64,
    /// Where the next long message begins, unless it would cross the end of the ring. The positions
    /// of all laps through the ring are numbered consecutively.
    pub(super) next_byte: u64,
    /// The long messages that are still stored, oldest first.
    long_messages: VecDeque<LongMessage>,
}

/// A long message that is still stored.
#[derive(Debug)]
struct LongMessage {
    /// Number of datagrams that were stored before it.
    number: u64,
    /// Position of its first byte, numbered as [`RetransmissionPosition::next_byte`].
    start: u64,
}

impl<M: SegmentMemory> RankPart<'_, M> {
    /// Stores the datagram of a message, which is identified by its call and transfer.
    ///
    /// The datagram replaces the one that was stored [`RETRANSMISSION_SLOTS`] before it. A datagram
    /// longer than [`DATAGRAM_BYTES`] also replaces old ones of this kind, except for the latest
    /// ones with [`LONG_RETRANSMISSION_BYTES`] bytes, including the new one.
    ///
    /// `position` is the position after the previous datagram, and is advanced.
    ///
    /// # Errors
    /// Returns an error if the datagram is longer than [`LONG_MESSAGE_BYTES`]; nothing is changed
    /// then.
    pub fn keep_for_retransmission(
        &self,
        position: &mut RetransmissionPosition,
        (call, transfer): (u64, u32),
        bytes: &[u8],
    ) -> Result<(), OutOfBounds> {
        let len = bytes.len() as u64;
        if bytes.len() > LONG_MESSAGE_BYTES {
            return Err(OutOfBounds { offset: 0, len, region: LONG_MESSAGE_BYTES as u64 });
        }
        let number = position.datagrams;
        position.datagrams += 1;
        // The new datagram takes the slot of this long message. The slot must not be cleared later,
        // when the bytes of the long message are overwritten.
        position.long_messages.pop_front_if(|oldest| oldest.number + RETRANSMISSION_SLOTS <= number);
        let at = datagram(number);
        // A concurrent reader compares the call before and after it copies, so it must not find the
        // old one.
        self.word(at).store(0, Ordering::SeqCst);
        let is_long = bytes.len() > DATAGRAM_BYTES;
        let offset = if is_long { self.clear_overwritten(position, number, len) } else { 0 };
        M::fence(Ordering::SeqCst);
        self.word(at + 8).store(u64::from(transfer) << 32 | len, Ordering::Relaxed);
        let data_at = if is_long {
            self.word(at + DATAGRAM_HEADER_BYTES).store(offset, Ordering::Relaxed);
            LONG_RING + offset
        } else {
            at + DATAGRAM_HEADER_BYTES
        };
        self.region.copy_in(self.at + data_at, bytes)?;
        self.word(at).store(call + 1, Ordering::Release);
        Ok(())
    }

    /// Clears the slots of the long messages that a new one of `len` bytes overwrites, and returns
    /// its offset in the ring. `number` is the number of datagrams stored before it.
    fn clear_overwritten(&self, position: &mut RetransmissionPosition, number: u64, len: u64) -> u64 {
        let left = LONG_RING_BYTES - position.next_byte % LONG_RING_BYTES;
        let start = position.next_byte + if len <= left { 0 } else { left };
        let end = start + len;
        let is_overwritten = |old: &mut LongMessage| old.start + LONG_RING_BYTES < end;
        while let Some(old) = position.long_messages.pop_front_if(is_overwritten) {
            self.word(datagram(old.number)).store(0, Ordering::SeqCst);
        }
        position.long_messages.push_back(LongMessage { number, start });
        position.next_byte = end;
        start % LONG_RING_BYTES
    }

    /// Returns the datagram of a message, if it is still stored.
    pub fn find_retransmission(&self, (call, transfer): (u64, u32)) -> Option<Vec<u8>> {
        (0..RETRANSMISSION_SLOTS).find_map(|slot| self.read_datagram(datagram(slot), (call, transfer)))
    }

    /// Returns the datagram of the slot at an offset if it is that of a message.
    pub(super) fn read_datagram(&self, at: u64, (call, transfer): (u64, u32)) -> Option<Vec<u8>> {
        // A slot without datagram has the number 0.
        let stored = call.checked_add(1)?;
        let is_it = || self.word(at).load(Ordering::Acquire) == stored;
        if !is_it() {
            return None;
        }
        // Not before the call is known: otherwise this could be the transfer of the previous
        // datagram.
        let name = self.word(at + 8).load(Ordering::Relaxed);
        let len = (name & u64::from(u32::MAX)) as usize;
        if name >> 32 != u64::from(transfer) || len > LONG_MESSAGE_BYTES {
            return None;
        }
        let data_at = if len > DATAGRAM_BYTES {
            let offset = self.word(at + DATAGRAM_HEADER_BYTES).load(Ordering::Relaxed);
            LONG_RING + Some(offset).filter(|offset| *offset <= LONG_RING_BYTES - len as u64)?
        } else {
            at + DATAGRAM_HEADER_BYTES
        };
        let mut bytes = vec![0; len];
        self.region.copy_out(self.at + data_at, &mut bytes).ok()?;
        M::fence(Ordering::SeqCst);
        is_it().then_some(bytes)
    }
}

/// Returns the offset of the slot of a datagram within its part, in place of the unused rings.
pub(super) fn datagram(number: u64) -> u64 {
    RINGS + number % RETRANSMISSION_SLOTS * DATAGRAM_SLOT_BYTES
}
