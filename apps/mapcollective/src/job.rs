//! A job on the ranks of a group: how ranks that are left go on when others are lost, and what all stages need.

use crate::cost::{LinkBytes, RankLayout};
use crate::error::Error;
use crate::report::{MapEvent, Stage, StageKind};
use cool::{Comm, Element, Op, Stats};
use std::borrow::Borrow;
use std::cell::{OnceCell, RefCell};
use std::fmt::Display;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::{Duration, Instant};

/// Bytes of a message that tells other ranks of an error; longer ones are cut.
const MAX_MESSAGE_BYTES: usize = 1024;

/// How often in a row a group may fail though none of its ranks is gone.
const UNEXPLAINED_FAILURES: usize = 3;

/// How a job runs.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Threads of a rank; 0 for an even share of its node's processors.
    pub threads: usize,
    /// How long a rank may load or map while others wait for it; one that dies is noticed at once all the same.
    pub patience: Duration,
    /// Is told how the job goes. `Some(&|event| eprintln!("{event}"))` prints it.
    pub watch: Option<&'a (dyn Fn(&MapEvent<'_>) + Sync)>,
    /// Bytes of a part of what [`Job::combine_in_parts`] gives all ranks, at least.
    pub part: u64,
}

/// Of 10 Gbit/s a link carries this in some 800 microseconds, four times what a call takes to begin.
const PART_BYTES: u64 = 1 << 20;

impl Default for Options<'_> {
    /// All processors, an hour's patience, nobody who watches, parts of a mebibyte.
    fn default() -> Self {
        Options { threads: 0, patience: Duration::from_secs(3600), watch: None, part: PART_BYTES }
    }
}

/// A rank's part in a job, given to the program by [`run`]. All ranks call its methods alike.
pub struct Job<'a> {
    comm: Option<&'a Comm>,
    pub(crate) options: Options<'a>,
    layout: RankLayout,
    /// The ranks of this node, once they were needed; none if no node has several.
    on_node: OnceCell<Option<Comm>>,
    /// The ranks of this rack, once they were needed.
    in_rack: OnceCell<Option<Comm>>,
    /// The error by which it was noticed that ranks are lost.
    lost: RefCell<Option<cool::Error>>,
    /// Since the last iteration.
    stages: RefCell<Vec<Stage>>,
    /// What calls of the groups before this one cost.
    before: Stats,
}

/// Runs a program as a rank of a group; if others are lost meanwhile, again as one of those that are left, which
/// shrink the group. Where one rank may fail alone, all have to know of it ([`Job::agree`]); stages see to that
/// themselves. What the program need not do again stands outside of it: [`Partitions`](crate::Partitions)
/// that it holds and how far it has come ([`Progress`](crate::Progress)).
///
/// # Errors
/// What the program ends with, unless that is because ranks are lost. If the group cannot be shrunk, why.
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

/// A program that is run again whenever ranks are lost.
struct ProgramRuns<'a> {
    options: Options<'a>,
    /// What calls of the groups before cost.
    before: Stats,
    /// How often in a row a group has failed of which no rank was gone.
    unexplained: usize,
}

impl ProgramRuns<'_> {
    /// Runs it once: its result or, when ranks are lost, the group of those that are left.
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
    /// A job of a group that fails when ranks are lost; [`run`] makes those that go on.
    pub fn new(comm: &'a Comm, options: Options<'a>) -> Self {
        comm.set_timeout(options.patience);
        Job { comm: Some(comm), layout: RankLayout::from_comm(comm), ..Job::alone(options) }
    }

    /// A job of this process alone.
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

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.map_or(0, Comm::rank)
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.comm.map_or(1, Comm::size)
    }

    /// Whether this is rank 0, the papers' driver.
    pub fn is_driver(&self) -> bool {
        self.rank() == 0
    }

    /// The ranks on this rank's node, this one among them.
    pub fn ranks_on_node(&self) -> Vec<usize> {
        self.layout.ranks_on_node_of(self.rank())
    }

    /// Threads of this rank.
    pub fn threads(&self) -> usize {
        if self.options.threads > 0 {
            return self.options.threads;
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        (processors / self.ranks_on_node().len()).max(1)
    }

    /// What the job's calls cost this node so far, those of larger groups before ranks were lost among them.
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

    /// Any call of libcool, on the job's group; not done where there is but this process. Its failure because of lost ranks is noticed
    /// by [`run`].
    ///
    /// # Errors
    /// If the call fails.
    pub fn call(&self, call: impl FnOnce(&Comm) -> Result<(), cool::Error>) -> Result<(), Error> {
        self.comm.map_or(Ok(()), |comm| self.record_loss(call(comm)))
    }

    /// What all ranks have, combined element by element.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allreduce<T: Element>(&self, mine: &[T], op: Op) -> Result<Vec<T>, Error> {
        let mut all = mine.to_vec();
        self.call(|comm| comm.allreduce(mine, &mut all, op))?;
        Ok(all)
    }

    /// What all ranks have, in their order.
    ///
    /// # Errors
    /// If the call fails.
    pub fn allgather<T: Element>(&self, mine: &[T]) -> Result<Vec<T>, Error> {
        let mut all = mine.repeat(self.size());
        self.call(|comm| comm.allgather(mine, &mut all))?;
        Ok(all)
    }

    /// Lets all ranks go on only if all can. If some have failed, all get the error of the smallest such rank, so
    /// that its message is seen whichever rank is the first to end.
    ///
    /// # Errors
    /// This rank's error, or that of another, in words.
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

    /// The ranks of this node, if any node has several. All ranks of the job call this.
    pub(crate) fn on_node(&self) -> Result<Option<&Comm>, Error> {
        if !self.layout.shares_nodes() {
            return Ok(None);
        }
        self.part(&self.on_node, &self.ranks_on_node())
    }

    /// The ranks of this rack. All ranks of the job call this.
    pub(crate) fn in_rack(&self) -> Result<Option<&Comm>, Error> {
        self.part(&self.in_rack, &self.layout.ranks_in_rack_of(self.rank()))
    }

    /// A group of some ranks, this one among them, made when it is asked for the first time.
    fn part<'c>(&self, made: &'c OnceCell<Option<Comm>>, ranks: &[usize]) -> Result<Option<&'c Comm>, Error> {
        if let (Some(comm), None) = (self.comm, made.get()) {
            let group = self.record_loss(comm.split(ranks.first().map(|rank| *rank as u64), 0))?;
            made.get_or_init(|| group);
        }
        Ok(made.get().and_then(Option::as_ref))
    }

    /// Lets calls of the groups that were made of this one's ranks fail: others may wait there for this rank, since they do not
    /// know yet that ranks are lost, and would not come to shrink the group.
    fn revoke_parts(&self) -> Result<(), Error> {
        let parts = [&self.on_node, &self.in_rack];
        parts.into_iter().filter_map(|made| made.get()?.as_ref()).try_for_each(|part| Ok(part.revoke()?))
    }

    /// Remembers that ranks were lost.
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

    /// Notes what a stage did that began at `start`.
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

    /// The stages since the last iteration.
    pub fn stages(&self) -> Vec<Stage> {
        self.stages.borrow().clone()
    }

    /// Forgets the stages so far.
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
        // Rank 3 ends. Rank 0 hears of it in a call of all, rank 1 waits for rank 0 in their rack.
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
