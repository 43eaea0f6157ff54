//! Tests of the traces and counts of ranks that follow the protocol, and of ranks that write
//! anything.

use super::*;
use cool_shm::segment::records::{ARRIVALS, RankArrival, RankTraffic};
use cool_types::{ElementType, ReduceOp};
use proptest::prelude::*;

const GROUP: (u64, u32) = (7, 2);

/// Returns a group of three ranks that share a segment.
fn sharing() -> (RankCalls, Arc<SharedSegment>) {
    let calls = RankCalls::new(Arc::default());
    let shared = Arc::new(SharedSegment::for_group(3).unwrap());
    calls.share(GROUP, 3, &shared);
    (calls, shared)
}

/// Returns the record of a bcast from rank 1 that has just begun.
fn bcast(number: u64) -> RankRecord {
    RankRecord {
        number,
        operation: Operation::Bcast,
        element: Some(ElementType::U8),
        reduce: None,
        root: 1,
        bytes: 8,
        unequal: false,
        plan: RankPlan::QuickMulticast,
        failed: false,
        begun: records::now(),
        took: 0,
        traffic: RankTraffic::default(),
        arrivals: [None; ARRIVALS],
    }
}

fn counted(calls: &RankCalls) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    calls.counters.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_call_has_one_record_with_the_times_of_all_ranks() {
    let (calls, shared) = sharing();
    let begun = records::now();
    while records::now() < begun + 100 {}
    let arrival = |from, after| Some(RankArrival { from, after });
    let mut arrivals = [None; ARRIVALS];
    arrivals[..4].copy_from_slice(&[arrival(1, 20), arrival(2, 30), arrival(1, 40), arrival(3, 5)]);
    let traffic = RankTraffic { multicast: 8, unicast: 2, requested: 3, retransmitted: 1 };
    shared.part(0).record(&RankRecord { begun, took: 90, traffic, arrivals, ..bcast(5) });
    shared.part(2).record(&RankRecord { begun: begun + 10, took: 60, traffic, ..bcast(5) });
    let records = calls.latest(usize::MAX, None);
    let [call] = &records[..] else { panic!("{records:?}") };
    assert_eq!((call.group, call.epoch, call.call), (7, 2, 5));
    assert_eq!((&*call.words, &*call.plan), ("bcast of 8 u8 from rank 1", "quick multicast"));
    let times = |rank, came_ns, ended_ns| RankTimes { rank, came_ns, ended_ns };
    assert_eq!(call.ranks, [times(0, 0, 90), times(2, 10, 70)]);
    // There is no rank 3.
    let arrival = |from, first_ns, last_ns, messages| Arrival { from, first_ns, last_ns, messages };
    assert_eq!(call.arrivals, [arrival(1, 20, 40, 2), arrival(2, 30, 30, 1)]);
    assert_eq!((call.bytes_multicast, call.bytes_unicast, call.chunks_repaired), (16, 4, 2));
    assert!(call.failure.is_empty());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    assert!(u128::from(call.begun_ns).abs_diff(now) < 3_600_000_000_000, "{}", call.begun_ns);
}

#[test]
fn the_last_calls_of_running_and_ended_groups_are_returned() {
    let (calls, shared) = sharing();
    (0..5).for_each(|number| shared.part(1).record(&bcast(number)));
    let other = Arc::new(SharedSegment::for_group(2).unwrap());
    calls.share((8, 1), 2, &other);
    (0..3).for_each(|number| other.part(0).record(&bcast(number)));
    let latest = |last, group| {
        let records = calls.latest(last, group);
        records.iter().map(|record| (record.group, record.call)).collect::<Vec<_>>()
    };
    let check = || {
        let mut all = latest(usize::MAX, None);
        all.sort_unstable();
        assert_eq!(all, [(7, 0), (7, 1), (7, 2), (7, 3), (7, 4), (8, 0), (8, 1), (8, 2)]);
        assert_eq!(latest(3, None).len(), 3);
        assert_eq!(latest(2, Some(7)), [(7, 3), (7, 4)]);
        assert_eq!(latest(usize::MAX, Some(8)).len(), 3);
    };
    check();
    calls.end(7);
    // Records that are written from now on are not read.
    shared.part(1).record(&bcast(9));
    check();
    calls.end(7);
    calls.end(8);
    check();
}

