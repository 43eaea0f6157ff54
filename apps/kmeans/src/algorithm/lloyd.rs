//! Lloyd's iterations over all ranks.
//!
//! [`PointShare::cluster`] runs the iterations over the points that [`PointShare::load`] loaded at
//! each rank. All ranks must call both.

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

/// A clustering in units of the points' integer grid.
#[derive(Debug)]
pub struct GridClustering {
    /// The centroids, at all ranks.
    pub centroids: Centroids,
    /// The centroid of each of this rank's points.
    pub labels: Vec<u32>,
    /// All iterations.
    pub iterations: Vec<Iteration>,
    /// Number of points of each cluster; at rank 0 only.
    pub sizes: Vec<i64>,
    /// Sum of squared distances between the points and their centroids; at rank 0 only.
    pub inertia: f64,
    /// Whether the last iteration moved no centroid, moved the centroids by at most
    /// [`ClusteringOptions::movement`], or lowered the inertia by less than
    /// [`ClusteringOptions::tolerance`].
    pub converged: bool,
}

impl PointShare {
    /// Clusters the points. `progress` holds the state: if ranks are lost, the survivors must call
    /// this again with their own `progress`, and they return the same result as an undisturbed run.
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
        // `until` is called before each step, and thus after the previous iteration has been
        // stored. Iterations of earlier runs are not reported.
        let mut reported = None;
        let until = |state: &RunState, done: usize| {
            if let Some(last) =
                state.iterations.last().filter(|_| reported.is_some_and(|reported| reported < done))
            {
                watch.iteration(last);
            }
            reported = Some(done);
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
            // The labels are those of the last run, so the points are assigned once more to the
            // best run's centroids.
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

    /// Returns the best run so far, including the present one, and whether it is the present one.
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

    /// Converts a sum of squared distances on the grid to real units.
    fn real_inertia(&self, squared: u128) -> f64 {
        self.grid.real_squared(squared) * self.weights.as_ref().map_or(1.0, |weights| weights.unit)
    }

    /// Returns the variance of the points in real units, averaged over the coordinates.
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

    /// Checks that the work fits the allowed memory.
    fn fits(&self, options: &ClusteringOptions) -> Result<(), Error> {
        let least = Tuning::least_memory(&self.points, options.k);
        match options.tuning.memory {
            Some(memory) if memory < least => Err(Error::Option(format!(
                "--memory {memory}: points, centroids and sums of this rank take {least} bytes; raise the limit, or use more ranks"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns centroids on the grid of these points.
    fn centroids(&self, values: Vec<i16>) -> Centroids {
        Centroids { precision: self.points.precision(), dims: self.points.dims, values }
    }

    /// Executes one of Lloyd's iterations.
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
        // With equal numbers of rows, the way with fewer additions is taken: a changed point is
        // subtracted from one sum and added to another.
        let by_changes = (changes, changed.saturating_mul(4)) < (sums, self.chosen.len());
        let RankWork { assigner, labels, sums } = work;
        let prefetch = |centroids: &Centroids, runs: &[_]| assigner.look_ahead(&self.points, centroids, runs);
        let moved = sums.update(peers, &self.points, labels, &mut centroids, by_changes, prefetch)?;
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

    /// Returns the first centroids of a run.
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

    /// Returns the first centroids, at rank 0.
    fn choose(&self, peers: &PeerRanks<'_>, options: &ClusteringOptions) -> Result<Centroids, Error> {
        match options.init() {
            Init::PlusPlus => self.sampled_centroids(peers, options, options.sample),
            Init::Random => self.sampled_centroids(peers, options, 1),
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

    /// Returns the first centroids by k-means++ over a sample, at rank 0. Every rank contributes
    /// the sample's points that it holds, and zeros elsewhere.
    fn sampled_centroids(
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

/// State that a rank keeps from one iteration to the next.
struct RankWork {
    assigner: Assigner,
    labels: Vec<u32>,
    sums: Aggregation,
}

impl RankWork {
    /// Starts without labels.
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

/// Returns the sum of all ranks' statistics, and the sums of `more`.
fn total<const N: usize>(
    peers: &PeerRanks<'_>,
    found: AssignmentStats,
    more: [i64; N],
) -> Result<(AssignmentStats, [i64; N]), Error> {
    // A sum of 128 bits is sent as two numbers, which cannot overflow for up to 2^15 ranks.
    const LOW: u32 = 48;
    let low = (found.inertia & ((1 << LOW) - 1)) as i64;
    let high = (found.inertia >> LOW) as i64;
    let mine = [&[found.changed, low, high, found.measured as i64][..], &more].concat();
    let all = peers.combine(mine, Op::Sum)?;
    let inertia = ((all[2] as u128) << LOW) + all[1] as u128;
    let sums = std::array::from_fn(|i| all[4 + i]);
    Ok((AssignmentStats { changed: all[0], inertia, measured: all[3] as u64 }, sums))
}
