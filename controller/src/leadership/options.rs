//! Command-line flags of the leader election.

use cool_tls::{ServiceAddressError, ServiceCertificates, ServiceConnector};
use http::Uri;
use std::path::PathBuf;
use std::time::Duration;

/// How a controller participates in the election.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct LeadershipOptions {
    /// Elect the leader through etcd at one of these addresses [default: lead at once]
    ///
    /// Start two controllers with the same addresses, all members of one etcd cluster. One leads,
    /// and the other takes over if the leader has not renewed its lease for --lead-ttl. Point
    /// switches, agents and `cool` at both.
    #[arg(long, value_name = "URL,...")]
    pub lead_by: Option<String>,

    /// File with the CA of etcd's certificate, for addresses that begin with https://
    #[arg(long, value_name = "FILE")]
    pub lead_by_ca: Option<PathBuf>,

    /// File with the client certificate for etcd [default: none]
    #[arg(long, value_name = "FILE")]
    pub lead_by_cert: Option<PathBuf>,

    /// File with its private key
    #[arg(long, value_name = "FILE")]
    pub lead_by_key: Option<PathBuf>,

    /// Prefix of the keys in etcd: the same for both controllers of a cluster, different for each
    /// cluster
    #[arg(long, value_name = "PREFIX", default_value = "/cool")]
    pub lead_prefix: String,

    /// Directory in which a single controller keeps what its next run needs: the number of its last
    /// run, so that switches and agents accept the next one even if the clock was set back
    /// [default: none]
    #[arg(long, env = "STATE_DIRECTORY", value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,

    /// Seconds without a renewal of the leader's lease, after which another controller may lead
    ///
    /// A leader that etcd does not answer for five sixths of this time stops. etcd grants at least
    /// 2 seconds. The default suits etcd's default timeouts; use more where its disks are slow.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=60))]
    pub lead_ttl: u32,
}

/// Options that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipOptionsError {
    /// Only one of the certificate and its key is given.
    #[error("--lead-by-cert and --lead-by-key must be given together")]
    IncompleteIdentity,
    /// No CA is given to authenticate etcd.
    #[error("--lead-by-ca is required with --lead-by-cert, and for addresses that begin with https://")]
    NoAuthority,
    /// An address or a file is invalid.
    #[error("--lead-by: {0}")]
    Address(ServiceAddressError),
}

impl LeadershipOptions {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_secs(self.lead_ttl.into())
    }

    /// Returns a connector to etcd at these addresses.
    pub(super) fn connector(
        &self,
        addresses: &str,
    ) -> Result<(Uri, ServiceConnector), LeadershipOptionsError> {
        let identity = match (&self.lead_by_cert, &self.lead_by_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(LeadershipOptionsError::IncompleteIdentity),
        };
        let certificates = match (&self.lead_by_ca, identity) {
            (Some(authority), identity) => {
                Some(ServiceCertificates { authority: authority.clone(), identity })
            }
            (None, None) => None,
            (None, Some(_)) => return Err(LeadershipOptionsError::NoAuthority),
        };
        ServiceConnector::to(addresses, certificates.as_ref()).map_err(|error| match error {
            ServiceAddressError::NoAuthority => LeadershipOptionsError::NoAuthority,
            other => LeadershipOptionsError::Address(other),
        })
    }
}
