//! The first centroids of many clusters: k-means|| (Bahmani et al., VLDB 2012), by all ranks and threads.
//!
//! In few rounds, each over all points of a sample, every point becomes a candidate with a chance in proportion to its
//! squared distance from the candidates so far. What is left is a small clustering: of the candidates, each as heavy as
//! the points that are nearest to it. Rank 0 does that, by k-means++ in batches and some of Lloyd's iterations.
//!
//! Chances are drawn by point numbers and compared as single IEEE operations, weights are integers: the result is the
//! same on any ranks and threads.

use crate::algorithm::seeding::weighted;
use crate::algorithm::tuning::Tuning;
use crate::data::grid::{Centroids, Metric, PointValues, Points};
use crate::data::partition::{Subsample, draw};
use crate::data::point_share::PointShare;
use crate::error::Error;
use crate::peer_ranks::PeerRanks;
use cool::Op;
use cool_distance::{NearestCentroid, Panels, RowSelection};
use cool_map::threads;

/// Points of the sample for each cluster: with more, the start gets little better.
const SAMPLE: u64 = 32;

/// Rounds, of which each makes as many candidates as half the clusters, on average.
const ROUNDS: u64 = 3;

/// Lloyd's iterations over the candidates.
const ITERATIONS: usize = 4;

/// Points that a thread takes at a time.
const PIECE: usize = 2048;

/// Nothing is near yet.
const FAR: NearestCentroid = NearestCentroid { index: 0, squared: i64::MAX };

/// Streams of numbers drawn by the seed; each round has one of its own.
const FIRST: u64 = 0x5eed_0000;
const FILL: u64 = 0x5eed_1000;
const REDUCE: u64 = 0x5eed_2000;

/// The first `k` centroids, at rank 0; other ranks get as many that mean nothing. All ranks call it.
pub(crate) fn choose(
    share: &PointShare,
    peers: &PeerRanks<'_>,
    k: usize,
    seed: u64,
    tuning: &Tuning,
) -> Result<Centroids, Error> {
    let mut search = CandidateSearch::new(share, peers, k, seed, *tuning);
    search.add(|search| vec![draw(seed, FIRST) % search.sample.len()])?;
    for round in 1..=ROUNDS {
        let total = search.total()?;
        search.add(|search| search.draw_round(round, total))?;
    }
    if search.candidates.len() < k {
        let missing = Subsample::new(search.sample.len(), (k - search.candidates.len()) as u64, seed ^ FILL);
        search
            .add(|search| (0..missing.len()).map(|i| missing.row(i)).filter(|i| search.has(*i)).collect())?;
    }
    let weights = search.weights()?;
    let candidates = search.candidates;
    if peers.leads() {
        return Ok(reduce(&candidates, &weights, share.grid.metric, k, seed, tuning));
    }
    let (precision, dims) = (candidates.precision(), candidates.dims);
    Ok(Centroids { precision, dims, values: vec![0; k * candidates.width()] })
}

/// What a rank knows of the candidates so far.
struct CandidateSearch<'a> {
    share: &'a PointShare,
    peers: &'a PeerRanks<'a>,
    tuning: Tuning,
    seed: u64,
    clusters: usize,
    /// Which of all points are looked at.
    sample: Subsample,
    /// The numbers of this rank's among them, and where they are among its points.
    mine: std::ops::Range<u64>,
    rows: Vec<u32>,
    /// The nearest candidate of each.
    nearest: Vec<NearestCentroid>,
    candidates: Points,
}

