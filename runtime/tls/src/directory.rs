//! A directory of certificates, as created by `cool certs`. It contains `ca.pem`, a certificate and
//! a key for each role, and `revoked.pem` once a certificate has been revoked.

use crate::role::Role;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Certificates of the CAs. The first CA signs new certificates.
pub(crate) const AUTHORITIES_FILE: &str = "ca.pem";
/// Certificate revocation lists, one for each CA.
pub(crate) const REVOKED_FILE: &str = "revoked.pem";

/// A directory with `ca.pem` and the certificate of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateDir {
    path: PathBuf,
    role: Role,
}

/// The reasons why certificates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateDirError {
    /// A file cannot be read.
    #[error(
        "cannot read {}: {reason}; make certificates with `cool certs`, name their directory with --certs, or connect \
         without TLS with --insecure-plaintext",
        .path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file belongs to another user.
    #[error(
        "cannot read {}: permission denied; run as the owner of this file, or get a certificate of your own (`cool certs \
         DIR --user NAME`) and name its directory with --certs or COOL_CERTS",
        .path.display()
    )]
    Denied {
        /// The file.
        path: PathBuf,
    },
    /// A file has invalid content.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
}

/// Metadata of a directory's files. It changes if a file is rewritten, replaced or linked to
/// another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirStamp(Vec<Option<FileStamp>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl CertificateDir {
    /// Returns the directory at `path`, from which a program with this role reads its certificate.
    pub fn new(path: impl Into<PathBuf>, role: Role) -> CertificateDir {
        CertificateDir { path: path.into(), role }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the role that the program presents.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the current metadata of the files.
    pub(crate) fn stamp(&self) -> DirStamp {
        let files = [AUTHORITIES_FILE.to_owned(), REVOKED_FILE.to_owned(), self.own("pem"), self.own("key")];
        let stamp = |file: &String| {
            let metadata = fs::metadata(self.path.join(file)).ok()?;
            Some(FileStamp {
                device: metadata.dev(),
                inode: metadata.ino(),
                bytes: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
            })
        };
        DirStamp(files.iter().map(stamp).collect())
    }

    fn own(&self, extension: &str) -> String {
        format!("{}.{extension}", self.role.name())
    }

    /// Reads the certificates of the CAs.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, CertificateDirError> {
        certificates(self.path.join(AUTHORITIES_FILE))
    }

    /// Reads the certificate of the role, followed by any intermediate certificates.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, CertificateDirError> {
        certificates(self.path.join(self.own("pem")))
    }

    /// Reads the private key of the role.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, CertificateDirError> {
        let path = self.path.join(self.own("key"));
        PrivateKeyDer::from_pem_file(&path).map_err(|error| unreadable(path, error))
    }

    /// Reads the certificate revocation lists. Returns an empty list if the file does not exist.
    pub(crate) fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateDirError> {
        let path = self.path.join(REVOKED_FILE);
        let read = || CertificateRevocationListDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
        match read() {
            Ok(lists) if lists.is_empty() => Err(CertificateDirError::Content {
                path,
                reason: "it contains no certificate revocation list".to_owned(),
            }),
            Ok(lists) => Ok(lists),
            Err(PemError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(unreadable(path, error)),
        }
    }

    /// Returns an error about one of the files.
    pub(crate) fn file_error(&self, file: &str, reason: String) -> CertificateDirError {
        CertificateDirError::Content { path: self.path.join(file), reason }
    }

    /// Returns an error about the certificate or the key of the role.
    pub(crate) fn own_error(&self, reason: String) -> CertificateDirError {
        self.file_error(&self.own("pem"), reason)
    }
}

fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, CertificateDirError> {
    let read = || CertificateDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => {
            Err(CertificateDirError::Content { path, reason: "it contains no certificate".to_owned() })
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(path, error)),
    }
}

fn unreadable(path: PathBuf, error: PemError) -> CertificateDirError {
    match error {
        PemError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            CertificateDirError::Denied { path }
        }
        PemError::Io(error) => CertificateDirError::Read { path, reason: error.to_string() },
        PemError::NoItemsFound => CertificateDirError::Content {
            path,
            reason: "it contains neither a certificate nor a key".to_owned(),
        },
        other => CertificateDirError::Content { path, reason: format!("not a PEM file: {other}") },
    }
}
