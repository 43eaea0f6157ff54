//! The listening side: authenticates the peer of a TCP connection.

use crate::credentials::Credentials;
use crate::explain::explain;
use crate::role::{Identity, Role};
use crate::stream::{MaybeTlsStream, TlsSession, peer_certificate};
use core::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How long a peer may take to complete the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Accepts connections and authenticates their peers.
#[derive(Clone, Debug)]
pub enum Acceptor {
    /// Without TLS: accepts every connection.
    Plaintext,
    /// With TLS: accepts peers that present a certificate of our CAs for one of these roles, unless
    /// it is revoked.
    Tls(Credentials, &'static [Role]),
}

/// An accepted connection.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The connection.
    pub stream: MaybeTlsStream,
    /// The peer's identity. `None` without TLS.
    pub identity: Option<Identity>,
}

/// The reasons why a connection was rejected. In the messages, "it" is the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedConnection {
    /// The peer did not complete the handshake in time.
    #[error("it did not finish the TLS handshake within {HANDSHAKE_TIMEOUT:?}")]
    Late,
    /// TLS failed.
    #[error("{0}")]
    Tls(String),
    /// The peer's certificate is valid, but this port does not accept its role.
    #[error("its certificate is for {shown}, but this port requires a certificate for {required}")]
    Role {
        /// The identity in the certificate.
        shown: String,
        /// The roles that the port accepts.
        required: String,
    },
}

impl Acceptor {
    /// Returns an acceptor for peers with one of `roles`. Without `credentials`, it accepts every
    /// connection in plain text.
    pub fn new(credentials: Option<Credentials>, roles: &'static [Role]) -> Acceptor {
        credentials.map_or(Acceptor::Plaintext, |credentials| Acceptor::Tls(credentials, roles))
    }

    /// Accepts a connection. Completes within the handshake timeout.
    ///
    /// # Errors
    /// Returns why the peer is rejected: it did not prove that it has one of the accepted roles.
    pub async fn accept(&self, socket: TcpStream) -> Result<AcceptedConnection, RejectedConnection> {
        let (credentials, roles) = match self {
            Acceptor::Plaintext => {
                return Ok(AcceptedConnection { stream: MaybeTlsStream::Plaintext(socket), identity: None });
            }
            Acceptor::Tls(credentials, roles) => (credentials, roles),
        };
        let (material, updates) = credentials.current();
        let stream = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(material.server.clone()).accept(socket))
            .await
            .map_err(|_| RejectedConnection::Late)?
            .map_err(|error| RejectedConnection::Tls(explain(&error).unwrap_or_else(|| error.to_string())))?
            .into();
        let identity = peer_certificate(&stream).as_ref().and_then(Identity::read);
        if !identity.as_ref().is_some_and(|identity| roles.contains(&identity.role)) {
            let shown = identity
                .map_or_else(|| "no role of this deployment".to_owned(), |identity| identity.to_string());
            let required = roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(" or ");
            return Err(RejectedConnection::Role { shown, required });
        }
        let session = TlsSession::new(stream, credentials, updates, identity.clone());
        Ok(AcceptedConnection { stream: MaybeTlsStream::Tls(Box::new(session)), identity })
    }
}
