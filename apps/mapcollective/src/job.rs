//! A job on the ranks of a group: how survivors continue when other ranks are lost, and the shared
//! parts of all stages.

use crate::error::Error;
use crate::link_load::{LinkBytes, RankLayout};
use crate::report::{MapEvent, Stage, StageKind};
use cool::{Comm, Element, Op, Stats};
use std::borrow::Borrow;
use std::cell::{OnceCell, RefCell};
use std::fmt::Display;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

/// Maximum bytes of an error message that is sent to other ranks. Longer messages are truncated.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Maximum number of consecutive failures that a loss of ranks seems to have caused, although no
/// rank turns out to be lost. After the next one, the job fails.
const UNEXPLAINED_FAILURES: usize = 3;

/// Options of a job.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Threads per rank. 0 means an equal share of the node's CPUs.
    pub threads: usize,
    /// How long a rank may load or map while others wait for it: the timeout of collectives. The
    /// death of a rank is detected immediately.
    pub patience: Duration,
    /// Receives reports of the progress. For example, `Some(&|event| eprintln!("{event}"))` prints
    /// them.
    pub watch: Option<&'a (dyn Fn(&MapEvent<'_>) + Sync)>,
    /// Minimum bytes of a part of [`Job::combine_in_parts`].
    pub part: u64,
}

/// The default of [`Options::part`]. At 10 Gbit/s, a link transfers it in about 800 microseconds,
/// four times the latency of a call.
const PART_BYTES: u64 = 1 << 20;

impl Default for Options<'_> {
    /// Returns the default: all CPUs, an hour of patience, no reports, and parts of one mebibyte.
    fn default() -> Self {
        Options { threads: 0, patience: Duration::from_secs(3600), watch: None, part: PART_BYTES }
    }
}

/// A rank's handle of a job, which [`run`] passes to the program. All ranks must call the methods
/// that communicate, and in the same order.
pub struct Job<'a> {
    comm: Option<&'a Comm>,
    pub(crate) options: Options<'a>,
    layout: RankLayout,
    /// The group of this node's ranks. It is created when it is first needed, and only if some node
    /// has several ranks.
    on_node: OnceCell<Option<Comm>>,
    /// The group of this rack's ranks. It is created when it is first needed.
    in_rack: OnceCell<Option<Comm>>,
    /// The error that revealed a loss of ranks.
    lost: RefCell<Option<cool::Error>>,
    /// Reports of the stages since the end of the last iteration.
    stages: RefCell<Vec<Stage>>,
    /// Cost of the calls on the larger groups before losses of ranks.
    before: Stats,
}

/// Runs a program as a rank of a group. If other ranks are lost, the survivors shrink the group and
/// run the program again. If a step can fail at one rank only, the program must call
/// [`Job::agree`], so that all ranks learn of the failure; stages do this themselves. Results that
/// need not be computed again must be kept outside of the program: its
/// [`Partitions`](crate::Partitions) and its [`Progress`](crate::Progress).
///
/// # Errors
/// Returns the program's error, unless a loss of ranks has caused it, or an error if the group
/// cannot be shrunk.
pub fn run<T, E: From<Error>>(
    comm: impl Borrow<Comm>,
    options: Options<'_>,
    mut program: impl FnMut(&Job<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let mut runs = ProgramRuns { options, before: Stats::default(), unexplained: 0 };
    let mut left = match runs.run(comm.borrow(), &mut program)? {
        Break(result) => return Ok(result),
        Continue(left) => left,
    };
    drop(comm);
    loop {
        left = match runs.run(&left, &mut program)? {
            Break(result) => return Ok(result),
            Continue(left) => left,
        };
    }
}

/// The runs of a program, which is run again after each loss of ranks.
struct ProgramRuns<'a> {
    options: Options<'a>,
    /// Cost of the calls on the larger groups before losses of ranks.
    before: Stats,
    /// Number of consecutive failures without a lost rank, see [`UNEXPLAINED_FAILURES`].
    unexplained: usize,
}

