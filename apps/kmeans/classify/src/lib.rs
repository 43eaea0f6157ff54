//! From visual words to labels: the second half of image classification by a bag of visual words
//! (Csurka et al., ECCV workshop 2004; Zhang, Qiu et al., "Large-Scale Image Classification using
//! High Performance Clustering").
//!
//! Clustering yields a vocabulary and assigns each patch of a picture to its nearest word. This
//! crate turns a picture into a [`histogram`] of its words, optionally one per cell of a spatial
//! pyramid. A [`feature_map`] makes the comparison of histograms linear, a linear support vector
//! machine per class separates that class from all others ([`svm`]), and [`ConfusionMatrix`]
//! measures the accuracy.
//!
//! **The same bits on all machines.** Random numbers depend only on a seed, sums have a fixed
//! order, and functions that IEEE 754 does not define to the bit are those of `libm`, because it
//! returns the same results on all machines. The crate must do no I/O and start no threads.

mod evaluate;
pub mod feature_map;
pub mod histogram;
mod sparse;
pub mod svm;

pub use evaluate::ConfusionMatrix;
pub use sparse::SparseRow;
