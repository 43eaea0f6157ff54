//! The side that connects: agents and tools to the controller, as a connector for tonic.

use crate::explain::explained;
use crate::folder::{Folder, FolderError};
use crate::options::Options;
use crate::role::Role;
use crate::stream::Stream;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::Uri;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Connects to the controller, whatever its address: its certificate must say that it is one.
#[derive(Clone)]
pub struct Connector {
    tls: Option<TlsConnector>,
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
    /// The certificates cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl Options {
    /// How `role` connects to the controller at `address` (a URL, or HOST:PORT), and its URL.
    ///
    /// # Errors
    /// If the address is none, contradicts the flags, or the certificates cannot be used.
    pub fn connector(&self, address: &str, role: Role) -> Result<(Uri, Connector), AddressError> {
        let scheme = if self.insecure_plaintext { "http" } else { "https" };
        let url = if address.contains("://") { address.to_owned() } else { format!("{scheme}://{address}") };
        let uri: Uri = url.parse().map_err(|_| AddressError::Malformed(address.to_owned()))?;
        if uri.port().is_none() || uri.host().is_none_or(str::is_empty) {
            return Err(AddressError::Malformed(address.to_owned()));
        }
        match (uri.scheme_str(), self.folder(role)) {
            (Some("https"), Some(folder)) => Ok((uri, Connector::tls(&folder)?)),
            (Some("http"), None) => Ok((uri, Connector { tls: None })),
            (Some("http"), Some(_)) => Err(AddressError::Plaintext(url)),
            (Some("https"), None) => Err(AddressError::Secured(url)),
            _ => Err(AddressError::Malformed(address.to_owned())),
        }
    }
}

impl Connector {
    /// With TLS by what is in `folder`.
    ///
    /// # Errors
    /// If the certificates cannot be used.
    pub fn tls(folder: &Folder) -> Result<Connector, FolderError> {
        let mut config = folder.client()?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Connector { tls: Some(TlsConnector::from(Arc::new(config))) })
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
        let Some(tls) = &self.tls else { return Ok(Stream::Plaintext(socket)) };
        let name = ServerName::try_from(Role::Controller.dns_name()).map_err(io::Error::other)?;
        let mut stream = tls.connect(name, socket).await.map_err(explained)?;
        stream.fill_buf().await.map_err(explained)?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            // In URLs, IPv6 addresses stand in brackets.
            let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
            connector.connect(host, uri.port_u16().unwrap_or(7400)).await.map(TokioIo::new)
        })
    }
}
