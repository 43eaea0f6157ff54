//! The shared segment of a group whose ranks are all on one node: memory in which they carry out calls themselves (as Open MPI's
//! coll/sm does). Their agent makes it, and reads little of it: how far ranks have come, and what they have done.
//!
//! What a rank has for others it publishes in a ring of slots, in publications that all ranks number alike. It
//! writes a slot anew once all ranks have released what was there. There are two rings, which are numbered apart: for what ranks
//! give to a call, and for what they make of it. Who waits for a rank sleeps on that rank's bell (a futex), which is rung only
//! if somebody sleeps. Each rank says which calls it has begun, so that others find when it has called something else.
//!
//! A group on several nodes that has sockets for quick calls has a segment on each of them, for its ranks there. Their leader, the first of
//! them, keeps in it what it has sent to other nodes, for those that lack it: where it has no other ranks, in its own part, whose rings it
//! then has no use for, and else in one that is for that alone.
//!
//! Each rank leaves [records] of the calls that it has carried out for the agent to read.
//!
//! All who have the segment are of one user. Who does not keep to this spoils the calls of its own group and nothing
//! else: every access is bounds-checked, words are atomic, and bytes are copied in and out.

#![allow(
    unsafe_code,
    reason = "words of shared memory are used as atomics; the block says why that is sound"
)]

pub mod records;

use crate::pages::OutOfBounds;
use crate::region::{Region, RegionError};
use rustix::thread::futex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Bytes of one publication, at most.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Publications of a ring that others need not have released.
pub const SLOTS: u64 = 8;

/// Ranks of a group with a segment, at most: each looks at all others.
pub const RANKS_MAX: usize = 256;

/// Words that different ranks write lie in different cache lines.
const CACHE_LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// The words of the segment.
const FAILED: u64 = 0;
const DECLINED: u64 = CACHE_LINE_BYTES;
const READY: u64 = 2 * CACHE_LINE_BYTES;
const SEGMENT_WORDS: u64 = PAGE_BYTES;

/// The words of a rank.
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

/// What a rank that has come says of itself: that it has, and that it knows calls in which ranks read each other's memory, which earlier
/// releases of the library do not.
const IS_ATTACHED: u64 = 1;
const READS_PEER_MEMORY: u64 = 2;

/// The latest calls that a rank has begun. Nobody is as many ahead of another rank: it would have had to release before.
const RECENT_CALLS: u64 = 4 * SLOTS;

/// Such a call: its number, its digest, the length of its words, and these, cut if they are longer.
const CALL_TEXT_OFFSET: u64 = 24;
const CALL_BYTES: u64 = 256;
const TEXT_BYTES: usize = (CALL_BYTES - CALL_TEXT_OFFSET) as usize;

/// A rank's words, its rings, and with its records all.
const RINGS: u64 = (CALLS + RECENT_CALLS * CALL_BYTES + 8).next_multiple_of(PAGE_BYTES);
const RING_BYTES: u64 = SLOTS * CHUNK_BYTES as u64;
const RANK_BYTES: u64 = records::END;

/// Bytes of the longest datagram that a rank keeps for others.
pub const DATAGRAM_BYTES: usize = 4096 + 64;

/// How many it keeps.
pub const DATAGRAM_SLOTS: u64 = 128;

/// What each begins with: the number of its call and one, then its transfer and its length.
const DATAGRAM_HEADER_BYTES: u64 = 16;
const DATAGRAM_SLOT_BYTES: u64 = DATAGRAM_HEADER_BYTES + DATAGRAM_BYTES as u64;
const _: () = assert!(DATAGRAM_SLOT_BYTES.is_multiple_of(8) && DATAGRAM_SLOTS * DATAGRAM_SLOT_BYTES <= 2 * RING_BYTES);

/// One of a rank's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRing {
    /// What the rank gives to calls.
    Inputs = 0,
    /// What it has made of what all have given.
    Results = 1,
}

/// A group's segment, as one process has it.
#[derive(Debug)]
pub struct Segment {
    region: Region,
    ranks: usize,
}

/// One rank's part of a segment.
#[derive(Clone, Copy, Debug)]
pub struct RankPart<'a> {
    region: &'a Region,
    at: u64,
}

impl Segment {
    /// A new segment for a group of `ranks` ranks.
    ///
    /// # Errors
    /// If the system has not that much memory. What nobody touches takes none.
    pub fn create(ranks: usize) -> Result<Segment, RegionError> {
        Ok(Segment { region: Region::create(Segment::bytes(ranks))?, ranks })
    }

