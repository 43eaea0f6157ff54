//! One point, one centroid.
