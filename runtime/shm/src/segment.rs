//! The shared segment of a group: memory in which the ranks of one node execute collectives without
//! their agent, as Open MPI's coll/sm does.
//!
//! The agent creates the segment. It reads how far each rank has progressed, the [records] of
//! completed calls and, to respond to NAKs, stored datagrams and call descriptions. It writes only
//! flags and counters, for example whether the group has failed.
//!
//! - **Publications.** A rank publishes data for the other ranks in a ring of slots. All ranks
//!   number the publications alike. A rank may overwrite a slot only after all other ranks have
//!   released its previous publication. Each rank has two rings with separate numbering: the inputs
//!   of calls and their results. Each slot carries the number of the call that its publication
//!   belongs to, so that no rank takes data of another call, whatever has failed before.
//! - **Bells.** A rank that waits for another rank sleeps on the bell of that rank, a futex. The
//!   bell is rung only if a rank sleeps on it, because ringing is a system call.
//! - **Calls.** Each rank records the calls that it has begun, so that other ranks detect a
//!   mismatch.
//! - **Starts.** A rank that starts a call without waiting in it requires its agent, unless other
//!   ranks have begun to execute the call themselves. The first ranks that begin a call decide this
//!   for all (module `starts`).
//! - **Datagrams.** A group on several nodes with sockets for quick calls has one segment on each
//!   node. The leader, which is the first rank of the node, uses it as a retransmission buffer for
//!   the datagrams that it has sent. A leader without other ranks on its node stores them in its
//!   own part, because it does not need the rings; otherwise the segment has an additional part for
//!   them (module `retransmissions`).
//!
//! All processes that map a segment belong to one user. A process that violates these rules affects
//! only the calls of its own group: every access is bounds-checked, words are atomic, and bytes are
//! copied in and out.

#![allow(
    unsafe_code,
    reason = "words of shared memory are used as atomics; each block explains why that is sound"
)]

mod memory;
#[cfg(test)]
mod model_tests;
pub mod records;
mod retransmissions;
mod starts;

use crate::pages::OutOfBounds;
use crate::region::{Region, RegionError};
pub use memory::{SegmentMemory, SharedWord};
pub use retransmissions::{
    DATAGRAM_BYTES, LONG_MESSAGE_BYTES, LONG_RETRANSMISSION_BYTES, RETRANSMISSION_SLOTS,
    RetransmissionPosition,
};
use rustix::thread::futex;
pub use starts::StartDecision;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Size of a slot in bytes, which is the maximum size of a publication.
pub const SLOT_BYTES: usize = 64 << 10;

/// Number of slots of a ring: a rank may be at most this many publications ahead of the slowest
/// release.
pub const SLOTS: u64 = 8;

/// Maximum number of ranks of a group with a segment. The limit exists because each rank polls all
/// others.
pub const RANKS_MAX: usize = 256;

/// Words that different ranks write lie in different cache lines, because sharing a line would slow
/// down both.
const CACHE_LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// Offsets of the words of the segment.
const FAILED: u64 = 0;
const DECLINED: u64 = CACHE_LINE_BYTES;
const READY: u64 = 2 * CACHE_LINE_BYTES;
const STARTS: u64 = 3 * CACHE_LINE_BYTES;
const SEGMENT_WORDS: u64 = PAGE_BYTES;
const _: () = assert!(STARTS + starts::STARTS_BYTES <= SEGMENT_WORDS);

/// Offsets of the words of a rank, within its part.
const ATTACHED: u64 = 0;
const ENTERED: u64 = CACHE_LINE_BYTES;
const COMPLETED: u64 = CACHE_LINE_BYTES + 8;
const PUBLISHED: [u64; 2] = [2 * CACHE_LINE_BYTES, 2 * CACHE_LINE_BYTES + 8];
const RELEASED: [u64; 2] = [3 * CACHE_LINE_BYTES, 3 * CACHE_LINE_BYTES + 8];
const BELL: u64 = 4 * CACHE_LINE_BYTES;
const SLEEPERS: u64 = 4 * CACHE_LINE_BYTES + 4;
const LAST_REPLY: u64 = 5 * CACHE_LINE_BYTES;
const RETRANSMISSIONS: u64 = 5 * CACHE_LINE_BYTES + 8;
const CALLS: u64 = 6 * CACHE_LINE_BYTES;

