//! The nearest centroid of a point.

/// A point's nearest centroid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearestCentroid {
    /// Number of the centroid; of equally near centroids, the first.
    pub index: u32,
    /// Squared distance, in squared units of the centroids' grid.
    pub squared: i64,
}
