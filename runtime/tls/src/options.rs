//! The flags by which every program chooses between TLS and plain text.

use crate::credentials::Credentials;
use crate::folder::{Folder, FolderError};
use crate::role::Role;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// How connections are secured.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// Folder of this deployment's certificates, made by `cool certs`
    #[arg(long, env = "COOL_CERTS", value_name = "DIR", default_value = "/etc/cool/certs", global = true)]
    pub certs: PathBuf,

    /// Connect without TLS: whoever reaches the network can read, forge and start programs
    #[arg(long, env = "COOL_INSECURE_PLAINTEXT", global = true, value_parser = FalseyValueParser::new())]
    pub insecure_plaintext: bool,
}

impl Options {
    /// The certificates as `role` uses them; `None` for plain text. To be called within a Tokio runtime.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn credentials(&self, role: Role) -> Result<Option<Credentials>, FolderError> {
        (!self.insecure_plaintext).then(|| Credentials::open(Folder::new(&self.certs, role))).transpose()
    }
}
