//! Sums of each centroid's points over all ranks, in the three stages of the papers: within a
//! rank's memory, then by centroid at the ranks that own them, and from the owners, which move the
//! centroids, to all ranks.

use crate::algorithm::assign::{self, NO_LABEL};
use crate::algorithm::tuning::Tuning;
use crate::data::grid::{Centroids, Metric, Points};
use crate::data::partition::draw;
use crate::error::Error;
use crate::options::Empty;
use crate::peer_ranks::PeerRanks;
use cool_map::{Rows, Table};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Number of the stream of random numbers that distributes points over batches.
const BATCHES: u64 = 0x5eed_3000;

/// How an iteration changed the centroids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CentroidUpdate {
    /// Number of centroids that moved.
    pub(crate) centroids: usize,
    /// Sum of their squared movements, in units of their grid.
    pub(crate) squared: u128,
    /// Number of centroids without points.
    pub(crate) empty: usize,
}

/// The sums of the centroids that this rank owns, kept from one iteration to the next. Because sums
/// are exact, a point that changes its centroid can be subtracted from one sum and added to
/// another.
pub(crate) struct Aggregation {
    /// For each centroid, the sum of its points' coordinates, then their weight.
    owned: Rows<i64>,
    /// The centroid to which each of this rank's points was added.
    labels: Vec<u32>,
    metric: Metric,
    empty: Empty,
    threads: usize,
}

impl Aggregation {
    /// Starts with points that have no centroids yet.
    pub(crate) fn new(points: &Points, k: usize, metric: Metric, empty: Empty, threads: usize) -> Self {
        let labels = vec![NO_LABEL; points.len()];
        Self { owned: Rows::new(k, points.dims + 1), labels, metric, empty, threads }
    }

    /// Returns how many rows this rank would have to send: those of the changes since the last
    /// iteration, and those of all its sums.
    pub(crate) fn rows(&self, labels: &[u32]) -> [i64; 2] {
        let pairs = self.labels.iter().zip(labels).filter(|(old, new)| old != new);
        let changes = self.rows_of(pairs.flat_map(|(old, new)| [*old, *new]));
        [changes, self.rows_of(labels.iter().copied())]
    }

    /// Moves the centroids to the means of their points, either by summing all points anew or by
    /// the changes only; both return the same. `moved` is called with runs of centroids that are
    /// already in their final positions while others are still in transit.
    pub(crate) fn update(
        &mut self,
        peers: &PeerRanks<'_>,
        points: &Points,
        labels: &[u32],
        centroids: &mut Centroids,
        by_changes: bool,
        mut moved: impl FnMut(&Centroids, &[Range<usize>]),
    ) -> Result<CentroidUpdate, Error> {
        let table = if by_changes {
            self.changes(points, labels)
        } else {
            self.owned = self.owned.empty();
            assign::sum(points, labels, self.owned.keys(), self.threads)
        };
        self.labels.copy_from_slice(labels);
        let keeps = self.empty == Empty::Keep;
        let stays = |centroids: &Centroids, runs: &[Range<usize>]| {
            if keeps {
                moved(centroids, runs);
            }
        };
        let moved = self.move_centroids(peers, table, centroids, stays)?;
        if moved.empty == 0 || keeps {
            return Ok(moved);
        }
        let refilled = self.refill_empty_clusters(peers, centroids)?;
        let (centroids, squared) = (moved.centroids + refilled.centroids, moved.squared + refilled.squared);
        Ok(CentroidUpdate { centroids, squared, ..moved })
    }

    /// Returns how many different centroids occur among the labels.
    fn rows_of(&self, labels: impl Iterator<Item = u32>) -> i64 {
        let mut seen = vec![false; self.owned.keys()];
        labels.filter(|label| *label != NO_LABEL).for_each(|label| seen[label as usize] = true);
        seen.into_iter().map(i64::from).sum()
    }

