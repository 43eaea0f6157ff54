//! `cool certs`: a CA of the deployment's own, and certificates for everybody in it.

use crate::role::{Identity, Role};
use cool_types::{NodeNameError, UserNameError, check_node_name, check_user_name};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Clocks may differ by this much.
const EARLIER: Duration = Duration::days(1);

/// What to make.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// Nodes that get certificates of their own, in `NODE/`, that are good for no other node.
    pub nodes: Vec<String>,
    /// Users whose tools get certificates of their own, in `users/USER/`, by which they ask in no other name.
    pub users: Vec<String>,
    /// How long all is valid.
    pub days: u16,
    /// Make certificates anew that are there; the CA stays.
    pub renew: bool,
}

/// Why certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The CA that is there cannot sign.
    #[error("{}: {error}; remove the folder to begin anew", .path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        error: rcgen::Error,
    },
    /// No certificate can say this name.
    #[error(transparent)]
    Node(#[from] NodeNameError),
    /// Likewise of a user.
    #[error(transparent)]
    User(#[from] UserNameError),
    /// Cryptography failed.
    #[error("cannot make a certificate: {0}")]
    Sign(#[from] rcgen::Error),
}

/// Makes what is missing in `folder` (with `renew` also what is there, except the CA); returns the files written.
///
/// # Errors
/// If a file cannot be read or written, or the name of a node or user is none.
pub fn make(folder: &Path, request: &CertificateRequest) -> Result<Vec<PathBuf>, MakeError> {
    request.nodes.iter().try_for_each(|name| check_node_name(name))?;
    request.users.iter().try_for_each(|name| check_user_name(name))?;
    let mut written = Vec::new();
    create_folder(folder)?;
    let authority = authority(folder, request, &mut written)?;
    for role in Role::ALL {
        leaf(folder, &Identity::of(role), &authority, request, &mut written)?;
    }
    let nodes = request.nodes.iter().map(|node| (folder.join(node), Identity::node(node)));
    let users = request.users.iter().map(|user| (folder.join("users").join(user), Identity::user(user)));
    for (own, identity) in nodes.chain(users) {
        create_folder(&own)?;
        leaf(&own, &identity, &authority, request, &mut written)?;
        let (from, to) = (folder.join("ca.pem"), own.join("ca.pem"));
        fs::copy(&from, &to).map_err(|error| MakeError::File { path: to, error })?;
    }
    Ok(written)
}

fn create_folder(path: &Path) -> Result<(), MakeError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| MakeError::File { path: path.to_owned(), error })
}

/// The CA that is there, or a new one.
fn authority(
    folder: &Path,
    request: &CertificateRequest,
    written: &mut Vec<PathBuf>,
) -> Result<Issuer<'static, KeyPair>, MakeError> {
    let (certificate, key) = (folder.join("ca.pem"), folder.join("ca.key"));
    if certificate.exists() || key.exists() {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|error| MakeError::File { path: path.to_owned(), error })
        };
        let pair = KeyPair::from_pem(&read(&key)?);
        let pair = pair.map_err(|error| MakeError::Authority { path: key.clone(), error })?;
        let issuer = Issuer::from_ca_cert_pem(&read(&certificate)?, pair);
        return issuer.map_err(|error| MakeError::Authority { path: certificate, error });
    }
    let pair = KeyPair::generate()?;
    let mut params = params(request, Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Two deployments' CAs must not look alike, or the wrong one would only be noticed by its signature.
    let print: String = pair.public_key_raw().iter().rev().take(4).map(|b| format!("{b:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("COOL deployment {print}"));
    let signed = params.self_signed(&pair)?;
    put(&key, &pair.serialize_pem(), 0o600, written)?;
    put(&certificate, &signed.pem(), 0o644, written)?;
    Ok(Issuer::new(params, pair))
}

/// A certificate and its key, unless they are there.
fn leaf(
    folder: &Path,
    identity: &Identity,
    authority: &Issuer<'_, KeyPair>,
    request: &CertificateRequest,
    written: &mut Vec<PathBuf>,
) -> Result<(), MakeError> {
    let name = identity.role.name();
    let (certificate, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    if certificate.exists() && key.exists() && !request.renew {
        return Ok(());
    }
    let pair = KeyPair::generate()?;
    let mut params = params(request, vec![identity.dns_name()])?;
    params.distinguished_name.push(DnType::CommonName, identity.to_string());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match identity.role {
        Role::Controller => ExtendedKeyUsagePurpose::ServerAuth,
        Role::Agent | Role::Tool | Role::Switch => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    params.use_authority_key_identifier_extension = true;
    let signed = params.signed_by(&pair, authority)?;
    put(&key, &pair.serialize_pem(), 0o600, written)?;
    put(&certificate, &signed.pem(), 0o644, written)
}

fn params(request: &CertificateRequest, names: Vec<String>) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::new(names)?;
    let now = OffsetDateTime::now_utc();
    params.not_before = now - EARLIER;
    // A second less, so that what is valid for no day has ended.
    params.not_after = now + Duration::days(request.days.into()) - Duration::SECOND;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

/// Writes a file whole or not at all.
fn put(path: &Path, text: &str, mode: u32, written: &mut Vec<PathBuf>) -> Result<(), MakeError> {
    let beside = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| MakeError::File { path: path.to_owned(), error })?;
    written.push(path.to_owned());
    Ok(())
}
