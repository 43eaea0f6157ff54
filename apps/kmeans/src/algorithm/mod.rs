//! The algorithm: first centroids, Lloyd's iterations, and the assignment of points to
//! their nearest centroids.

mod aggregate;
pub mod assign;
pub mod assigner;
pub mod bounds;
mod checkpoint;
pub mod lloyd;
mod parallel_seeding;
mod prefetch;
pub mod seeding;
mod stop_rule;
pub mod tuning;
