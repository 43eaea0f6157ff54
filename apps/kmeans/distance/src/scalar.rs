//! The definition: what every level must compute, one number after another.

use crate::nearest::NearestCentroid;
use crate::point_rows::PointRows;

/// The squared distance of the `i`th point from a centroid, in units of the centroids' grid, squared. It stays below
/// 2^49: 65,536 coordinates apart by less than 2^16 each; of [`Precision::Fine`](crate::Precision::Fine) below 2^62: 16,384 apart
/// by less than 2^24.
pub fn squared(rows: PointRows<'_>, i: usize, centroid: &[i16]) -> i64 {
    let precision = rows.precision();
    let pairs = rows.row(i).zip(precision.coordinates(centroid));
    pairs.map(|(x, c)| ((x << precision.fraction()) - c).pow(2)).sum()
}

/// The nearest of centroids, row by row, of which there must be one at least; of equally near ones the first.
pub fn nearest(rows: PointRows<'_>, i: usize, centroids: &[i16]) -> NearestCentroid {
    let mut best = NearestCentroid { index: 0, squared: i64::MAX };
    for (index, centroid) in (0u32..).zip(centroids.chunks_exact(rows.width())) {
        let squared = squared(rows, i, centroid);
        if squared < best.squared {
            best = NearestCentroid { index, squared };
        }
    }
    best
}
