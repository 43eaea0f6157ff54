//! One rank of a benchmark: runs the plan, checks every result to the byte, and measures.

use super::idle::Ticks;
use super::pattern::Pattern;
use super::plan::{Case, Measured, Op, Plan};
use cool::Comm;
use std::io::Write;
use std::time::Instant;

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
    Cool(#[from] cool::Error),
    #[error(
        "rank {rank}: {op} of {bytes} bytes, repetition {repetition}: wrong data: byte {index} is {found:#04x}, should be {expected:#04x}"
    )]
    Wrong {
        rank: usize,
        op: &'static str,
        bytes: u64,
        repetition: u32,
        index: usize,
        found: u8,
        expected: u8,
    },
    #[error("rank {rank}: no memory for {op} of {bytes} bytes; choose a smaller --bytes")]
    Memory { rank: usize, op: &'static str, bytes: u64 },
    #[error("cannot read how busy the processors are: {0}")]
    Idle(std::io::Error),
    #[error("cannot report: {0}")]
    Report(std::io::Error),
}

/// Runs as the rank that the job started this process as.
pub(crate) fn rank(options: &RankOptions) -> Result<(), RankError> {
    let plan: Plan = serde_json::from_str(&options.plan).map_err(RankError::Plan)?;
    let comm = Comm::world()?;
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
    let mut work = Work::new(comm, plan.root, number, case)?;
    for repetition in 0..plan.warmup {
        work.repeat(repetition)?;
    }
    let (ticks, stats) = (Ticks::now().map_err(RankError::Idle)?, comm.stats());
    let repetitions = plan.warmup..plan.warmup + plan.reps;
    let seconds = repetitions.map(|repetition| work.repeat(repetition)).collect::<Result<Vec<f64>, _>>()?;
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
        idle: busiest.first().copied().filter(|idle| idle.is_finite()),
        chunks_repaired: total.first().copied().unwrap_or(0),
    })
}

/// A case with its buffers at this rank.
struct Work<'c> {
    comm: &'c Comm,
    root: usize,
    number: usize,
    case: Case,
    /// Bytes of a part where there are parts, else of the whole.
    unit: usize,
    send: Buffer,
    receive: Buffer,
}

