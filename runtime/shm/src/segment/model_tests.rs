//! The rules of a segment under the model checker loom, which executes them in every order of
//! memory accesses that two or three ranks can observe.

use super::retransmissions::{DATAGRAM_HEADER_BYTES, LONG_RING, LONG_RING_BYTES, datagram};
use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use std::collections::BTreeMap;

/// Size in bytes of the data of a publication or datagram in these tests.
const DATA_BYTES: usize = 8;

/// The words that a test uses. Data that no two ranks may access at the same time is in
/// `exclusive`; loom reports a race otherwise. Other data is in words, too.
struct ModelMemory {
    words: BTreeMap<u64, AtomicU64>,
    exclusive: BTreeMap<u64, UnsafeCell<[u8; DATA_BYTES]>>,
}

// SAFETY: loom executes one thread at a time, and panics if two threads may access an exclusive
// cell at the same time.
unsafe impl Sync for ModelMemory {}

impl ModelMemory {
    fn new(words: impl IntoIterator<Item = u64>, exclusive: &[u64]) -> Arc<ModelMemory> {
        Arc::new(ModelMemory {
            words: words.into_iter().map(|offset| (offset, AtomicU64::new(0))).collect(),
            exclusive: exclusive.iter().map(|offset| (*offset, UnsafeCell::new([0; DATA_BYTES]))).collect(),
        })
    }

    /// Returns the part of a rank.
    fn part(&self, rank: u64) -> RankPart<'_, ModelMemory> {
        RankPart { region: self, at: SEGMENT_WORDS + rank * RANK_BYTES }
    }
}

impl SharedWord for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    fn fetch_add(&self, more: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_add(self, more, order)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
}

