//! Contracts between COOL's programs: gRPC to the controller ([`control`], feature `grpc`), and
//! between a rank and the agent of its node ([`local`]): frames ([`frame`]) over a unix socket
//! ([`socket`]); and between an agent and the supervisors of its ranks ([`launcher`]), over a socket
//! that preserves message boundaries ([`seqpacket`]). The memory that ranks and agents share is in
//! the crate `cool-shm`.

mod conversions;
#[cfg(feature = "grpc")]
pub mod delivery;
#[cfg(feature = "grpc")]
pub mod description;
pub mod features;
pub mod frame;
pub mod job_ids;
pub mod seqpacket;
pub mod socket;
#[cfg(feature = "grpc")]
pub mod trace_file;

/// The version of both contracts. It is raised when programs of before could make nothing of what is new; what they can do without is a
/// [feature](features).
pub const VERSION: u32 = 11;

/// The oldest version with which programs of this release work together: when [`VERSION`] is raised it stays one behind, so that
/// a cluster is upgraded one program after the other.
pub const OLDEST_VERSION: u32 = 11;

/// A peer of a version that cannot be dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "speaks version {0} of the contract, this program {OLDEST_VERSION} to {VERSION}; upgrade the controller first, then agents, \
     then what is linked with libcool"
)]
pub struct VersionError(pub u32);

/// Whether a peer of this version can be dealt with.
///
/// # Errors
/// If not: it is too old, or of a later release.
pub fn check_version(version: u32) -> Result<(), VersionError> {
    if (OLDEST_VERSION..=VERSION).contains(&version) { Ok(()) } else { Err(VersionError(version)) }
}

/// Bytes of the longest message of the controller's service, either way: a group of 10,000 ranks takes some 600 KB. An agent that
/// registers tells of all its groups, in further messages if they do not fit.
#[cfg(feature = "grpc")]
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 64 << 20;

/// While a call runs, the agent says so this often.
pub const RUNNING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// Frames between a rank and the agent of its node.
#[allow(missing_docs, reason = "generated; documented in proto/local.proto")]
pub mod local {
    include!(concat!(env!("OUT_DIR"), "/cool.local.rs"));
}

/// Between an agent and the supervisors of its jobs' processes.
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
        /// What others than its agents may know of a group.
        pub fn without_keys(mut self) -> Group {
            self.key = None;
            self.members.iter_mut().for_each(|member| member.key = None);
            self
        }
    }
}