    /// A new segment for a node's ranks of a group on several nodes.
    ///
    /// # Errors
    /// As [`Segment::create`].
    pub fn create_for_node(ranks: usize) -> Result<Segment, RegionError> {
        Segment::create(parts_for_node(ranks))
    }

    /// That of a node's ranks of a group on several nodes; see [`Segment::open`].
    ///
    /// # Errors
    /// As [`Segment::open`].
    pub fn open_for_node(file: OwnedFd, bytes: u64, ranks: usize) -> Result<Segment, RegionError> {
        Segment::open(file, bytes, parts_for_node(ranks))
    }

    /// The segment that the agent sent, which it said to have `bytes` bytes.
    ///
    /// # Errors
    /// If it is not one of a group of `ranks` ranks, or cannot be mapped.
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

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> u64 {
        self.region.len()
    }

    /// The descriptor to send with `Attached`.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.region.descriptor()
    }

    /// The group has failed: whoever waits in the segment wakes, and asks the agent why.
    pub fn fail(&self) {
        word(&self.region, FAILED).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Whether the group has failed.
    pub fn has_failed(&self) -> bool {
        word(&self.region, FAILED).load(Ordering::Relaxed) != 0
    }

    /// A rank has come that cannot use a segment: nobody does.
    pub fn decline(&self) {
        word(&self.region, DECLINED).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Whether a rank has come that cannot use a segment.
    pub fn is_declined(&self) -> bool {
        word(&self.region, DECLINED).load(Ordering::SeqCst) != 0
    }

    /// Whether ranks may begin calls by it: of a group that has failed the agent says why.
    pub fn is_usable(&self) -> bool {
        !(self.is_declined() || self.has_failed())
    }

    /// All agents of the group have opened sockets for quick calls: ranks of other nodes are reached by them.
    pub fn set_ready(&self) {
        word(&self.region, READY).store(1, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// Whether ranks of other nodes are reached by sockets; see [`Segment::set_ready`].
    pub fn is_ready(&self) -> bool {
        word(&self.region, READY).load(Ordering::SeqCst) != 0
    }

    /// The agent has answered a watched call of a rank, which knows it as `answer`: whoever it waits for, it wakes.
    pub fn notify_reply(&self, rank: usize, answer: u64) {
        self.rank(rank).word(LAST_REPLY).store(answer, Ordering::SeqCst);
        self.ranks().for_each(|rank| rank.ring());
    }

    /// A rank's part.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn rank(&self, rank: usize) -> RankPart<'_> {
        assert!(rank < self.ranks, "rank {rank} of a segment for {}", self.ranks);
        RankPart { region: &self.region, at: SEGMENT_WORDS + rank as u64 * RANK_BYTES }
    }

    /// In a segment of a node's `ranks` ranks of a group on several nodes, the part in which their leader keeps what it has sent.
    ///
    /// # Panics
    /// If the segment is not of that many.
    pub fn leader_part(&self, ranks: usize) -> RankPart<'_> {
        self.rank(parts_for_node(ranks) - 1)
    }

    /// All parts, in rank order.
    pub fn ranks(&self) -> impl Iterator<Item = RankPart<'_>> {
        (0..self.ranks).map(|rank| self.rank(rank))
    }
}

