//! Squared distances of points from centroids in exact integers, as fast as the processor multiplies.
//!
//! Points lie on a grid of integers ([`PointRows`]: of 8, 16 or 24 bits), centroids on the same grid with some more bits behind
//! the point. `|x - c|^2 = |x|^2 - 2 x.c + |c|^2`, so all the time goes into dot products, done as a blocked matrix
//! product (Goto and van de Geijn, ACM TOMS 2008): centroids are packed once into [`Panels`], points into tiles, and a
//! tile is multiplied with a panel while both are in the first-level cache, its sums in registers.
//!
//! **The result does not depend on the processor.** Every [`SimdLevel`] computes the same integers as `scalar`, the
//! definition, since sums of integers are exact in any order; of equally near centroids the first is chosen.
//!
//! No I/O and no threads: callers share out the rows among theirs. `unsafe` is in `simd` and `amx_permission` only.

#[cfg(target_arch = "x86_64")]
mod amx_permission;
mod nearest;
mod packed_panels;
mod packing;
mod pair_distances;
mod panels;
mod point_rows;
pub mod scalar;
mod simd;
mod simd_level;
mod upper_word_filter;

pub use nearest::NearestCentroid;
pub use pair_distances::PairDistances;
pub use panels::Panels;
pub use point_rows::{MAX_DIMS, PointRows, Precision, RowSelection};
pub use simd_level::{SimdLevel, UnknownSimdLevel};
