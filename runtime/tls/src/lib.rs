//! Who may speak to whom in a deployment: certificates, made by one command ([`make`]), read from one folder and read again when
//! they change ([`credentials`]), and TCP connections that both sides have proved themselves on ([`Acceptor`], [`Connector`]).
//!
//! A certificate says a [`Role`], and perhaps which node, user or switch its holder is, not where: the controller may be reached by
//! any name, and an agent's certificate neither starts jobs nor plays the controller. What a role may do is the controller's matter.

pub mod acceptor;
mod addresses;
pub mod connector;
pub mod credentials;
pub mod expiry;
pub mod explain;
pub mod folder;
#[cfg(feature = "make")]
pub mod make;
mod material;
mod options;
pub mod role;
mod service;
pub mod stream;

pub use acceptor::{Accepted, Acceptor, Rejected};
pub use connector::{AddressError, Connector};
pub use credentials::{CertifiedPeer, Credentials};
pub use expiry::{Expiry, expiring};
pub use folder::{Folder, FolderError};
pub use options::Options;
pub use role::{Identity, Role};
pub use service::{ServiceAddressError, ServiceCertificates, ServiceConnector, ServiceStream};
pub use stream::{Stream, TlsSession};

use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// The one implementation of cryptography that is built in.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
