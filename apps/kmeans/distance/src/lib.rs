//! Squared distances between points and centroids in exact integers, as fast as the CPU multiplies.
//!
//! Points lie on a grid of integers ([`PointRows`]: 8, 16 or 24 bits); centroids lie on the same
//! grid with additional fraction bits. Because `|x - c|^2 = |x|^2 - 2 x.c + |c|^2`, nearly all the
//! time goes into dot products, which are computed as a blocked matrix product (Goto and van de
//! Geijn, ACM TOMS 2008): centroids are packed once into [`Panels`], points into tiles, and a tile
//! is multiplied with a panel while both are in the first-level cache and the sums are in
//! registers.
//!
//! **The result does not depend on the CPU.** Every [`SimdLevel`] must return the same integers as
//! `scalar`, which is the definition. It can, because sums of integers are exact in any order. Of
//! equally near centroids, the first is chosen.
//!
//! The crate does no I/O and starts no threads: callers distribute the rows among their threads.
//! `unsafe` occurs only in `simd` and `amx_permission`.

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
