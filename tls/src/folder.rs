//! A folder of certificates as `cool certs` makes it: `ca.pem`, and for each role a certificate and its key.

use crate::role::Role;
use crate::{explain, provider};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A folder that holds `ca.pem` and what one role shows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
    role: Role,
}

/// Why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be read.
    #[error(
        "cannot read {}: {reason}; make certificates with `cool certs`, name their folder with --certs, or do without \
         by --insecure-plaintext",
        .path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file holds something else.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Folder {
    /// The folder at `path`, as `role` uses it.
    pub fn new(path: impl Into<PathBuf>, role: Role) -> Folder {
        Folder { path: path.into(), role }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str, extension: &str) -> PathBuf {
        self.path.join(format!("{name}.{extension}"))
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, FolderError> {
        certificates(self.file(name, "pem"))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, FolderError> {
        key(self.file(self.role.name(), "key"))
    }

    fn authority(&self) -> Result<Arc<RootCertStore>, FolderError> {
        authority(self.file("ca", "pem"))
    }

    fn unusable(&self, name: &str, error: &(dyn std::error::Error + 'static)) -> FolderError {
        unusable(self.file(name, "pem"), error)
    }

    /// For the side that listens: shows the role's certificate, and wants one of the same CA.
    pub(crate) fn server(&self) -> Result<ServerConfig, FolderError> {
        let verifier: Arc<dyn ClientCertVerifier> =
            WebPkiClientVerifier::builder_with_provider(self.authority()?, provider())
                .build()
                .map_err(|error| self.unusable("ca", &error))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unusable("ca", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.certificates(self.role.name())?, self.key()?)
            .map_err(|error| self.unusable(self.role.name(), &error))?;
        Ok(config)
    }

    /// For the side that connects: likewise.
    pub(crate) fn client(&self) -> Result<ClientConfig, FolderError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unusable("ca", &error))?
            .with_root_certificates(self.authority()?)
            .with_client_auth_cert(self.certificates(self.role.name())?, self.key()?)
            .map_err(|error| self.unusable(self.role.name(), &error))?;
        Ok(config)
    }
}

/// The certificates in a file, at least one.
pub(crate) fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, FolderError> {
    let read = || CertificateDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => {
            Err(FolderError::Content { path, reason: "it holds no certificate".to_owned() })
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(path, error)),
    }
}

/// The private key in a file.
pub(crate) fn key(path: PathBuf) -> Result<PrivateKeyDer<'static>, FolderError> {
    PrivateKeyDer::from_pem_file(&path).map_err(|error| unreadable(path, error))
}

/// Those whose certificates are in a file are believed.
pub(crate) fn authority(path: PathBuf) -> Result<Arc<RootCertStore>, FolderError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path.clone())? {
        roots.add(certificate).map_err(|error| unusable(path.clone(), &error))?;
    }
    Ok(Arc::new(roots))
}

/// What a file holds cannot be used.
pub(crate) fn unusable(path: PathBuf, error: &(dyn std::error::Error + 'static)) -> FolderError {
    let reason = explain::explain(error).unwrap_or_else(|| error.to_string());
    FolderError::Content { path, reason }
}

fn unreadable(path: PathBuf, error: PemError) -> FolderError {
    match error {
        PemError::Io(error) => FolderError::Read { path, reason: error.to_string() },
        PemError::NoItemsFound => {
            FolderError::Content { path, reason: "it holds neither certificate nor key".to_owned() }
        }
        other => FolderError::Content { path, reason: format!("no PEM file: {other}") },
    }
}
