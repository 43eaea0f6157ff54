//! The side that listens: turns a TCP connection into one whose other side has proved who it is.

use crate::credentials::Credentials;
use crate::explain::explain;
use crate::role::{Identity, Role};
use crate::stream::{Stream, TlsSession, peer_certificate};
use core::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How long the other side may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Takes connections in.
#[derive(Clone, Debug)]
pub enum Acceptor {
    /// Without TLS: everybody is welcome.
    Plaintext,
    /// With TLS: holders of certificates of our CAs that say one of the roles, and are not revoked.
    Tls(Credentials, &'static [Role]),
}

/// A connection that was taken in.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// Who is on the other side; `None` without TLS.
    pub identity: Option<Identity>,
}

/// Why a connection was not taken in; "it" is the other side.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// It has not proved itself in time.
    #[error("it did not finish the TLS handshake within {HANDSHAKE:?}")]
    Late,
    /// TLS failed.
    #[error("{0}")]
    Tls(String),
    /// Its certificate is genuine but not for this port.
    #[error("its certificate says {said}, but this port is for a certificate of {wanted}")]
    Role {
        /// Who it is.
        said: String,
        /// Who is wanted.
        wanted: String,
    },
}

impl Acceptor {
    /// For holders of `roles`, or everybody without `credentials`.
    pub fn new(credentials: Option<Credentials>, roles: &'static [Role]) -> Acceptor {
        credentials.map_or(Acceptor::Plaintext, |credentials| Acceptor::Tls(credentials, roles))
    }

    /// Takes a connection in, within bounded time.
    ///
    /// # Errors
    /// If the other side does not prove to be one of those who are wanted.
    pub async fn accept(&self, socket: TcpStream) -> Result<Accepted, Rejected> {
        let (credentials, roles) = match self {
            Acceptor::Plaintext => {
                return Ok(Accepted { stream: Stream::Plaintext(socket), identity: None });
            }
            Acceptor::Tls(credentials, roles) => (credentials, roles),
        };
        let (now, following) = credentials.now();
        let stream = timeout(HANDSHAKE, TlsAcceptor::from(now.server.clone()).accept(socket))
            .await
            .map_err(|_| Rejected::Late)?
            .map_err(|error| Rejected::Tls(explain(&error).unwrap_or_else(|| error.to_string())))?
            .into();
        let identity = peer_certificate(&stream).as_ref().and_then(Identity::read);
        if !identity.as_ref().is_some_and(|identity| roles.contains(&identity.role)) {
            let said = identity.map_or_else(|| "nothing of ours".to_owned(), |identity| identity.to_string());
            let wanted = roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(" or ");
            return Err(Rejected::Role { said, wanted });
        }
        let session = TlsSession::new(stream, credentials, following, identity.clone());
        Ok(Accepted { stream: Stream::Tls(Box::new(session)), identity })
    }
}