/// Flags of an attached rank. The second flag states that the rank follows all rules of this
/// module; the ranks of release 0.1 do not set it. They use bit 1 for another protocol of direct
/// copies.
const IS_ATTACHED: u64 = 1;
const NAMES_CALLS: u64 = 4;

/// Number of call descriptions kept for each rank. No rank can be this many calls ahead
/// of another one, because it must wait for releases first.
const RECENT_CALLS: u64 = 4 * SLOTS;

/// The number in the entry of a call that the rank has not entered.
const NO_CALL: u64 = u64::MAX;

/// Layout of a call's entry: its number, its digest, the length of its text, and the text,
/// truncated if necessary.
const CALL_TEXT_OFFSET: u64 = 24;
const CALL_BYTES: u64 = 256;
const TEXT_BYTES: usize = (CALL_BYTES - CALL_TEXT_OFFSET) as usize;

/// Offsets of the number of the call of each slot plus one, by ring. They follow the calls and one
/// word of the [records].
const SLOT_CALLS: [u64; 2] = [SLOT_CALLS_START, SLOT_CALLS_START + SLOTS * 8];
const SLOT_CALLS_START: u64 = (CALLS + RECENT_CALLS * CALL_BYTES + 8).next_multiple_of(CACHE_LINE_BYTES);
/// Offset of the number of the call, plus one, for which the rank requires data in slots.
const SLOTS_REQUESTED: u64 = SLOT_CALLS_START + 2 * SLOTS * 8;

/// Offset of the rings after the words of a rank, size of one ring, and size of a whole part with
/// its records.
const RINGS: u64 = (SLOTS_REQUESTED + 8).next_multiple_of(PAGE_BYTES);
const _: () = assert!(RINGS == 3 * PAGE_BYTES, "the layout must equal that of release 0.1");
const RING_BYTES: u64 = SLOTS * SLOT_BYTES as u64;
const RANK_BYTES: u64 = records::END;

/// Selects one of the two rings of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRing {
    /// Data that the rank contributes to calls.
    Inputs = 0,
    /// Data that the rank computed from the contributions of all ranks.
    Results = 1,
}

/// A group's segment, as mapped by this process.
#[derive(Debug)]
pub struct Segment {
    region: Region,
    ranks: usize,
}

/// The part of a segment that belongs to one rank.
#[derive(Debug)]
pub struct RankPart<'a, M = Region> {
    region: &'a M,
    at: u64,
}

impl<M> Clone for RankPart<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for RankPart<'_, M> {}

impl Segment {
    /// Creates a segment for a group of `ranks` ranks on one node.
    ///
    /// # Errors
    /// Returns an error if the system does not have enough memory. Pages that are never touched use
    /// no memory.
    pub fn create(ranks: usize) -> Result<Segment, RegionError> {
        Ok(Segment { region: Region::create(Segment::bytes(ranks))?, ranks })
    }

    /// Creates a segment for the `ranks` ranks of one node of a group on several nodes.
    ///
    /// # Errors
    /// Returns the errors of [`Segment::create`].
    pub fn create_for_node(ranks: usize) -> Result<Segment, RegionError> {
        Segment::create(parts_for_node(ranks))
    }

    /// Maps a segment that was created by [`Segment::create_for_node`].
    ///
    /// # Errors
    /// Returns the errors of [`Segment::open`].
    pub fn open_for_node(file: OwnedFd, bytes: u64, ranks: usize) -> Result<Segment, RegionError> {
        Segment::open(file, bytes, parts_for_node(ranks))
    }

    /// Maps the segment of `bytes` bytes that the agent sent for a group of `ranks` ranks.
    ///
    /// # Errors
    /// Returns an error if the size is not that of a segment for `ranks` ranks, or the file cannot
    /// be mapped.
    pub fn open(file: OwnedFd, bytes: u64, ranks: usize) -> Result<Segment, RegionError> {
        let claimed = Segment::bytes(ranks);
        if bytes != claimed {
            return Err(RegionError::WrongSize { claimed, actual: bytes });
        }
        Ok(Segment { region: Region::open(file, bytes)?, ranks })
    }

