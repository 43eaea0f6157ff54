//! Lloyd's iterations over all ranks.
//!
//! [`Share::cluster`] runs the iterations over the points that [`Share::load`] gave each rank. All ranks call both alike.

use crate::aggregate::{Aggregation, NO_LABEL};
use crate::assign::Assigned;
use crate::choose::{Assigner, Effort};
use crate::error::Error;
use crate::grid::{Centroids, Points};
use crate::parallel_seeding;
use crate::partition::Thinned;
use crate::peers::Peers;
pub use crate::progress::Iteration;
use crate::progress::{self, Progress, State};
use crate::seeding;
use crate::share::Share;
use cool::Op;
use std::path::PathBuf;
use std::time::Instant;

/// What to do with the points.
#[derive(Clone, Debug)]
pub struct Clustering {
    /// Clusters.
    pub k: usize,
    /// Iterations at most.
    pub iterations: usize,
    /// Stop when inertia falls by less than this share of itself; 0 never stops early.
    pub tolerance: f64,
    /// Names the first centroids.
    pub seed: u64,
    /// Points sampled for each first centroid.
    pub sample: usize,
    /// Where the first centroids come from; by default [`Init::of`] the clusters.
    pub init: Option<Init>,
    /// What decides how fast it goes, and about nothing else.
    pub effort: Effort,
    /// Where rank 0 writes how far it has come, after every iteration.
    pub checkpoint: Option<PathBuf>,
    /// Go on from there, if anything is there.
    pub resume: bool,
}

/// Where the first centroids come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// k-means|| over a sample, by all ranks.
    Parallel,
    /// k-means++ over a sample, by rank 0.
    PlusPlus,
    /// Points drawn evenly, as they are.
    Random,
    /// An `.npy` file that rank 0 finds.
    File(PathBuf),
}

impl Init {
    /// By its name on the command line, or the name of a file.
    pub fn named(name: &str) -> Self {
        match name {
            "k-means||" => Self::Parallel,
            "k-means++" => Self::PlusPlus,
            "random" => Self::Random,
            file => Self::File(file.into()),
        }
    }

    /// What suits this number of clusters: time and traffic of k-means++ at one rank grow with their square.
    pub fn of(clusters: usize) -> Self {
        if clusters > 1000 { Self::Parallel } else { Self::PlusPlus }
    }
}

impl Clustering {
    /// Where the first centroids come from.
    pub fn init(&self) -> Init {
        self.init.clone().unwrap_or(Init::of(self.k))
    }
}

/// Who wants to hear how it goes.
pub trait Watch: Sync {
    /// This rank will read this number of points.
    fn loading(&self, points: u64);
    /// It has read this number of further points.
    fn loaded(&self, points: u64);
    /// An iteration is done and kept.
    fn iteration(&self, iteration: &Iteration);
}

/// A clustering.
#[derive(Debug)]
pub struct Clustered {
    /// The centroids; all ranks have them.
    pub centroids: Centroids,
    /// For each of this rank's points, its centroid.
    pub labels: Vec<u32>,
    /// The iterations.
    pub iterations: Vec<Iteration>,
    /// At rank 0: points of each cluster.
    pub sizes: Vec<i64>,
    /// At rank 0: sum of squared distances of the points from the centroids.
    pub inertia: f64,
    /// Whether the last iteration moved no centroid, or improved less than the tolerance.
    pub converged: bool,
}

impl Share {
    /// Groups the points. How far it has come is in `progress`: if ranks are lost, those that are left call this
    /// again with theirs, and end as if nothing had happened.
    pub fn cluster(
        &self,
        peers: &Peers<'_>,
        how: &Clustering,
        watch: &dyn Watch,
        progress: &mut Progress,
    ) -> Result<Clustered, Error> {
        peers.agree(check(how, self.chosen.len()).and_then(|()| self.fits(how)))?;
        if let Some(file) = progress::checkpoint(self, how) {
            progress.keep_in(file);
        }
        let mut labels = vec![NO_LABEL; self.points.len()];
        let mut assigner = Assigner::new(how.effort);
        let mut sums = Aggregation::new(&self.points, how.k, how.effort.threads);
        let first = || Ok(State { centroids: self.first(peers, how)?, iterations: Vec::new() });
        // Asked before each iteration, and thus when the one before it is kept. What was before this run is not told.
        let mut told = None;
        let until = |state: &State, done: usize| {
            if let Some(last) = state.iterations.last().filter(|_| told.is_some_and(|told| told < done)) {
                watch.iteration(last);
            }
            told = Some(done);
            state.is_complete(how)
        };
        let step = |state: &State, _| self.iterate(peers, &mut assigner, &mut labels, &mut sums, state);
        let state = peers.job().iterate(progress, first, until, step)?;
        let centroids = self.centroids(state.centroids.clone());
        let found = assigner.assign(&self.points, &centroids, &mut labels);
        let inertia = self.grid.real_squared(total(peers, found)?.inertia);
        let mut sizes = vec![0i64; how.k];
        labels.iter().for_each(|label| sizes[*label as usize] += 1);
        let sizes = peers.sum(sizes)?;
        let (iterations, converged) = (state.iterations.clone(), state.converged(how));
        Ok(Clustered { centroids, labels, iterations, sizes, inertia, converged })
    }