impl SegmentMemory for ModelMemory {
    type Word = AtomicU64;

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[&offset]
    }

    /// Copies only the bytes that are in words or exclusive data.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        if let Some(cell) = self.exclusive.get(&offset) {
            let data = bytes.try_into().unwrap();
            // SAFETY: loom panics if another rank accesses the data at the same time.
            cell.with_mut(|place| unsafe { *place = data });
        }
        for (at, word) in self.words.range(offset..offset + bytes.len() as u64) {
            let start = (at - offset) as usize;
            let data = bytes[start..start + DATA_BYTES].try_into().unwrap();
            word.store(u64::from_le_bytes(data), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Leaves the bytes unchanged that are neither in words nor in exclusive data.
    fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        if let Some(cell) = self.exclusive.get(&offset) {
            // SAFETY: as in `copy_in`.
            bytes.copy_from_slice(&cell.with(|place| unsafe { *place }));
        }
        for (at, word) in self.words.range(offset..offset + bytes.len() as u64) {
            let start = (at - offset) as usize;
            bytes[start..start + DATA_BYTES].copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Ok(())
    }

    fn wake(&self, _part: u64) {
        Self::fence(Ordering::SeqCst);
    }

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

/// Explores all executions with at most `preemptions` preemptions of a rank.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

const RING: SegmentRing = SegmentRing::Inputs;

/// Returns the offsets of the words of a rank's input ring.
fn ring_words(rank: u64, publications: &[u64]) -> Vec<u64> {
    let at = SEGMENT_WORDS + rank * RANK_BYTES;
    let calls = publications.iter().map(|publication| slot_call(RING, *publication));
    calls.chain([PUBLISHED[0], RELEASED[0]]).map(|offset| at + offset).collect()
}

#[test]
fn a_slot_is_overwritten_only_after_its_release() {
    // Two publications in the same slot, of different calls.
    const NUMBERS: [u64; 2] = [0, SLOTS];
    explore(3, || {
        let slot = SEGMENT_WORDS + RINGS;
        let memory = ModelMemory::new([ring_words(0, &[0]), ring_words(1, &[])].concat(), &[slot]);
        let publisher = Arc::clone(&memory);
        let publisher = thread::spawn(move || {
            for (call, number) in (5..).zip(NUMBERS) {
                let room = (number + 1).saturating_sub(SLOTS);
                wait_until(|| publisher.part(1).released(RING) >= room);
                publisher.part(0).write((RING, number), 0, &[call as u8; DATA_BYTES]).unwrap();
                publisher.part(0).publish((RING, number), call);
            }
        });
        for (call, number) in (5..).zip(NUMBERS) {
            wait_until(|| memory.part(0).published(RING) > number);
            assert!(memory.part(0).is_of_call((RING, number), call));
            let mut data = [0; DATA_BYTES];
            memory.part(0).read((RING, number), 0, &mut data).unwrap();
            assert_eq!(data, [call as u8; DATA_BYTES]);
            memory.part(1).release(RING, number + 1);
        }
        publisher.join().unwrap();
    });
}

#[test]
fn a_rank_out_of_step_finds_no_slot_of_its_call() {
    explore(3, || {
        let slots = [0, 1].map(|slot| SEGMENT_WORDS + RINGS + slot * SLOT_BYTES as u64);
        let memory = ModelMemory::new(ring_words(0, &[0, 1]), &slots);
        let publisher = Arc::clone(&memory);
        let publisher = thread::spawn(move || {
            for number in 0..2 {
                publisher.part(0).write((RING, number), 0, &[7; DATA_BYTES]).unwrap();
                publisher.part(0).publish((RING, number), number);
            }
        });
        // This rank has missed call 0, so it expects call 1 in the first slot.
        wait_until(|| memory.part(0).published(RING) > 0);
        assert!(!memory.part(0).is_of_call((RING, 0), 1));
        publisher.join().unwrap();
    });
}

#[test]
fn a_request_for_slots_is_known_with_the_release() {
    explore(3, || {
        let words = [ring_words(1, &[]), vec![SEGMENT_WORDS + RANK_BYTES + SLOTS_REQUESTED]].concat();
        let memory = ModelMemory::new(words, &[]);
        let receiver = Arc::clone(&memory);
        let receiver = thread::spawn(move || {
            receiver.part(1).request_slots(4);
            receiver.part(1).release(RING, 1);
        });
        wait_until(|| memory.part(1).released(RING) > 0);
        assert!(memory.part(1).requires_slots(4) && !memory.part(1).requires_slots(3));
        receiver.join().unwrap();
    });
}

/// Two datagrams of one call never share a slot, because a call sends fewer than there are slots.
#[test]
fn a_retained_datagram_is_never_mixed_with_its_successor() {
    const NAMES: [(u64, u32); 3] = [(4, 1), (5, 2), (6, 1)];
    // The last message does not exist.
    for name in [NAMES[0], NAMES[1], NAMES[2], (5, 1)] {
        explore(4, move || {
            let (at, part) = (datagram(0), SEGMENT_WORDS);
            let words = [at, at + 8, at + DATAGRAM_HEADER_BYTES].map(|offset| part + offset);
            let memory = ModelMemory::new(words, &[]);
            let leader = Arc::clone(&memory);
            let data = |(call, transfer): (u64, u32)| vec![call as u8 * 16 + transfer as u8; DATA_BYTES];
            let leader = thread::spawn(move || {
                let mut position = RetransmissionPosition::default();
                for (turn, name) in (0..).zip(NAMES) {
                    position.datagrams = turn * RETRANSMISSION_SLOTS;
                    leader.part(0).keep_for_retransmission(&mut position, name, &data(name)).unwrap();
                }
            });
            let found = memory.part(0).read_datagram(at, name);
            assert!(found.is_none_or(|found| NAMES.contains(&name) && found == data(name)), "{name:?}");
            leader.join().unwrap();
            assert_eq!(memory.part(0).read_datagram(at, NAMES[2]), Some(data(NAMES[2])));
        });
    }
}

/// Each long message overwrites the bytes of its predecessor, which is in the same slot or another.
#[test]
fn a_retained_long_message_is_never_mixed_with_its_successor() {
    const NAMES: [(u64, u32); 3] = [(4, 1), (5, 2), (6, 1)];
    let slots = |step: u64| [0, 1, 2].map(|turn| datagram(turn * step));
    for (step, turn) in [(1, 0), (1, 1), (1, 2), (RETRANSMISSION_SLOTS, 0), (RETRANSMISSION_SLOTS, 1)] {
        explore(4, move || {
            let headers = slots(step).into_iter().flat_map(|at| [at, at + 8, at + DATAGRAM_HEADER_BYTES]);
            let words = headers.chain([LONG_RING, LONG_RING + 8]).map(|offset| SEGMENT_WORDS + offset);
            let memory = ModelMemory::new(words, &[]);
            let leader = Arc::clone(&memory);
            // The memory has only the first two words of the data. The others are zeros.
            let data = |(call, _): (u64, u32)| {
                let mut data = vec![0; LONG_MESSAGE_BYTES];
                data[..2 * DATA_BYTES].fill(call as u8);
                data
            };
            let leader = thread::spawn(move || {
                let mut position = RetransmissionPosition::default();
                for (turn, name) in (0..).zip(NAMES) {
                    (position.datagrams, position.next_byte) = (turn * step, turn * LONG_RING_BYTES);
                    leader.part(0).keep_for_retransmission(&mut position, name, &data(name)).unwrap();
                }
            });
            let (name, at) = (NAMES[turn], slots(step)[turn]);
            let found = memory.part(0).read_datagram(at, name);
            assert!(found.is_none_or(|found| found == data(name)), "another message than {name:?}");
            leader.join().unwrap();
            let found = [0, 1, 2].map(|turn| memory.part(0).read_datagram(slots(step)[turn], NAMES[turn]));
            assert!(found == [None, None, Some(data(NAMES[2]))], "not only the last message");
        });
    }
}

/// Returns the offsets of the words that describe a rank's calls.
fn call_words(rank: u64, number: u64) -> [u64; 4] {
    [ENTERED, call(number), call(number) + 8, call(number) + 16]
        .map(|offset| SEGMENT_WORDS + rank * RANK_BYTES + offset)
}

#[test]
fn one_of_two_ranks_with_different_calls_finds_the_other() {
    explore(3, || {
        let memory = ModelMemory::new([call_words(0, 0), call_words(1, 0)].concat(), &[]);
        let look = |memory: &ModelMemory, own: u64| {
            memory.part(own).enter(0, 70 + own, "").unwrap();
            memory.part(1 - own).digest(0)
        };
        let other = Arc::clone(&memory);
        let other = thread::spawn(move || look(&other, 1));
        let found = [look(&memory, 0), other.join().unwrap()];
        assert!(found.iter().any(Option::is_some), "{found:?}");
        assert!(found[0].is_none_or(|digest| digest == 71) && found[1].is_none_or(|digest| digest == 70));
    });
}

/// Returns whether the agents execute call 0, from the view of a rank that waits in it.
fn wait_in_call(memory: &ModelMemory, rank: u64) -> bool {
    memory.part(rank).enter(0, 7, "").unwrap();
    wait_until(|| starts::started_by(memory, 0) != Some(StartDecision::Undecided));
    starts::started_by(memory, 0) == Some(StartDecision::Agent)
}

/// Returns whether the agents execute call 0, from the view of a rank that starts it.
fn start_call(memory: &ModelMemory, rank: u64, ranks: u64) -> bool {
    let others = || (0..ranks).filter(|other| *other != rank);
    let has_begun = || others().any(|other| memory.part(other).entered_calls() > 0);
    let decision = starts::decide(memory, 0, has_begun);
    assert_ne!(decision, StartDecision::Undecided);
    decision == StartDecision::Agent
}

#[test]
fn ranks_that_wait_and_ranks_that_start_agree_who_executes() {
    // Ranks wait in the call if their element is set.
    for (waits, preemptions) in
        [(vec![true, false], 4), (vec![true, false, false], 2), (vec![true, true, false], 2)]
    {
        explore(preemptions, move || {
            let ranks = waits.len() as u64;
            let words = (0..ranks).flat_map(|rank| call_words(rank, 0)).chain([STARTS]);
            let memory = ModelMemory::new(words, &[]);
            let act = move |memory: &ModelMemory, rank: u64, waits: bool| match waits {
                true => wait_in_call(memory, rank),
                false => start_call(memory, rank, ranks),
            };
            let others: Vec<_> = (1..ranks)
                .zip(waits[1..].to_vec())
                .map(|(rank, waits)| {
                    let memory = Arc::clone(&memory);
                    thread::spawn(move || act(&memory, rank, waits))
                })
                .collect();
            let first = act(&memory, 0, waits[0]);
            for other in others {
                assert_eq!(other.join().unwrap(), first, "some ranks wait for the agents, others do not");
            }
        });
    }
}
