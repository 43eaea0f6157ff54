//! The nearest centroid of a point.

/// A point's nearest centroid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearestCentroid {
    /// Its number; of equally near centroids, the first's.
    pub index: u32,
    /// Its squared distance, in units of the centroids' grid, squared.
    pub squared: i64,
}
