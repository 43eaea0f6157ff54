//! Authentication within a deployment.
//!
//! One command creates all certificates ([`make`]). Programs load them from a directory and reload
//! them when they change ([`credentials`]). Both sides of a TCP connection present a certificate
//! ([`Acceptor`], [`Connector`]).
//!
//! A certificate names a [`Role`], and may name a node, a user or a switch. It does not name a
//! host, because the controller may be reached under any name. An agent's certificate can neither
//! start jobs nor serve as the controller. The controller decides which calls a role may make.

pub mod acceptor;
mod addresses;
pub mod connector;
pub mod credentials;
pub mod directory;
pub mod expiry;
pub mod explain;
#[cfg(feature = "make")]
pub mod make;
mod material;
mod options;
pub mod role;
mod service;
pub mod stream;

pub use acceptor::{AcceptedConnection, Acceptor, RejectedConnection};
pub use connector::{AddressError, Connector};
pub use credentials::{CertifiedPeer, Credentials};
pub use directory::{CertificateDir, CertificateDirError};
pub use expiry::{Expiry, expiring};
pub use options::Options;
pub use role::{Identity, Role};
pub use service::{ServiceAddressError, ServiceCertificates, ServiceConnector, ServiceStream};
pub use stream::{MaybeTlsStream, TlsSession};

use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// Returns the only cryptography provider that is built in.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
