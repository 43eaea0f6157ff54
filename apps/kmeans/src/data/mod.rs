//! Points: input files, the integer grid on which points lie, weights, and each rank's share
//! of the points.

pub mod grid;
pub mod inputs;
pub mod npy;
pub mod partition;
pub mod point_share;
pub mod weights;
