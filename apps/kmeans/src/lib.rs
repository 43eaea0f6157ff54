//! K-means over image features on many nodes, the application for which COOL was made.
//!
//! Patches of pictures become points of 512 coordinates ([`inputs::hog`]). Lloyd's iterations group
//! them into visual words, as in Zhang and Qiu's clustering of social images. Each rank holds a
//! share of the points in memory ([`partition`]), and all ranks hold the centroids. In each
//! iteration ([`lloyd`], a Map-Collective job of `cool-map`) every rank assigns its points with all
//! its threads and sums them ([`assign`]). The sums are combined at the ranks that own the
//! centroids; the owners move the centroids, and all ranks receive those that moved.
//!
//! **The result does not depend on ranks or threads.** For the same data, options and seed,
//! centroids and inertia must be the same to the bit on one rank or on sixteen. They are, because
//! points are integers on a [`grid`], so sums are exact in any order.
//!
//! **Speed.** Distances are products of integers by the CPU's widest instructions
//! (`cool-distance`). Once centroids move little, bounds avoid most distances ([`bounds`],
//! [`assigner`]). Neither changes a bit of the result.
//!
//! **Rules.** The first centroids are chosen by k-means++ over a sample drawn by the seed
//! ([`seeding`]), or for many clusters by k-means|| on all ranks. A centroid without points keeps
//! its position. Of equally near centroids, a point belongs to the first. The iterations end when
//! no centroid moves, after the maximum number of iterations, or when inertia falls by less than
//! the tolerance.
//!
//! **Failures.** When ranks are lost, the survivors shrink their group, redistribute the points,
//! and continue from the last iteration that any of them completed ([`progress`]). Because sums are
//! exact, the result is the same. A checkpoint after each iteration allows a later run to continue
//! if all ranks are lost.
//!
//! Every rank must be able to read all inputs under the same names.

pub mod algorithm;
pub mod classification;
pub mod commands;
pub mod data;
pub mod error;
pub mod in_memory;
pub mod options;
pub mod output;
pub mod peer_ranks;
pub mod progress;

pub use algorithm::{assign, assigner, bounds, lloyd, seeding, tuning};
pub use data::{grid, inputs, npy, partition, point_share, weights};
pub use error::Error;
pub use output::{apply, model, report, tables, visual_words};
