//! Node agent: runs the schedules of its ranks over multicast and TCP.

pub mod engine;
mod net;
