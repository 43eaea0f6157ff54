//! Protocols and schedules over the simulated network, from seeds.

mod broadcasts;
mod cases;
mod repair;
mod schedules;
mod speed;
