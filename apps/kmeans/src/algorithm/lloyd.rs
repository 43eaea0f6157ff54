//! Lloyd's iterations over all ranks.
//!
//! [`PointShare::cluster`] runs the iterations over the points that [`PointShare::load`] gave each rank. All ranks call both alike.

use crate::algorithm::aggregate::{self, Aggregation};
use crate::algorithm::assign::{self, AssignmentStats, NO_LABEL};
use crate::algorithm::assigner::Assigner;
use crate::algorithm::checkpoint;
use crate::algorithm::parallel_seeding;
use crate::algorithm::seeding;
use crate::algorithm::stop_rule::StopRule;
use crate::algorithm::tuning::Tuning;
use crate::data::grid::{Centroids, Points};
use crate::data::partition::Subsample;
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::options::{ClusteringOptions, Init};
use crate::peer_ranks::PeerRanks;
use crate::progress::{ClusteringProgress, FinishedRun, Iteration, ProgressObserver, RunState};
use cool::Op;
use cool_map::LinkBytes;
use std::time::Instant;

/// A clustering.
#[derive(Debug)]
pub struct GridClustering {
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

impl PointShare {
    /// Groups the points. How far it has come is in `progress`: if ranks are lost, those that are left call this
    /// again with theirs, and end as if nothing had happened.
    pub fn cluster(
        &self,
        peers: &PeerRanks<'_>,
        options: &ClusteringOptions,
        watch: &dyn ProgressObserver,
        progress: &mut ClusteringProgress,
    ) -> Result<GridClustering, Error> {
        peers.agree(options.check(self.chosen.len()).and_then(|()| self.fits(options)))?;
        if let Some(file) = checkpoint::for_run(self, options) {
            progress.keep_in(file);
        }
        let start = Instant::now();
        let late = || options.time_limit.is_some_and(|limit| start.elapsed() > limit);
        let ends =
            StopRule::new(options, if options.movement > 0.0 { self.variance(peers, options)? } else { 0.0 });
        let mut work = RankWork::new(self, options);
        // Asked before each step, and thus when the one before it is kept. What was before this run is not told.
        let mut told = None;
        let until = |state: &RunState, done: usize| {
            if let Some(last) = state.iterations.last().filter(|_| told.is_some_and(|told| told < done)) {
                watch.iteration(last);
            }
            told = Some(done);
            ends.is_complete(state) && (state.run + 1 == options.restarts || state.late)
        };
        let step = |state: &RunState, _| match ends.is_complete(state) {
            false => self.iterate(peers, &mut work, state, late()),
            true => {
                let run = state.run + 1;
                let best = Some(self.finish(peers, &mut work, state)?.0);
                work = RankWork::new(self, options);
                Ok(RunState { run, best, ..RunState::first(self.first(peers, options, run)?) })
            }
        };
        let first = || Ok(RunState::first(self.first(peers, options, 0)?));
        let state = peers.job().iterate(progress, first, until, step)?;
        let (best, last) = self.finish(peers, &mut work, state)?;
        if !last {
            // Labels are those of the last run: once more, by the best one's centroids.
            work.assign(self, &self.centroids(best.centroids.clone()));
        }
        let mut sizes = vec![0i64; options.k];
        work.labels.iter().for_each(|label| sizes[*label as usize] += 1);
        Ok(GridClustering {
            converged: ends.converged(&best.iterations),
            centroids: self.centroids(best.centroids),
            labels: work.labels,
            iterations: best.iterations,
            sizes: peers.sum(sizes)?,
            inertia: best.inertia,
        })
    }

    /// The best run so far, the state's among them, and whether it is this one.
    fn finish(
        &self,
        peers: &PeerRanks<'_>,
        work: &mut RankWork,
        state: &RunState,
    ) -> Result<(FinishedRun, bool), Error> {
        let found = work.assign(self, &self.centroids(state.centroids.clone()));
        let inertia = self.real_inertia(total(peers, found, [])?.0.inertia);
        match state.best.as_ref().filter(|best| best.inertia <= inertia) {
            Some(best) => Ok((best.clone(), false)),
            None => {
                let RunState { centroids, iterations, .. } = state.clone();
                Ok((FinishedRun { centroids, iterations, inertia }, true))
            }
        }
    }