impl RankPart<'_> {
    /// The rank has come, and can use the segment.
    pub fn attach(&self) {
        self.word(ATTACHED).store(IS_ATTACHED | READS_PEER_MEMORY, Ordering::SeqCst);
        self.ring();
    }

    /// Whether the rank has come, and can use the segment.
    pub fn is_attached(&self) -> bool {
        self.word(ATTACHED).load(Ordering::SeqCst) != 0
    }

    /// Whether a rank that has come knows calls in which ranks read each other's memory.
    pub fn reads_peer_memory(&self) -> bool {
        self.word(ATTACHED).load(Ordering::SeqCst) & READS_PEER_MEMORY != 0
    }

    /// How many calls of the group the rank has begun.
    pub fn entered_calls(&self) -> u64 {
        self.word(ENTERED).load(Ordering::Acquire)
    }

    /// The rank begins a call of this number, digest and words.
    ///
    /// # Errors
    /// Never, of a segment that is whole.
    pub fn enter(&self, number: u64, digest: u64, text: &str) -> Result<(), OutOfBounds> {
        let call = call(number);
        // Programs repeat the same few calls, whose words stand there already.
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

    /// The digest of a call that the rank has begun, if it has not begun many since.
    pub fn digest(&self, number: u64) -> Option<u64> {
        let call = call(number);
        let known = self.entered_calls() > number && self.word(call).load(Ordering::Relaxed) == number;
        known.then(|| self.word(call + 8).load(Ordering::Relaxed))
    }

    /// Such a call in words.
    ///
    /// # Errors
    /// Never, of a segment that is whole.
    pub fn text(&self, number: u64) -> Result<String, OutOfBounds> {
        let call = call(number);
        let len = self.word(call + 16).load(Ordering::Relaxed).min(TEXT_BYTES as u64);
        let mut bytes = Vec::new();
        self.region.append_to(self.at + call + CALL_TEXT_OFFSET, len as usize, &mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// How many calls of the group the rank is through.
    pub fn completed_calls(&self) -> u64 {
        self.word(COMPLETED).load(Ordering::Acquire)
    }

    /// The rank is through as many calls.
    pub fn complete(&self, calls: u64) {
        self.word(COMPLETED).store(calls, Ordering::Release);
    }

    /// Publications below this number are there.
    pub fn published(&self, ring: SegmentRing) -> u64 {
        self.word(PUBLISHED[ring as usize]).load(Ordering::Acquire)
    }

    /// Publications of all ranks below this number the rank needs no more.
    pub fn released(&self, ring: SegmentRing) -> u64 {
        self.word(RELEASED[ring as usize]).load(Ordering::Acquire)
    }

    /// The rank has published what comes before a number; whoever sleeps until then wakes.
    pub fn publish(&self, ring: SegmentRing, next: u64) {
        self.word(PUBLISHED[ring as usize]).store(next, Ordering::Release);
        self.wake();
    }

    /// The rank needs no more what comes before a number; whoever sleeps until then wakes.
    pub fn release(&self, ring: SegmentRing, next: u64) {
        self.word(RELEASED[ring as usize]).store(next, Ordering::Release);
        self.wake();
    }

    /// Which of the rank's watched calls the agent has answered last, as [`Segment::answer`] says it.
    pub fn last_reply(&self) -> u64 {
        self.word(LAST_REPLY).load(Ordering::Acquire)
    }

    /// How many of the messages that were kept the agent has sent again.
    pub fn retransmissions(&self) -> u64 {
        self.word(RETRANSMISSIONS).load(Ordering::Relaxed)
    }

    /// The agent has sent one of them again.
    pub fn count_retransmission(&self) {
        self.word(RETRANSMISSIONS).fetch_add(1, Ordering::Relaxed);
    }

    /// Copies `data` into a publication, from its byte `offset` on.
    ///
    /// # Errors
    /// If it is too long.
    pub fn write(
        &self,
        (ring, publication): (SegmentRing, u64),
        offset: usize,
        data: &[u8],
    ) -> Result<(), OutOfBounds> {
        self.region.copy_in(self.data(ring, publication, offset, data.len())?, data)
    }

    /// Copies bytes of a publication out, from its byte `offset` on.
    ///
    /// # Errors
    /// If they lie beyond it.
    pub fn read(
        &self,
        (ring, publication): (SegmentRing, u64),
        offset: usize,
        data: &mut [u8],
    ) -> Result<(), OutOfBounds> {
        self.region.copy_out(self.data(ring, publication, offset, data.len())?, data)
    }

    /// Where bytes of a publication lie.
    fn data(&self, ring: SegmentRing, publication: u64, offset: usize, len: usize) -> Result<u64, OutOfBounds> {
        if offset.saturating_add(len) > CHUNK_BYTES {
            let (offset, len) = (offset as u64, len as u64);
            return Err(OutOfBounds { offset, len, region: CHUNK_BYTES as u64 });
        }
        let slot = publication % SLOTS * CHUNK_BYTES as u64;
        Ok(self.at + RINGS + ring as u64 * RING_BYTES + slot + offset as u64)
    }

    /// Keeps the datagram of a message, of this call and transfer, in place of the one that was kept [`DATAGRAM_SLOTS`] before it; `number`
    /// counts them.
    ///
    /// # Errors
    /// If it is too long.
    pub fn store_datagram(&self, number: u64, (call, transfer): (u64, u32), bytes: &[u8]) -> Result<(), OutOfBounds> {
        if bytes.len() > DATAGRAM_BYTES {
            let len = bytes.len() as u64;
            return Err(OutOfBounds { offset: 0, len, region: DATAGRAM_BYTES as u64 });
        }
        let at = datagram(number);
        // Who reads meanwhile finds another call before or after.
        self.word(at).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.word(at + 8).store(u64::from(transfer) << 32 | bytes.len() as u64, Ordering::Relaxed);
        self.region.copy_in(self.at + at + DATAGRAM_HEADER_BYTES, bytes)?;
        self.word(at).store(call + 1, Ordering::Release);
        Ok(())
    }

    /// The datagram of a message, if the rank keeps it.
    pub fn find_datagram(&self, (call, transfer): (u64, u32)) -> Option<Vec<u8>> {
        (0..DATAGRAM_SLOTS).map(datagram).find_map(|at| {
            let name = self.word(at + 8).load(Ordering::Relaxed);
            let is_it = || self.word(at).load(Ordering::Acquire) == call + 1;
            let len = (name & u64::from(u32::MAX)) as usize;
            if !is_it() || name >> 32 != u64::from(transfer) || len > DATAGRAM_BYTES {
                return None;
            }
            let mut bytes = Vec::new();
            self.region.append_to(self.at + at + DATAGRAM_HEADER_BYTES, len, &mut bytes).ok()?;
            fence(Ordering::SeqCst);
            is_it().then_some(bytes)
        })
    }

    /// Sleeps until the rank has done something, or the group has failed, unless what is waited for is there. May wake for nothing.
    pub fn sleep(&self, condition: impl Fn() -> bool, timeout: Duration) {
        let (bell, sleepers) = (self.half_word(BELL), self.half_word(SLEEPERS));
        sleepers.fetch_add(1, Ordering::SeqCst);
        let rung = bell.load(Ordering::SeqCst);
        // Either this sees what was done, or who has done it sees the sleeper.
        fence(Ordering::SeqCst);
        if !condition() {
            let timeout = timeout.try_into().ok();
            // Rung meanwhile, a signal or the time: the caller looks again, whichever it is.
            let _ = futex::wait(bell, futex::Flags::empty(), rung, timeout.as_ref());
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes those who sleep.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.half_word(SLEEPERS).load(Ordering::SeqCst) > 0 {
            self.ring();
        }
    }

    fn ring(&self) {
        let bell = self.half_word(BELL);
        bell.fetch_add(1, Ordering::SeqCst);
        // All of them: the system takes the number as a signed one. It fails for no word of mapped memory.
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        word(self.region, self.at + offset)
    }

    fn half_word(&self, offset: u64) -> &AtomicU32 {
        let at = self.region.address(self.at + offset, 4).expect(WORDS_ARE_WITHIN);
        // SAFETY: as in `word`.
        unsafe { at.cast::<AtomicU32>().as_ref() }
    }
}

/// Parts of a segment of a node's ranks of a group on several nodes.
fn parts_for_node(ranks: usize) -> usize {
    if ranks == 1 { 1 } else { ranks + 1 }
}

/// Where what is kept of a call begins in its rank's part.
fn call(number: u64) -> u64 {
    CALLS + number % RECENT_CALLS * CALL_BYTES
}

/// Where what is kept of a datagram begins in its part, of which the rings have no other use.
fn datagram(number: u64) -> u64 {
    RINGS + number % DATAGRAM_SLOTS * DATAGRAM_SLOT_BYTES
}

/// What offsets are made for.
const WORDS_ARE_WITHIN: &str = "words lie within their segment";

fn word(region: &Region, offset: u64) -> &AtomicU64 {
    let at = region.address(offset, 8).expect(WORDS_ARE_WITHIN);
    // SAFETY: the bytes are mapped as long as the region is borrowed, a multiple of their size from the start of a page, and
    // used as an atomic by all who keep to this module; no reference to them but such ones is made in this process.
    unsafe { at.cast::<AtomicU64>().as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn pair(ranks: usize) -> [Segment; 2] {
        let ours = Segment::create(ranks).unwrap();
        let file = ours.descriptor().try_clone_to_owned().unwrap();
        let theirs = Segment::open(file, ours.len(), ranks).unwrap();
        [ours, theirs]
    }

    #[test]
    fn what_one_process_publishes_another_reads() {
        let [ours, theirs] = pair(3);
        let (part, ring) = (ours.rank(1), SegmentRing::Results);
        part.write((ring, 9), CHUNK_BYTES - 5, b"hello").unwrap();
        part.publish(ring, 10);
        let (part, mut read) = (theirs.rank(1), [0; 5]);
        part.read((ring, 9), CHUNK_BYTES - 5, &mut read).unwrap();
        assert_eq!((part.published(ring), part.published(SegmentRing::Inputs), &read), (10, 0, b"hello"));
        assert_eq!(theirs.rank(0).published(ring) + theirs.rank(2).published(ring), 0);
        assert!(part.write((ring, 9), CHUNK_BYTES - 4, b"hello").is_err());
    }

    #[test]
    fn a_rank_of_an_earlier_release_has_come_and_reads_no_others_memory() {
        let [ours, theirs] = pair(2);
        ours.rank(0).attach();
        ours.rank(1).word(ATTACHED).store(IS_ATTACHED, Ordering::SeqCst);
        let said = |rank| (theirs.rank(rank).is_attached(), theirs.rank(rank).reads_peer_memory());
        assert_eq!([said(0), said(1)], [(true, true), (true, false)]);
    }

    #[test]
    fn others_learn_which_calls_a_rank_has_begun() {
        let [ours, theirs] = pair(2);
        ours.rank(1).enter(7, 77, "bcast of 5 u8 from rank 1").unwrap();
        ours.rank(1).enter(8, 78, &"x".repeat(1000)).unwrap();
        let part = theirs.rank(1);
        assert_eq!((part.entered_calls(), part.digest(7), part.digest(8)), (9, Some(77), Some(78)));
        assert_eq!((part.digest(6), part.digest(9)), (None, None));
        assert_eq!(part.text(7).unwrap(), "bcast of 5 u8 from rank 1");
        assert_eq!(part.text(8).unwrap(), "x".repeat(TEXT_BYTES));
    }

    #[test]
    fn the_last_datagrams_of_a_rank_are_kept_and_found_by_their_names() {
        let [ours, theirs] = pair(1);
        let last = DATAGRAM_SLOTS + 5;
        for number in 0..last {
            let bytes = vec![number as u8; DATAGRAM_BYTES - number as usize];
            ours.rank(0).store_datagram(number, (number / 2, 7 + number as u32 % 2), &bytes).unwrap();
        }
        let kept = |number: u64| theirs.rank(0).find_datagram((number / 2, 7 + number as u32 % 2));
        for number in last - DATAGRAM_SLOTS..last {
            assert_eq!(kept(number), Some(vec![number as u8; DATAGRAM_BYTES - number as usize]));
        }
        assert_eq!([kept(4), kept(last), kept(1000)], [None, None, None]);
        assert!(ours.rank(0).store_datagram(0, (0, 0), &[0; DATAGRAM_BYTES + 1]).is_err());
        assert!(!theirs.is_ready());
        ours.set_ready();
        assert!(theirs.is_ready());
    }

    #[test]
    fn a_segment_of_another_group_is_refused() {
        let ours = Segment::create(3).unwrap();
        let file = ours.descriptor().try_clone_to_owned().unwrap();
        assert!(matches!(Segment::open(file, ours.len(), 4), Err(RegionError::WrongSize { .. })));
    }

    #[test]
    fn all_who_sleep_wake_by_what_is_published_by_an_answer_and_by_a_failure() {
        let [ours, theirs] = pair(2);
        let long = Duration::from_secs(60);
        let wakes = |does: &(dyn Fn() + Sync), condition: &(dyn Fn() -> bool + Sync)| {
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !condition() {
                            theirs.rank(0).sleep(condition, long);
                        }
                    });
                }
                while ours.rank(0).half_word(SLEEPERS).load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
                does();
            });
        };
        let begun = Instant::now();
        wakes(&|| ours.rank(0).publish(SegmentRing::Inputs, 1), &|| theirs.rank(0).published(SegmentRing::Inputs) == 1);
        wakes(&|| ours.rank(0).release(SegmentRing::Results, 1), &|| theirs.rank(0).released(SegmentRing::Results) == 1);
        wakes(&|| ours.notify_reply(1, 3), &|| theirs.rank(1).last_reply() == 3);
        wakes(&|| ours.fail(), &|| theirs.has_failed());
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn who_sleeps_wakes_when_its_time_is_over() {
        let segment = Segment::create(1).unwrap();
        segment.rank(0).sleep(|| false, Duration::from_millis(1));
        segment.rank(0).sleep(|| true, Duration::from_secs(60));
    }
}
