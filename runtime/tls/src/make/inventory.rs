//! What a folder of certificates holds, and what it has ever made.

use super::authority::revoked;
use super::{Holder, MakeError, SWITCHES, USERS, read};
use crate::expiry::expiring;
use crate::folder::AUTHORITIES;
use crate::role::{Identity, Role};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use time::OffsetDateTime;
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Every certificate that was made: its serial number and its holder's name, a line each. So all of a holder's can be revoked,
/// those among them that were renewed since.
const ISSUED: &str = "issued";

/// A certificate of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEntry {
    /// Whose it is: `ca`, a role, NODE, users/USER or switches/SWITCH.
    pub name: String,
    /// What it says; `None`: it is a CA's.
    pub identity: Option<Identity>,
    /// From when it is good.
    pub from: OffsetDateTime,
    /// Until when.
    pub until: OffsetDateTime,
    /// Unique among those of its CA.
    pub serial: Vec<u8>,
    /// The name of its CA, as X.509 writes it.
    pub(crate) issuer: Vec<u8>,
    /// Whether it is revoked.
    pub revoked: bool,
}

impl CertificateEntry {
    /// Its serial number, as hexadecimal digits.
    pub fn serial_digits(&self) -> String {
        hexadecimal(&self.serial)
    }

    /// What to say of it: nothing, unless it is revoked or ends soon.
    pub fn state(&self) -> Option<String> {
        match self.revoked {
            true => Some("revoked".to_owned()),
            false => expiring(self.until, OffsetDateTime::now_utc()),
        }
    }

    /// Whose it is, unless a CA's.
    pub(crate) fn holder(&self) -> Option<Holder> {
        Some(Holder { name: self.name.clone(), identity: self.identity.clone()? })
    }
}

/// All certificates of a folder: those of CAs, of roles, then others by name.
///
/// # Errors
/// If a file cannot be read, or holds something else.
pub fn list(folder: &Path) -> Result<Vec<CertificateEntry>, MakeError> {
    let mut all = entries(&folder.join(AUTHORITIES), "ca")?;
    all.iter_mut().for_each(|entry| entry.identity = None);
    for role in Role::ALL {
        all.extend(entries(&folder.join(role.name()).with_extension("pem"), role.name())?);
    }
    for own in folders(folder)? {
        let name = own.strip_prefix(folder).unwrap_or(&own).display().to_string();
        for role in Role::ALL {
            all.extend(entries(&own.join(role.name()).with_extension("pem"), &name)?);
        }
    }
    let revoked = revoked(folder)?;
    all.iter_mut().for_each(|entry| entry.revoked = revoked.contains_key(&entry.serial));
    Ok(all)
}

/// The certificates of a file, if it is there.
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
        reason: "it holds no certificate".to_owned(),
    })
}

/// The folders of those who have one, by name.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>, MakeError> {
    let mut all = Vec::new();
    for within in [folder.to_owned(), folder.join(USERS), folder.join(SWITCHES)] {
        let failed = |error| MakeError::File { path: within.clone(), error };
        let found = match fs::read_dir(&within) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.map_err(failed)?,
        };
        for entry in found {
            let path = entry.map_err(failed)?.path();
            let of_holder =
                Role::ALL.into_iter().any(|role| path.join(role.name()).with_extension("pem").exists());
            if path.is_dir() && of_holder {
                all.push(path);
            }
        }
    }
    all.sort();
    Ok(all)
}

/// Writes down that a certificate was made for a holder.
pub(crate) fn note(folder: &Path, certificate: &[u8], name: &str) -> Result<(), MakeError> {
    let path = folder.join(ISSUED);
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

/// The serial numbers of what was made, and for whom.
pub(crate) fn issued(folder: &Path) -> Result<Vec<(Vec<u8>, String)>, MakeError> {
    let path = folder.join(ISSUED);
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

/// Digits of bytes.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
}
