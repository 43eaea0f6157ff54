//! The collectives that the clustering needs, counted and timed, on a Map-Collective job.

use crate::error::Error;
use cool::{Comm, Element, Op, Stats};
use cool_map::{Job, MapEvent, Mapped, Number, Options, Rows, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Cost of communication so far, at this rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommunicationCost {
    /// Time in collectives, including the time spent waiting for ranks that still compute.
    pub time: Duration,
    /// Bytes of messages that were sent to all ranks.
    pub bytes_broadcast: u64,
    /// Bytes that this rank has sent for reductions.
    pub bytes_reduced: u64,
}

/// All ranks of the clustering, or just this process.
pub struct PeerRanks<'a> {
    job: JobHandle<'a>,
    tally: Cell<CommunicationCost>,
}

enum JobHandle<'a> {
    Own(Box<Job<'a>>),
    Lent(&'a Job<'a>),
}

/// Executes `part` as a rank of a group. If other ranks are lost, `part` is executed again on the
/// smaller group of survivors. It must keep, outside of the call, all results that need not be
/// computed again.
pub fn surviving<T>(
    comm: Comm,
    options: Options<'_>,
    mut part: impl FnMut(&PeerRanks<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let watch = |event: &MapEvent<'_>| {
        if let MapEvent::Lost { .. } = event {
            eprintln!("cool-kmeans: {event}");
        }
    };
    let mut tally = CommunicationCost::default();
    cool_map::run(comm, Options { watch: Some(&watch), ..options }, |job| {
        let peers = PeerRanks { job: JobHandle::Lent(job), tally: Cell::new(tally) };
        let done = part(&peers);
        tally = peers.tally();
        done
    })
}

impl<'a> PeerRanks<'a> {
    /// Returns the ranks of a clustering in this process only.
    pub fn alone() -> Self {
        Self { job: JobHandle::Own(Box::new(Job::alone(Options::default()))), tally: Cell::default() }
    }

    /// Returns the ranks of a clustering on a group. Their calls fail when a rank is lost;
    /// [`surviving`] continues instead.
    pub fn from_comm(comm: &'a Comm) -> Self {
        Self::with_options(comm, Options::default())
    }

    /// Does the same, with the given options of the job.
    pub fn with_options(comm: &'a Comm, options: Options<'a>) -> Self {
        Self { job: JobHandle::Own(Box::new(Job::new(comm, options))), tally: Cell::default() }
    }

