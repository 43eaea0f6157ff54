//! From visual words to labels: the second half of image classification by a bag of visual words (Csurka et al., ECCV
//! workshop 2004; Zhang, Qiu et al., "Large-Scale Image Classification using High Performance Clustering").
//!
//! Clustering gives a vocabulary, and each patch of a picture its nearest word. Here a picture becomes a [`histogram`] of its
//! words, optionally one for each cell of a spatial pyramid; a [`feature_map`] makes the comparison of histograms linear;
//! a linear support vector machine for each class tells it from all others ([`svm`]); [`ConfusionMatrix`] says how often that is right.
//!
//! **The same bits everywhere.** Chance comes from a seed, sums have one order, and functions that the IEEE 754 standard does not
//! define to the bit are those of `libm`, which computes alike on all machines. No I/O and no threads.

mod evaluate;
pub mod feature_map;
pub mod histogram;
mod sparse;
pub mod svm;

pub use evaluate::ConfusionMatrix;
pub use sparse::SparseRow;
