//! The CAs of a directory: the one that signs and, during a replacement, the previous one.

use super::{MakeError, params, read, write_file};
use crate::directory::{AUTHORITIES_FILE, REVOKED_FILE};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData, RevokedCertParams, SerialNumber,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};
use x509_parser::pem::Pem;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// Private keys of the current and the previous CA.
const KEY_FILES: [&str; 2] = ["ca.key", "old-ca.key"];
/// Validity of a revocation list. The format requires a date for the next update, but no program
/// rejects an older list.
const LIST_VALIDITY: Duration = Duration::days(3650);

/// A CA and its key.
pub(crate) struct Authority {
    pem: String,
    /// The CA's name, as encoded in the certificates that it signed.
    subject: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// The CAs. The first one signs.
pub(crate) struct Authorities(Authority, Option<Authority>);

impl Authority {
    pub(crate) fn sign(&self, params: &CertificateParams, pair: &KeyPair) -> Result<Certificate, MakeError> {
        Ok(params.signed_by(pair, &self.issuer)?)
    }

    /// Returns whether `issuer` is the name of this CA.
    pub(crate) fn has_issued(&self, issuer: &[u8]) -> bool {
        self.subject == issuer
    }

    /// Creates a CA. Returns it with its private key in PEM.
    fn make(days: u16) -> Result<(Authority, String), MakeError> {
        let pair = KeyPair::generate()?;
        let mut params = params(days, Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Each deployment's CA needs a distinct name. Otherwise a wrong CA would be detected only
        // by its signature, and the error message would mislead.
        let print: String = pair.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("COOL deployment {print}"));
        let pem = params.self_signed(&pair)?.pem();
        let key = pair.serialize_pem();
        let made = Path::new(AUTHORITIES_FILE);
        Ok((Authority::read(made, pem, made, &key)?, key))
    }

    /// Parses the certificate of a CA and its key, which must match.
    fn read(at: &Path, pem: String, key_at: &Path, key: &str) -> Result<Authority, MakeError> {
        let authority_error = |path: &Path| {
            let path = path.to_owned();
            move |error| MakeError::Authority { path, error }
        };
        let wrong = |path: &Path, reason: &str| MakeError::Content {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let pair = KeyPair::from_pem(key).map_err(authority_error(key_at))?;
        let parsed = Pem::iter_from_buffer(pem.as_bytes()).next().and_then(Result::ok);
        let parsed = parsed.ok_or_else(|| wrong(at, "it contains no certificate"))?;
        let (_, certificate) = X509Certificate::from_der(&parsed.contents)
            .map_err(|_| wrong(at, "it contains no certificate"))?;
        if certificate.public_key().subject_public_key.data != pair.der_bytes() {
            return Err(wrong(key_at, "it does not belong to the certificate in ca.pem"));
        }
        let subject = certificate.subject().as_raw().to_vec();
        let issuer = Issuer::from_ca_cert_pem(&pem, pair).map_err(authority_error(at))?;
        Ok(Authority { pem, subject, issuer })
    }
}

impl Authorities {
    /// Loads the CAs of a directory, or creates one if there is none.
    pub(crate) fn open_or_make(
        directory: &Path,
        days: u16,
        written: &mut Vec<PathBuf>,
    ) -> Result<Authorities, MakeError> {
        let (certificate, key) = (directory.join(AUTHORITIES_FILE), directory.join(KEY_FILES[0]));
        if certificate.exists() || key.exists() {
            return Authorities::open(directory);
        }
        let (authority, secret) = Authority::make(days)?;
        write_file(&key, &secret, 0o600, written)?;
        write_file(&certificate, &authority.pem, 0o644, written)?;
        Ok(Authorities(authority, None))
    }

    /// Loads the CAs of a directory.
    pub(crate) fn open(directory: &Path) -> Result<Authorities, MakeError> {
        let path = directory.join(AUTHORITIES_FILE);
        let mut found = blocks(&read(&path)?).into_iter().zip(KEY_FILES).map(|(pem, key)| {
            let key = directory.join(key);
            Authority::read(&path, pem, &key, &read(&key)?)
        });
        let nothing =
            || MakeError::Content { path: path.clone(), reason: "it contains no certificate".to_owned() };
        let first = found.next().ok_or_else(nothing)??;
        Ok(Authorities(first, found.next().transpose()?))
    }

