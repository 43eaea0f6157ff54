//! K-means over image features, on many nodes: the application that COOL was made for.
//!
//! Patches of pictures become points of 512 coordinates ([`inputs::hog`]); Lloyd's iterations group them into visual words, as
//! in Zhang and Qiu's clustering of social images. Each rank holds
//! a share of the points in memory ([`partition`]), and all have the centroids. In each iteration ([`lloyd`], a
//! Map-Collective job of `cool-map`) every rank assigns its points with all its threads and adds them up ([`assign`]);
//! the sums meet at the ranks that own the centroids, which move them, and centroids that moved go to all.
//!
//! **The result does not depend on ranks or threads.** For the same data, options and seed, centroids and inertia
//! are the same to the bit on one rank or on sixteen, because points are integers on a [`grid`], so that sums are
//! exact in any order.
//!
//! **Speed.** Distances are products of integers by the processor's widest instructions (`cool-distance`); once centroids
//! move little, bounds spare most of them ([`bounds`], [`assigner`]). Neither changes a bit of the result.
//!
//! **Rules.** The first centroids come from k-means++ over a sample drawn by the seed ([`seeding`]), of many clusters from
//! k-means||, by all ranks. A centroid
//! without points stays where it is. Of equally near centroids, a point takes the first. The iterations end when no
//! centroid moves any more, after the most iterations allowed, or when inertia falls by less than the tolerance.
//!
//! **Failures.** When ranks are lost, those that are left shrink their group, share out the points anew, and go on from
//! the last iteration that any of them knows ([`progress`]); since sums are exact, the result is the same. A checkpoint
//! after each iteration lets a later run go on when all are lost.
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
