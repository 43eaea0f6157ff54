//! One rank of a benchmark: runs the plan, checks every byte of the results, and measures.

use super::idle::CpuTicks;
use super::pattern::DataPattern;
use super::plan::{BenchCase, BenchOp, BenchPlan, CaseMeasurement, ELEMENT_BYTES};
use cool::{Comm, Operation};
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// An error of a rank of a benchmark.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchRankError {
    #[error("the argument is not a plan of this release's `cool bench`: {0}")]
    Plan(serde_json::Error),
    #[error(transparent)]
    Operation(#[from] cool::UnknownOperation),
    #[error(transparent)]
    Cool(#[from] cool::Error),
    #[error(
        "rank {rank}: {op} of {bytes} bytes, repetition {repetition}: wrong data: byte {index} is {found:#04x}, should be {expected:#04x}"
    )]
    Wrong { rank: usize, op: BenchOp, bytes: u64, repetition: u32, index: usize, found: u8, expected: u8 },
    #[error("rank {rank}: no memory for {op} of {bytes} bytes; choose a smaller --bytes")]
    Memory { rank: usize, op: BenchOp, bytes: u64 },
    #[error("cannot read the idle time of CPUs: {0}")]
    Idle(std::io::Error),
    #[error("cannot report: {0}")]
    Report(std::io::Error),
}

/// Runs as the rank for which the job started this process, with a [`BenchPlan`] as JSON.
pub(crate) fn run_bench_rank(plan: &str) -> Result<(), BenchRankError> {
    let plan: BenchPlan = serde_json::from_str(plan).map_err(BenchRankError::Plan)?;
    let comm = Comm::world()?;
    for (operation, forced) in &plan.forced {
        comm.set_plan(operation.parse()?, forced)?;
    }
    for (number, case) in plan.cases.iter().enumerate() {
        let measured = measure(&comm, &plan, number, *case)?;
        if comm.rank() == 0 {
            let line = serde_json::to_string(&measured).map_err(|e| BenchRankError::Report(e.into()))?;
            writeln!(std::io::stdout(), "{line}").map_err(BenchRankError::Report)?;
        }
    }
    Ok(())
}

/// Runs a case, and returns the results. At rank 0 they are those of all ranks.
fn measure(
    comm: &Comm,
    plan: &BenchPlan,
    number: usize,
    case: BenchCase,
) -> Result<CaseMeasurement, BenchRankError> {
    let mut runner = CaseRunner::new(comm, plan, number, case)?;
    for repetition in 0..plan.warmup {
        runner.repeat(repetition)?;
    }
    let (ticks, stats) = (CpuTicks::now().map_err(BenchRankError::Idle)?, comm.stats());
    let repetitions = plan.warmup..plan.warmup + plan.reps;
    let calls = repetitions.map(|repetition| runner.repeat(repetition)).collect::<Result<Vec<_>, _>>()?;
    let (seconds, mut plans): (Vec<f64>, Vec<String>) = calls.into_iter().unzip();
    // An unknown share is infinite, so that it is not the minimum.
    let idle = ticks.idle_share(CpuTicks::now().map_err(BenchRankError::Idle)?).unwrap_or(f64::INFINITY);
    let repaired = comm.stats().chunks_repaired - stats.chunks_repaired;

    let results = if comm.rank() == 0 { 1 } else { 0 };
    let mut slowest = vec![0.0; results * seconds.len()];
    comm.reduce(&seconds, &mut slowest, cool::Op::Max, 0)?;
    let mut busiest = vec![0.0; results];
    comm.reduce(&[idle], &mut busiest, cool::Op::Min, 0)?;
    // All ranks of a node have the same counters, so only the first of them reports.
    let reports =
        (0..comm.rank()).all(|r| comm.place(r).map(|p| p.node) != comm.place(comm.rank()).map(|p| p.node));
    let mut total = vec![0; results];
    comm.reduce(&[if reports { repaired } else { 0 }], &mut total, cool::Op::Sum, 0)?;
    Ok(CaseMeasurement {
        seconds: slowest,
        plan: plans.pop().unwrap_or_default(),
        idle: busiest.first().copied().filter(|idle| idle.is_finite()),
        chunks_repaired: total.first().copied().unwrap_or(0),
    })
}

/// Returns the time of the monotonic clock, which all processes of a machine share.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}

