//! The flags by which controllers are led by etcd.

use cool_tls::{ServiceAddressError, ServiceCertificates, ServiceConnector};
use http::Uri;
use std::path::PathBuf;
use std::time::Duration;

/// How a controller stands for election.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct LeadershipOptions {
    /// Lead only if etcd at one of these addresses says so, and stand by meanwhile [default: lead at once]
    ///
    /// Give two controllers the same addresses, all members of one etcd cluster: one of them leads, the other takes over when it
    /// has heard nothing of it for --lead-ttl. Point switches, agents and `cool` at both.
    #[arg(long, value_name = "URL,...")]
    pub lead_by: Option<String>,

    /// The CA of etcd's certificate, for addresses that begin with https://
    #[arg(long, value_name = "FILE")]
    pub lead_by_ca: Option<PathBuf>,

    /// The certificate to show etcd [default: none]
    #[arg(long, value_name = "FILE")]
    pub lead_by_cert: Option<PathBuf>,

    /// Its private key
    #[arg(long, value_name = "FILE")]
    pub lead_by_key: Option<PathBuf>,

    /// What the keys in etcd begin with: the same for two controllers of one cluster, and for those of other clusters another
    #[arg(long, value_name = "PREFIX", default_value = "/cool")]
    pub lead_prefix: String,

    /// Seconds for which etcd lets nobody else lead after the leader was heard last
    ///
    /// A leader that etcd does not answer for five sixths of it stops. etcd grants no less than 2, and with its own default timeouts
    /// no more is needed; where its disks are slow, more.
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=60))]
    pub lead_ttl: u32,
}

/// Options that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipOptionsError {
    /// One of a pair of files is missing.
    #[error("--lead-by-cert and --lead-by-key go together")]
    Half,
    /// Nothing to know etcd by.
    #[error("--lead-by-ca is needed beside --lead-by-cert, and for addresses that begin with https://")]
    NoAuthority,
    /// The address, or what is in the files.
    #[error("--lead-by: {0}")]
    Address(ServiceAddressError),
}

impl LeadershipOptions {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_secs(self.lead_ttl.into())
    }

    /// The way to etcd at these addresses.
    pub(super) fn connector(
        &self,
        addresses: &str,
    ) -> Result<(Uri, ServiceConnector), LeadershipOptionsError> {
        let identity = match (&self.lead_by_cert, &self.lead_by_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            _ => return Err(LeadershipOptionsError::Half),
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
