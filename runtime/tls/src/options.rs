//! Command-line flags that select TLS or plain text. All programs have them.

use crate::credentials::Credentials;
use crate::directory::{CertificateDir, CertificateDirError};
use crate::role::Role;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// How connections are secured.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Directory with this deployment's certificates, made by `cool certs`
    #[arg(long, env = "COOL_CERTS", value_name = "DIR", default_value = "/etc/cool/certs", global = true)]
    pub certs: PathBuf,

    /// Connect without TLS: anyone on the network can then read and forge messages and start
    /// programs
    #[arg(long, env = "COOL_INSECURE_PLAINTEXT", global = true, value_parser = FalseyValueParser::new())]
    pub insecure_plaintext: bool,
}

impl Options {
    /// Opens the certificates of `role`. Returns `None` for plain text. Must be called within a
    /// Tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the certificates cannot be used.
    pub fn credentials(&self, role: Role) -> Result<Option<Credentials>, CertificateDirError> {
        (!self.insecure_plaintext)
            .then(|| Credentials::open(CertificateDir::new(&self.certs, role)))
            .transpose()
    }
}
