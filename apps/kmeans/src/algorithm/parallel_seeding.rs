//! The first centroids of many clusters: k-means|| (Bahmani et al., VLDB 2012), on all ranks and
//! threads.
//!
//! In a few rounds over all points of a sample, every point becomes a candidate with a probability
//! proportional to its squared distance from the candidates so far. The result is a small
//! clustering problem: the candidates, each weighted by the points that are nearest to it. Rank 0
//! solves it by k-means++ in batches and some of Lloyd's iterations.
//!
//! The result must not depend on ranks or threads. Therefore random numbers depend only on the
//! points' numbers, probabilities are compared in single IEEE operations, and weights are integers.

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

/// Points of the sample per cluster. More points hardly improve the start.
const SAMPLE: u64 = 32;

/// Number of rounds. Each adds half as many candidates as there are clusters, on average.
const ROUNDS: u64 = 3;

/// Lloyd's iterations over the candidates.
const ITERATIONS: usize = 4;

/// Number of points per unit of work of a thread.
const PIECE: usize = 2048;

/// The nearest candidate before there is one.
const FAR: NearestCentroid = NearestCentroid { index: 0, squared: i64::MAX };

/// Number of the stream of random numbers that draws the first candidate. Each purpose has a stream
/// of its own, and so has each round.
const FIRST: u64 = 0x5eed_0000;
/// Number of the stream that draws missing candidates.
const FILL: u64 = 0x5eed_1000;
/// Number of the stream that chooses centroids among the candidates.
const REDUCE: u64 = 0x5eed_2000;

/// Returns the first `k` centroids at rank 0. Other ranks return as many placeholders. All ranks
/// must call this.
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

/// State of a rank's search for candidates.
struct CandidateSearch<'a> {
    share: &'a PointShare,
    peers: &'a PeerRanks<'a>,
    tuning: Tuning,
    seed: u64,
    clusters: usize,
    /// The sample of all points.
    sample: Subsample,
    /// Positions of this rank's points in the sample.
    mine: std::ops::Range<u64>,
    /// The index of each of them among this rank's points.
    rows: Vec<u32>,
    /// The nearest candidate of each of them.
    nearest: Vec<NearestCentroid>,
    candidates: Points,
}

impl<'a> CandidateSearch<'a> {
    fn new(share: &'a PointShare, peers: &'a PeerRanks<'a>, k: usize, seed: u64, tuning: Tuning) -> Self {
        let sample = Subsample::new(share.chosen.len(), SAMPLE.saturating_mul(k as u64), seed ^ SAMPLE);
        // The sample is sorted, so a rank's part of it is contiguous.
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

    /// Returns whether a point of the sample belongs to this rank.
    fn has(&self, i: u64) -> bool {
        self.mine.contains(&i)
    }

    /// Adds the points that `pick` returns to the candidates, and updates each point's nearest
    /// candidate. `pick` must return positions in the sample. Each rank adds those of them that it
    /// holds.
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

    /// Returns the squared distances between this rank's points and their nearest candidates,
    /// multiplied by the points' weights.
    fn distances(&self) -> impl Iterator<Item = u128> {
        let weight = |row: &u32| self.share.points.weight(*row as usize) as u128;
        self.nearest.iter().zip(&self.rows).map(move |(n, row)| n.squared as u128 * weight(row))
    }

    /// Returns the sum of the distances over all ranks.
    fn total(&self) -> Result<f64, Error> {
        const LOW: u32 = 48;
        let mine: u128 = self.distances().sum();
        let parts = vec![(mine & ((1 << LOW) - 1)) as u64, (mine >> LOW) as u64];
        let all = self.peers.combine(parts, Op::Sum)?;
        Ok(((u128::from(all[1]) << LOW) + u128::from(all[0])) as f64)
    }

    /// Returns this rank's points that become candidates in a round.
    fn draw_round(&self, round: u64, total: f64) -> Vec<u64> {
        let wanted = self.clusters as f64 / 2.0;
        let stream = draw(self.seed, round);
        let drawn = |(i, distance): (u64, u128)| {
            // 53 bits, because an IEEE double has as many.
            let number = (draw(stream, i) >> 11) as f64 / (1u64 << 53) as f64;
            (number * total < wanted * distance as f64).then_some(i)
        };
        self.mine.clone().zip(self.distances()).filter_map(drawn).collect()
    }

    /// Returns, for each candidate, the weight of the points that are nearest to it.
    fn weights(&self) -> Result<Vec<i64>, Error> {
        let mut weights = vec![0i64; self.candidates.len()];
        for (nearest, row) in self.nearest.iter().zip(&self.rows) {
            weights[nearest.index as usize] += self.share.points.weight(*row as usize);
        }
        self.peers.combine(weights, Op::Sum)
    }
}

/// Returns all ranks' points, in the order of ranks.
fn gathered(peers: &PeerRanks<'_>, mine: Points) -> Result<Points, Error> {
    let values = match mine.values {
        PointValues::Byte(values) => PointValues::Byte(peers.all_gather(values)?),
        PointValues::Wide(values) => PointValues::Wide(peers.all_gather(values)?),
        PointValues::Fine(values) => PointValues::Fine(peers.all_gather(values)?),
    };
    Ok(Points { values, ..mine })
}

/// Updates the nearest centroid of all or of the picked points, given new centroids with numbers
/// from `first`.
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

/// Returns the centroids of `k` clusters of weighted points. There must be at least `k` points.
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

/// Returns `k` centroids, chosen by k-means++ among weighted points. They are drawn in batches,
/// which grow with the number of chosen points, so that distances can be measured by blocks.
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

/// Returns the relative probability of each point: weight times squared distance. If all distances
/// are 0, the points that are not chosen yet have equal probabilities.
fn chances(nearest: &[NearestCentroid], weights: &[i64], taken: &[bool]) -> Vec<u128> {
    let chance = |(nearest, weight): (&NearestCentroid, &i64)| nearest.squared as u128 * *weight as u128;
    let chances: Vec<u128> = nearest.iter().zip(weights).map(chance).collect();
    if chances.iter().any(|&chance| chance > 0) {
        return chances;
    }
    taken.iter().map(|taken| u128::from(!taken)).collect()
}
