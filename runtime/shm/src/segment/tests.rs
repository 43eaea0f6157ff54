//! Segments mapped twice, as a rank and its agent map them.

use super::*;
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
    let last = RETRANSMISSION_SLOTS + 5;
    for number in 0..last {
        let bytes = vec![number as u8; DATAGRAM_BYTES - number as usize];
        ours.rank(0).keep_for_retransmission(number, (number / 2, 7 + number as u32 % 2), &bytes).unwrap();
    }
    let kept = |number: u64| theirs.rank(0).find_retransmission((number / 2, 7 + number as u32 % 2));
    for number in last - RETRANSMISSION_SLOTS..last {
        assert_eq!(kept(number), Some(vec![number as u8; DATAGRAM_BYTES - number as usize]));
    }
    assert_eq!([kept(4), kept(last), kept(1000)], [None, None, None]);
    assert!(ours.rank(0).keep_for_retransmission(0, (0, 0), &[0; DATAGRAM_BYTES + 1]).is_err());
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
