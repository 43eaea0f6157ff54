//! Connections to services of others, as etcd: each is known by the host in its address, and by a CA of its own.

use crate::connector::Connector;
use crate::folder::{self, FolderError};
use crate::provider;
use http::Uri;
use std::path::PathBuf;
use tokio_rustls::rustls::ClientConfig;

/// Certificates for a service that is reached over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCertificates {
    /// A file with the certificates of those who are believed who the service is.
    pub authority: PathBuf,
    /// Files with what we show of ourselves, and its key; the service may not ask for it.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Why a service cannot be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceAddressError {
    /// No URL.
    #[error("{0:?} is no address; write it as https://HOST:PORT or http://HOST:PORT")]
    Malformed(String),
    /// Some addresses are for TLS and others are not.
    #[error("some addresses begin with https:// and some with http://: choose one")]
    Mixed,
    /// TLS, and nobody is believed.
    #[error("addresses that begin with https:// need the certificate of who is believed")]
    NoAuthority,
    /// Certificates, and no TLS.
    #[error("certificates are of no use for addresses that begin with http://")]
    Plaintext,
    /// The certificates cannot be used.
    #[error("{}: {reason}", .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<FolderError> for ServiceAddressError {
    fn from(error: FolderError) -> ServiceAddressError {
        match error {
            FolderError::Read { path, reason } | FolderError::Content { path, reason } => {
                ServiceAddressError::Certificates { path, reason }
            }
        }
    }
}

impl Connector {
    /// To the service at one of `addresses` (URLs, with commas between them), and the first one's URL.
    ///
    /// # Errors
    /// If an address is none, contradicts the others or the certificates, or those cannot be used.
    pub fn service(
        addresses: &str,
        certificates: Option<&ServiceCertificates>,
    ) -> Result<(Uri, Connector), ServiceAddressError> {
        let uris: Vec<Uri> = addresses.split(',').map(service_uri).collect::<Result<_, _>>()?;
        // Splitting gives at least one.
        let first = uris[0].clone();
        if uris.iter().any(|uri| uri.scheme() != first.scheme()) {
            return Err(ServiceAddressError::Mixed);
        }
        let config = match (first.scheme_str() == Some("https"), certificates) {
            (true, Some(certificates)) => Some(certificates.client()?),
            (true, None) => return Err(ServiceAddressError::NoAuthority),
            (false, Some(_)) => return Err(ServiceAddressError::Plaintext),
            (false, None) => None,
        };
        Ok((first, Connector::to_service(uris, config)))
    }
}

fn service_uri(address: &str) -> Result<Uri, ServiceAddressError> {
    let malformed = || ServiceAddressError::Malformed(address.to_owned());
    let uri: Uri = address.trim().parse().map_err(|_| malformed())?;
    let whole = uri.port().is_some() && uri.host().is_some_and(|host| !host.is_empty());
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    if whole && known { Ok(uri) } else { Err(malformed()) }
}

impl ServiceCertificates {
    fn client(&self) -> Result<ClientConfig, FolderError> {
        let unusable = |error| folder::unusable(self.authority.clone(), &error);
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(folder::authority(self.authority.clone())?);
        let Some((certificate, key)) = &self.identity else { return Ok(config.with_no_client_auth()) };
        config
            .with_client_auth_cert(folder::certificates(certificate.clone())?, folder::key(key.clone())?)
            .map_err(|error| folder::unusable(certificate.clone(), &error))
    }
}
