//! One rank of a benchmark: runs the plan, checks every result to the byte, and measures.

use super::idle::Ticks;
use super::pattern::Pattern;
use super::plan::{Case, ELEMENT, Measured, Op, Plan};
use cool::{Comm, Operation};
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The rank's part of the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct RankOptions {
    /// What to do, as JSON
    plan: String,
}

/// Why a rank of a benchmark fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RankError {
    #[error("the plan is not one that `cool bench` makes: {0}")]
    Plan(serde_json::Error),
    #[error(transparent)]
    Operation(#[from] cool::UnknownOperation),
    #[error(transparent)]
    Cool(#[from] cool::Error),
    #[error(
        "rank {rank}: {op} of {bytes} bytes, repetition {repetition}: wrong data: byte {index} is {found:#04x}, should be {expected:#04x}"
    )]
    Wrong { rank: usize, op: Op, bytes: u64, repetition: u32, index: usize, found: u8, expected: u8 },
    #[error("rank {rank}: no memory for {op} of {bytes} bytes; choose a smaller --bytes")]
    Memory { rank: usize, op: Op, bytes: u64 },
    #[error("cannot read how busy the processors are: {0}")]
    Idle(std::io::Error),
    #[error("cannot report: {0}")]
    Report(std::io::Error),
}

/// Runs as the rank that the job started this process as.
pub(crate) fn rank(options: &RankOptions) -> Result<(), RankError> {
    let plan: Plan = serde_json::from_str(&options.plan).map_err(RankError::Plan)?;
    let comm = Comm::world()?;
    for (operation, forced) in &plan.forced {
        comm.set_plan(operation.parse()?, forced)?;
    }
    for (number, case) in plan.cases.iter().enumerate() {
        let measured = measure(&comm, &plan, number, *case)?;
        if comm.rank() == 0 {
            let line = serde_json::to_string(&measured).map_err(|e| RankError::Report(e.into()))?;
            writeln!(std::io::stdout(), "{line}").map_err(RankError::Report)?;
        }
    }
    Ok(())
}

/// Runs a case. What is returned holds for all ranks, at rank 0.
fn measure(comm: &Comm, plan: &Plan, number: usize, case: Case) -> Result<Measured, RankError> {
    let mut work = Work::new(comm, plan, number, case)?;
    for repetition in 0..plan.warmup {
        work.repeat(repetition)?;
    }
    let (ticks, stats) = (Ticks::now().map_err(RankError::Idle)?, comm.stats());
    let repetitions = plan.warmup..plan.warmup + plan.reps;
    let calls = repetitions.map(|repetition| work.repeat(repetition)).collect::<Result<Vec<_>, _>>()?;
    let (seconds, mut plans): (Vec<f64>, Vec<String>) = calls.into_iter().unzip();
    // Infinite where it is not known, so that it is nobody's minimum.
    let idle = ticks.idle_share(Ticks::now().map_err(RankError::Idle)?).unwrap_or(f64::INFINITY);
    let repaired = comm.stats().chunks_repaired - stats.chunks_repaired;

    let results = if comm.rank() == 0 { 1 } else { 0 };
    let mut slowest = vec![0.0; results * seconds.len()];
    comm.reduce(&seconds, &mut slowest, cool::Op::Max, 0)?;
    let mut busiest = vec![0.0; results];
    comm.reduce(&[idle], &mut busiest, cool::Op::Min, 0)?;
    // The numbers of a node are the same at all its ranks; one of them tells.
    let tells =
        (0..comm.rank()).all(|r| comm.place(r).map(|p| p.node) != comm.place(comm.rank()).map(|p| p.node));
    let mut total = vec![0; results];
    comm.reduce(&[if tells { repaired } else { 0 }], &mut total, cool::Op::Sum, 0)?;
    Ok(Measured {
        seconds: slowest,
        plan: plans.pop().unwrap_or_default(),
        idle: busiest.first().copied().filter(|idle| idle.is_finite()),
        chunks_repaired: total.first().copied().unwrap_or(0),
    })
}

/// The monotonic clock, which all processes of a machine share.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::try_from(time).unwrap_or_default()
}

/// A case with its buffers at this rank.
struct Work<'c> {
    comm: &'c Comm,
    root: usize,
    pause: Option<Duration>,
    calls: u32,
    number: usize,
    case: Case,
    send: Buffer,
    receive: Buffer,
}

