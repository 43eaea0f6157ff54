//! Threads that share a segment execute calls, and all get the correct results.

use super::*;
use crate::call::{Arrays, CallingRank, Collective};
use crate::element::{Array, ArrayMut};
use cool_shm::segment::SLOT_BYTES;
use proptest::prelude::*;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Time after which a wait counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits by sleeping until the condition holds.
pub(super) struct Patient<'a>(pub(super) &'a Segment);

impl PeerWait for Patient<'_> {
    type Error = ();

    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<()>> {
        let begun = Instant::now();
        while !condition() {
            self.0.rank(on).sleep(condition, PATIENCE);
            if begun.elapsed() > PATIENCE && !condition() {
                return Err(Interrupted::Failed(()));
            }
        }
        Ok(())
    }

    fn check(&mut self, _on: usize) -> Result<(), Interrupted<()>> {
        Ok(())
    }
}

/// A random call.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) operation: Operation,
    pub(super) root: usize,
    /// Number of elements, of 4 bytes each.
    pub(super) count: usize,
    pub(super) counts: Option<Vec<usize>>,
    pub(super) in_place: bool,
}

/// Returns element `i` of a rank's input to call `call`.
fn given(call: usize, rank: usize, i: usize) -> i32 {
    (call * 7919 + rank * 1_000_003 + i * 31) as i32
}

impl Drawn {
    fn part(&self, rank: usize) -> usize {
        self.counts.as_ref().map_or(self.count, |counts| counts[rank])
    }

    fn start(&self, rank: usize) -> usize {
        (0..rank).map(|rank| self.part(rank)).sum()
    }

    fn block(&self, from: usize, to: usize, size: usize) -> usize {
        self.counts.as_ref().map_or(self.count, |counts| counts[from * size + to])
    }

    /// Returns the number of elements of a rank's input.
    fn input(&self, rank: usize, size: usize) -> usize {
        match self.operation {
            Operation::Barrier => 0,
            Operation::Bcast => {
                if rank == self.root {
                    self.count
                } else {
                    0
                }
            }
            Operation::Reduce | Operation::Allreduce | Operation::Scan | Operation::Exscan => self.count,
            Operation::Gather | Operation::Allgather => self.part(rank),
            Operation::Scatter => {
                if rank == self.root {
                    self.start(size)
                } else {
                    0
                }
            }
            Operation::ReduceScatter => self.start(size),
            Operation::Alltoall => (0..size).map(|to| self.block(rank, to, size)).sum(),
        }
    }

    /// Returns the expected output of a rank.
    pub(super) fn expected(&self, call: usize, rank: usize, size: usize) -> Vec<i32> {
        let sum =
            |ranks: Range<usize>, i| ranks.fold(0i32, |sum, from| sum.wrapping_add(given(call, from, i)));
        let vector =
            |ranks: Range<usize>| (0..self.count).map(|i| sum(ranks.clone(), i)).collect::<Vec<i32>>();
        match self.operation {
            Operation::Bcast => (0..self.count).map(|i| given(call, self.root, i)).collect(),
            Operation::Allreduce => vector(0..size),
            Operation::Reduce if rank == self.root => vector(0..size),
            Operation::Scan => vector(0..rank + 1),
            Operation::Exscan if rank > 0 => vector(0..rank),
            Operation::Gather if rank != self.root => Vec::new(),
            Operation::Gather | Operation::Allgather => {
                (0..size).flat_map(|from| (0..self.part(from)).map(move |i| given(call, from, i))).collect()
            }
            Operation::Scatter => {
                (0..self.part(rank)).map(|i| given(call, self.root, self.start(rank) + i)).collect()
            }
            Operation::ReduceScatter => {
                (0..self.part(rank)).map(|i| sum(0..size, self.start(rank) + i)).collect()
            }
            Operation::Alltoall => (0..size)
                .flat_map(|from| {
                    let before: usize = (0..rank).map(|to| self.block(from, to, size)).sum();
                    (0..self.block(from, rank, size)).map(move |i| given(call, from, before + i))
                })
                .collect(),
            Operation::Barrier | Operation::Exscan | Operation::Reduce => Vec::new(),
        }
    }