    /// Returns the job of the ranks.
    pub fn job(&self) -> &Job<'a> {
        match &self.job {
            JobHandle::Own(job) => job,
            JobHandle::Lent(job) => job,
        }
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.job().rank()
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.job().size()
    }

    /// Returns whether this is rank 0, which reports for all.
    pub fn leads(&self) -> bool {
        self.job().is_driver()
    }

    /// Returns the number of ranks on this rank's node, and whether this rank is the first of them.
    pub fn on_node(&self) -> (usize, bool) {
        let here = self.job().ranks_on_node();
        (here.len(), here.first() == Some(&self.rank()))
    }

    /// Returns the cost of communication so far.
    pub fn tally(&self) -> CommunicationCost {
        self.tally.get()
    }

    /// Returns this node's cost of the calls so far.
    pub fn stats(&self) -> Stats {
        self.job().stats()
    }

    /// Sends `data` from rank `root` to all ranks.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let bytes = size_of_val::<[T]>(data) as u64;
        self.timed(|job| job.call(|comm| comm.bcast(data, root)))?;
        self.count(|tally| tally.bytes_broadcast += bytes);
        Ok(())
    }

    /// Sends a value of any size from rank 0 to all ranks. The values of other ranks are ignored.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, value: T) -> Result<T, Error> {
        let value = self.timed(|job| job.broadcast(0, Some(value)))?;
        self.count(|tally| tally.bytes_broadcast += self.last_stage_bytes());
        Ok(value)
    }

    /// Returns the sum over all ranks, at rank 0. Other ranks return an empty vector.
    pub fn sum<T: Element>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        self.count(|tally| tally.bytes_reduced += size_of_val::<[T]>(&mine) as u64);
        let mut all = if self.leads() { mine.clone() } else { Vec::new() };
        self.timed(|job| job.call(|comm| comm.reduce(&mine, &mut all, Op::Sum, 0)))?;
        Ok(all)
    }

    /// Returns the values of all ranks, combined element by element.
    pub fn combine<T: Element>(&self, mine: Vec<T>, op: Op) -> Result<Vec<T>, Error> {
        self.timed(|job| job.allreduce(&mine, op))
    }

    /// Sums the rows of all ranks. Returns those that this rank owns.
    pub fn regroup<T: Table>(&self, table: T) -> Result<T, Error> {
        let mine = self.timed(|job| job.regroup(Mapped::whole(table)))?;
        self.count(|tally| tally.bytes_reduced += self.last_stage_bytes());
        Ok(mine)
    }

    /// Returns the rows of all ranks, at every rank.
    pub fn share<T: Table>(&self, table: T) -> Result<T, Error> {
        let all = self.timed(|job| job.combine(table))?;
        self.count(|tally| tally.bytes_broadcast += self.last_stage_bytes());
        Ok(all)
    }

    /// Does the same in parts, if there are many rows: `take` processes one part while the next
    /// ones are in transit. Returns the sum of `number` over all ranks. See
    /// [`Job::combine_in_parts`].
    pub fn share_in_parts<N: Number>(
        &self,
        rows: Rows<N>,
        number: u64,
        mut take: impl FnMut(Rows<N>, &[Range<usize>]),
    ) -> Result<u64, Error> {
        let mut from_bytes = Duration::ZERO;
        let sum = self.timed(|job| {
            job.combine_in_parts(rows, number, |part, runs| {
                let start = Instant::now();
                take(part, runs);
                from_bytes += start.elapsed();
            })
        })?;
        self.count(|tally| {
            tally.time -= from_bytes;
            tally.bytes_broadcast += self.last_stage_bytes();
        });
        Ok(sum)
    }

    /// Returns the values of all ranks in the order of ranks, at rank 0. All ranks must pass equal
    /// numbers of values. Other ranks return an empty vector.
    pub fn gather<T: Element>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        let mut all = if self.leads() { mine.repeat(self.size()) } else { Vec::new() };
        self.timed(|job| job.call(|comm| comm.gather(&mine, &mut all, 0)))?;
        Ok(all)
    }

    /// Returns the values of all ranks in the order of ranks. Ranks may pass different numbers of
    /// values.
    pub fn all_gather<T: Element + Default>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        if self.size() == 1 {
            return Ok(mine);
        }
        let counts = self.counts(mine.len())?;
        let mut all = vec![T::default(); counts.iter().sum()];
        self.timed(|job| job.call(|comm| comm.allgatherv(&mine, &mut all, &counts)))?;
        Ok(all)
    }

    /// Returns the values of all ranks in the order of ranks, at rank 0. Ranks may pass different
    /// numbers of values. Other ranks return an empty vector.
    pub fn gather_all<T: Element + Default>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        if self.size() == 1 {
            return Ok(mine);
        }
        let counts = self.counts(mine.len())?;
        let mut all = vec![T::default(); if self.leads() { counts.iter().sum() } else { 0 }];
        self.timed(|job| job.call(|comm| comm.gatherv(&mine, &mut all, &counts, 0)))?;
        Ok(all)
    }

    /// Returns the number of elements of each rank.
    fn counts(&self, mine: usize) -> Result<Vec<usize>, Error> {
        let counts = self.timed(|job| job.allgather(&[mine as u64]))?;
        Ok(counts.into_iter().map(|count| count as usize).collect())
    }

    /// Distributes the items of a list over the ranks in turn. `compute` receives the indices of
    /// this rank's items, and must return a result for each. Returns the results of all items, in
    /// order, at every rank.
    pub fn deal<T: Serialize + DeserializeOwned>(
        &self,
        items: usize,
        compute: impl FnOnce(&[usize]) -> Result<Vec<T>, Error>,
    ) -> Result<Vec<T>, Error> {
        let mine: Vec<usize> = (self.rank()..items).step_by(self.size()).collect();
        let computed = self.agree(compute(&mine))?;
        if self.size() == 1 {
            return Ok(computed);
        }
        let differ =
            |_| Error::Input("ranks computed different things; run the same version at all ranks".into());
        let all = self.all_gather(postcard::to_allocvec(&computed).map_err(differ)?)?;
        let mut rest = all.as_slice();
        let mut done: Vec<Option<T>> = (0..items).map(|_| None).collect();
        for rank in 0..self.size() {
            let (part, behind) = postcard::take_from_bytes::<Vec<T>>(rest).map_err(differ)?;
            let places = done.iter_mut().skip(rank).step_by(self.size());
            places.zip(part).for_each(|(place, item)| *place = Some(item));
            rest = behind;
        }
        let all: Option<Vec<T>> = done.into_iter().collect();
        all.ok_or_else(|| differ(postcard::Error::DeserializeUnexpectedEnd))
    }

    /// Returns `mine` if no rank has an error. Otherwise, all ranks return the error of the
    /// smallest rank that has one, so that its message is seen regardless of which rank ends first.
    pub fn agree<T>(&self, mine: Result<T, Error>) -> Result<T, Error> {
        let start = Instant::now();
        let agreed = self.job().agree(mine);
        self.count(|tally| tally.time += start.elapsed());
        agreed
    }

    /// Returns the bytes that this rank sent in the job's last stage.
    fn last_stage_bytes(&self) -> u64 {
        self.job().stages().last().map_or(0, |stage| stage.bytes)
    }

    fn timed<T>(&self, call: impl FnOnce(&Job<'a>) -> Result<T, cool_map::Error>) -> Result<T, Error> {
        let start = Instant::now();
        let done = call(self.job())?;
        self.count(|tally| tally.time += start.elapsed());
        Ok(done)
    }

    fn count(&self, change: impl FnOnce(&mut CommunicationCost)) {
        let mut tally = self.tally.get();
        change(&mut tally);
        self.tally.set(tally);
    }
}
