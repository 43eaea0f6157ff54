//! The side that connects: agents and tools to the controller, as a connector for tonic.

use crate::addresses::{self, Addresses, host_and_port};
use crate::credentials::Credentials;
use crate::explain::explained;
use crate::role::{Identity, Role};
use crate::stream::{Stream, TlsSession, peer_certificate};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::Uri;
use hyper_util::rt::TokioIo;
use std::io;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Connects to the controller, whichever of some addresses it is at: its certificate must say that it is one. Clones are the same.
#[derive(Clone, Debug)]
pub struct Connector {
    credentials: Option<Credentials>,
    addresses: Addresses,
}

/// Why an address cannot be connected to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// No URL of a controller.
    #[error("{0:?} is not a controller's address; write it as https://HOST:7400")]
    Malformed(String),
    /// Plain text has not been allowed.
    #[error("{0} would be plain text: write https://, or allow it by --insecure-plaintext")]
    Plaintext(String),
    /// Plain text has been asked for.
    #[error("{0} would use TLS, but --insecure-plaintext (or COOL_INSECURE_PLAINTEXT) is set: choose one")]
    Secured(String),
}

impl Connector {
    /// How to connect to the controller at one of `addresses` (URLs, or HOST:PORT, with commas between them), and the URL of the
    /// first; without `credentials` in plain text.
    ///
    /// # Errors
    /// If an address is none, or contradicts that.
    pub fn to(addresses: &str, credentials: Option<Credentials>) -> Result<(Uri, Connector), AddressError> {
        let uris = addresses.split(',').map(|address| Connector::uri(address.trim(), credentials.as_ref()));
        let uris = uris.collect::<Result<Vec<Uri>, _>>()?;
        // Splitting gives at least one.
        let first = uris[0].clone();
        Ok((first, Connector { credentials, addresses: Addresses::new(uris) }))
    }

    fn uri(address: &str, credentials: Option<&Credentials>) -> Result<Uri, AddressError> {
        let scheme = if credentials.is_none() { "http" } else { "https" };
        let url = if address.contains("://") { address.to_owned() } else { format!("{scheme}://{address}") };
        let uri = addresses::parse(&url).ok_or_else(|| AddressError::Malformed(address.to_owned()))?;
        match (uri.scheme_str() == Some("https"), credentials) {
            (true, None) => Err(AddressError::Secured(url)),
            (false, Some(_)) => Err(AddressError::Plaintext(url)),
            _ => Ok(uri),
        }
    }

    /// Connects; the caller bounds the time. With TLS, the other side must speak first, as HTTP/2's does: in TLS 1.3
    /// (RFC 8446, 4.4.2) only what comes after the handshake tells whether it takes our certificate, and its refusal
    /// would be lost if it hung up on what we had written meanwhile.
    ///
    /// # Errors
    /// If nobody listens there, or is no controller of this deployment; in plain words.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let Some(credentials) = &self.credentials else { return Ok(Stream::Plaintext(socket)) };
        let (now, following) = credentials.now();
        let name = ServerName::try_from(Role::Controller.dns_name()).map_err(io::Error::other)?;
        let tls = TlsConnector::from(now.client.clone());
        let mut stream = tls.connect(name, socket).await.map_err(explained)?;
        stream.fill_buf().await.map_err(explained)?;
        let stream = stream.into();
        let identity = peer_certificate(&stream).as_ref().and_then(Identity::read);
        Ok(Stream::Tls(Box::new(TlsSession::new(stream, credentials, following, identity))))
    }

    async fn connect_to(self, uri: Uri) -> io::Result<Stream> {
        let (host, port) = host_and_port(&uri)?;
        self.connect(host, port).await
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
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