impl<'c> Work<'c> {
    fn new(comm: &'c Comm, root: usize, number: usize, case: Case) -> Result<Work<'c>, RankError> {
        let no_memory = || RankError::Memory { rank: comm.rank(), op: case.op.name(), bytes: case.bytes };
        let ranks = comm.size() as u64;
        let bytes = |n: u64| usize::try_from(n).map_err(|_| no_memory());
        let (unit, whole) = (bytes(case.unit(ranks))?, bytes(case.moved(ranks))?);
        let at_root = |n: usize| if comm.rank() == root { n } else { 0 };
        let (send, receive) = match case.op {
            Op::Bcast => (0, whole),
            Op::Reduce => (unit, at_root(whole)),
            Op::Allreduce => (unit, whole),
            Op::Gather => (unit, at_root(whole)),
            Op::Allgather => (unit, whole),
            Op::Scatter => (at_root(whole), unit),
            Op::Barrier => (0, 0),
        };
        let send = Buffer::zeros(send).ok_or_else(no_memory)?;
        let receive = Buffer::zeros(receive).ok_or_else(no_memory)?;
        Ok(Work { comm, root, number, case, unit, send, receive })
    }

    /// Runs the collective once and checks it; returns the seconds that it took at this rank.
    fn repeat(&mut self, repetition: u32) -> Result<f64, RankError> {
        self.prepare(repetition);
        self.comm.barrier()?;
        let start = Instant::now();
        self.call()?;
        let seconds = start.elapsed().as_secs_f64();
        self.check(repetition)?;
        Ok(seconds)
    }

    fn pattern(&self, repetition: u32, rank: usize) -> Pattern {
        Pattern::of(self.number, repetition, rank)
    }

    fn prepare(&mut self, repetition: u32) {
        let (number, unit) = (self.number, self.unit);
        let mine = self.pattern(repetition, self.comm.rank());
        match self.case.op {
            Op::Bcast if self.comm.rank() == self.root => mine.fill(self.receive.bytes_mut()),
            // All but the root still have what came last time, which is something else.
            Op::Bcast | Op::Barrier => {}
            Op::Reduce | Op::Allreduce | Op::Gather | Op::Allgather => mine.fill(self.send.bytes_mut()),
            Op::Scatter => {
                let parts = self.send.bytes_mut().chunks_mut(unit.max(1)).enumerate();
                parts.for_each(|(rank, part)| Pattern::of(number, repetition, rank).fill(part));
            }
        }
    }

    fn call(&mut self) -> Result<(), cool::Error> {
        let Work { comm, root, send, receive, .. } = self;
        match self.case.op {
            Op::Bcast => comm.bcast(receive.bytes_mut(), *root),
            Op::Reduce => comm.reduce(&send.words, &mut receive.words, cool::Op::Sum, *root),
            Op::Allreduce => comm.allreduce(&send.words, &mut receive.words, cool::Op::Sum),
            Op::Gather => comm.gather(send.bytes(), receive.bytes_mut(), *root),
            Op::Allgather => comm.allgather(send.bytes(), receive.bytes_mut()),
            Op::Scatter => comm.scatter(send.bytes(), receive.bytes_mut(), *root),
            Op::Barrier => comm.barrier(),
        }
    }

    fn check(&self, repetition: u32) -> Result<(), RankError> {
        let received = self.receive.bytes();
        let wrong = match self.case.op {
            Op::Bcast => self.pattern(repetition, self.root).first_wrong(received),
            Op::Reduce | Op::Allreduce => {
                let all = (0..self.comm.size()).map(|rank| self.pattern(repetition, rank));
                all.sum::<Pattern>().first_wrong(received)
            }
            Op::Gather | Op::Allgather => {
                received.chunks(self.unit.max(1)).enumerate().find_map(|(rank, part)| {
                    let (at, found, expected) = self.pattern(repetition, rank).first_wrong(part)?;
                    Some((rank * self.unit + at, found, expected))
                })
            }
            Op::Scatter => self.pattern(repetition, self.comm.rank()).first_wrong(received),
            Op::Barrier => None,
        };
        wrong.map_or(Ok(()), |(index, found, expected)| {
            let Case { op, bytes } = self.case;
            Err(RankError::Wrong {
                rank: self.comm.rank(),
                op: op.name(),
                bytes,
                repetition,
                index,
                found,
                expected,
            })
        })
    }
}

/// Bytes that are also whole words, for the reductions.
struct Buffer {
    words: Vec<u32>,
    bytes: usize,
}

impl Buffer {
    /// `None` if there is no memory for it.
    fn zeros(bytes: usize) -> Option<Buffer> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(4));
        words.try_reserve_exact(count).ok()?;
        words.resize(count, 0);
        Some(Buffer { words, bytes })
    }

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

    #[test]
    fn every_collective_is_checked_and_measured_once_for_each_repetition() {
        let ops = [Op::Bcast, Op::Reduce, Op::Allreduce, Op::Gather, Op::Allgather, Op::Scatter, Op::Barrier];
        let plan = Plan { cases: Plan::cases(&ops, &[0, 3, 10_001]), warmup: 1, reps: 3, root: 2 };
        let measure_all = |comm: Comm| -> Result<Vec<Measured>, RankError> {
            plan.cases.iter().enumerate().map(|(i, case)| measure(&comm, &plan, i, *case)).collect()
        };
        let embedded = Embedded { ranks: 5, ranks_per_node: 2, racks: 2 };
        let results = cool::embedded::run(embedded, measure_all).unwrap();
        for (rank, result) in results.into_iter().enumerate() {
            let repetitions = if rank == 0 { plan.reps as usize } else { 0 };
            let measured = result.unwrap();
            assert_eq!(measured.len(), plan.cases.len());
            assert!(measured.iter().all(|m| m.seconds.len() == repetitions));
        }
    }

    #[test]
    fn wrong_data_is_told_by_rank_operation_and_place() {
        let case = Case { op: Op::Allgather, bytes: 30 };
        let wrong = |comm: Comm| {
            let mut work = Work::new(&comm, 0, 0, case)?;
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
