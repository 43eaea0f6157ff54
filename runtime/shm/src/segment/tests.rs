//! Segments mapped twice, as a rank and its agent map them.

use super::retransmissions::{LONG_RING_BYTES, datagram};
use super::*;
use proptest::prelude::*;
use std::time::Instant;

fn pair(ranks: usize) -> [Segment; 2] {
    let ours = Segment::create(ranks).unwrap();
    let file = ours.descriptor().try_clone_to_owned().unwrap();
    let theirs = Segment::open(file, ours.len(), ranks).unwrap();
    [ours, theirs]
}

#[test]
fn a_publication_is_readable_in_another_process() {
    let [ours, theirs] = pair(3);
    let (part, ring) = (ours.rank(1), SegmentRing::Results);
    part.write((ring, 9), SLOT_BYTES - 5, b"hello").unwrap();
    part.publish((ring, 9), 4);
    let (part, mut read) = (theirs.rank(1), [0; 5]);
    part.read((ring, 9), SLOT_BYTES - 5, &mut read).unwrap();
    assert_eq!((part.published(ring), part.published(SegmentRing::Inputs), &read), (10, 0, b"hello"));
    assert_eq!(theirs.rank(0).published(ring) + theirs.rank(2).published(ring), 0);
    assert!(part.write((ring, 9), SLOT_BYTES - 4, b"hello").is_err());
}