    /// A sum of squared distances on the grid as one of real distances.
    fn real_inertia(&self, squared: u128) -> f64 {
        self.grid.real_squared(squared) * self.weights.as_ref().map_or(1.0, |weights| weights.unit)
    }

    /// The mean over the coordinates of the points' variance, of real numbers.
    fn variance(&self, peers: &PeerRanks<'_>, options: &ClusteringOptions) -> Result<f64, Error> {
        let mine = assign::sum(&self.points, &vec![0; self.points.len()], 1, options.tuning.threads);
        let sums = mine.iter().next().map_or(vec![0; self.points.dims + 1], |(_, sums)| sums.to_vec());
        let sums = peers.combine(sums, Op::Sum)?;
        let square = |i: usize| self.points.rows().norm(i) as u128 * self.points.weight(i) as u128;
        let squares = (0..self.points.len()).map(square).sum();
        let squares =
            total(peers, AssignmentStats { inertia: squares, ..AssignmentStats::default() }, [])?.0.inertia;
        let (sums, weight) = sums.split_at(self.points.dims);
        let mean_squares: f64 = sums.iter().map(|sum| (*sum as f64 / weight[0] as f64).powi(2)).sum();
        let variance = (squares as f64 / weight[0] as f64 - mean_squares) / self.points.dims as f64;
        Ok(variance * self.grid.step * self.grid.step)
    }

