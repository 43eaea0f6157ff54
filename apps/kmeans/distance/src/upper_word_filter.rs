//! The nearest centroids of points of [`Precision::Fine`], mostly by their upper words alone.
//!
//! Without its lower word, a coordinate is off by at most 128 steps. Therefore a distance between
//! vectors of `d` coordinates is off by at most `128 sqrt(d)` because of the point, and by as much
//! because of the centroid (triangle inequality). Together, this is `sqrt(d)` in steps of upper
//! words, which are 256 steps. A centroid that is farther than the nearest by more than twice that
//! must also be farther by all words. If this holds for all other centroids, the nearest is known
//! and only its own distance is measured; otherwise the point is compared with all centroids by all
//! words.

use crate::nearest::NearestCentroid;
use crate::packed_panels::PackedPanels;
use crate::packing::PackingScheme;
use crate::pair_distances::PairDistances;
use crate::point_rows::{PointRows, Precision, RowSelection};
use crate::simd::{Kernel, NearestTwo};
use crate::simd_level::SimdLevel;

/// Centroids by their upper words.
pub(crate) struct UpperWordFilter<'a> {
    upper: PackedPanels,
    pairs: PairDistances<'a>,
}

impl<'a> UpperWordFilter<'a> {
    pub(crate) fn new(level: SimdLevel, kernel: &'static Kernel, centroids: &'a [i16], dims: usize) -> Self {
        let scheme = PackingScheme::new(kernel.form, Precision::Wide);
        let rows = centroids.chunks_exact(Precision::Fine.words() * dims).map(|row| &row[..dims]);
        let pairs = PairDistances::new(level, Precision::Fine, centroids, dims);
        Self { upper: PackedPanels::new(kernel, scheme, rows, dims), pairs }
    }

    /// Passes each selected row's index within the selection and its nearest centroid to `take`, in
    /// order. `exact` must contain the same centroids with all words.
    pub(crate) fn nearest(
        &self,
        exact: &PackedPanels,
        rows: PointRows<'_>,
        picked: RowSelection<'_>,
        mut take: impl FnMut(usize, NearestCentroid),
    ) {
        let (mut found, mut unsure, mut unsure_rows) = (Vec::new(), Vec::new(), Vec::new());
        self.upper.nearest_two(rows.upper(), picked, |first, block| {
            found.clear();
            unsure.clear();
            unsure_rows.clear();
            for (i, two) in block.iter().enumerate() {
                let (row, index) = (picked.row(first + i), two.nearest.index);
                if is_sure(two, rows.dims()) {
                    let squared = self.pairs.squared(rows, row, rows.norm(row), index as usize);
                    found.push(NearestCentroid { index, squared });
                } else {
                    unsure.push(i);
                    unsure_rows.push(row as u32);
                    found.push(two.nearest);
                }
            }
            exact.nearest(rows, RowSelection::List(&unsure_rows), |i, nearest| found[unsure[i]] = nearest);
            found.iter().enumerate().for_each(|(i, nearest)| take(first + i, *nearest));
        });
    }
}

/// Returns whether the nearest centroid by upper words is also the nearest by all words, which
/// holds if `sqrt(next) > sqrt(nearest) + 2 sqrt(dims)`.
fn is_sure(two: &NearestTwo, dims: usize) -> bool {
    let (nearest, next, dims) = (two.nearest.squared as u128, two.next as u128, dims as u128);
    next > nearest + (16 * nearest * dims).isqrt() + 1 + 4 * dims
}
