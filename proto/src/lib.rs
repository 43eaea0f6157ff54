//! Contracts between COOL's programs: gRPC to the controller ([`control`], feature `grpc`), and
//! between a rank and the agent of its node ([`local`]).

/// The version of both contracts; peers with another one are refused.
pub const VERSION: u32 = 1;

/// Frames between a rank and the agent of its node.
#[allow(missing_docs, reason = "generated; documented in proto/local.proto")]
pub mod local {
    include!(concat!(env!("OUT_DIR"), "/cool.local.rs"));
}

/// The controller's service for agents and tools.
#[cfg(feature = "grpc")]
#[allow(missing_docs, clippy::all, reason = "generated; documented in proto/control.proto")]
pub mod control {
    include!(concat!(env!("OUT_DIR"), "/cool.control.rs"));
}