    fn bytes(ranks: usize) -> u64 {
        SEGMENT_WORDS + ranks as u64 * RANK_BYTES
    }

    /// Returns the size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// Returns the descriptor to send with an `Attached` frame.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.region.descriptor()
    }

    /// Marks the group as failed and wakes all waiting ranks. They must then ask the agent for the
    /// reason.
    pub fn fail(&self) {
        self.region.word(FAILED).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Returns whether the group has failed.
    pub fn has_failed(&self) -> bool {
        self.region.word(FAILED).load(Ordering::Relaxed) != 0
    }

    /// Records that a rank cannot use the segment. All ranks must execute later calls by the agent.
    pub fn decline(&self) {
        self.region.word(DECLINED).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Returns whether a rank has declined the segment.
    pub fn is_declined(&self) -> bool {
        self.region.word(DECLINED).load(Ordering::SeqCst) != 0
    }

    /// Returns whether ranks may begin calls in the segment. If the group has failed, the agent
    /// reports why.
    pub fn is_usable(&self) -> bool {
        !(self.is_declined() || self.has_failed())
    }

    /// Records that all agents of the group have opened their sockets for quick calls, so ranks of
    /// other nodes can be reached.
    pub fn set_ready(&self) {
        self.region.word(READY).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Returns whether ranks of other nodes can be reached; see [`Segment::set_ready`].
    pub fn is_ready(&self) -> bool {
        self.region.word(READY).load(Ordering::SeqCst) != 0
    }

    /// Notifies a rank that the agent has replied to its watched call, which the rank identifies as
    /// `answer`. Wakes the rank, whichever bell it sleeps on.
    pub fn notify_reply(&self, rank: usize, answer: u64) {
        self.rank(rank).word(LAST_REPLY).store(answer, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Returns the part of a rank.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn rank(&self, rank: usize) -> RankPart<'_> {
        assert!(rank < self.ranks, "rank {rank} of a segment for {}", self.ranks);
        RankPart { region: &self.region, at: SEGMENT_WORDS + rank as u64 * RANK_BYTES }
    }

    /// Returns the part in which the leader of a node with `ranks` ranks stores the datagrams that
    /// it has sent. The segment must have been created for that many ranks.
    ///
    /// # Panics
    /// Panics if it was created for fewer ranks.
    pub fn leader_part(&self, ranks: usize) -> RankPart<'_> {
        self.rank(parts_for_node(ranks) - 1)
    }

    /// Returns all parts, in rank order.
    pub fn ranks(&self) -> impl Iterator<Item = RankPart<'_>> {
        (0..self.ranks).map(|rank| self.rank(rank))
    }
}

impl RankPart<'_> {
    /// Records that the rank has attached and can use the segment.
    pub fn attach(&self) {
        // The entry of call 0 is all zeros, as if the rank had entered that call with digest 0. It
        // may never enter it, because agents execute it.
        self.word(call(0)).store(NO_CALL, Ordering::Relaxed);
        self.word(ATTACHED).store(IS_ATTACHED | NAMES_CALLS, Ordering::SeqCst);
        self.ring();
    }
}

