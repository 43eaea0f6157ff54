//! Lists the certificates in a directory, and records every certificate that was ever issued there.

use super::authority::revoked;
use super::{CertificateHolder, MakeError, SWITCHES_DIR, USERS_DIR, read};
use crate::directory::AUTHORITIES_FILE;
use crate::expiry::expiring;
use crate::role::{Identity, Role};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// File with the serial number and the holder of every certificate that was issued, one per line.
/// Revoking a holder must include earlier certificates that have been replaced since.
const ISSUED_FILE: &str = "issued";

/// A certificate in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEntry {
    /// Name of the holder: `ca`, a role, NODE, users/USER or switches/SWITCH.
    pub name: String,
    /// The identity in the certificate. `None` for a CA.
    pub identity: Option<Identity>,
    /// Start of its validity.
    pub from: OffsetDateTime,
    /// End of its validity.
    pub until: OffsetDateTime,
    /// Serial number, unique within its CA.
    pub serial: Vec<u8>,
    /// Name of its CA, in DER.
    pub(crate) issuer: Vec<u8>,
    /// Whether it is revoked.
    pub revoked: bool,
}

impl CertificateEntry {
    /// Returns the serial number in hexadecimal.
    pub fn serial_digits(&self) -> String {
        hexadecimal(&self.serial)
    }

    /// Returns a text if the certificate is revoked, has expired or expires soon, otherwise `None`.
    pub fn state(&self) -> Option<String> {
        match self.revoked {
            true => Some("revoked".to_owned()),
            false => expiring(self.until, OffsetDateTime::now_utc()),
        }
    }

    /// Returns the holder, or `None` for a CA.
    pub(crate) fn holder(&self) -> Option<CertificateHolder> {
        Some(CertificateHolder { name: self.name.clone(), identity: self.identity.clone()? })
    }
}

/// Lists all certificates of a directory: first CAs, then roles, then others by name.
///
/// # Errors
/// Returns an error if a file cannot be read or has invalid content.
pub fn list(directory: &Path) -> Result<Vec<CertificateEntry>, MakeError> {
    let mut all = entries(&directory.join(AUTHORITIES_FILE), "ca")?;
    all.iter_mut().for_each(|entry| entry.identity = None);
    for role in Role::ALL {
        all.extend(entries(&directory.join(role.name()).with_extension("pem"), role.name())?);
    }
    for own in directories(directory)? {
        let name = own.strip_prefix(directory).unwrap_or(&own).display().to_string();
        for role in Role::ALL {
            all.extend(entries(&own.join(role.name()).with_extension("pem"), &name)?);
        }
    }
    let revoked = revoked(directory)?;
    all.iter_mut().for_each(|entry| entry.revoked = revoked.contains_key(&entry.serial));
    Ok(all)
}

/// Returns the certificates in a file, or none if it does not exist.
fn entries(path: &Path, name: &str) -> Result<Vec<CertificateEntry>, MakeError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = read(path)?;
    let entry = |block: Result<Pem, _>| {
        let contents = block.ok()?.contents;
        let (_, certificate) = X509Certificate::from_der(&contents).ok()?;
        let validity = certificate.validity();
        Some(CertificateEntry {
            name: name.to_owned(),
            from: validity.not_before.to_datetime(),
            until: validity.not_after.to_datetime(),
            serial: certificate.raw_serial().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            revoked: false,
            identity: Identity::read(&CertificateDer::from(contents.clone())),
        })
    };
    let all: Option<Vec<CertificateEntry>> = Pem::iter_from_buffer(text.as_bytes()).map(entry).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(|| MakeError::Content {
        path: path.to_owned(),
        reason: "it contains no certificate".to_owned(),
    })
}

/// Returns the subdirectories of holders that have their own, sorted by name.
pub(crate) fn directories(directory: &Path) -> Result<Vec<PathBuf>, MakeError> {
    let mut all = Vec::new();
    for within in [directory.to_owned(), directory.join(USERS_DIR), directory.join(SWITCHES_DIR)] {
        let failed = |error| MakeError::File { path: within.clone(), error };
        let found = match fs::read_dir(&within) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.map_err(failed)?,
        };
        for entry in found {
            let path = entry.map_err(failed)?.path();
            let has_certificate =
                Role::ALL.into_iter().any(|role| path.join(role.name()).with_extension("pem").exists());
            if path.is_dir() && has_certificate {
                all.push(path);
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Records that a certificate was issued to a holder.
pub(crate) fn record(directory: &Path, certificate: &[u8], name: &str) -> Result<(), MakeError> {
    let path = directory.join(ISSUED_FILE);
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    let serial = hexadecimal(parsed.raw_serial());
    let write = || {
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        writeln!(file, "{serial} {name}")?;
        file.sync_all()
    };
    write().map_err(|error| MakeError::File { path: path.clone(), error })
}

/// Returns the serial number and the holder of every certificate that was issued.
pub(crate) fn issued(directory: &Path) -> Result<Vec<(Vec<u8>, String)>, MakeError> {
    let path = directory.join(ISSUED_FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let line = |line: &str| {
        let (serial, name) = line.split_once(' ')?;
        Some((bytes(serial)?, name.to_owned()))
    };
    let text = read(&path)?;
    let all: Option<Vec<_>> = text.lines().map(line).collect();
    let wrong = || "a line is not a serial number and a name".to_owned();
    all.ok_or_else(|| MakeError::Content { path, reason: wrong() })
}

/// Formats bytes in hexadecimal.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}
