//! Connects to external services such as etcd, as a connector for tonic.
//!
//! Such a service is authenticated by its host name and by a CA of its own. The certificate files
//! are read once.

use crate::addresses::{self, Addresses, host_and_port};
use crate::provider;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::Uri;
use hyper_util::rt::TokioIo;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Certificates for a service that uses TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCertificates {
    /// File with the certificates of the CAs that are trusted to identify the service.
    pub authority: PathBuf,
    /// Files with the client certificate and its key, if the service requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The reasons why a service cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceAddressError {
    /// The text is not a URL.
    #[error("{0:?} is not an address; write it as https://HOST:PORT or http://HOST:PORT")]
    Malformed(String),
    /// Some addresses use TLS and others do not.
    #[error("some addresses begin with https:// and some with http://: choose one")]
    Mixed,
    /// The addresses use TLS, but no CA is trusted.
    #[error("addresses that begin with https:// need the certificate of the CA to trust")]
    NoAuthority,
    /// Certificates were given, but the addresses do not use TLS.
    #[error("certificates cannot be used with addresses that begin with http://")]
    Plaintext,
    /// The certificates cannot be used.
    #[error("{}: {reason}", .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

/// Connects to a service at one of several addresses. Clones share their state.
#[derive(Clone)]
pub struct ServiceConnector {
    tls: Option<TlsConnector>,
    addresses: Addresses,
}

/// A connection to a service, with or without TLS.
pub trait ServiceStream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> ServiceStream for S {}

impl ServiceConnector {
    /// Returns a connector to the service at one of `addresses`, and the URL of the first address.
    /// Addresses are URLs separated by commas.
    ///
    /// # Errors
    /// Returns an error if an address is malformed, if the addresses contradict each other or the
    /// certificates, or if the certificates cannot be used.
    pub fn to(
        addresses: &str,
        certificates: Option<&ServiceCertificates>,
    ) -> Result<(Uri, ServiceConnector), ServiceAddressError> {
        let uri = |address: &str| {
            addresses::parse(address.trim()).ok_or_else(|| ServiceAddressError::Malformed(address.to_owned()))
        };
        let uris: Vec<Uri> = addresses.split(',').map(uri).collect::<Result<_, _>>()?;
        // `split` returns at least one item.
        let first = uris[0].clone();
        if uris.iter().any(|uri| uri.scheme() != first.scheme()) {
            return Err(ServiceAddressError::Mixed);
        }
        let tls = match (first.scheme_str() == Some("https"), certificates) {
            (true, Some(certificates)) => Some(TlsConnector::from(Arc::new(certificates.client()?))),
            (true, None) => return Err(ServiceAddressError::NoAuthority),
            (false, Some(_)) => return Err(ServiceAddressError::Plaintext),
            (false, None) => None,
        };
        Ok((first, ServiceConnector { tls, addresses: Addresses::new(uris) }))
    }

    async fn connect_to(self, uri: Uri) -> io::Result<Pin<Box<dyn ServiceStream>>> {
        let (host, port) = host_and_port(&uri)?;
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Box::pin(socket)) };
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut stream = tls.connect(name, socket).await?;
        // In HTTP/2 the server sends first. Its data shows that it accepted our certificate.
        stream.fill_buf().await?;
        Ok(Box::pin(stream))
    }
}

impl tower_service::Service<Uri> for ServiceConnector {
    type Response = TokioIo<Pin<Box<dyn ServiceStream>>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let connected = connector.addresses.connect(|uri| connector.clone().connect_to(uri)).await;
            connected.map(TokioIo::new)
        })
    }
}

impl ServiceCertificates {
    fn client(&self) -> Result<ClientConfig, ServiceAddressError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| file_error(&self.authority, &error))?;
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| file_error(&self.authority, &error))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| file_error(key, &error))?;
                config.with_client_auth_cert(chain, key).map_err(|error| file_error(certificate, &error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

/// Reads the certificates in a file, which must contain at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServiceAddressError> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    let certificates = read().map_err(|error| file_error(path, &error))?;
    match certificates.is_empty() {
        true => Err(file_error(path, &"it contains no certificate")),
        false => Ok(certificates),
    }
}

fn file_error(path: &Path, reason: &dyn std::fmt::Display) -> ServiceAddressError {
    ServiceAddressError::Certificates { path: path.to_owned(), reason: reason.to_string() }
}
