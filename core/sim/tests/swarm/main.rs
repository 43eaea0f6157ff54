//! The swarm over simulated networks: the results of its paper, and its behavior when nodes join
//! and crash and many packets are lost.

mod paper;
mod seeded;
#[path = "../common/seeds.rs"]
mod seeds;
mod slow;
#[path = "../common/snapshot.rs"]
mod snapshot;
mod table;
