//! The other ranks: the few collectives that the clustering needs, counted and timed.

use crate::error::Error;
use cool::{Comm, Element, Op, Stats};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Bytes of a message that tells other ranks of an error; longer ones are cut.
const MESSAGE: usize = 1024;

/// Ranks may read and compute for much longer than others; one that dies is noticed at once all the same.
const PATIENCE: Duration = Duration::from_secs(3600);

/// How often in a row a group may fail though none of its ranks is gone.
const UNEXPLAINED: usize = 3;

/// What communication cost so far, as this rank saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Time in collectives, with the time spent waiting for ranks that still computed.
    pub time: Duration,
    /// Sizes of the messages broadcast.
    pub bytes_broadcast: u64,
    /// Sizes of the messages reduced, as one rank contributes them.
    pub bytes_reduced: u64,
}

/// All ranks of the clustering, or none but this one.
pub struct Peers<'a> {
    comm: Option<&'a Comm>,
    tally: Cell<Tally>,
    /// What calls of the groups before this one cost.
    before: Stats,
}

/// Lets a rank of a group do its part; if others are lost meanwhile, once more as one of those that are left. What
/// need not be done again, `part` keeps.
pub fn surviving<T>(
    mut comm: Comm,
    mut part: impl FnMut(&Peers<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let (mut tally, mut before, mut unexplained) = (Tally::default(), Stats::default(), 0);
    loop {
        let peers = Peers { tally: Cell::new(tally), before, ..Peers::of(&comm) };
        let lost = match part(&peers) {
            Err(Error::Collective(e)) if e.is_loss() && unexplained < UNEXPLAINED => e,
            done => return done,
        };
        (tally, before) = (peers.tally(), peers.stats());
        let rest = comm.shrink()?;
        unexplained = if rest.gone().is_empty() { unexplained + 1 } else { 0 };
        if rest.rank() == 0 {
            eprintln!("cool-kmeans: {lost}; {} ranks go on", rest.size());
        }
        comm = rest;
    }
}

impl<'a> Peers<'a> {
    /// A clustering in this process only.
    pub fn alone() -> Self {
        Self { comm: None, tally: Cell::default(), before: Stats::default() }
    }

    /// A clustering by all ranks of a group.
    pub fn of(comm: &'a Comm) -> Self {
        comm.set_timeout(PATIENCE);
        Self { comm: Some(comm), tally: Cell::default(), before: Stats::default() }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.comm.map_or(0, Comm::rank)
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.comm.map_or(1, Comm::size)
    }

    /// Whether this is rank 0, which moves the centroids and speaks for all.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Ranks on this rank's node, this one among them, and whether it is the first of them.
    pub fn on_node(&self) -> (usize, bool) {
        let Some(comm) = self.comm else { return (1, true) };
        let node = |rank| comm.place(rank).map(|p| p.node);
        let here: Vec<usize> = (0..comm.size()).filter(|&r| node(r) == node(comm.rank())).collect();
        (here.len().max(1), here.first().is_none_or(|&first| first == comm.rank()))
    }

    /// What communication cost so far.
    pub fn tally(&self) -> Tally {
        self.tally.get()
    }

    /// What the calls so far cost this node.
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

    /// Gives all ranks what one of them has.
    pub fn bcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        self.timed(|comm| comm.bcast(data, root))?;
        let mut tally = self.tally.get();
        tally.bytes_broadcast += size_of_val::<[T]>(data) as u64;
        self.tally.set(tally);
        Ok(())
    }

    /// The sum of what all ranks have, at rank 0; other ranks get nothing.
    pub fn sum<T: Element>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        let mut tally = self.tally.get();
        tally.bytes_reduced += size_of_val::<[T]>(&mine) as u64;
        self.tally.set(tally);
        if self.comm.is_none() {
            return Ok(mine);
        }
        let mut all = if self.leads() { mine.clone() } else { Vec::new() };
        self.timed(|comm| comm.reduce(&mine, &mut all, Op::Sum, 0))?;
        Ok(all)
    }

    /// What all ranks have, combined element by element.
    pub fn combine<T: Element>(&self, mine: Vec<T>, op: Op) -> Result<Vec<T>, Error> {
        let mut all = mine.clone();
        self.timed(|comm| comm.allreduce(&mine, &mut all, op))?;
        Ok(all)
    }

    /// What all ranks have, in order of ranks, at rank 0; other ranks get nothing.
    pub fn gather<T: Element>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        if self.comm.is_none() {
            return Ok(mine);
        }
        let mut all = if self.leads() { mine.repeat(self.size()) } else { Vec::new() };
        self.timed(|comm| comm.gather(&mine, &mut all, 0))?;
        Ok(all)
    }

    /// What all ranks have, in order of ranks, however much each has.
    pub fn all_gather<T: Element + Default>(&self, mine: Vec<T>) -> Result<Vec<T>, Error> {
        let Some(comm) = self.comm else { return Ok(mine) };
        let mut counts = vec![0u64; comm.size()];
        self.timed(|comm| comm.allgather(&[mine.len() as u64], &mut counts))?;
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        let mut all = vec![T::default(); counts.iter().sum()];
        self.timed(|comm| comm.allgatherv(&mine, &mut all, &counts))?;
        Ok(all)
    }

    /// Lets all ranks go on only if all can. If some have failed, all get the error of the smallest such rank, so
    /// that its message is seen whichever rank is the first to end.
    pub fn agree<T>(&self, mine: Result<T, Error>) -> Result<T, Error> {
        let none = self.size() as u64;
        let failed = if mine.is_err() { self.rank() as u64 } else { none };
        let first = self.combine(vec![failed], Op::Min)?[0];
        if first == none {
            return mine;
        }
        let mut text = match &mine {
            Err(error) => error.to_string().into_bytes(),
            Ok(_) => Vec::new(),
        };
        text.resize(MESSAGE, 0);
        self.timed(|comm| comm.bcast(&mut text, first as usize))?;
        if first == failed {
            return mine;
        }
        let message = String::from_utf8_lossy(&text).trim_end_matches(['\0', '\u{fffd}']).to_owned();
        Err(Error::Elsewhere { rank: first as usize, message })
    }

    fn timed(&self, call: impl FnOnce(&Comm) -> Result<(), cool::Error>) -> Result<(), Error> {
        let Some(comm) = self.comm else { return Ok(()) };
        let start = Instant::now();
        call(comm)?;
        let mut tally = self.tally.get();
        tally.time += start.elapsed();
        self.tally.set(tally);
        Ok(())
    }
}
