//! From directories of pictures, one per class, to a tested classifier (Zhang, Qiu et al.,
//! "Large-Scale Image Classification using High Performance Clustering", section 6): patches, a
//! vocabulary by clustering on all ranks, histograms of words, and linear support vector machines.
//!
//! The crate `cool-classify` contains the arithmetic of histograms and machines. This module reads
//! the pictures ([`ClassDirectories`]) and distributes the work: each rank describes some pictures
//! and trains the machines of some classes. The result is the same to the bit on any number of
//! ranks and threads.

pub(crate) mod bag;
mod classes;
mod confusion;
mod test;
mod train;

pub use classes::ClassDirectories;
pub use confusion::page;
pub use test::{TestResult, test};
pub use train::{TrainingPlan, train};
