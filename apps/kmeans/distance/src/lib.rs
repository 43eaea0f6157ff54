//! Squared distances of points from centroids in exact integers, as fast as the processor multiplies.
//!
//! Points lie on a grid of integers ([`Rows`]: of 8, 16 or 24 bits), centroids on the same grid with some more bits behind
//! the point. `|x - c|^2 = |x|^2 - 2 x.c + |c|^2`, so all the time goes into dot products, done as a blocked matrix
//! product (Goto and van de Geijn, ACM TOMS 2008): centroids are packed once into [`Panels`], points into tiles, and a
//! tile is multiplied with a panel while both are in the first-level cache, its sums in registers.
//!
//! **The result does not depend on the processor.** Every [`Level`] computes the same integers as `scalar`, the
//! definition, since sums of integers are exact in any order; of equally near centroids the first is chosen.
//!
//! No I/O and no threads: callers share out the rows among theirs. `unsafe` is in `simd` and `amx_permission` only.

#[cfg(target_arch = "x86_64")]
mod amx_permission;
mod blocked;
mod filter;
mod level;
mod nearest;
mod pack;
mod packed;
mod pair;
mod rows;
pub mod scalar;
mod simd;

pub use blocked::Panels;
pub use level::{Level, Unknown};
pub use nearest::Nearest;
pub use pair::Pairs;
pub use rows::{MAX_DIMS, Picked, Precision, Rows};
