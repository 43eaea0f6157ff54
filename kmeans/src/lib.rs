//! K-means over image features.
