//! The CAs of a folder: the one that signs, and while it replaces another, that one too.

use super::{MakeError, params, put, read};
use crate::folder::{AUTHORITIES, REVOKED};
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

/// The key that signs, and that of the CA before.
const KEYS: [&str; 2] = ["ca.key", "old-ca.key"];
/// By when a list is to be replaced by a later one, which every list has to say; nothing refuses an older one.
const LIST_LASTS: Duration = Duration::days(3650);

/// A CA with its key.
pub(crate) struct Authority {
    pem: String,
    /// Its name, as certificates that it has signed have it.
    subject: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// The CAs, the one that signs first.
pub(crate) struct Authorities(Authority, Option<Authority>);

impl Authority {
    pub(crate) fn sign(&self, params: &CertificateParams, pair: &KeyPair) -> Result<Certificate, MakeError> {
        Ok(params.signed_by(pair, &self.issuer)?)
    }

    /// Whether certificates with an issuer of this name are its.
    pub(crate) fn has_issued(&self, issuer: &[u8]) -> bool {
        self.subject == issuer
    }

    /// A new one; the key's text beside it.
    fn make(days: u16) -> Result<(Authority, String), MakeError> {
        let pair = KeyPair::generate()?;
        let mut params = params(days, Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Two deployments' CAs must not look alike, or the wrong one would only be noticed by its signature.
        let print: String = pair.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("COOL deployment {print}"));
        let pem = params.self_signed(&pair)?.pem();
        let key = pair.serialize_pem();
        let made = Path::new(AUTHORITIES);
        Ok((Authority::read(made, pem, made, &key)?, key))
    }

    /// The certificate of a CA and its key, which must be of each other.
    fn read(at: &Path, pem: String, key_at: &Path, key: &str) -> Result<Authority, MakeError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |error| MakeError::Authority { path, error }
        };
        let wrong = |path: &Path, reason: &str| MakeError::Content {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let pair = KeyPair::from_pem(key).map_err(unusable(key_at))?;
        let parsed = Pem::iter_from_buffer(pem.as_bytes()).next().and_then(Result::ok);
        let parsed = parsed.ok_or_else(|| wrong(at, "it holds no certificate"))?;
        let (_, certificate) =
            X509Certificate::from_der(&parsed.contents).map_err(|_| wrong(at, "it holds no certificate"))?;
        if certificate.public_key().subject_public_key.data != pair.der_bytes() {
            return Err(wrong(key_at, "it is not the key of the certificate in ca.pem"));
        }
        let subject = certificate.subject().as_raw().to_vec();
        let issuer = Issuer::from_ca_cert_pem(&pem, pair).map_err(unusable(at))?;
        Ok(Authority { pem, subject, issuer })
    }
}

impl Authorities {
    /// Those of a folder; a new one if there is none.
    pub(crate) fn open_or_make(
        folder: &Path,
        days: u16,
        written: &mut Vec<PathBuf>,
    ) -> Result<Authorities, MakeError> {
        let (certificate, key) = (folder.join(AUTHORITIES), folder.join(KEYS[0]));
        if certificate.exists() || key.exists() {
            return Authorities::open(folder);
        }
        let (authority, secret) = Authority::make(days)?;
        put(&key, &secret, 0o600, written)?;
        put(&certificate, &authority.pem, 0o644, written)?;
        Ok(Authorities(authority, None))
    }

    /// Those of a folder.
    pub(crate) fn open(folder: &Path) -> Result<Authorities, MakeError> {
        let path = folder.join(AUTHORITIES);
        let mut found = blocks(&read(&path)?).into_iter().zip(KEYS).map(|(pem, key)| {
            let key = folder.join(key);
            Authority::read(&path, pem, &key, &read(&key)?)
        });
        let nothing =
            || MakeError::Content { path: path.clone(), reason: "it holds no certificate".to_owned() };
        let first = found.next().ok_or_else(nothing)??;
        Ok(Authorities(first, found.next().transpose()?))
    }

    /// The one that signs.
    pub(crate) fn first(&self) -> &Authority {
        &self.0
    }

    /// Makes a new one, which signs from now on.
    pub(crate) fn replace(
        self,
        folder: &Path,
        days: u16,
        written: &mut Vec<PathBuf>,
    ) -> Result<(), MakeError> {
        let Authorities(old, None) = self else { return Err(MakeError::Replacing) };
        let (new, secret) = Authority::make(days)?;
        let [key, old_key] = KEYS.map(|name| folder.join(name));
        put(&old_key, &read(&key)?, 0o600, written)?;
        put(&key, &secret, 0o600, written)?;
        put(&folder.join(AUTHORITIES), &format!("{}{}", new.pem, old.pem), 0o644, written)?;
        Authorities(new, Some(old)).rewrite(folder)
    }

    /// Forgets the old one.
    pub(crate) fn drop_old(self, folder: &Path, written: &mut Vec<PathBuf>) -> Result<(), MakeError> {
        let Authorities(first, Some(_)) = self else { return Err(MakeError::Single) };
        put(&folder.join(AUTHORITIES), &first.pem, 0o644, written)?;
        let key = folder.join(KEYS[1]);
        fs::remove_file(&key).map_err(|error| MakeError::File { path: key, error })?;
        Authorities(first, None).rewrite(folder)
    }

    /// Makes the lists anew if there are any, each signed by a CA that is there.
    fn rewrite(&self, folder: &Path) -> Result<(), MakeError> {
        if folder.join(REVOKED).exists() { self.revoke(folder, &BTreeSet::new()) } else { Ok(()) }
    }

    /// Adds these serial numbers to what is revoked. Numbers are those of one certificate whichever CA has signed it, so every
    /// CA's list has all of them.
    pub(crate) fn revoke(&self, folder: &Path, serials: &BTreeSet<Vec<u8>>) -> Result<(), MakeError> {
        let (now, mut all) = (OffsetDateTime::now_utc(), revoked(folder)?);
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
                next_update: now + LIST_LASTS,
                crl_number: SerialNumber::from(now.unix_timestamp().unsigned_abs()),
                issuing_distribution_point: None,
                revoked_certs: all.iter().map(entry).collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            text += &list.signed_by(&authority.issuer)?.pem()?;
        }
        put(&folder.join(REVOKED), &text, 0o644, &mut Vec::new())
    }
}

/// The serial numbers of what is revoked, and since when.
pub(crate) fn revoked(folder: &Path) -> Result<BTreeMap<Vec<u8>, OffsetDateTime>, MakeError> {
    let path = folder.join(REVOKED);
    let mut all = BTreeMap::new();
    if !path.exists() {
        return Ok(all);
    }
    let text = read(&path)?;
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let wrong = |reason: String| MakeError::Content { path: path.clone(), reason };
        let block = block.map_err(|error| wrong(format!("no PEM file: {error}")))?;
        let parsed = CertificateRevocationList::from_der(&block.contents);
        let (_, list) = parsed.map_err(|error| wrong(format!("no list of revoked certificates: {error}")))?;
        let entries = list.iter_revoked_certificates();
        all.extend(entries.map(|entry| (entry.raw_serial().to_vec(), entry.revocation_date.to_datetime())));
    }
    Ok(all)
}

/// The certificates of a file, each as it is written there.
fn blocks(text: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let whole = text.split_inclusive(END).filter(|block| block.ends_with(END));
    whole.map(|block| format!("{}\n", block.trim())).collect()
}