    /// Whether the work fits the memory that is allowed.
    fn fits(&self, how: &Clustering) -> Result<(), Error> {
        let least = Effort::least_memory(&self.points, how.k);
        match how.effort.memory {
            Some(memory) if memory < least => Err(Error::Option(format!(
                "--memory {memory}: points, centroids and sums of this rank take {least} bytes; allow more, or use more ranks"
            ))),
            _ => Ok(()),
        }
    }

    /// Centroids of these points.
    fn centroids(&self, values: Vec<i16>) -> Centroids {
        Centroids { precision: self.points.precision(), dims: self.points.dims, values }
    }

    /// One of Lloyd's iterations.
    fn iterate(
        &self,
        peers: &Peers<'_>,
        assigner: &mut Assigner,
        labels: &mut [u32],
        sums: &mut Aggregation,
        state: &State,
    ) -> Result<State, Error> {
        let (start, before) = (Instant::now(), peers.tally().time);
        let State { centroids, mut iterations } = state.clone();
        let mut centroids = self.centroids(centroids);
        let found = total(peers, assigner.assign(&self.points, &centroids, labels))?;
        let changed = (found.changed as u64, self.chosen.len());
        let moved = sums.update(peers, &self.points, labels, &mut centroids, changed)?;
        let communicating = peers.tally().time - before;
        iterations.push(Iteration {
            number: iterations.len() + 1,
            inertia: self.grid.real_squared(found.inertia),
            moved_points: changed.0,
            measured: found.measured,
            moved_centroids: moved.centroids,
            empty: moved.empty,
            busiest_link_bytes: peers.job().stages().iter().map(|stage| stage.busiest_link_bytes).sum(),
            seconds_computing: start.elapsed().saturating_sub(communicating).as_secs_f64(),
            seconds_communicating: communicating.as_secs_f64(),
        });
        Ok(State { centroids: centroids.values, iterations })
    }

    /// The first centroids.
    fn first(&self, peers: &Peers<'_>, how: &Clustering) -> Result<Vec<i16>, Error> {
        let mut values = self.choose(peers, how)?.values;
        peers.bcast(&mut values, 0)?;
        Ok(values)
    }

    /// The first centroids, at rank 0.
    fn choose(&self, peers: &Peers<'_>, how: &Clustering) -> Result<Centroids, Error> {
        match how.init() {
            Init::PlusPlus => self.sampled(peers, how, how.sample),
            Init::Random => self.sampled(peers, how, 1),
            Init::Parallel => parallel_seeding::choose(self, peers, how.k, how.seed, &how.effort),
            Init::File(path) => {
                let (precision, dims) = (self.points.precision(), self.points.dims);
                let elsewhere = || Ok(Centroids { precision, dims, values: vec![0; how.k * dims] });
                peers.agree(if peers.leads() { seeding::read(&path, &self.grid, how.k) } else { elsewhere() })
            }
        }
    }

    /// The first centroids by k-means++ over a sample, at rank 0: every rank puts in the sample's points that it holds, and
    /// nothing elsewhere.
    fn sampled(&self, peers: &Peers<'_>, how: &Clustering, sample: usize) -> Result<Centroids, Error> {
        let wanted = how.k.saturating_mul(sample) as u64;
        let sample = Thinned::new(self.chosen.len(), wanted, how.seed);
        let dims = self.points.dims;
        let mut values = vec![0i16; sample.len() as usize * dims];
        for (i, place) in (0..sample.len()).zip(values.chunks_exact_mut(dims)) {
            let point = sample.row(i);
            if self.range.contains(&point) {
                let row = self.points.rows().row((point - self.range.start) as usize);
                place.iter_mut().zip(row).for_each(|(place, x)| *place = x as i16);
            }
        }
        let values = peers.sum(values)?;
        let precision = self.points.precision();
        Ok(if peers.leads() {
            seeding::choose(&Points::new(precision, dims, values), how.k, how.seed)
        } else {
            Centroids { precision, dims, values: vec![0; how.k * dims] }
        })
    }
}

fn check(how: &Clustering, points: u64) -> Result<(), Error> {
    if how.k == 0 {
        return Err(Error::Option("-k 0: there must be one cluster at least".into()));
    }
    if how.sample == 0 {
        return Err(Error::Option("--sample 0: one point for each first centroid is the least".into()));
    }
    if how.tolerance.is_nan() || how.tolerance < 0.0 {
        return Err(Error::Option(format!("--tolerance {}: must not be negative", how.tolerance)));
    }
    if how.k as u64 > points {
        return Err(Error::TooManyClusters { k: how.k, points });
    }
    Ok(())
}

/// What the assignments of all ranks found.
fn total(peers: &Peers<'_>, found: Assigned) -> Result<Assigned, Error> {
    // Two numbers of 40 and more bits carry the sum of 128 without overflow for 2^23 ranks.
    const LOW: u32 = 40;
    let low = (found.inertia & ((1 << LOW) - 1)) as i64;
    let mine = vec![found.changed, low, (found.inertia >> LOW) as i64, found.measured as i64];
    let all = peers.combine(mine, Op::Sum)?;
    let inertia = ((all[2] as u128) << LOW) + all[1] as u128;
    Ok(Assigned { changed: all[0], inertia, measured: all[3] as u64 })
}
