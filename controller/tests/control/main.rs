//! The controller over real gRPC, with agents and a network made by hand.

mod agents;
mod diagnosis;
mod jobs;
mod musters;
mod probes;
mod recoveries;
mod support;
mod takeover;
mod traces;
