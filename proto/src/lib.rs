//! Contracts between COOL's programs.
//!
//! - [`control`] (feature `grpc`): the controller's gRPC service for agents and tools.
//! - [`local`]: frames between a rank and the agent of its node ([`frame`]) over a unix socket
//!   ([`socket`]).
//! - [`launcher`]: messages between an agent and the supervisors of its ranks, over a socket that
//!   preserves message boundaries ([`seqpacket`]).
//! - [`peer`]: the process at the other end of such a socket.
//!
//! The memory that ranks and agents share is in the crate `cool-shm`.

mod conversions;
#[cfg(feature = "grpc")]
pub mod delivery;
#[cfg(feature = "grpc")]
pub mod description;
pub mod features;
pub mod frame;
pub mod job_ids;
#[cfg(feature = "grpc")]
pub mod job_request;
pub mod peer;
pub mod seqpacket;
pub mod socket;
#[cfg(feature = "grpc")]
pub mod trace_file;

/// Version of the contracts.
///
/// It must be raised when earlier programs cannot handle a change. A change that earlier programs
/// can ignore must be a [feature](features) instead.
pub const VERSION: u32 = 11;

/// Oldest version that this release supports.
///
/// When [`VERSION`] is raised, this constant stays one behind, because operators upgrade the
/// programs of a cluster one after the other.
pub const OLDEST_VERSION: u32 = 11;

/// The error that a peer uses an unsupported version of the contracts, which it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "speaks version {0} of the protocol, but this program supports {OLDEST_VERSION} to {VERSION}; upgrade the controller first, then agents, \
     then programs that use libcool"
)]
pub struct VersionError(pub u32);

/// Checks that this release supports the version of a peer.
///
/// # Errors
/// Returns an error if the version is too old or too new.
pub fn check_version(version: u32) -> Result<(), VersionError> {
    if (OLDEST_VERSION..=VERSION).contains(&version) { Ok(()) } else { Err(VersionError(version)) }
}

/// Maximum size of a message of the controller's service in either direction, in bytes.
///
/// A group of 10,000 ranks takes about 600 KB. An agent that registers reports all groups that it
/// holds; it must send further messages if they do not fit.
#[cfg(feature = "grpc")]
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Interval at which an agent reports that a call is still running.
pub const RUNNING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Frames between a rank and the agent of its node.
#[allow(missing_docs, reason = "generated; documented in proto/local.proto")]
pub mod local {
    include!(concat!(env!("OUT_DIR"), "/cool.local.rs"));
}

/// Messages between an agent and the supervisors of its jobs' processes.
#[allow(missing_docs, reason = "generated; documented in proto/launcher.proto")]
pub mod launcher {
    include!(concat!(env!("OUT_DIR"), "/cool.launcher.rs"));
}

/// The controller's service for agents and tools.
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::too_many_lines,
    reason = "generated; documented in proto/control.proto"
)]
pub mod control {
    include!(concat!(env!("OUT_DIR"), "/cool.control.rs"));

    impl std::fmt::Debug for Secret {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Secret(..)")
        }
    }

    impl Group {
        /// Returns the group without its keys, which only its agents may know.
        pub fn without_keys(mut self) -> Group {
            self.key = None;
            self.members.iter_mut().for_each(|member| member.key = None);
            self
        }
    }
}
