//! The swarm over simulated networks: its paper's results, and what comes of it where nodes come and go and much is lost.

mod paper;
mod seeded;
#[path = "../common/seeds.rs"]
mod seeds;
mod slow;
#[path = "../common/snapshot.rs"]
mod snapshot;
mod table;
