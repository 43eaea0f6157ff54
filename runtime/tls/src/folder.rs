//! A folder of certificates as `cool certs` makes it: `ca.pem`, for each role a certificate and its key, and `revoked.pem` once a
//! certificate has been revoked.

use crate::role::Role;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// The certificates of the CAs, of which the first one signs.
pub(crate) const AUTHORITIES: &str = "ca.pem";
/// What the CAs have revoked: a list of each.
pub(crate) const REVOKED: &str = "revoked.pem";

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

/// How the files of a folder look from outside: a file that was written anew, replaced or linked to another looks different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<FileStamp>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    written: (i64, i64),
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

    /// Whose certificate it is that is shown.
    pub fn role(&self) -> Role {
        self.role
    }

    /// How its files look now.
    pub(crate) fn stamp(&self) -> Stamp {
        let files = [AUTHORITIES.to_owned(), REVOKED.to_owned(), self.own("pem"), self.own("key")];
        let look = |file: &String| {
            let found = fs::metadata(self.path.join(file)).ok()?;
            Some(FileStamp {
                device: found.dev(),
                inode: found.ino(),
                bytes: found.size(),
                written: (found.mtime(), found.mtime_nsec()),
            })
        };
        Stamp(files.iter().map(look).collect())
    }

    fn own(&self, extension: &str) -> String {
        format!("{}.{extension}", self.role.name())
    }

    /// The certificates of the CAs.
    pub(crate) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, FolderError> {
        certificates(self.path.join(AUTHORITIES))
    }

    /// The certificate of the role, with what leads to its CA if that is more.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, FolderError> {
        certificates(self.path.join(self.own("pem")))
    }

    /// Its key.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, FolderError> {
        let path = self.path.join(self.own("key"));
        PrivateKeyDer::from_pem_file(&path).map_err(|error| unreadable(path, error))
    }

    /// The lists of what is revoked; none if there is no such file.
    pub(crate) fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, FolderError> {
        let path = self.path.join(REVOKED);
        let read = || CertificateRevocationListDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
        match read() {
            Ok(lists) if lists.is_empty() => Err(FolderError::Content {
                path,
                reason: "it holds no list of revoked certificates".to_owned(),
            }),
            Ok(lists) => Ok(lists),
            Err(PemError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(unreadable(path, error)),
        }
    }

    /// What is wrong with one of its files.
    pub(crate) fn unusable(&self, file: &str, reason: String) -> FolderError {
        FolderError::Content { path: self.path.join(file), reason }
    }

    /// What is wrong with the certificate of the role or its key.
    pub(crate) fn own_unusable(&self, reason: String) -> FolderError {
        self.unusable(&self.own("pem"), reason)
    }
}

fn certificates(path: PathBuf) -> Result<Vec<CertificateDer<'static>>, FolderError> {
    let read = || CertificateDer::pem_file_iter(&path)?.collect::<Result<Vec<_>, _>>();
    match read() {
        Ok(certificates) if certificates.is_empty() => {
            Err(FolderError::Content { path, reason: "it holds no certificate".to_owned() })
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(path, error)),
    }
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