    /// Executes the rank's part and returns its output.
    pub(super) fn call(
        &self,
        (number, rank, size): (usize, usize, usize),
        carry_out: impl FnOnce(&DescribedCall, &mut CallBuffers<'_>),
    ) -> Vec<i32> {
        let input: Vec<i32> = (0..self.input(rank, size)).map(|i| given(number, rank, i)).collect();
        let expected = self.expected(number, rank, size).len();
        let in_place = self.in_place || self.operation == Operation::Bcast;
        // The first rank of an exscan has an array that the call must not change.
        let room = if self.operation == Operation::Exscan { self.count } else { expected };
        let mut data = if in_place { input.clone() } else { vec![-1; room] };
        if in_place {
            data.resize(data.len().max(expected), -1);
            let gathers = self.operation == Operation::Gather && rank == self.root;
            if gathers || self.operation == Operation::Allgather {
                data.rotate_right(self.start(rank));
            }
        }
        let arrays = match (self.operation, in_place) {
            (Operation::Barrier, _) => Arrays::None,
            (_, true) => Arrays::InPlace(ArrayMut::from(&mut data[..])),
            (_, false) => Arrays::Apart(Some(Array::from(&input[..])), Some(ArrayMut::from(&mut data[..]))),
        };
        let op = self.operation.combines().then_some(Op::Sum);
        let collective = Collective {
            operation: self.operation,
            root: self.root,
            op,
            counts: self.counts.as_deref(),
            arrays,
        };
        let mut checked = collective.check(CallingRank { rank, size }).unwrap();
        let call = DescribedCall::new(&checked);
        carry_out(&call, &mut checked.buffers());
        match checked.output() {
            Some(output) => bytemuck::cast_slice(output).to_vec(),
            // The root of a bcast keeps its data.
            None if self.operation == Operation::Bcast => data,
            None => Vec::new(),
        }
    }
}

/// Executes calls with one thread for each rank.
fn check(size: usize, drawn: &[Drawn], direct: Option<bool>) {
    check_with(size, drawn, direct, &[]);
}

/// As `check`. The system refuses the ranks `refused` to read the memory of other ranks.
fn check_with(size: usize, drawn: &[Drawn], direct: Option<bool>, refused: &[usize]) {
    let first = Segment::create(size).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..size {
            let file = first.descriptor().try_clone_to_owned().unwrap();
            let segment = Arc::new(Segment::open(file, first.len(), size).unwrap());
            scope.spawn(move || {
                let mut calls = SegmentCalls::new(Arc::clone(&segment), rank, size);
                calls.direct = direct;
                direct::tests::IS_REFUSED.set(refused.contains(&rank));
                let mut waits = Patient(&segment);
                for (number, call) in drawn.iter().enumerate() {
                    let found = call.call((number, rank, size), |described, buffers| {
                        let number = number as u64;
                        assert_eq!(calls.enter(number, described, &mut waits).unwrap(), BegunCall::ByRanks);
                        calls.execute(number, described, buffers, &mut waits).unwrap();
                    });
                    assert!(
                        found == call.expected(number, rank, size),
                        "rank {rank}, call {number}: {call:?}"
                    );
                }
            });
        }
    });
    assert!(first.ranks().all(|rank| rank.completed_calls() == drawn.len() as u64));
}

/// Number of elements: small, or more than fit the ring.
fn count() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..40usize, 2 => 500..20_000usize, 1 => 100_000..3 * SLOT_BYTES]
}

fn drawn(size: usize) -> impl Strategy<Value = Drawn> {
    let operation = proptest::sample::select(Operation::ALL.to_vec());
    (
        operation,
        0..size,
        count(),
        any::<bool>(),
        any::<bool>(),
        proptest::collection::vec(count(), size * size),
    )
        .prop_map(move |(operation, root, count, with_counts, in_place, mut counts)| {
            let takes = operation.takes_counts() && with_counts;
            let wanted = if operation == Operation::Alltoall { size * size } else { size };
            counts.truncate(wanted);
            if in_place && operation == Operation::Alltoall {
                let both_ways = |(from, to): (usize, usize)| counts[from.min(to) * size + from.max(to)];
                counts = (0..wanted).map(|pair| both_ways((pair / size, pair % size))).collect();
            }
            // For operations with parts, the sum over all ranks is limited.
            let count = if operation.takes_counts() { count / size } else { count };
            let counts = takes.then(|| counts.iter().map(|n| n / size).collect());
            Drawn { operation, root, count, counts, in_place }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_time: 60_000, ..ProptestConfig::default() })]
    #[test]
    fn ranks_in_a_segment_get_correct_results(
        (size, drawn) in (1..6usize).prop_flat_map(|size| (Just(size), proptest::collection::vec(drawn(size), 1..12))),
        direct in proptest::sample::select(vec![None, Some(false)])
    ) {
        check(size, &drawn, direct);
    }
}

