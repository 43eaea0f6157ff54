//! K-means over image features.

fn main() {}