#[test]
fn an_earlier_release_attaches_but_names_no_calls() {
    let [ours, theirs] = pair(2);
    ours.rank(0).attach();
    ours.rank(1).word(ATTACHED).store(IS_ATTACHED, Ordering::SeqCst);
    let said = |rank| (theirs.rank(rank).is_attached(), theirs.rank(rank).names_calls());
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
fn latest_datagrams_are_found_by_call_and_transfer() {
    let [ours, theirs] = pair(1);
    let (last, mut position) = (RETRANSMISSION_SLOTS + 5, RetransmissionPosition::default());
    for number in 0..last {
        let bytes = vec![number as u8; DATAGRAM_BYTES - number as usize];
        let name = (number / 2, 7 + number as u32 % 2);
        ours.rank(0).keep_for_retransmission(&mut position, name, &bytes).unwrap();
    }
    let kept = |number: u64| theirs.rank(0).find_retransmission((number / 2, 7 + number as u32 % 2));
    for number in last - RETRANSMISSION_SLOTS..last {
        assert_eq!(kept(number), Some(vec![number as u8; DATAGRAM_BYTES - number as usize]));
    }
    assert_eq!([kept(4), kept(last), kept(1000)], [None, None, None]);
    assert!(!theirs.is_ready());
    ours.set_ready();
    assert!(theirs.is_ready());
}

#[test]
fn long_messages_fill_their_ring_and_not_more() {
    let segment = Segment::create(1).unwrap();
    let (part, mut position) = (segment.rank(0), RetransmissionPosition::default());
    let mut keep = |call: u64, len| part.keep_for_retransmission(&mut position, (call, 0), &vec![0xff; len]);
    let lens = || (0..20).map(|call| part.find_retransmission((call, 0)).map_or(0, |bytes| bytes.len()));
    // Whole messages of the maximum length, then one that ends with the ring.
    let ring = LONG_RING_BYTES as usize;
    let whole = ring / LONG_MESSAGE_BYTES;
    (0..whole).for_each(|call| keep(call as u64, LONG_MESSAGE_BYTES).unwrap());
    keep(whole as u64, ring % LONG_MESSAGE_BYTES).unwrap();
    assert_eq!(lens().sum::<usize>(), ring);
    // The next one overwrites only the first one.
    keep(19, DATAGRAM_BYTES + 1).unwrap();
    assert_eq!(lens().sum::<usize>(), ring - LONG_MESSAGE_BYTES + DATAGRAM_BYTES + 1);
    // Two more end where the next old one begins, and the last one overwrites a byte of that.
    keep(18, LONG_MESSAGE_BYTES - DATAGRAM_BYTES - 1).unwrap();
    keep(17, LONG_MESSAGE_BYTES).unwrap();
    assert_eq!(lens().sum::<usize>(), ring);
    keep(16, DATAGRAM_BYTES + 1).unwrap();
    keep(15, LONG_MESSAGE_BYTES - DATAGRAM_BYTES).unwrap();
    assert_eq!(lens().sum::<usize>(), ring - LONG_MESSAGE_BYTES + 1);
    for call in 20..40 {
        keep(call, LONG_MESSAGE_BYTES).unwrap();
        assert!(keep(99, LONG_MESSAGE_BYTES + 1).is_err());
        assert_eq!(part.find_retransmission((call, 0)).map(|bytes| bytes.len()), Some(LONG_MESSAGE_BYTES));
    }
    assert_eq!((lens().sum::<usize>(), part.find_retransmission((99, 0))), (0, None));
    assert_eq!(part.word(RINGS + 2 * RING_BYTES).load(Ordering::Relaxed), 0);
}

/// The process of a user can write anything into its segment.
#[test]
fn a_long_message_outside_of_its_ring_is_ignored() {
    let segment = Segment::create(1).unwrap();
    let (part, slot) = (segment.rank(0), datagram(3));
    let longest = LONG_MESSAGE_BYTES as u64;
    let found = |len: u64, offset: u64| {
        let words = [6, 2 << 32 | len, offset];
        (0..).zip(words).for_each(|(place, word)| part.word(slot + place * 8).store(word, Ordering::Relaxed));
        part.find_retransmission((5, 2)).map(|bytes| bytes.len() as u64)
    };
    assert_eq!(found(longest, LONG_RING_BYTES - longest), Some(longest));
    assert_eq!(found(DATAGRAM_BYTES as u64, u64::MAX), Some(DATAGRAM_BYTES as u64));
    for (len, offset) in [
        (longest, LONG_RING_BYTES - longest + 1),
        (longest, u64::MAX),
        (DATAGRAM_BYTES as u64 + 1, u64::MAX - DATAGRAM_BYTES as u64),
        (DATAGRAM_BYTES as u64 + 1, LONG_RING_BYTES),
        (longest + 1, 0),
        (u64::from(u32::MAX), 0),
    ] {
        assert_eq!(found(len, offset), None, "{len} bytes at {offset}");
    }
    // This call number would match an empty slot.
    assert_eq!(part.find_retransmission((u64::MAX, 0)), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_latest_messages_of_all_lengths_are_found(
        lengths in proptest::collection::vec(
            prop_oneof![
                2 => 0..=DATAGRAM_BYTES,
                1 => DATAGRAM_BYTES..DATAGRAM_BYTES + 3,
                3 => DATAGRAM_BYTES + 1..=LONG_MESSAGE_BYTES,
                1 => LONG_MESSAGE_BYTES - 2..=LONG_MESSAGE_BYTES,
            ],
            1..400,
        ),
        length_max in 0..=LONG_MESSAGE_BYTES,
    ) {
        let [ours, theirs] = pair(1);
        let mut position = RetransmissionPosition::default();
        // Some cases have only short messages; some have many that are only just long.
        let lengths: Vec<usize> = lengths.into_iter().map(|len| len.min(length_max)).collect();
        let name = |number: usize| (number as u64 / 5, number as u32 % 5);
        let bytes = |number: usize| {
            let mut bytes = (number as u64 + 1).to_le_bytes().repeat(lengths[number] / 8 + 1);
            bytes.truncate(lengths[number]);
            bytes
        };
        for number in 0..lengths.len() {
            ours.rank(0).keep_for_retransmission(&mut position, name(number), &bytes(number)).unwrap();
        }
        let mut long_bytes = 0;
        for (age, number) in (0..lengths.len()).rev().enumerate() {
            let is_long = lengths[number] > DATAGRAM_BYTES;
            long_bytes += if is_long { lengths[number] as u64 } else { 0 };
            let in_slots = (age as u64) < RETRANSMISSION_SLOTS;
            let retained = in_slots && (!is_long || long_bytes <= LONG_RETRANSMISSION_BYTES);
            let found = theirs.rank(0).find_retransmission(name(number));
            prop_assert!(found.is_some() || !retained, "message {number} is missing");
            prop_assert!(found.is_none() || in_slots, "message {number} is in no slot");
            prop_assert!(found.is_none_or(|found| found == bytes(number)), "message {number} is wrong");
        }
    }
}

#[test]
fn a_segment_of_another_group_is_refused() {
    let ours = Segment::create(3).unwrap();
    let file = ours.descriptor().try_clone_to_owned().unwrap();
    assert!(matches!(Segment::open(file, ours.len(), 4), Err(RegionError::WrongSize { .. })));
}

#[test]
fn sleepers_wake_on_publications_replies_and_failures() {
    let [ours, theirs] = pair(2);
    let long = Duration::from_secs(60);
    let wakes = |does: &(dyn Fn() + Sync), condition: &(dyn Fn() -> bool + Sync)| {
        std::thread::scope(|scope| {
            let sleep = || {
                while !condition() {
                    theirs.rank(0).sleep(condition, long);
                }
            };
            let sleepers = [(); 3].map(|()| scope.spawn(sleep));
            while ours.rank(0).half_word(SLEEPERS).load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            does();
            // ThreadSanitizer detects only explicit joins.
            sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        });
    };
    let begun = Instant::now();
    wakes(&|| ours.rank(0).publish((SegmentRing::Inputs, 0), 0), &|| {
        theirs.rank(0).published(SegmentRing::Inputs) == 1
    });
    wakes(&|| ours.rank(0).release(SegmentRing::Results, 1), &|| {
        theirs.rank(0).released(SegmentRing::Results) == 1
    });
    wakes(&|| ours.notify_reply(1, 3), &|| theirs.rank(1).last_reply() == 3);
    wakes(&|| ours.fail(), &|| theirs.has_failed());
    assert!(begun.elapsed() < long);
}

#[test]
fn a_sleeper_wakes_after_its_timeout() {
    let segment = Segment::create(1).unwrap();
    segment.rank(0).sleep(|| false, Duration::from_millis(1));
    segment.rank(0).sleep(|| true, Duration::from_secs(60));
}

/// Its agent may execute the first call, while the rank executes the second one itself.
#[test]
fn a_rank_that_began_with_a_later_call_is_not_in_call_0() {
    let segment = Segment::create(2).unwrap();
    segment.rank(1).attach();
    segment.rank(1).enter(1, 5, "").unwrap();
    assert_eq!([0, 1].map(|call| segment.rank(1).digest(call)), [None, Some(5)]);
}
