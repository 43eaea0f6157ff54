//! The sums of each centroid's points, over all ranks, in the papers' three stages: within a rank's memory, by
//! centroid to the ranks that own them, and from these, which move them, to all.

use crate::assign;
use crate::error::Error;
use crate::grid::{Centroids, Points};
use crate::peers::Peers;
use cool_map::{Rows, Table};

/// A label that no centroid has.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// What an iteration did to the centroids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Centroids that are elsewhere now.
    pub(crate) centroids: usize,
    /// Centroids without points.
    pub(crate) empty: usize,
}

/// The sums of the centroids that this rank owns, kept from one iteration to the next. They are exact, so points that
/// have another centroid can be taken out of one sum and put into another.
pub(crate) struct Aggregation {
    /// Of each centroid, the sum of its points' coordinates, and their number.
    owned: Rows<i64>,
    /// The centroid to which each of this rank's points was added.
    labels: Vec<u32>,
    threads: usize,
}

impl Aggregation {
    /// Of points that have no centroids yet.
    pub(crate) fn new(points: &Points, k: usize, threads: usize) -> Self {
        Self { owned: Rows::new(k, points.dims + 1), labels: vec![NO_LABEL; points.len()], threads }
    }

    /// Moves centroids to the means of their points, of which `changed` of all ranks' `total` have another than before. One
    /// without points stays where it is.
    pub(crate) fn update(
        &mut self,
        peers: &Peers<'_>,
        points: &Points,
        labels: &[u32],
        centroids: &mut Centroids,
        (changed, total): (u64, u64),
    ) -> Result<Moved, Error> {
        // A point that changes costs two rows, of signed numbers, which take twice the bytes of bytes.
        let table = if changed.saturating_mul(4) >= total {
            self.owned = self.owned.empty();
            self.sums(points, labels)
        } else {
            self.changes(points, labels)
        };
        self.labels.copy_from_slice(labels);
        let dims = points.dims;
        let mut ways = Rows::<i32>::new(self.owned.keys(), dims);
        for (j, change) in peers.regroup(table)?.iter() {
            self.owned.add(j, change);
            let (sums, count) = self.owned.row_mut(j).split_at(dims);
            if count[0] > 0 {
                let way: Vec<i32> = centroids.from_mean(j, sums, count[0]).collect();
                ways.add(j, &way);
            }
        }
        let ways = peers.share(ways)?;
        ways.iter().for_each(|(j, way)| centroids.shift(j, way));
        let owners = peers.combine(vec![self.owned.len() as u64], cool::Op::Sum)?[0] as usize;
        Ok(Moved { centroids: ways.len(), empty: self.owned.keys() - owners })
    }

    /// The sums of all of this rank's points.
    fn sums(&self, points: &Points, labels: &[u32]) -> Rows<i64> {
        let mut table = self.owned.empty();
        let (sums, counts) = assign::sum(points, labels, self.owned.keys(), self.threads);
        for (j, (sums, count)) in
            sums.chunks_exact(points.dims).zip(counts).enumerate().filter(|(_, s)| s.1 > 0)
        {
            let row = table.row_mut(j);
            row[..points.dims].copy_from_slice(sums);
            row[points.dims] = count;
        }
        table
    }

    /// What has to be added to the sums because points have other centroids now.
    fn changes(&self, points: &Points, labels: &[u32]) -> Rows<i64> {
        let mut table = self.owned.empty();
        for (i, (old, new)) in self.labels.iter().zip(labels).enumerate().filter(|(_, l)| l.0 != l.1) {
            for (label, sign) in [(*old, -1), (*new, 1)].into_iter().filter(|(label, _)| *label != NO_LABEL) {
                let row = table.row_mut(label as usize);
                let numbers = points.rows().row(i).chain([1]);
                row.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += sign * x);
            }
        }
        table
    }
}
