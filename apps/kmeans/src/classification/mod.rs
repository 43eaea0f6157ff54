//! From folders of pictures, one a class, to a tested classifier (Zhang, Qiu et al., "Large-Scale Image Classification using High
//! Performance Clustering", section 6): patches, a vocabulary by clustering on all ranks, histograms of words, linear machines.
//!
//! The arithmetic of histograms and machines is that of `cool-classify`; here are the pictures ([`ClassDirectories`]) and the sharing of the
//! work: each rank describes some pictures and trains some classes' machines. The result is the same to the bit on any number of
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
