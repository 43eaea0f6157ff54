//! The reference implementation, which processes one coordinate at a time. Every SIMD level must
//! return the same results.

use crate::nearest::NearestCentroid;
use crate::point_rows::PointRows;

/// Returns the squared distance between the `i`th point and a centroid, in squared units of the
/// centroids' grid. It stays below 2^48, because at most 65,536 coordinates differ by less than
/// 2^16 each; for [`Precision::Fine`](crate::Precision::Fine) below 2^62, because at most 16,384
/// coordinates differ by less than 2^24.
pub fn squared(rows: PointRows<'_>, i: usize, centroid: &[i16]) -> i64 {
    let precision = rows.precision();
    let pairs = rows.row(i).zip(precision.coordinates(centroid));
    pairs.map(|(x, c)| ((x << precision.fraction()) - c).pow(2)).sum()
}

/// Returns the nearest of the centroids, which are given row by row. There must be at least one; of
/// equally near centroids, the first is returned.
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
