//! Complete collectives over the simulated network, in single cases and from seeds.

mod connections;
mod failures;
mod messages;
mod operations;
mod quick_calls;
mod seeded;
#[path = "../common/seeds.rs"]
mod seeds;
mod support;
mod tree_sources;
mod watched_calls;
