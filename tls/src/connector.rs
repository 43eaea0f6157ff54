//! The side that connects: agents and tools to the controller, controllers to services of others, as a connector for tonic. Where
//! one of several addresses serves, it finds which.

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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// An address that has not answered yet keeps the next one waiting no longer (RFC 8305, section 5).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to the controller, whatever its address: its certificate must say that it is one. Clones are the same.
#[derive(Clone)]
pub struct Connector {
    tls: Option<TlsConnector>,
    /// What the certificate of the other side must say.
    name: ServerIdentity,
    /// Of these one serves; if there are none, that of the call does.
    addresses: Arc<[Uri]>,
    /// Which of them comes first in the next try: what has just been tried may be there and not serve.
    first: Arc<AtomicUsize>,
}

#[derive(Clone, Copy)]
enum ServerIdentity {
    /// That it is a controller of this deployment.
    Controller,
    /// The host of its address.
    Host,
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
    /// How `role` connects to the controller at one of `addresses` (URLs, or HOST:PORT, with commas between them), and the first
    /// one's URL.
    ///
    /// # Errors
    /// If an address is none, contradicts the flags, or the certificates cannot be used.
    pub fn connector(&self, addresses: &str, role: Role) -> Result<(Uri, Connector), AddressError> {
        let uris = addresses.split(',').map(|address| self.controller(address.trim()));
        let uris = uris.collect::<Result<Vec<Uri>, _>>()?;
        let connector = match self.folder(role) {
            Some(folder) => Connector::tls(&folder)?,
            None => Connector::new(None, ServerIdentity::Controller),
        };
        // Splitting gives at least one.
        Ok((uris[0].clone(), Connector { addresses: uris.into(), ..connector }))
    }

    /// The URL of a controller.
    fn controller(&self, address: &str) -> Result<Uri, AddressError> {
        let scheme = if self.insecure_plaintext { "http" } else { "https" };
        let url = if address.contains("://") { address.to_owned() } else { format!("{scheme}://{address}") };
        let uri: Uri = url.parse().map_err(|_| AddressError::Malformed(address.to_owned()))?;
        if uri.port().is_none() || uri.host().is_none_or(str::is_empty) {
            return Err(AddressError::Malformed(address.to_owned()));
        }
        match (uri.scheme_str(), self.insecure_plaintext) {
            (Some("https"), false) | (Some("http"), true) => Ok(uri),
            (Some("http"), false) => Err(AddressError::Plaintext(url)),
            (Some("https"), true) => Err(AddressError::Secured(url)),
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
        Ok(Connector::new(Some(folder.client()?), ServerIdentity::Controller))
    }

    /// To a service of somebody else's at one of these addresses, over TLS if `config` is given: then its certificate must say its host.
    pub(crate) fn to_service(addresses: Vec<Uri>, config: Option<ClientConfig>) -> Connector {
        Connector { addresses: addresses.into(), ..Connector::new(config, ServerIdentity::Host) }
    }

    fn new(config: Option<ClientConfig>, name: ServerIdentity) -> Connector {
        let tls = config.map(|mut config| {
            config.alpn_protocols = vec![b"h2".to_vec()];
            TlsConnector::from(Arc::new(config))
        });
        Connector { tls, name, addresses: Arc::new([]), first: Arc::default() }
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
        let name = match self.name {
            ServerIdentity::Controller => ServerName::try_from(Role::Controller.dns_name()),
            ServerIdentity::Host => ServerName::try_from(host.to_owned()),
        };
        let name = name.map_err(io::Error::other)?;
        // What is said in plain words is of certificates of a deployment.
        let plainly = |error| match self.name {
            ServerIdentity::Controller => explained(error),
            ServerIdentity::Host => error,
        };
        let mut stream = tls.connect(name, socket).await.map_err(plainly)?;
        stream.fill_buf().await.map_err(plainly)?;
        Ok(Stream::Tls(Box::new(stream.into())))
    }

    async fn connect_to(&self, uri: &Uri) -> io::Result<Stream> {
        let host = uri.host().unwrap_or_default();
        // In URLs, IPv6 addresses stand in brackets.
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        self.connect(host, uri.port_u16().unwrap_or(7400)).await
    }

    /// Connects to the first address that takes the connection. One that is silent keeps the others waiting for a moment only.
    async fn connect_to_any(&self) -> io::Result<Stream> {
        let first = self.first.fetch_add(1, Ordering::Relaxed) % self.addresses.len();
        let (later, earlier) = self.addresses.split_at(first);
        let mut waiting = earlier.iter().chain(later);
        let mut tries = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            let next = waiting.next();
            if let Some(uri) = next.cloned() {
                let connector = self.clone();
                tries.spawn(async move {
                    let connected = connector.connect_to(&uri).await;
                    connected.map_err(|error| (uri, error))
                });
            }
            tokio::select! {
                Some(tried) = tries.join_next() => match tried.map_err(io::Error::other)? {
                    Ok(stream) => return Ok(stream),
                    Err(failure) => failures.push(failure),
                },
                () = sleep(NEXT_ADDRESS_AFTER), if next.is_some() => {}
                else => return Err(none_of(failures)),
            }
        }
    }
}

/// As it was given.
fn url(uri: &Uri) -> String {
    uri.to_string().trim_end_matches('/').to_owned()
}

/// Why no address has taken the connection.
fn none_of(mut failures: Vec<(Uri, io::Error)>) -> io::Error {
    if failures.len() == 1 {
        return failures.remove(0).1;
    }
    let text: Vec<String> = failures.iter().map(|(uri, error)| format!("{}: {error}", url(uri))).collect();
    io::Error::other(text.join("; "))
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
            let connected = match connector.addresses.len() {
                0 => connector.connect_to(&uri).await,
                _ => connector.connect_to_any().await,
            };
            connected.map(TokioIo::new)
        })
    }
}
