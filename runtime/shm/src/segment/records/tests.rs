//! Records as an agent reads them: of correct ranks, of ranks that are writing, and of ranks that
//! write arbitrary words.

use super::super::Segment;
use super::*;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

/// Returns a record with fields that all depend on its number.
fn record(number: u64) -> RankRecord {
    let plan = RankPlan::ALL[number as usize % RankPlan::ALL.len()];
    let from = number as u32 % 7;
    RankRecord {
        number,
        operation: Operation::ALL[number as usize % Operation::ALL.len()],
        element: ElementType::ALL.get(number as usize % (ElementType::ALL.len() + 1)).copied(),
        reduce: ReduceOp::ALL.get(number as usize % (ReduceOp::ALL.len() + 1)).copied(),
        root: number as u32,
        bytes: number * 3,
        unequal: number.is_multiple_of(2),
        plan,
        failed: number.is_multiple_of(5),
        begun: number * 5,
        took: number * 7,
        traffic: RankTraffic {
            multicast: from,
            unicast: from + 1,
            requested: from + 2,
            retransmitted: from + 3,
        },
        arrivals: std::array::from_fn(|at| (at > 2).then_some(RankArrival { from, after: number })),
    }
}

#[test]
fn the_latest_calls_of_a_rank_are_read_oldest_first() {
    let segment = Segment::create(2).unwrap();
    let part = segment.rank(1);
    assert!(!part.has_records() && part.records().is_empty());
    (0..3).for_each(|number| part.record(&record(number)));
    assert_eq!(part.records(), (0..3).map(record).collect::<Vec<_>>());
    (3..RECORDS + 5).for_each(|number| part.record(&record(number)));
    assert_eq!(part.records(), (5..RECORDS + 5).map(record).collect::<Vec<_>>());
    assert!(part.has_records() && !segment.rank(0).has_records());
}

#[test]
fn totals_include_overwritten_records() {
    let segment = Segment::create(1).unwrap();
    let calls = 3 * RECORDS;
    (0..calls).for_each(|number| segment.rank(0).record(&record(number)));
    let mut expected = Totals::default();
    let mut read = Totals::default();
    for record in (0..calls).map(record) {
        if !record.failed {
            expected.calls[bucket(record.took)] += 1;
            expected.nanoseconds += record.took;
            expected.bytes += record.bytes;
        }
        expected.multicast += u64::from(record.traffic.multicast);
        expected.unicast += u64::from(record.traffic.unicast);
        expected.requested += u64::from(record.traffic.requested);
        expected.retransmitted += u64::from(record.traffic.retransmitted);
    }
    for plan in RankPlan::ALL {
        for operation in Operation::ALL {
            let Totals { calls, nanoseconds, bytes, multicast, unicast, requested, retransmitted } =
                segment.rank(0).totals(plan, operation);
            read.calls.iter_mut().zip(calls).for_each(|(sum, calls)| *sum += calls);
            read.nanoseconds += nanoseconds;
            read.bytes += bytes;
            read.multicast += multicast;
            read.unicast += unicast;
            read.requested += requested;
            read.retransmitted += retransmitted;
        }
    }
    assert_eq!(read, expected);
}

#[test]
fn calls_are_counted_by_how_long_they_took() {
    assert_eq!([0, 1_562, 1_563, 6_250, 6_251, 100_000].map(bucket), [0, 0, 1, 1, 2, 3]);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    assert_eq!([0, 3, BUCKETS - 1].map(bucket_end), [Some(1.5625e-6), Some(1e-4), None]);
    for bucket in 0..BUCKETS - 1 {
        let end = (bucket_end(bucket).unwrap() * 1e9) as u64;
        assert_eq!([super::bucket(end), super::bucket(end + 1)], [bucket, bucket + 1]);
    }
}

#[test]
fn a_record_that_is_being_written_is_left_aside() {
    let segment = Segment::create(1).unwrap();
    let part = segment.rank(0);
    (0..3).for_each(|number| part.record(&record(number)));
    part.word(record_offset(1)).store(0, Ordering::Relaxed);
    assert_eq!(part.records(), [record(0), record(2)]);
}

#[test]
fn concurrent_readers_find_whole_records() {
    let segment = Segment::create(1).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..20 * RECORDS).for_each(|number| segment.rank(0).record(&record(number)));
            done.store(true, Ordering::SeqCst);
        });
        loop {
            let last = done.load(Ordering::SeqCst);
            for found in segment.rank(0).records() {
                assert_eq!(found, record(found.number));
            }
            if last {
                break;
            }
        }
    });
}

#[test]
fn the_clock_goes_forward() {
    let begun = now();
    assert!(begun > 0 && now() >= begun);
}

proptest! {
    #[test]
    fn arbitrary_words_decode_to_a_valid_record_or_none(
        words in proptest::array::uniform16(prop_oneof![any::<u64>(), 0..4_u64, 0..0x100_u64]),
        kind in proptest::option::of(proptest::array::uniform6(0..20_u8)),
    ) {
        let mut words = words;
        if let Some([a, b, c, d, e, f]) = kind {
            words[1] = u64::from_le_bytes([a, b, c, d, e % 3, f % 3, 0, 0]);
        }
        if let Some(record) = RankRecord::decode(&words) {
            // Only arrival times are rounded.
            prop_assert_eq!(&record.encode()[..8], &words[..8]);
            prop_assert_eq!(RankRecord::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn reading_arbitrary_words_is_bounded(
        written in prop_oneof![any::<u64>(), 0..2 * RECORDS],
        words in proptest::collection::vec((0..RECORDS * RECORD_WORDS as u64, any::<u64>()), 0..200),
    ) {
        let segment = Segment::create(1).unwrap();
        let part = segment.rank(0);
        for (place, word) in words {
            part.word(RECORDS_START + place * 8).store(word, Ordering::Relaxed);
        }
        part.word(WRITTEN).store(written, Ordering::Relaxed);
        prop_assert!(part.records().len() as u64 <= RECORDS);
        // The rank must still be able to record a call.
        part.record(&record(3));
        let latest = part.records();
        prop_assert!(written == u64::MAX || latest.last() == Some(&record(3)));
    }
}