impl<'c> Work<'c> {
    fn new(comm: &'c Comm, plan: &Plan, number: usize, case: Case) -> Result<Work<'c>, RankError> {
        let root = plan.root;
        let no_memory = || RankError::Memory { rank: comm.rank(), op: case.op, bytes: case.bytes };
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
            // From and to each rank as much: what goes between two is the same both ways.
            Operation::Alltoall => (case.before(ranks, rank, ranks), case.before(ranks, rank, ranks)),
            Operation::Barrier => (0, 0),
        };
        let buffer = |bytes| {
            let bytes = usize::try_from(bytes).map_err(|_| no_memory())?;
            let words = bytes.div_ceil(4);
            let words = if plan.alloc {
                Words::Shared(comm.alloc(words)?)
            } else {
                Words::zeros(words).ok_or_else(no_memory)?
            };
            Ok::<_, RankError>(Buffer { words, bytes })
        };
        let pause = plan.pause_ms.map(|ms| Duration::from_millis(ms.into()));
        let (send, receive) = (buffer(send)?, buffer(receive)?);
        Ok(Work { comm, root, pause, calls: plan.calls, number, case, send, receive })
    }

    /// Runs the collective and checks it; returns the seconds that a call took at this rank, and its plan.
    fn repeat(&mut self, repetition: u32) -> Result<(f64, String), RankError> {
        self.prepare(repetition);
        let counts = self.counts();
        self.comm.barrier()?;
        let start = self.start()?;
        for _ in 0..self.calls {
            self.call(&counts)?;
        }
        let (seconds, plan) = ((now() - start).as_secs_f64() / f64::from(self.calls), self.comm.last_plan());
        // Ranks that share a processor are not to check while others are at work.
        self.comm.barrier()?;
        self.check(repetition)?;
        Ok((seconds, plan))
    }

    /// When the repetition begins at this rank, which is now.
    fn start(&self) -> Result<Duration, RankError> {
        let Some(pause) = self.pause else { return Ok(now()) };
        let mut instant = [u64::try_from((now() + pause).as_nanos()).unwrap_or(u64::MAX)];
        self.comm.bcast(&mut instant, 0)?;
        let instant = Duration::from_nanos(instant[0]);
        std::thread::sleep(instant.saturating_sub(now()));
        Ok(instant)
    }

    /// Bytes of each rank's part, or of what goes from and to this rank.
    fn parts(&self) -> Vec<usize> {
        let shift = if self.case.op.operation == Operation::Alltoall { self.comm.rank() } else { 0 };
        (0..self.comm.size()).map(|rank| self.part(shift + rank)).collect()
    }

    fn part(&self, shift: usize) -> usize {
        // What all parts together have fits the memory.
        self.case.part(self.comm.size() as u64, shift as u64) as usize
    }

    /// What libcool is told of parts of unequal lengths, in elements.
    fn counts(&self) -> Vec<usize> {
        let size = self.comm.size();
        match self.case.op {
            Op { unequal: false, .. } => Vec::new(),
            Op { operation: Operation::Alltoall, .. } => {
                (0..size * size).map(|pair| self.part(pair / size + pair % size)).collect()
            }
            Op { operation: Operation::ReduceScatter, .. } => {
                self.parts().iter().map(|bytes| bytes / ELEMENT as usize).collect()
            }
            _ => self.parts(),
        }
    }

    /// What a rank sends, or what it sends to another: which of them is a number, too.
    fn pattern(&self, repetition: u32, sender: usize) -> Pattern {
        Pattern::of(self.number, repetition, sender)
    }

    /// The number of what one rank sends to another.
    fn pair(&self, from: usize, to: usize) -> usize {
        from * self.comm.size() + to
    }

    fn prepare(&mut self, repetition: u32) {
        let rank = self.comm.rank();
        let mine = self.pattern(repetition, rank);
        match self.case.op.operation {
            Operation::Bcast if rank == self.root => mine.fill(self.receive.bytes_mut()),
            // All but the root still have what came last time, which is something else.
            Operation::Bcast | Operation::Barrier => {}
            Operation::Scatter | Operation::Alltoall => {
                let all_to_all = self.case.op.operation == Operation::Alltoall;
                let parts = self.parts();
                let patterns: Vec<Pattern> = (0..parts.len())
                    .map(|to| self.pattern(repetition, if all_to_all { self.pair(rank, to) } else { to }))
                    .collect();
                let mut rest = self.send.bytes_mut();
                for (pattern, bytes) in patterns.into_iter().zip(parts) {
                    // All but the root of a scatter have nothing to fill.
                    let (part, after) = rest.split_at_mut(bytes.min(rest.len()));
                    pattern.fill(part);
                    rest = after;
                }
            }
            _ => mine.fill(self.send.bytes_mut()),
        }
    }

