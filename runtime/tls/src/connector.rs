//! The connecting side: connects agents and tools to the controller, as a connector for tonic.

use crate::addresses::{self, Addresses, host_and_port};
use crate::credentials::Credentials;
use crate::explain::explained;
use crate::role::{Identity, Role};
use crate::stream::{MaybeTlsStream, TlsSession, peer_certificate};
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

/// Connects to the controller at one of several addresses. The certificate presented there must be
/// for [`Role::Controller`]. Clones share their state.
#[derive(Clone, Debug)]
pub struct Connector {
    credentials: Option<Credentials>,
    addresses: Addresses,
}

/// The reasons why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not the URL of a controller.
    #[error("{0:?} is not a controller address; write it as https://HOST:7400")]
    Malformed(String),
    /// The address would use plain text, which is not permitted.
    #[error("{0} would use plain text: write https://, or pass --insecure-plaintext")]
    Plaintext(String),
    /// The address would use TLS, but plain text was requested.
    #[error("{0} would use TLS, but --insecure-plaintext (or COOL_INSECURE_PLAINTEXT) is set: choose one")]
    Secured(String),
}

impl Connector {
    /// Returns a connector to the controller at one of `addresses`, and the URL of the first
    /// address. Addresses are URLs or HOST:PORT, separated by commas. Without `credentials`, the
    /// connector uses plain text.
    ///
    /// # Errors
    /// Returns an error if an address is malformed, or if its scheme contradicts `credentials`.
    pub fn to(addresses: &str, credentials: Option<Credentials>) -> Result<(Uri, Connector), AddressError> {
        let uris = addresses.split(',').map(|address| Connector::uri(address.trim(), credentials.as_ref()));
        let uris = uris.collect::<Result<Vec<Uri>, _>>()?;
        // `split` returns at least one item.
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

    /// Connects to an address. The caller must limit the time.
    ///
    /// With TLS, the peer must send first, as HTTP/2 servers do. In TLS 1.3 (RFC 8446, 4.4.2) a
    /// client learns only from data after the handshake whether the server accepted its
    /// certificate. If the client wrote first, the refusal could be lost, because the server may
    /// close the connection before reading.
    ///
    /// # Errors
    /// Returns an error if nothing listens there, or if the peer is not a controller of this
    /// deployment. The message explains the cause.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<MaybeTlsStream> {
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let Some(credentials) = &self.credentials else { return Ok(MaybeTlsStream::Plaintext(socket)) };
        let (material, updates) = credentials.current();
        let name = ServerName::try_from(Role::Controller.dns_name()).map_err(io::Error::other)?;
        let tls = TlsConnector::from(material.client.clone());
        let mut stream = tls.connect(name, socket).await.map_err(explained)?;
        stream.fill_buf().await.map_err(explained)?;
        let stream = stream.into();
        let identity = peer_certificate(&stream).as_ref().and_then(Identity::read);
        Ok(MaybeTlsStream::Tls(Box::new(TlsSession::new(stream, credentials, updates, identity))))
    }

    async fn connect_to(self, uri: Uri) -> io::Result<MaybeTlsStream> {
        let (host, port) = host_and_port(&uri)?;
        self.connect(host, port).await
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<MaybeTlsStream>;
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