impl<M: SegmentMemory> RankPart<'_, M> {
    /// Returns whether the rank has attached and can use the segment.
    pub fn is_attached(&self) -> bool {
        self.word(ATTACHED).load(Ordering::SeqCst) != 0
    }

    /// Returns whether the rank records the call of each publication, takes part in the decision
    /// about [started calls](StartDecision), and supports direct copies. Ranks of release 0.1 do
    /// not.
    pub fn names_calls(&self) -> bool {
        self.word(ATTACHED).load(Ordering::SeqCst) & NAMES_CALLS != 0
    }

    /// Returns how many calls of the group the rank has begun.
    pub fn entered_calls(&self) -> u64 {
        self.word(ENTERED).load(Ordering::Acquire)
    }

    /// Records that the rank begins a call with this number, digest and text.
    ///
    /// Ends with a sequentially consistent fence: if two ranks each record a call and then read the
    /// digest of the other, at least one of them finds it.
    ///
    /// # Errors
    /// Never returns an error, because the offsets lie within the segment.
    pub fn enter(&self, number: u64, digest: u64, text: &str) -> Result<(), OutOfBounds> {
        let call = call(number);
        // Programs repeat the same few calls, so the entry often contains this text already.
        if self.word(call + 8).swap(digest, Ordering::Relaxed) != digest {
            let bytes = &text.as_bytes()[..text.len().min(TEXT_BYTES)];
            self.word(call + 16).store(bytes.len() as u64, Ordering::Relaxed);
            self.region.copy_in(self.at + call + CALL_TEXT_OFFSET, bytes)?;
        }
        self.word(call).store(number, Ordering::Relaxed);
        self.word(ENTERED).store(number + 1, Ordering::Release);
        self.wake();
        Ok(())
    }

    /// Returns the digest of a call that the rank has begun, or `None` if it has not, or if too
    /// many calls followed.
    pub fn digest(&self, number: u64) -> Option<u64> {
        let call = call(number);
        let known = self.entered_calls() > number && self.word(call).load(Ordering::Relaxed) == number;
        known.then(|| self.word(call + 8).load(Ordering::Relaxed))
    }

    /// Returns the text of a call that the rank has begun.
    ///
    /// # Errors
    /// Never returns an error, because the offsets lie within the segment.
    pub fn text(&self, number: u64) -> Result<String, OutOfBounds> {
        let call = call(number);
        let len = self.word(call + 16).load(Ordering::Relaxed).min(TEXT_BYTES as u64);
        let mut bytes = vec![0; len as usize];
        self.region.copy_out(self.at + call + CALL_TEXT_OFFSET, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns how many calls of the group the rank has completed.
    pub fn completed_calls(&self) -> u64 {
        self.word(COMPLETED).load(Ordering::Acquire)
    }

    /// Records that the rank has completed `calls` calls.
    pub fn complete(&self, calls: u64) {
        self.word(COMPLETED).store(calls, Ordering::Release);
    }

    /// Returns the number of the rank's first missing publication: all lower numbers are available.
    pub fn published(&self, ring: SegmentRing) -> u64 {
        self.word(PUBLISHED[ring as usize]).load(Ordering::Acquire)
    }

    /// Returns the number of the first publication that the rank may still read: it has released
    /// all lower numbers, of all ranks.
    pub fn released(&self, ring: SegmentRing) -> u64 {
        self.word(RELEASED[ring as usize]).load(Ordering::Acquire)
    }

    /// Makes a publication of a call available, with all before it, and wakes sleeping ranks.
    pub fn publish(&self, (ring, publication): (SegmentRing, u64), call: u64) {
        self.word(slot_call(ring, publication)).store(call.wrapping_add(1), Ordering::Relaxed);
        self.word(PUBLISHED[ring as usize]).store(publication + 1, Ordering::Release);
        self.wake();
    }

    /// Returns whether an available publication that this rank has not released belongs to a call.
    pub fn is_of_call(&self, (ring, publication): (SegmentRing, u64), call: u64) -> bool {
        self.word(slot_call(ring, publication)).load(Ordering::Relaxed) == call.wrapping_add(1)
    }

    /// Records that this rank cannot copy the memory of other ranks in a call, so that they must
    /// publish their data in slots. Must precede the release of the publication that contains the
    /// address.
    pub fn request_slots(&self, call: u64) {
        self.word(SLOTS_REQUESTED).store(call.wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns whether the rank requires data in slots in a call. This is known once it has
    /// released the publication that contains the address.
    pub fn requires_slots(&self, call: u64) -> bool {
        self.word(SLOTS_REQUESTED).load(Ordering::Relaxed) == call.wrapping_add(1)
    }

    /// Releases all publications with numbers below `next` and wakes sleeping ranks.
    pub fn release(&self, ring: SegmentRing, next: u64) {
        self.word(RELEASED[ring as usize]).store(next, Ordering::Release);
        self.wake();
    }

    /// Returns the latest watched call to which the agent replied, as set by
    /// [`Segment::notify_reply`].
    pub fn last_reply(&self) -> u64 {
        self.word(LAST_REPLY).load(Ordering::Acquire)
    }

    /// Returns how many stored datagrams the agent has retransmitted.
    pub fn retransmissions(&self) -> u64 {
        self.word(RETRANSMISSIONS).load(Ordering::Relaxed)
    }

    /// Counts one retransmission by the agent.
    pub fn count_retransmission(&self) {
        self.word(RETRANSMISSIONS).fetch_add(1, Ordering::Relaxed);
    }

    /// Copies `data` into a publication, starting at byte `offset`.
    ///
    /// # Errors
    /// Returns an error if the data would exceed [`SLOT_BYTES`].
    pub fn write(
        &self,
        (ring, publication): (SegmentRing, u64),
        offset: usize,
        data: &[u8],
    ) -> Result<(), OutOfBounds> {
        self.region.copy_in(self.data(ring, publication, offset, data.len())?, data)
    }

    /// Copies bytes out of a publication, starting at byte `offset`.
    ///
    /// # Errors
    /// Returns an error if the range exceeds [`SLOT_BYTES`].
    pub fn read(
        &self,
        (ring, publication): (SegmentRing, u64),
        offset: usize,
        data: &mut [u8],
    ) -> Result<(), OutOfBounds> {
        self.region.copy_out(self.data(ring, publication, offset, data.len())?, data)
    }

    /// Returns the offset in the region of bytes of a publication.
    fn data(
        &self,
        ring: SegmentRing,
        publication: u64,
        offset: usize,
        len: usize,
    ) -> Result<u64, OutOfBounds> {
        if offset.saturating_add(len) > SLOT_BYTES {
            let (offset, len) = (offset as u64, len as u64);
            return Err(OutOfBounds { offset, len, region: SLOT_BYTES as u64 });
        }
        let slot = publication % SLOTS * SLOT_BYTES as u64;
        Ok(self.at + RINGS + ring as u64 * RING_BYTES + slot + offset as u64)
    }

    /// Wakes all sleepers, if there are any.
    fn wake(&self) {
        self.region.wake(self.at);
    }

    fn word(&self, offset: u64) -> &M::Word {
        self.region.word(self.at + offset)
    }
}

impl RankPart<'_> {
    /// Sleeps until the rank makes progress, the group fails or `timeout` passes.
    ///
    /// Returns at once if `condition` holds. May also return spuriously, so the caller must check
    /// the condition in a loop.
    pub fn sleep(&self, condition: impl Fn() -> bool, timeout: Duration) {
        let (bell, sleepers) = (self.half_word(BELL), self.half_word(SLEEPERS));
        sleepers.fetch_add(1, Ordering::SeqCst);
        let rung = bell.load(Ordering::SeqCst);
        // Either this thread sees the progress of the other rank, or that rank sees the sleeper and
        // rings.
        fence(Ordering::SeqCst);
        if !condition() {
            let timeout = timeout.try_into().ok();
            // The caller rechecks its condition, so it does not matter why the wait ended.
            let _ = futex::wait(bell, futex::Flags::empty(), rung, timeout.as_ref());
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all sleepers, if there are any.
    fn wake_sleepers(&self) {
        fence(Ordering::SeqCst);
        if self.half_word(SLEEPERS).load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        let bell = self.half_word(BELL);
        bell.fetch_add(1, Ordering::SeqCst);
        // The kernel interprets the count as a signed number. Waking cannot fail for a word of
        // mapped memory.
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
    }

    fn half_word(&self, offset: u64) -> &AtomicU32 {
        let at = self.region.address(self.at + offset, 4).expect(WORDS_ARE_WITHIN);
        // SAFETY: the bytes are mapped as long as the region is borrowed, and aligned. All users of
        // this module access them only as an atomic word.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }
}

/// Returns the number of parts of a segment for one node of a group on several nodes.
fn parts_for_node(ranks: usize) -> usize {
    if ranks == 1 { 1 } else { ranks + 1 }
}

/// Returns the offset of the number of the call of a publication within the part of its rank.
fn slot_call(ring: SegmentRing, publication: u64) -> u64 {
    SLOT_CALLS[ring as usize] + publication % SLOTS * 8
}

/// Returns the offset of a call's entry within the part of its rank.
fn call(number: u64) -> u64 {
    CALLS + number % RECENT_CALLS * CALL_BYTES
}

/// Invariant of all offsets in this module.
const WORDS_ARE_WITHIN: &str = "words lie within their segment";

#[cfg(test)]
mod tests;