impl ProgramRuns<'_> {
    /// Runs the program once. Returns its result or, if ranks are lost, the group of survivors.
    fn run<T, E: From<Error>>(
        &mut self,
        comm: &Comm,
        program: &mut impl FnMut(&Job<'_>) -> Result<T, E>,
    ) -> Result<ControlFlow<T, Comm>, E> {
        let job = Job { before: self.before, ..Job::new(comm, self.options) };
        let done = program(&job);
        self.before = job.stats();
        let lost = match (done, job.lost.take()) {
            (Err(_), Some(lost)) if self.unexplained < UNEXPLAINED_FAILURES => lost,
            (done, _) => return done.map(Break),
        };
        job.revoke_parts()?;
        let left = comm.shrink().map_err(Error::from)?;
        self.unexplained = if left.gone().is_empty() { self.unexplained + 1 } else { 0 };
        if let Some(watch) = self.options.watch.filter(|_| left.rank() == 0) {
            watch(&MapEvent::Lost { error: &lost, left: left.size() });
        }
        Ok(Continue(left))
    }
}

impl<'a> Job<'a> {
    /// Creates a job on a group. Its calls fail when ranks are lost; [`run`] continues with the
    /// survivors instead.
    pub fn new(comm: &'a Comm, options: Options<'a>) -> Self {
        comm.set_timeout(options.patience);
        Job { comm: Some(comm), layout: RankLayout::from_comm(comm), ..Job::alone(options) }
    }

    /// Creates a job of this process only.
    pub fn alone(options: Options<'a>) -> Self {
        Job {
            comm: None,
            options,
            layout: RankLayout::alone(),
            on_node: OnceCell::new(),
            in_rack: OnceCell::new(),
            lost: RefCell::default(),
            stages: RefCell::default(),
            before: Stats::default(),
        }
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.comm.map_or(0, Comm::rank)
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.comm.map_or(1, Comm::size)
    }

    /// Returns whether this is rank 0, which the papers call the driver.
    pub fn is_driver(&self) -> bool {
        self.rank() == 0
    }

    /// Returns the ranks on this rank's node, including itself.
    pub fn ranks_on_node(&self) -> Vec<usize> {
        self.layout.ranks_on_node_of(self.rank())
    }

    /// Returns the number of threads of this rank.
    pub fn threads(&self) -> usize {
        if self.options.threads > 0 {
            return self.options.threads;
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        (cpus / self.ranks_on_node().len()).max(1)
    }

    /// Returns this node's cost of the job's calls so far, including calls on the larger groups
    /// before losses of ranks.
    pub fn stats(&self) -> Stats {
        let (now, before) = (self.comm.map(Comm::stats).unwrap_or_default(), self.before);
        Stats {
            calls: before.calls + now.calls,
            time: before.time + now.time,
            multicast_bytes: before.multicast_bytes + now.multicast_bytes,
            unicast_bytes: before.unicast_bytes + now.unicast_bytes,
            chunks_repaired: before.chunks_repaired + now.chunks_repaired,
            chunks_resent: before.chunks_resent + now.chunks_resent,
        }
    }

    /// Executes a call of libcool on the job's group. In a job of this process only, the call is
    /// skipped. If lost ranks make the call fail, this is recorded, so that [`run`] starts the
    /// program again.
    ///
    /// # Errors
    /// If the call fails.
    pub fn call(&self, call: impl FnOnce(&Comm) -> Result<(), cool::Error>) -> Result<(), Error> {
        self.comm.map_or(Ok(()), |comm| self.record_loss(call(comm)))
    }

    /// Returns the values of all ranks, combined element by element.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allreduce<T: Element>(&self, mine: &[T], op: Op) -> Result<Vec<T>, Error> {
        let mut all = mine.to_vec();
        self.call(|comm| comm.allreduce(mine, &mut all, op))?;
        Ok(all)
    }

