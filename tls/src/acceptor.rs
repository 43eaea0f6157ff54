//! The side that listens: turns a TCP connection into one whose other side has proved who it is.

use crate::explain::explain;
use crate::folder::{Folder, FolderError};
use crate::role::{Identity, Role};
use crate::stream::Stream;
use core::time::Duration;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// How long the other side may take to prove itself.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Takes connections in.
#[derive(Clone)]
pub enum Acceptor {
    /// Without TLS: everybody is welcome.
    Plaintext,
    /// With TLS: holders of certificates of our CA that say one of the roles.
    Tls(TlsAcceptor, &'static [Role]),
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Acceptor::Plaintext => f.write_str("Plaintext"),
            Acceptor::Tls(_, roles) => f.debug_tuple("Tls").field(roles).finish(),
        }
    }
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
    /// TLS with what is in `folder`, for holders of `roles`.
    ///
    /// # Errors
    /// If the certificates cannot be used.
    pub fn tls(folder: &Folder, roles: &'static [Role]) -> Result<Acceptor, FolderError> {
        let mut config = folder.server()?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Acceptor::Tls(TlsAcceptor::from(Arc::new(config)), roles))
    }

    /// Takes a connection in, within bounded time.
    ///
    /// # Errors
    /// If the other side does not prove to be one of those who are wanted.
    pub async fn accept(&self, socket: TcpStream) -> Result<Accepted, Rejected> {
        let (acceptor, roles) = match self {
            Acceptor::Plaintext => {
                return Ok(Accepted { stream: Stream::Plaintext(socket), identity: None });
            }
            Acceptor::Tls(acceptor, roles) => (acceptor, roles),
        };
        let stream = timeout(HANDSHAKE, acceptor.accept(socket))
            .await
            .map_err(|_| Rejected::Late)?
            .map_err(|error| Rejected::Tls(explain(&error).unwrap_or_else(|| error.to_string())))?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let identity = certificate.and_then(Identity::read);
        if !identity.as_ref().is_some_and(|identity| roles.contains(&identity.role)) {
            let said = identity.map_or_else(|| "nothing of ours".to_owned(), |identity| identity.to_string());
            let wanted = roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(" or ");
            return Err(Rejected::Role { said, wanted });
        }
        Ok(Accepted { stream: Stream::Tls(Box::new(stream.into())), identity })
    }
}