impl<'a> CandidateSearch<'a> {
    fn new(share: &'a PointShare, peers: &'a PeerRanks<'a>, k: usize, seed: u64, tuning: Tuning) -> Self {
        let sample = Subsample::new(share.chosen.len(), SAMPLE.saturating_mul(k as u64), seed ^ SAMPLE);
        // The sample rises, so a rank's part of it is a run.
        let first = |end: u64| {
            let (mut low, mut high) = (0, sample.len());
            while low < high {
                let middle = low + (high - low) / 2;
                if sample.row(middle) < end { low = middle + 1 } else { high = middle }
            }
            low
        };
        let mine = first(share.range.start)..first(share.range.end);
        let rows: Vec<u32> = mine.clone().map(|i| (sample.row(i) - share.range.start) as u32).collect();
        let nearest = vec![FAR; rows.len()];
        let candidates = share.grid.empty_points();
        Self { share, peers, tuning, seed, clusters: k, sample, mine, rows, nearest, candidates }
    }

    /// Whether a point of the sample is this rank's.
    fn has(&self, i: u64) -> bool {
        self.mine.contains(&i)
    }

    /// Makes the points of the sample that each rank picks candidates, and finds out who is nearest to them.
    fn add(&mut self, pick: impl Fn(&Self) -> Vec<u64>) -> Result<(), Error> {
        let mut picked = self.share.grid.empty_points();
        for i in pick(self).into_iter().filter(|i| self.has(*i)) {
            let row = self.rows[(i - self.mine.start) as usize] as usize;
            picked.append(&self.share.points, row..row + 1);
        }
        picked.weights = None;
        let before = self.candidates.len() as u32;
        let new = gathered(self.peers, picked)?;
        self.candidates.append(&new, 0..new.len());
        if !new.is_empty() {
            let centroids = Centroids::at(&new);
            nearer(&self.share.points, Some(&self.rows), &centroids, before, &mut self.nearest, &self.tuning);
        }
        Ok(())
    }

    /// The squared distances of this rank's points from the candidates, each as often as its point counts.
    fn distances(&self) -> impl Iterator<Item = u128> {
        let weight = |row: &u32| self.share.points.weight(*row as usize) as u128;
        self.nearest.iter().zip(&self.rows).map(move |(n, row)| n.squared as u128 * weight(row))
    }

    /// Their sum over all ranks.
    fn total(&self) -> Result<f64, Error> {
        const LOW: u32 = 48;
        let mine: u128 = self.distances().sum();
        let parts = vec![(mine & ((1 << LOW) - 1)) as u64, (mine >> LOW) as u64];
        let all = self.peers.combine(parts, Op::Sum)?;
        Ok(((u128::from(all[1]) << LOW) + u128::from(all[0])) as f64)
    }

    /// This rank's points that become candidates in a round.
    fn draw_round(&self, round: u64, total: f64) -> Vec<u64> {
        let wanted = self.clusters as f64 / 2.0;
        let stream = draw(self.seed, round);
        let drawn = |(i, distance): (u64, u128)| {
            // 53 bits, as many as a number of IEEE has.
            let number = (draw(stream, i) >> 11) as f64 / (1u64 << 53) as f64;
            (number * total < wanted * distance as f64).then_some(i)
        };
        self.mine.clone().zip(self.distances()).filter_map(drawn).collect()
    }

    /// The weight of the points that are nearest to each candidate.
    fn weights(&self) -> Result<Vec<i64>, Error> {
        let mut weights = vec![0i64; self.candidates.len()];
        for (nearest, row) in self.nearest.iter().zip(&self.rows) {
            weights[nearest.index as usize] += self.share.points.weight(*row as usize);
        }
        self.peers.combine(weights, Op::Sum)
    }
}

/// All ranks' points, in order of ranks.
fn gathered(peers: &PeerRanks<'_>, mine: Points) -> Result<Points, Error> {
    let values = match mine.values {
        PointValues::Byte(values) => PointValues::Byte(peers.all_gather(values)?),
        PointValues::Wide(values) => PointValues::Wide(peers.all_gather(values)?),
        PointValues::Fine(values) => PointValues::Fine(peers.all_gather(values)?),
    };
    Ok(Points { values, ..mine })
}