    /// Returns the CA that signs.
    pub(crate) fn first(&self) -> &Authority {
        &self.0
    }

    /// Creates a new CA, which signs from now on. Returns an error if a replacement is in progress.
    pub(crate) fn replace(
        self,
        directory: &Path,
        days: u16,
        written: &mut Vec<PathBuf>,
    ) -> Result<(), MakeError> {
        let Authorities(old, None) = self else { return Err(MakeError::Replacing) };
        let (new, secret) = Authority::make(days)?;
        let [key, old_key] = KEY_FILES.map(|name| directory.join(name));
        write_file(&old_key, &read(&key)?, 0o600, written)?;
        write_file(&key, &secret, 0o600, written)?;
        write_file(&directory.join(AUTHORITIES_FILE), &format!("{}{}", new.pem, old.pem), 0o644, written)?;
        Authorities(new, Some(old)).rewrite(directory)
    }

    /// Removes the certificate and the key of the previous CA. Returns an error if there is none.
    pub(crate) fn drop_old(self, directory: &Path, written: &mut Vec<PathBuf>) -> Result<(), MakeError> {
        let Authorities(first, Some(_)) = self else { return Err(MakeError::Single) };
        write_file(&directory.join(AUTHORITIES_FILE), &first.pem, 0o644, written)?;
        let key = directory.join(KEY_FILES[1]);
        fs::remove_file(&key).map_err(|error| MakeError::File { path: key, error })?;
        Authorities(first, None).rewrite(directory)
    }

    /// Rewrites the revocation lists, if any, so that there is one signed by each remaining CA.
    fn rewrite(&self, directory: &Path) -> Result<(), MakeError> {
        if directory.join(REVOKED_FILE).exists() { self.revoke(directory, &BTreeSet::new()) } else { Ok(()) }
    }

    /// Adds serial numbers to the revoked ones. Every CA's list contains all numbers, because
    /// serial numbers are unique across the CAs of a directory.
    pub(crate) fn revoke(&self, directory: &Path, serials: &BTreeSet<Vec<u8>>) -> Result<(), MakeError> {
        let (now, mut all) = (OffsetDateTime::now_utc(), revoked(directory)?);
        for serial in serials {
            all.entry(serial.clone()).or_insert(now);
        }
        let mut text = String::new();
        for authority in core::iter::once(&self.0).chain(&self.1) {
            let entry = |(serial, since): (&Vec<u8>, &OffsetDateTime)| RevokedCertParams {
                serial_number: SerialNumber::from_slice(serial),
                revocation_time: *since,
                reason_code: None,
                invalidity_date: None,
            };
            let list = CertificateRevocationListParams {
                this_update: now,
                next_update: now + LIST_VALIDITY,
                crl_number: SerialNumber::from(now.unix_timestamp().unsigned_abs()),
                issuing_distribution_point: None,
                revoked_certs: all.iter().map(entry).collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            text += &list.signed_by(&authority.issuer)?.pem()?;
        }
        write_file(&directory.join(REVOKED_FILE), &text, 0o644, &mut Vec::new())
    }
}

/// Returns the revoked serial numbers and the time of each revocation.
pub(crate) fn revoked(directory: &Path) -> Result<BTreeMap<Vec<u8>, OffsetDateTime>, MakeError> {
    let path = directory.join(REVOKED_FILE);
    let mut all = BTreeMap::new();
    if !path.exists() {
        return Ok(all);
    }
    let text = read(&path)?;
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let wrong = |reason: String| MakeError::Content { path: path.clone(), reason };
        let block = block.map_err(|error| wrong(format!("not a PEM file: {error}")))?;
        let parsed = CertificateRevocationList::from_der(&block.contents);
        let (_, list) =
            parsed.map_err(|error| wrong(format!("not a certificate revocation list: {error}")))?;
        let entries = list.iter_revoked_certificates();
        all.extend(entries.map(|entry| (entry.raw_serial().to_vec(), entry.revocation_date.to_datetime())));
    }
    Ok(all)
}

/// Splits a file into its certificates, in PEM.
fn blocks(text: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let whole = text.split_inclusive(END).filter(|block| block.ends_with(END));
    whole.map(|block| format!("{}\n", block.trim())).collect()
}