    /// Whether the work fits the memory that is allowed.
    fn fits(&self, options: &ClusteringOptions) -> Result<(), Error> {
        let least = Tuning::least_memory(&self.points, options.k);
        match options.tuning.memory {
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
        peers: &PeerRanks<'_>,
        work: &mut RankWork,
        state: &RunState,
        late: bool,
    ) -> Result<RunState, Error> {
        let (start, before) = (Instant::now(), peers.tally().time);
        let RunState { centroids, mut iterations, run, best, .. } = state.clone();
        let mut centroids = self.centroids(centroids);
        let found = work.assign(self, &centroids);
        let [changes, sums] = work.sums.rows(&work.labels);
        let (found, more) = total(peers, found, [late.into(), changes, sums])?;
        let [late, changes, sums] = more;
        let changed = found.changed as u64;
        // Of as many rows the way of fewer additions: a point that changes is taken out of one sum and put into another.
        let by_changes = (changes, changed.saturating_mul(4)) < (sums, self.chosen.len());
        let RankWork { assigner, labels, sums } = work;
        let ahead = |centroids: &Centroids, runs: &[_]| assigner.look_ahead(&self.points, centroids, runs);
        let moved = sums.update(peers, &self.points, labels, &mut centroids, by_changes, ahead)?;
        let communicating = peers.tally().time - before;
        let stages = peers.job().stages();
        iterations.push(Iteration {
            number: iterations.len() + 1,
            inertia: self.real_inertia(found.inertia),
            moved_points: changed,
            measured: found.measured,
            moved_centroids: moved.centroids,
            movement: self.grid.real_squared(moved.squared),
            empty: moved.empty,
            busiest_link_bytes: LinkBytes::sum(stages.iter().map(|stage| &stage.links)).busiest(),
            seconds_computing: start.elapsed().saturating_sub(communicating).as_secs_f64(),
            seconds_communicating: communicating.as_secs_f64(),
        });
        Ok(RunState { centroids: centroids.values, iterations, run, best, late: late > 0 })
    }

    /// The first centroids of a run.
    fn first(
        &self,
        peers: &PeerRanks<'_>,
        options: &ClusteringOptions,
        run: usize,
    ) -> Result<Vec<i16>, Error> {
        let options = &ClusteringOptions { seed: options.seed_of(run), ..options.clone() };
        let mut centroids = self.choose(peers, options)?;
        peers.bcast(&mut centroids.values, 0)?;
        if let Some(size) = options.mini_batch {
            let batches = (self.chosen.len().div_ceil(size), options.seed);
            let mine = (&self.points, self.range.start);
            aggregate::mini_batches(peers, mine, batches, self.grid.metric, &options.tuning, &mut centroids)?;
        }
        Ok(centroids.values)
    }

    /// The first centroids, at rank 0.
    fn choose(&self, peers: &PeerRanks<'_>, options: &ClusteringOptions) -> Result<Centroids, Error> {
        match options.init() {
            Init::PlusPlus => self.sampled(peers, options, options.sample),
            Init::Random => self.sampled(peers, options, 1),
            Init::Parallel => parallel_seeding::choose(self, peers, options.k, options.seed, &options.tuning),
            Init::File(path) => {
                let elsewhere = || Ok(self.centroids(vec![0; options.k * self.points.width()]));
                peers.agree(if peers.leads() {
                    seeding::read(&path, &self.grid, options.k)
                } else {
                    elsewhere()
                })
            }
        }
    }

    /// The first centroids by k-means++ over a sample, at rank 0: every rank puts in the sample's points that it holds, and
    /// nothing elsewhere.
    fn sampled(
        &self,
        peers: &PeerRanks<'_>,
        options: &ClusteringOptions,
        sample: usize,
    ) -> Result<Centroids, Error> {
        let wanted = options.k.saturating_mul(sample) as u64;
        let sample = Subsample::new(self.chosen.len(), wanted, options.seed);
        let (dims, width) = (self.points.dims, self.points.width());
        let mut values = vec![0i16; sample.len() as usize * width];
        let mut weights = vec![0i32; if self.weights.is_some() { sample.len() as usize } else { 0 }];
        for (i, place) in values.chunks_exact_mut(width).enumerate() {
            let point = sample.row(i as u64);
            if self.range.contains(&point) {
                let mine = (point - self.range.start) as usize;
                place.copy_from_slice(&self.points.words(mine));
                weights
                    .iter_mut()
                    .skip(i)
                    .take(1)
                    .for_each(|weight| *weight = self.points.weight(mine) as i32);
            }
        }
        let (values, weights) = (peers.sum(values)?, peers.sum(weights)?);
        let precision = self.points.precision();
        Ok(if peers.leads() {
            let weights =
                self.weights.as_ref().map(|_| weights.into_iter().map(|weight| weight as u16).collect());
            let sample = Points { weights, ..Points::new(precision, dims, values) };
            seeding::choose(&sample, options.k, options.seed)
        } else {
            self.centroids(vec![0; options.k * width])
        })
    }
}

/// What a rank knows of its points from one iteration to the next.
struct RankWork {
    assigner: Assigner,
    labels: Vec<u32>,
    sums: Aggregation,
}

impl RankWork {
    /// Nothing yet.
    fn new(share: &PointShare, options: &ClusteringOptions) -> Self {
        let sums = Aggregation::new(
            &share.points,
            options.k,
            share.grid.metric,
            options.empty,
            options.tuning.threads,
        );
        Self { assigner: Assigner::new(options.tuning), labels: vec![NO_LABEL; share.points.len()], sums }
    }

    fn assign(&mut self, share: &PointShare, centroids: &Centroids) -> AssignmentStats {
        self.assigner.assign(&share.points, centroids, &mut self.labels)
    }
}

/// What the assignments of all ranks found, and the sums of some more numbers of theirs.
fn total<const N: usize>(
    peers: &PeerRanks<'_>,
    found: AssignmentStats,
    more: [i64; N],
) -> Result<(AssignmentStats, [i64; N]), Error> {
    // Two numbers carry the sum of 128 bits without overflow for 2^15 ranks.
    const LOW: u32 = 48;
    let low = (found.inertia & ((1 << LOW) - 1)) as i64;
    let high = (found.inertia >> LOW) as i64;
    let mine = [&[found.changed, low, high, found.measured as i64][..], &more].concat();
    let all = peers.combine(mine, Op::Sum)?;
    let inertia = ((all[2] as u128) << LOW) + all[1] as u128;
    let sums = std::array::from_fn(|i| all[4 + i]);
    Ok((AssignmentStats { changed: all[0], inertia, measured: all[3] as u64 }, sums))
}