#[test]
fn a_root_runs_ahead_and_many_short_calls_follow_each_other() {
    let call = |operation| Drawn { operation, root: 1, count: 3, counts: None, in_place: false };
    let calls: Vec<Drawn> =
        (0..3000).map(|i| call(if i % 50 == 0 { Operation::Barrier } else { Operation::Bcast })).collect();
    check(4, &calls, None);
}

/// Returns a segment and the parts of two ranks in it.
fn pair() -> (Segment, [SegmentCalls; 2]) {
    let segment = Segment::create(2).unwrap();
    let file = || segment.descriptor().try_clone_to_owned().unwrap();
    let open = || Arc::new(Segment::open(file(), segment.len(), 2).unwrap());
    let calls = [0, 1].map(|rank| SegmentCalls::new(open(), rank, 2));
    (segment, calls)
}

/// Fails instead of waiting.
struct Hasty;

impl PeerWait for Hasty {
    type Error = ();

    fn wait(&mut self, _on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<()>> {
        if condition() { Ok(()) } else { Err(Interrupted::Failed(())) }
    }

    fn check(&mut self, _on: usize) -> Result<(), Interrupted<()>> {
        Ok(())
    }
}

#[test]
fn ranks_read_each_others_memory_and_none_does_if_one_cannot() {
    for reads in [[true, true], [true, false]] {
        let (segment, mut calls) = pair();
        calls.iter_mut().for_each(|calls| calls.wait_for_all(&mut Hasty).unwrap());
        std::thread::scope(|scope| {
            for (mut calls, says) in calls.into_iter().zip(reads) {
                let waits = &segment;
                scope.spawn(move || {
                    let content = calls.rank as u64 + 1;
                    let read = calls.can_read_all(&content, &mut Patient(waits)).unwrap();
                    assert!(read, "a process may read its own memory");
                    let all = calls.all_agree(says, &mut Patient(waits)).unwrap();
                    assert_eq!(all, reads == [true, true], "rank {}", calls.rank);
                });
            }
        });
    }
}

#[test]
fn data_of_a_rank_that_gave_up_is_discarded() {
    let (_segment, [mut root, mut late]) = pair();
    let given = vec![7; 1 << 20];
    let call = Call::new(Operation::Scatter, Rank(0), given.len() as u64 / 2, 1);
    for calls in [&mut root, &mut late] {
        calls.direct = Some(true);
    }
    let mut own = vec![0; given.len() / 2];
    let gave = root.step(&call, None, &mut CallBuffers::new(&given, &mut own), &mut Hasty);
    assert!(matches!(gave, Err(Interrupted::Failed(()))), "nobody has taken it");
    let took = late.step(&call, None, &mut CallBuffers::new(&[], &mut own), &mut Hasty);
    assert!(matches!(took, Err(Interrupted::Failed(()))), "it may have been changed since");
}

/// Waits for no rank; a rank that has begun another call fails the check.
struct Comparing<'a> {
    segment: &'a Segment,
    digest: u64,
}

impl PeerWait for Comparing<'_> {
    type Error = ();

    fn wait(&mut self, on: usize, condition: &dyn Fn() -> bool) -> Result<(), Interrupted<()>> {
        Hasty.wait(on, condition)
    }

    fn check(&mut self, on: usize) -> Result<(), Interrupted<()>> {
        let begun = self.segment.rank(on).digest(0);
        if begun.is_none_or(|digest| digest == self.digest) { Ok(()) } else { Err(Interrupted::Failed(())) }
    }
}

