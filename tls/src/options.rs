//! The flags by which every program chooses between TLS and plain text.

use crate::acceptor::Acceptor;
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
    /// The folder as `role` uses it; `None` for plain text.
    pub fn folder(&self, role: Role) -> Option<Folder> {
        (!self.insecure_plaintext).then(|| Folder::new(&self.certs, role))
    }

    /// Takes connections of those who have one of `roles`.
    ///
    /// # Errors
    /// If the certificates cannot be used.
    pub fn acceptor(&self, roles: &'static [Role]) -> Result<Acceptor, FolderError> {
        match self.folder(Role::Controller) {
            Some(folder) => Acceptor::tls(&folder, roles),
            None => Ok(Acceptor::Plaintext),
        }
    }
}