    /// Returns the changes to the sums that result from the points' new centroids.
    fn changes(&self, points: &Points, labels: &[u32]) -> Rows<i64> {
        let mut table = self.owned.empty();
        for (i, (old, new)) in self.labels.iter().zip(labels).enumerate().filter(|(_, l)| l.0 != l.1) {
            for (label, sign) in [(*old, -1), (*new, 1)].into_iter().filter(|(label, _)| *label != NO_LABEL) {
                let (row, times) = (table.row_mut(label as usize), sign * points.weight(i));
                let numbers = points.rows().row(i).chain([1]);
                row.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += times * x);
            }
        }
        table
    }

    /// Adds the ranks' tables to the owners' sums, and moves the centroids with changed sums. A
    /// centroid without points keeps its position.
    fn move_centroids(
        &mut self,
        peers: &PeerRanks<'_>,
        table: Rows<i64>,
        centroids: &mut Centroids,
        mut moved: impl FnMut(&Centroids, &[Range<usize>]),
    ) -> Result<CentroidUpdate, Error> {
        let mine = peers.regroup(table)?;
        let changed: Vec<usize> = mine.iter().map(|(j, _)| j).collect();
        self.owned.merge(mine);
        let mut displacements = Rows::<i32>::new(self.owned.keys(), centroids.dims + 1);
        for j in changed {
            let (sums, weight) = self.owned.row_mut(j).split_at(centroids.dims);
            if weight[0] > 0
                && let Some(displacement) = centroids.displacement(j, self.metric, sums, weight[0])
            {
                displacements.add(j, &displacement);
            }
        }
        let mut all = CentroidUpdate { centroids: 0, squared: 0, empty: 0 };
        let owners =
            peers.share_in_parts(displacements, self.owned.len() as u64, |displacements, runs| {
                all.centroids += displacements.len();
                all.squared += displacements
                    .iter()
                    .map(|(j, displacement)| u128::from(centroids.displace(j, self.metric, displacement)))
                    .sum::<u128>();
                moved(centroids, runs);
            })?;
        Ok(CentroidUpdate { empty: self.owned.keys() - owners as usize, ..all })
    }

    /// Moves each centroid without points into half of the largest cluster.
    fn refill_empty_clusters(
        &self,
        peers: &PeerRanks<'_>,
        centroids: &mut Centroids,
    ) -> Result<CentroidUpdate, Error> {
        let mut weights = Rows::<i64>::new(self.owned.keys(), 1);
        self.owned.iter().for_each(|(j, row)| weights.add(j, &row[centroids.dims..]));
        let weights = peers.share(weights)?;
        let mut largest: BinaryHeap<_> = weights.iter().map(|(j, weight)| (weight[0], Reverse(j))).collect();
        let mut empty = vec![true; self.owned.keys()];
        weights.iter().for_each(|(j, _)| empty[j] = false);
        let mut moved = CentroidUpdate { centroids: 0, squared: 0, empty: 0 };
        for j in (0..empty.len()).filter(|j| empty[*j]) {
            let Some((weight, Reverse(from))) = largest.pop().filter(|(weight, _)| *weight > 1) else {
                break;
            };
            moved.squared += u128::from(centroids.split(from, j, self.metric));
            largest.extend([(weight - weight / 2, Reverse(from)), (weight / 2, Reverse(j))]);
            moved.centroids += 2;
        }
        Ok(moved)
    }
}

/// Moves the centroids by one pass over all points. This rank's points have consecutive numbers
/// from `first` on. The points of a batch are added to their nearest centroids, which then move to
/// the means of all points that they have received so far (Sculley, "Web-scale k-means clustering",
/// WWW 2010). The seed distributes the points over `batches`.
pub(crate) fn mini_batches(
    peers: &PeerRanks<'_>,
    (points, first): (&Points, u64),
    (batches, seed): (u64, u64),
    metric: Metric,
    tuning: &Tuning,
    centroids: &mut Centroids,
) -> Result<(), Error> {
    let mut members = vec![Vec::new(); batches as usize];
    for i in 0..points.len() {
        members[(draw(seed ^ BATCHES, first + i as u64) % batches) as usize].push(i as u32);
    }
    let k = centroids.len();
    let mut sums = Aggregation::new(points, k, metric, Empty::Keep, tuning.threads);
    let mut labels = vec![NO_LABEL; points.len()];
    for batch in members {
        assign::assign_some(points, &batch, centroids, &mut labels, tuning.level, tuning.threads);
        let table = assign::sum(points, &labels, k, tuning.threads);
        batch.iter().for_each(|i| labels[*i as usize] = NO_LABEL);
        sums.move_centroids(peers, table, centroids, |_, _| ())?;
    }
    Ok(())
}
