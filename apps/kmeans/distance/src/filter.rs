//! The nearest centroids of points of [`Precision::Fine`], mostly by their upper words alone.
//!
//! Without its lower word a coordinate is off by 128 steps at most, so a distance of `d` coordinates is off by
//! `128 sqrt(d)` for the point and as much for the centroid (triangle inequality): by `sqrt(d)` in steps of upper words. Who is farther
//! than the nearest by more than twice that, is farther in truth. Where that holds of all others, the nearest is
//! known, and one product tells how far it is; the other points are compared by all words.

use crate::level::Level;
use crate::nearest::Nearest;
use crate::pack::Scheme;
use crate::packed::Packed;
use crate::pair::Pairs;
use crate::rows::{Picked, Precision, Rows};
use crate::simd::{Kernel, NearestTwo};

/// Centroids by their upper words.
pub(crate) struct Filter<'a> {
    upper: Packed,
    pairs: Pairs<'a>,
}

impl<'a> Filter<'a> {
    pub(crate) fn new(level: Level, kernel: &'static Kernel, centroids: &'a [i16], dims: usize) -> Self {
        let scheme = Scheme::new(kernel.form, Precision::Wide);
        let rows = centroids.chunks_exact(Precision::Fine.words() * dims).map(|row| &row[..dims]);
        let pairs = Pairs::new(level, Precision::Fine, centroids, dims);
        Self { upper: Packed::new(kernel, scheme, rows, dims), pairs }
    }

    /// Hands each picked row's place among them and its nearest centroid to `take`, in order; `exact` has the centroids with all
    /// words.
    pub(crate) fn nearest(
        &self,
        exact: &Packed,
        rows: Rows<'_>,
        picked: Picked<'_>,
        mut take: impl FnMut(usize, Nearest),
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
                    found.push(Nearest { index, squared });
                } else {
                    unsure.push(i);
                    unsure_rows.push(row as u32);
                    found.push(two.nearest);
                }
            }
            exact.nearest(rows, Picked::List(&unsure_rows), |i, nearest| found[unsure[i]] = nearest);
            found.iter().enumerate().for_each(|(i, nearest)| take(first + i, *nearest));
        });
    }
}

/// Whether the nearest by upper words is so by all words: whether `sqrt(next) > sqrt(nearest) + 2 sqrt(dims)`.
fn is_sure(two: &NearestTwo, dims: usize) -> bool {
    let (nearest, next, dims) = (two.nearest.squared as u128, two.next as u128, dims as u128);
    next > nearest + (16 * nearest * dims).isqrt() + 1 + 4 * dims
}