/// A case with its buffers at this rank.
struct CaseRunner<'c> {
    comm: &'c Comm,
    root: usize,
    pause: Option<Duration>,
    calls: u32,
    number: usize,
    case: BenchCase,
    send: ByteBuffer,
    receive: ByteBuffer,
}

impl<'c> CaseRunner<'c> {
    fn new(
        comm: &'c Comm,
        plan: &BenchPlan,
        number: usize,
        case: BenchCase,
    ) -> Result<CaseRunner<'c>, BenchRankError> {
        let root = plan.root;
        let no_memory = || BenchRankError::Memory { rank: comm.rank(), op: case.op, bytes: case.bytes };
        let (ranks, rank) = (comm.size() as u64, comm.rank() as u64);
        let (part, whole) = (case.part(ranks, rank), case.moved(ranks));
        let at_root = |n: u64| if comm.rank() == root { n } else { 0 };
        let (send, receive) = match case.op.operation {
            Operation::Bcast => (0, whole),
            Operation::Reduce => (whole, at_root(whole)),
            Operation::Allreduce | Operation::Scan | Operation::Exscan => (whole, whole),
            Operation::Gather => (part, at_root(whole)),
            Operation::Allgather => (part, whole),
            Operation::Scatter => (at_root(whole), part),
            Operation::ReduceScatter => (whole, part),
            // The parts between two ranks have the same length in both directions.
            Operation::Alltoall => (case.before(ranks, rank, ranks), case.before(ranks, rank, ranks)),
            Operation::Barrier => (0, 0),
        };
        let buffer = |bytes| {
            let bytes = usize::try_from(bytes).map_err(|_| no_memory())?;
            let words = bytes.div_ceil(4);
            let words = if plan.alloc {
                WordArray::Shared(comm.alloc(words)?)
            } else {
                WordArray::zeros(words).ok_or_else(no_memory)?
            };
            Ok::<_, BenchRankError>(ByteBuffer { words, bytes })
        };
        let pause = plan.pause_ms.map(|ms| Duration::from_millis(ms.into()));
        let (send, receive) = (buffer(send)?, buffer(receive)?);
        Ok(CaseRunner { comm, root, pause, calls: plan.calls, number, case, send, receive })
    }

    /// Runs a repetition and checks its results. Returns the seconds that a call took at this rank,
    /// and its plan.
    fn repeat(&mut self, repetition: u32) -> Result<(f64, String), BenchRankError> {
        self.prepare(repetition);
        let counts = self.counts();
        self.comm.barrier()?;
        let start = self.start()?;
        for _ in 0..self.calls {
            self.call(&counts)?;
        }
        let (seconds, plan) = ((now() - start).as_secs_f64() / f64::from(self.calls), self.comm.last_plan());
        // Ranks that share a CPU must not check results while others are still in the call.
        self.comm.barrier()?;
        self.check(repetition)?;
        Ok((seconds, plan))
    }

    /// Waits until the repetition starts, and returns its start time by the monotonic clock.
    fn start(&self) -> Result<Duration, BenchRankError> {
        let Some(pause) = self.pause else { return Ok(now()) };
        let mut instant = [u64::try_from((now() + pause).as_nanos()).unwrap_or(u64::MAX)];
        self.comm.bcast(&mut instant, 0)?;
        let instant = Duration::from_nanos(instant[0]);
        std::thread::sleep(instant.saturating_sub(now()));
        Ok(instant)
    }

    /// Returns the lengths of all ranks' parts; of an alltoall, of the parts from and to this rank.
    fn parts(&self) -> Vec<usize> {
        let shift = if self.case.op.operation == Operation::Alltoall { self.comm.rank() } else { 0 };
        (0..self.comm.size()).map(|rank| self.part(shift + rank)).collect()
    }

    fn part(&self, shift: usize) -> usize {
        // It fits, because all parts together fit the memory.
        self.case.part(self.comm.size() as u64, shift as u64) as usize
    }

    /// Returns the counts for libcool if parts have unequal lengths, in elements.
    fn counts(&self) -> Vec<usize> {
        let size = self.comm.size();
        match self.case.op {
            BenchOp { unequal: false, .. } => Vec::new(),
            BenchOp { operation: Operation::Alltoall, .. } => {
                (0..size * size).map(|pair| self.part(pair / size + pair % size)).collect()
            }
            BenchOp { operation: Operation::ReduceScatter, .. } => {
                self.parts().iter().map(|bytes| bytes / ELEMENT_BYTES as usize).collect()
            }
            _ => self.parts(),
        }
    }

    /// Returns the data that a rank sends; of an alltoall, `sender` is the number of a pair.
    fn pattern(&self, repetition: u32, sender: usize) -> DataPattern {
        DataPattern::of_rank(self.number, repetition, sender)
    }

    /// Returns the number of a pair of ranks.
    fn pair(&self, from: usize, to: usize) -> usize {
        from * self.comm.size() + to
    }

    fn prepare(&mut self, repetition: u32) {
        let rank = self.comm.rank();
        let mine = self.pattern(repetition, rank);
        match self.case.op.operation {
            Operation::Bcast if rank == self.root => mine.fill(self.receive.bytes_mut()),
            // All but the root still have the data of the last repetition, which differs.
            Operation::Bcast | Operation::Barrier => {}
            Operation::Scatter | Operation::Alltoall => {
                let all_to_all = self.case.op.operation == Operation::Alltoall;
                let parts = self.parts();
                let patterns: Vec<DataPattern> = (0..parts.len())
                    .map(|to| self.pattern(repetition, if all_to_all { self.pair(rank, to) } else { to }))
                    .collect();
                let mut rest = self.send.bytes_mut();
                for (pattern, bytes) in patterns.into_iter().zip(parts) {
                    // In a scatter, only the root has data to send.
                    let (part, after) = rest.split_at_mut(bytes.min(rest.len()));
                    pattern.fill(part);
                    rest = after;
                }
            }
            _ => mine.fill(self.send.bytes_mut()),
        }
    }

    fn call(&mut self, counts: &[usize]) -> Result<(), cool::Error> {
        let CaseRunner { comm, root, send, receive, case, .. } = self;
        let (root, sum) = (*root, cool::Op::Sum);
        match (case.op.operation, case.op.unequal) {
            (Operation::Bcast, _) => comm.bcast(receive.bytes_mut(), root),
            (Operation::Reduce, _) => comm.reduce(&send.words, &mut receive.words, sum, root),
            (Operation::Allreduce, _) => comm.allreduce(&send.words, &mut receive.words, sum),
            (Operation::Scan, _) => comm.scan(&send.words, &mut receive.words, sum),
            (Operation::Exscan, _) => comm.exscan(&send.words, &mut receive.words, sum),
            (Operation::ReduceScatter, false) => comm.reduce_scatter(&send.words, &mut receive.words, sum),
            (Operation::ReduceScatter, true) => {
                comm.reduce_scatter_counts(&send.words, &mut receive.words, counts, sum)
            }
            (Operation::Gather, false) => comm.gather(send.bytes(), receive.bytes_mut(), root),
            (Operation::Gather, true) => comm.gatherv(send.bytes(), receive.bytes_mut(), counts, root),
            (Operation::Allgather, false) => comm.allgather(send.bytes(), receive.bytes_mut()),
            (Operation::Allgather, true) => comm.allgatherv(send.bytes(), receive.bytes_mut(), counts),
            (Operation::Scatter, false) => comm.scatter(send.bytes(), receive.bytes_mut(), root),
            (Operation::Scatter, true) => comm.scatterv(send.bytes(), receive.bytes_mut(), counts, root),
            (Operation::Alltoall, false) => comm.alltoall(send.bytes(), receive.bytes_mut()),
            (Operation::Alltoall, true) => comm.alltoallv(send.bytes(), receive.bytes_mut(), counts),
            (Operation::Barrier, _) => comm.barrier(),
        }
    }

    /// Returns the data that must have been received: the length of each part, and its pattern.
    fn expected(&self, repetition: u32) -> Vec<(usize, DataPattern)> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let whole = self.receive.bytes().len();
        let of = |sender| self.pattern(repetition, sender);
        let sum = |ranks: std::ops::Range<usize>| ranks.map(of).sum::<DataPattern>();
        match self.case.op.operation {
            Operation::Bcast => vec![(whole, of(self.root))],
            Operation::Reduce | Operation::Allreduce => vec![(whole, sum(0..size))],
            Operation::Scan => vec![(whole, sum(0..rank + 1))],
            // Rank 0 receives nothing, so its buffer must still be zero.
            Operation::Exscan => vec![(whole, sum(0..rank))],
            Operation::Gather | Operation::Allgather if whole == 0 => Vec::new(),
            Operation::Gather | Operation::Allgather => {
                self.parts().into_iter().zip((0..size).map(of)).collect()
            }
            Operation::Scatter => vec![(whole, of(rank))],
            Operation::ReduceScatter => {
                let before = self.case.before(size as u64, 0, rank as u64);
                vec![(whole, sum(0..size).skip((before / ELEMENT_BYTES) as usize))]
            }
            Operation::Alltoall => {
                self.parts().into_iter().zip((0..size).map(|from| of(self.pair(from, rank)))).collect()
            }
            Operation::Barrier => Vec::new(),
        }
    }

    fn check(&self, repetition: u32) -> Result<(), BenchRankError> {
        let mut start = 0;
        for (bytes, pattern) in self.expected(repetition) {
            let piece = &self.receive.bytes()[start..][..bytes];
            if let Some((at, found, expected)) = pattern.first_wrong(piece) {
                let BenchCase { op, bytes } = self.case;
                let (rank, index) = (self.comm.rank(), start + at);
                return Err(BenchRankError::Wrong { rank, op, bytes, repetition, index, found, expected });
            }
            start += bytes;
        }
        Ok(())
    }
}