/// Neither rank waits for the other, so a rank that compared before it recorded its own call would
/// miss a rank that does the same at that time.
#[test]
fn of_two_ranks_that_are_both_roots_one_gets_an_error() {
    for _ in 0..500 {
        let (segment, calls) = pair();
        let start = std::sync::Barrier::new(2);
        let failed: Vec<bool> = std::thread::scope(|scope| {
            let threads = calls.map(|mut calls| {
                let (segment, start) = (&segment, &start);
                scope.spawn(move || {
                    let root = calls.rank as u64;
                    let call = Call::new(Operation::Bcast, Rank(root as u32), 4, 1);
                    let mut waits = Comparing { segment, digest: root };
                    start.wait();
                    calls.segment.rank(calls.rank).enter(0, root, "").unwrap();
                    calls.step(&call, None, &mut CallBuffers::new(&[7; 4], &mut []), &mut waits).is_err()
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(failed.contains(&true), "both ranks completed as roots");
    }
}

#[test]
fn a_mismatching_call_is_found_by_its_digest() {
    let described = |operation| {
        let mut data = [0i32; 4];
        let arrays = Arrays::InPlace(ArrayMut::from(&mut data[..]));
        let collective = Collective { op: Some(Op::Sum), ..Collective::new(operation, arrays) };
        DescribedCall::new(&collective.check(CallingRank { rank: 0, size: 2 }).unwrap())
    };
    let (one, other) = (described(Operation::Allreduce), described(Operation::Scan));
    assert_eq!(one.text, "allreduce of 4 i32 by sum");
    assert_ne!(one.digest, other.digest);
}

#[test]
fn ranks_that_can_no_longer_copy_get_their_data_in_slots() {
    const LONG: usize = 3 * SLOT_BYTES;
    for refused in [&[1][..], &[0, 2], &[0, 1, 2]] {
        let calls: Vec<Drawn> = [Operation::Scatter, Operation::Bcast, Operation::Alltoall]
            .into_iter()
            .flat_map(|operation| [0, 2].map(|root| (operation, root)))
            .flat_map(|(operation, root)| [false, true].map(|in_place| (operation, root, in_place)))
            .map(|(operation, root, in_place)| Drawn {
                operation,
                root,
                count: LONG / 4,
                counts: None,
                in_place,
            })
            .collect();
        check_with(3, &calls, Some(true), refused);
    }
}

/// Returns a description of a bcast of 4 bytes from rank 0.
fn short_bcast() -> DescribedCall {
    let mut data = [0u8; 4];
    let collective = Collective::new(Operation::Bcast, Arrays::InPlace(ArrayMut::from(&mut data[..])));
    DescribedCall::new(&collective.check(CallingRank { rank: 0, size: 2 }).unwrap())
}

/// Executes a bcast of 4 bytes. Returns them as the rank has them afterwards.
fn bcast(calls: &mut SegmentCalls, number: u64, mut data: [u8; 4]) -> Result<[u8; 4], Interrupted<()>> {
    assert_eq!(calls.enter(number, &short_bcast(), &mut Hasty)?, BegunCall::ByRanks);
    let given = data;
    let mut buffers = CallBuffers::new(&given, &mut data);
    calls.execute(number, &short_bcast(), &mut buffers, &mut Hasty)?;
    Ok(data)
}

#[test]
fn data_of_an_earlier_call_is_never_accepted() {
    let (_segment, [mut root, mut late]) = pair();
    for number in 0..3 {
        bcast(&mut root, number, [number as u8 + 7; 4]).unwrap();
    }
    assert_eq!(bcast(&mut late, 0, [0; 4]).unwrap(), [7; 4]);
    // The rank misses a call, for example because it is executed elsewhere for it.
    let taken = bcast(&mut late, 2, [0; 4]);
    assert!(matches!(taken, Err(Interrupted::OutOfStep(0))), "{taken:?}");
}

#[test]
fn a_rank_that_left_a_call_incomplete_begins_no_other() {
    let (_segment, [mut first, mut second]) = pair();
    let barrier = Call::new(Operation::Barrier, Rank(0), 0, 1);
    first.wait_for_all(&mut Hasty).unwrap();
    first.begin(0);
    let left = first.step(&barrier, None, &mut CallBuffers::new(&[], &mut []), &mut Hasty);
    assert!(matches!(left, Err(Interrupted::Failed(()))), "the other rank does not come");
    assert!(first.must_decline());
    bcast(&mut second, 1, [9; 4]).unwrap_err();
    let next = bcast(&mut first, 1, [9; 4]);
    assert!(matches!(next, Err(Interrupted::OutOfStep(0))), "{next:?}");
}

#[test]
fn who_begins_a_call_first_decides_who_executes_it() {
    let (segment, [mut waits, mut other]) = pair();
    assert_eq!(segment.decide_start(1, 0), StartDecision::Agent, "no rank waits in it yet");
    assert_eq!(waits.enter(0, &short_bcast(), &mut Hasty).unwrap(), BegunCall::ByAgent);
    assert!(!waits.must_decline(), "nothing was published");
    assert_eq!(waits.enter(1, &short_bcast(), &mut Hasty).unwrap(), BegunCall::ByRanks);
    assert_eq!(segment.decide_start(1, 1), StartDecision::Ranks, "the root may have completed it");
    assert_eq!(other.enter(1, &short_bcast(), &mut Hasty).unwrap(), BegunCall::ByRanks);
    assert_eq!(segment.decide_start(1, 1), StartDecision::Ranks);
}