    /// Returns the values of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allgather<T: Element>(&self, mine: &[T]) -> Result<Vec<T>, Error> {
        let mut all = mine.repeat(self.size());
        self.call(|comm| comm.allgather(mine, &mut all))?;
        Ok(all)
    }

    /// Returns `mine` if no rank has an error. Otherwise, all ranks return the error of the
    /// smallest rank that has one, so that its message is seen regardless of which rank ends first.
    ///
    /// # Errors
    /// This rank's error, or the message of another rank's error.
    pub fn agree<T, E: From<Error> + Display>(&self, mine: Result<T, E>) -> Result<T, E> {
        let none = self.size() as u64;
        let failed = if mine.is_err() { self.rank() as u64 } else { none };
        let first = self.allreduce(&[failed], Op::Min)?[0];
        if first == none {
            return mine;
        }
        let mut text = mine.as_ref().err().map(|error| error.to_string().into_bytes()).unwrap_or_default();
        text.resize(MAX_MESSAGE_BYTES, 0);
        self.call(|comm| comm.bcast(&mut text, first as usize))?;
        if first == failed {
            return mine;
        }
        let message = String::from_utf8_lossy(&text).trim_end_matches(['\0', '\u{fffd}']).to_owned();
        Err(Error::Elsewhere { rank: first as usize, message }.into())
    }

    pub(crate) fn comm(&self) -> Option<&'a Comm> {
        self.comm
    }

    pub(crate) fn layout(&self) -> &RankLayout {
        &self.layout
    }

    /// Returns the group of this node's ranks, or `None` if no node has several ranks. All ranks of
    /// the job must call this.
    pub(crate) fn on_node(&self) -> Result<Option<&Comm>, Error> {
        if !self.layout.shares_nodes() {
            return Ok(None);
        }
        self.part(&self.on_node, &self.ranks_on_node())
    }

    /// Returns the group of this rack's ranks, or `None` in a job of this process only. All ranks
    /// of the job must call this.
    pub(crate) fn in_rack(&self) -> Result<Option<&Comm>, Error> {
        self.part(&self.in_rack, &self.layout.ranks_in_rack_of(self.rank()))
    }

    /// Returns the group of `ranks`, which must include this rank, or `None` in a job of this
    /// process only. The first call creates the group; all ranks of the job must take part in it.
    fn part<'c>(&self, made: &'c OnceCell<Option<Comm>>, ranks: &[usize]) -> Result<Option<&'c Comm>, Error> {
        if let (Some(comm), None) = (self.comm, made.get()) {
            let group = self.record_loss(comm.split(ranks.first().map(|rank| *rank as u64), 0))?;
            made.get_or_init(|| group);
        }
        Ok(made.get().and_then(Option::as_ref))
    }

    /// Makes the calls on the groups of this node and this rack fail at all their ranks. Otherwise,
    /// a rank that has not detected the loss could wait there for this rank forever, and would not
    /// shrink the job's group.
    fn revoke_parts(&self) -> Result<(), Error> {
        let parts = [&self.on_node, &self.in_rack];
        parts.into_iter().filter_map(|made| made.get()?.as_ref()).try_for_each(|part| Ok(part.revoke()?))
    }

    /// Converts the error of a call. If lost ranks have caused it, records it, so that [`run`]
    /// starts the program again.
    pub(crate) fn record_loss<T>(&self, result: Result<T, cool::Error>) -> Result<T, Error> {
        result.map_err(|error| {
            if error.is_loss() {
                let text = error.to_string();
                self.lost.borrow_mut().get_or_insert(error);
                return Error::Lost(text);
            }
            Error::Collective(error)
        })
    }

    /// Records a stage that started at `start`.
    pub(crate) fn record_stage(
        &self,
        kind: StageKind,
        start: Instant,
        rows: usize,
        bytes: u64,
        links: LinkBytes,
    ) {
        let (rows, seconds) = (rows as u64, start.elapsed().as_secs_f64());
        self.stages.borrow_mut().push(Stage { kind, rows, bytes, links, seconds });
    }

    /// Returns the reports of the stages since the end of the last iteration.
    pub fn stages(&self) -> Vec<Stage> {
        self.stages.borrow().clone()
    }

    /// Returns the reports of the stages since the end of the last iteration, and removes them.
    pub(crate) fn take_stages(&self) -> Vec<Stage> {
        self.stages.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cool::embedded::Embedded;

    #[test]
    fn a_rank_waiting_in_its_rack_is_released_by_a_loss() {
        // Rank 3 ends. Rank 0 detects that in a call of all ranks, while rank 1 waits for rank 0 in
        // their rack.
        let program = |job: &Job<'_>| {
            if job.size() == 3 {
                return Ok(job.allreduce(&[1], Op::Sum)?[0]);
            }
            let rack = job.in_rack()?;
            match job.rank() {
                1 => job.record_loss(rack.expect("two ranks").barrier())?,
                3 => return Ok(0),
                _ => job.call(Comm::barrier)?,
            }
            unreachable!("rank 3 takes part in none of these calls")
        };
        let how = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
        let options = Options { patience: Duration::from_secs(120), ..Options::default() };
        let ranks =
            cool::embedded::run(how, |comm| run(comm, options, program).map_err(|e: Error| e.to_string()));
        assert_eq!(ranks.expect("agents start"), [Ok(3), Ok(3), Ok(3), Ok(0)]);
    }
}
