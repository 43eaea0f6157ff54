//! The controller over real gRPC, with agents and a network made by hand.

mod agents;
mod away;
mod diagnosis;
mod jobs;
mod keys;
mod probes;
mod recoveries;
mod rendezvous;
mod support;
mod takeover;
mod traces;
