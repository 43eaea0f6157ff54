//! Who may speak to whom in a deployment: certificates, made by one command ([`make`]) and read from one folder
//! ([`folder`]), and TCP connections that both sides have proved themselves on ([`Acceptor`], [`Connector`]).
//!
//! A certificate says a [`Role`], not an address: the controller may be reached by any name, and an agent's
//! certificate neither starts jobs nor plays the controller. What a role may do is the controller's matter.

pub mod acceptor;
pub mod connector;
pub mod explain;
pub mod folder;
#[cfg(feature = "make")]
pub mod make;
mod options;
pub mod role;
mod service;
pub mod stream;

pub use acceptor::{Accepted, Acceptor, Rejected};
pub use connector::{AddressError, Connector};
pub use folder::{Folder, FolderError};
pub use options::Options;
pub use role::{Identity, Role};
pub use service::{ServiceAddressError, ServiceCertificates};
pub use stream::Stream;

use std::sync::Arc;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

/// The one implementation of cryptography that is built in.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