/// An array in the memory of this process, or in memory that is shared with the agent.
enum WordArray {
    Own(Vec<u32>),
    Shared(cool::Buffer<u32>),
}

impl WordArray {
    /// Returns an array of zeros; `None` if there is not enough memory.
    fn zeros(count: usize) -> Option<WordArray> {
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(WordArray::Own(words))
    }
}

impl Deref for WordArray {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            WordArray::Own(words) => words,
            WordArray::Shared(words) => words,
        }
    }
}

impl DerefMut for WordArray {
    fn deref_mut(&mut self) -> &mut [u32] {
        match self {
            WordArray::Own(words) => words,
            WordArray::Shared(words) => words,
        }
    }
}

/// Bytes that can also be used as words, for reductions.
struct ByteBuffer {
    words: WordArray,
    bytes: usize,
}

impl ByteBuffer {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool::embedded::Embedded;

    fn plan(sizes: &[u64], root: usize, alloc: bool, pause_ms: Option<u32>) -> BenchPlan {
        let ops: Vec<BenchOp> = BenchOp::all().collect();
        BenchPlan {
            cases: BenchPlan::cases(&ops, sizes),
            warmup: 1,
            reps: 3,
            root,
            alloc,
            pause_ms,
            calls: if alloc { 3 } else { 1 },
            forced: Vec::new(),
        }
    }

