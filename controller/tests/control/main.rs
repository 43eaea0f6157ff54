//! Tests of the controller over real gRPC, with simulated agents and a simulated network.

mod agents;
mod diagnosis;
mod drains;
mod flooding;
mod jobs;
mod keys;
mod limits;
mod presence;
mod probes;
mod recoveries;
mod rendezvous;
mod support;
mod takeover;
mod traces;
mod tree_proofs;
