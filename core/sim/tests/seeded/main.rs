//! Protocols and schedules over the simulated network, from seeds.

mod broadcasts;
mod cases;
mod repair;
mod schedules;
#[path = "../common/seeds.rs"]
mod seeds;
#[path = "../common/snapshot.rs"]
mod snapshot;
mod speed;