    #[test]
    fn every_collective_is_checked_and_measured() {
        for (alloc, pause) in [(false, None), (true, Some(1))] {
            measured_once_for_each_repetition(&plan(&[0, 3, 10_001], 2, alloc, pause));
        }
    }

    fn measured_once_for_each_repetition(plan: &BenchPlan) {
        let measure_all = |comm: Comm| -> Result<Vec<CaseMeasurement>, BenchRankError> {
            plan.cases.iter().enumerate().map(|(i, case)| measure(&comm, plan, i, *case)).collect()
        };
        let embedded = Embedded { ranks: 5, ranks_per_node: 2, racks: 2 };
        let results = cool::embedded::run(embedded, measure_all).unwrap();
        for (rank, result) in results.into_iter().enumerate() {
            let repetitions = if rank == 0 { plan.reps as usize } else { 0 };
            let measured = result.unwrap();
            assert_eq!(measured.len(), plan.cases.len());
            assert!(measured.iter().all(|m| m.seconds.len() == repetitions && !m.plan.is_empty()));
        }
    }

    #[test]
    fn wrong_data_is_reported_with_its_position() {
        let case = BenchCase { op: "allgather".parse().unwrap(), bytes: 30 };
        let wrong = |comm: Comm| {
            let mut runner = CaseRunner::new(&comm, &plan(&[], 0, false, None), 0, case)?;
            runner.repeat(0)?;
            runner.receive.bytes_mut()[17] ^= 1;
            runner.check(0)
        };
        let embedded = Embedded { ranks: 3, ranks_per_node: 1, racks: 1 };
        for (rank, result) in cool::embedded::run(embedded, wrong).unwrap().into_iter().enumerate() {
            let text = result.unwrap_err().to_string();
            let expected =
                format!("rank {rank}: allgather of 30 bytes, repetition 0: wrong data: byte 17 is ");
            assert!(text.starts_with(&expected), "{text}");
        }
    }
}