/// Takes note of which points (all, or the picked ones) have their nearest among new centroids, numbered from `first`.
fn nearer(
    points: &Points,
    picked: Option<&[u32]>,
    centroids: &Centroids,
    first: u32,
    nearest: &mut [NearestCentroid],
    tuning: &Tuning,
) {
    let rows = points.rows();
    let panels = Panels::new(tuning.level, centroids.precision, &centroids.values, centroids.dims);
    threads::map_mut(
        tuning.threads,
        nearest.chunks_mut(PIECE).collect(),
        |piece, nearest: &mut [NearestCentroid]| {
            let start = piece * PIECE;
            let picked = match picked {
                Some(list) => RowSelection::List(&list[start..start + nearest.len()]),
                None => RowSelection::Run { first: start, count: nearest.len() },
            };
            panels.nearest(rows, picked, |i, found| {
                if found.squared < nearest[i].squared {
                    nearest[i] = NearestCentroid { index: first + found.index, squared: found.squared };
                }
            });
        },
    );
}

/// The centroids of `k` clusters of weighted points, of which there are `k` at least.
fn reduce(
    points: &Points,
    weights: &[i64],
    metric: Metric,
    k: usize,
    seed: u64,
    tuning: &Tuning,
) -> Centroids {
    let mut centroids = batches(points, weights, k, seed, tuning);
    for _ in 0..ITERATIONS {
        let mut nearest = vec![FAR; points.len()];
        nearer(points, None, &centroids, 0, &mut nearest, tuning);
        let (mut sums, mut counts) = (vec![0i64; k * points.dims], vec![0i64; k]);
        for (i, (nearest, weight)) in nearest.iter().zip(weights).enumerate() {
            let j = nearest.index as usize;
            counts[j] += weight;
            let sums = sums[j * points.dims..(j + 1) * points.dims].iter_mut();
            sums.zip(points.rows().row(i)).for_each(|(sum, x)| *sum += weight * x);
        }
        if centroids.update(metric, &sums, &counts) == 0 {
            break;
        }
    }
    centroids
}

/// k-means++ over weighted points, in batches that grow with what is there, so that distances are measured by blocks.
fn batches(points: &Points, weights: &[i64], k: usize, seed: u64, tuning: &Tuning) -> Centroids {
    let (precision, dims) = (points.precision(), points.dims);
    let mut all = Centroids { precision, dims, values: Vec::with_capacity(k * points.width()) };
    let mut nearest = vec![FAR; points.len()];
    let mut taken = vec![false; points.len()];
    let mut drawn = 0;
    while all.len() < k {
        let batch = (all.len() / 8).clamp(1, k - all.len());
        let mut new = Centroids { precision, dims, values: Vec::with_capacity(batch * points.width()) };
        let mut chances: Vec<u128> = chances(&nearest, weights, &taken);
        for _ in 0..batch {
            drawn += 1;
            let numbers = [2 * drawn, 2 * drawn + 1].map(|i| draw(seed ^ REDUCE, i));
            let Some(pick) = weighted(&chances, numbers[0], numbers[1]) else { break };
            (chances[pick], taken[pick]) = (0, true);
            new.values.extend(points.centroid_at(pick));
        }
        nearer(points, None, &new, all.len() as u32, &mut nearest, tuning);
        all.values.extend(new.values);
    }
    all
}

/// In what proportion points are drawn: by weight and squared distance; if all have distance 0, those not taken yet alike.
fn chances(nearest: &[NearestCentroid], weights: &[i64], taken: &[bool]) -> Vec<u128> {
    let chance = |(nearest, weight): (&NearestCentroid, &i64)| nearest.squared as u128 * *weight as u128;
    let chances: Vec<u128> = nearest.iter().zip(weights).map(chance).collect();
    if chances.iter().any(|&chance| chance > 0) {
        return chances;
    }
    taken.iter().map(|taken| u128::from(!taken)).collect()
}