    fn call(&mut self, counts: &[usize]) -> Result<(), cool::Error> {
        let Work { comm, root, send, receive, case, .. } = self;
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

    /// What must have been received, piece by piece: bytes of each, and what is in it.
    fn expected(&self, repetition: u32) -> Vec<(usize, Pattern)> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let whole = self.receive.bytes().len();
        let of = |sender| self.pattern(repetition, sender);
        let sum = |ranks: std::ops::Range<usize>| ranks.map(of).sum::<Pattern>();
        match self.case.op.operation {
            Operation::Bcast => vec![(whole, of(self.root))],
            Operation::Reduce | Operation::Allreduce => vec![(whole, sum(0..size))],
            Operation::Scan => vec![(whole, sum(0..rank + 1))],
            // Nothing comes: what the buffer began with is still there.
            Operation::Exscan => vec![(whole, sum(0..rank))],
            Operation::Gather | Operation::Allgather if whole == 0 => Vec::new(),
            Operation::Gather | Operation::Allgather => {
                self.parts().into_iter().zip((0..size).map(of)).collect()
            }
            Operation::Scatter => vec![(whole, of(rank))],
            Operation::ReduceScatter => {
                let before = self.case.before(size as u64, 0, rank as u64);
                vec![(whole, sum(0..size).skip((before / ELEMENT) as usize))]
            }
            Operation::Alltoall => {
                self.parts().into_iter().zip((0..size).map(|from| of(self.pair(from, rank)))).collect()
            }
            Operation::Barrier => Vec::new(),
        }
    }

    fn check(&self, repetition: u32) -> Result<(), RankError> {
        let mut start = 0;
        for (bytes, pattern) in self.expected(repetition) {
            let piece = &self.receive.bytes()[start..][..bytes];
            if let Some((at, found, expected)) = pattern.first_wrong(piece) {
                let Case { op, bytes } = self.case;
                let (rank, index) = (self.comm.rank(), start + at);
                return Err(RankError::Wrong { rank, op, bytes, repetition, index, found, expected });
            }
            start += bytes;
        }
        Ok(())
    }
}

/// An array of this process, or one that is shared with the agent.
enum Words {
    Own(Vec<u32>),
    Shared(cool::Buffer<u32>),
}

impl Words {
    /// `None` if there is no memory for them.
    fn zeros(count: usize) -> Option<Words> {
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(Words::Own(words))
    }
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Words::Own(words) => words,
            Words::Shared(words) => words,
        }
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u32] {
        match self {
            Words::Own(words) => words,
            Words::Shared(words) => words,
        }
    }
}

/// Bytes that are also whole words, for the reductions.
struct Buffer {
    words: Words,
    bytes: usize,
}

impl Buffer {
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

    fn plan(sizes: &[u64], root: usize, alloc: bool, pause_ms: Option<u32>) -> Plan {
        let ops: Vec<Op> = Op::all().collect();
        Plan {
            cases: Plan::cases(&ops, sizes),
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
    fn every_collective_is_checked_and_measured_once_for_each_repetition() {
        for (alloc, pause) in [(false, None), (true, Some(1))] {
            measured_once_for_each_repetition(&plan(&[0, 3, 10_001], 2, alloc, pause));
        }
    }

    fn measured_once_for_each_repetition(plan: &Plan) {
        let measure_all = |comm: Comm| -> Result<Vec<Measured>, RankError> {
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
    fn wrong_data_is_told_by_rank_operation_and_place() {
        let case = Case { op: "allgather".parse().unwrap(), bytes: 30 };
        let wrong = |comm: Comm| {
            let mut work = Work::new(&comm, &plan(&[], 0, false, None), 0, case)?;
            work.repeat(0)?;
            work.receive.bytes_mut()[17] ^= 1;
            work.check(0)
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