#[test]
fn overwritten_calls_are_counted_and_none_twice() {
    let (calls, shared) = sharing();
    let many = 3 * records::RECORDS;
    (0..many).for_each(|number| {
        shared.part(0).record(&bcast(number));
        shared.part(1).record(&bcast(number));
    });
    let line =
        |calls: u64| format!("rank_calls_total{{operation=\"bcast\",plan=\"quick multicast\"}} {calls}\n");
    calls.count();
    calls.count();
    assert!(counted(&calls).contains(&line(2 * many)), "{}", counted(&calls));
    shared.part(0).record(&bcast(many));
    calls.end(GROUP.0);
    calls.count();
    let text = counted(&calls);
    assert!(text.contains(&line(2 * many + 1)), "{text}");
    assert!(text.contains(&format!("calls_total{{operation=\"bcast\"}} {}\n", 2 * many + 1)), "{text}");
}

#[test]
fn a_failed_call_has_the_agents_reason_and_is_not_counted() {
    let (calls, shared) = sharing();
    shared.part(0).record(&bcast(0));
    shared.part(0).record(&RankRecord { failed: true, ..bcast(1) });
    let failures = || calls.latest(9, None).into_iter().map(|call| call.failure).collect::<Vec<_>>();
    assert_eq!(failures(), ["", "given up by a rank, which knows why"]);
    calls.failed(7, "rank 2 is gone");
    calls.failed(7, "another reason");
    calls.failed(9, "nobody's");
    assert_eq!(failures(), ["", "rank 2 is gone"]);
    calls.count();
    assert!(counted(&calls).contains("calls_total{operation=\"bcast\"} 1\n"));
}

#[test]
fn unequal_parts_are_marked() {
    let gather = RankRecord { operation: Operation::Gather, bytes: 24, unequal: true, ..bcast(0) };
    assert_eq!(words(&gather), "gather of 24 u8 to rank 1, in unequal parts");
    let barrier = RankRecord { operation: Operation::Barrier, element: None, ..bcast(0) };
    assert_eq!(words(&barrier), "barrier");
}

/// Returns numbers that a rank may write to do harm, and ordinary ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..100_u64, Just(u64::MAX), Just(u64::MAX / 2)]
}

fn wild() -> impl Strategy<Value = RankRecord> {
    let kind =
        (0..Operation::ALL.len(), 0..ElementType::ALL.len(), 0..ReduceOp::ALL.len(), 0..RankPlan::ALL.len());
    let numbers = [number(), number(), number(), number()];
    (kind, numbers, any::<u32>(), 0..6_u32, any::<bool>()).prop_map(|(kind, numbers, any, root, failed)| {
        let [number, bytes, begun, took] = numbers;
        RankRecord {
            number,
            operation: Operation::ALL[kind.0],
            element: ElementType::ALL.get(kind.1.wrapping_sub(1)).copied(),
            reduce: ReduceOp::ALL.get(kind.2.wrapping_sub(1)).copied(),
            root,
            bytes,
            unequal: failed,
            plan: RankPlan::ALL[kind.3],
            failed,
            begun: if begun.is_multiple_of(2) { records::now() } else { begun },
            took,
            traffic: RankTraffic { multicast: any, unicast: any, requested: any, retransmitted: any },
            arrivals: [Some(RankArrival { from: root, after: took }); ARRIVALS],
        }
    })
}

proptest! {
    #[test]
    fn a_malicious_rank_spoils_only_its_own_group(
        wild in proptest::collection::vec((0..3_u32, wild()), 1..40),
    ) {
        let (calls, shared) = sharing();
        let honest = Arc::new(SharedSegment::for_group(2).unwrap());
        calls.share((8, 1), 2, &honest);
        honest.part(1).record(&bcast(3));
        wild.iter().for_each(|(rank, record)| shared.part(*rank).record(record));
        calls.count();
        let records = calls.latest(usize::MAX, None);
        prop_assert!(records.len() <= wild.len() + 1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        for call in &records {
            prop_assert!(call.begun_ns <= now + 1_000_000_000);
            prop_assert!(call.ranks.iter().all(|times| times.came_ns <= times.ended_ns));
            prop_assert!(call.arrivals.iter().all(|arrival| arrival.from < 3));
            prop_assert!(call.words.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{}", call.words);
        }
        prop_assert_eq!(records.iter().filter(|call| call.group == 8).count(), 1);
        calls.end(7);
        let after = calls.latest(usize::MAX, Some(8));
        prop_assert_eq!((after.len(), after[0].call), (1, 3));
        // All counts must be possible for a rank.
        let text = counted(&calls);
        let most = (records::now() - wild.len() as u64).saturating_mul(BYTES_PER_NANOSECOND);
        for line in text.lines().filter(|line| line.starts_with("rank_call_bytes_total")) {
            let bytes: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            prop_assert!(bytes <= most, "{line}");
        }
    }
}
