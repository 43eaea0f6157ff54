//! Creates the certificates of a deployment in one directory.
//!
//! A directory has its own CA, and a key and a certificate for each role, node, user and switch.
//! This module also lists and revokes certificates, and replaces the CA.

mod authority;
mod inventory;

pub use inventory::{CertificateEntry, list};

use crate::directory::{AUTHORITIES_FILE, REVOKED_FILE};
use crate::role::{Identity, Role};
use authority::{Authorities, Authority};
use cool_types::{NodeNameError, UserNameError, check_node_name, check_user_name};
use inventory::{issued, record};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Permitted difference between the clocks of two machines.
const CLOCK_SKEW: Duration = Duration::days(1);
/// Subdirectories for users and switches. A node's subdirectory has the node's name.
const USERS_DIR: &str = "users";
const SWITCHES_DIR: &str = "switches";

/// The holder of a certificate, and where its files are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateHolder {
    /// Name of the holder within the directory: a role, NODE, users/USER or switches/SWITCH.
    pub name: String,
    /// The identity in its certificate.
    pub identity: Identity,
}

/// The certificates to create.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// Holders that get their own certificates, in addition to the roles. Each has its own
    /// subdirectory.
    pub holders: Vec<CertificateHolder>,
    /// Validity of new certificates, in days.
    pub days: u16,
    /// Whether to renew all existing certificates except that of the CA.
    pub renew: bool,
}

/// The reasons why certificates could not be created.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file has invalid content.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The existing CA cannot sign.
    #[error("{}: {error}; remove the directory to start over", .path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: rcgen::Error,
    },
    /// The node's name cannot be encoded in a certificate.
    #[error(transparent)]
    Node(#[from] NodeNameError),
    /// The user's name cannot be encoded in a certificate.
    #[error(transparent)]
    User(#[from] UserNameError),
    /// The name is used for other files of the directory.
    #[error("a node cannot be called {0}: the directory uses that name for other files")]
    Reserved(String),
    /// There is no certificate to revoke.
    #[error("no certificate for {0} was made in this directory; --list shows the names")]
    Unknown(String),
    /// A replacement of the CA is already in progress.
    #[error("ca.pem already contains two CAs; finish that replacement with --drop-old-ca first")]
    Replacing,
    /// No replacement of the CA is in progress.
    #[error("ca.pem contains one CA, and no older one to drop")]
    Single,
    /// A certificate is still signed by the previous CA.
    #[error("the certificate of {0} is still signed by the old CA; renew it with --renew first")]
    InUse(String),
    /// A cryptographic operation failed.
    #[error("cannot make a certificate: {0}")]
    Sign(#[from] rcgen::Error),
}

impl CertificateHolder {
    /// Returns the holder of a role's shared certificate.
    pub fn role(role: Role) -> CertificateHolder {
        CertificateHolder { name: role.name().to_owned(), identity: Identity::for_role(role) }
    }

    /// Returns the holder for the agent of one node. If `addresses` is not empty, the certificate
    /// is valid for these addresses only.
    pub fn node(name: &str, addresses: Vec<IpAddr>) -> CertificateHolder {
        CertificateHolder { name: name.to_owned(), identity: Identity::node(name, addresses) }
    }

    /// Returns the holder for the tools of one user. They can make calls on behalf of that user
    /// only.
    pub fn user(name: &str) -> CertificateHolder {
        CertificateHolder { name: format!("{USERS_DIR}/{name}"), identity: Identity::user(name) }
    }

    /// Returns the holder for a switch. The certificate is valid for these datapath ids only.
    pub fn switch(name: &str, datapaths: Vec<u64>) -> CertificateHolder {
        CertificateHolder { name: format!("{SWITCHES_DIR}/{name}"), identity: Identity::switch(datapaths) }
    }

    fn is_role(&self) -> bool {
        self.name == self.identity.role.name()
    }

    fn check(&self) -> Result<(), MakeError> {
        let directory = match self.identity.role {
            Role::Tool => format!("{USERS_DIR}/"),
            Role::Switch => format!("{SWITCHES_DIR}/"),
            Role::Agent | Role::Controller => String::new(),
        };
        let name = self.name.strip_prefix(&directory).unwrap_or(&self.name);
        match self.identity.role {
            Role::Tool => check_user_name(name)?,
            _ => check_node_name(name)?,
        }
        let reserved = Role::ALL.map(Role::name).into_iter().chain(["ca", USERS_DIR, SWITCHES_DIR]);
        match self.identity.role == Role::Agent && reserved.into_iter().any(|reserved| reserved == name) {
            true => Err(MakeError::Reserved(name.to_owned())),
            false => Ok(()),
        }
    }

    /// Returns the holder with the identity to certify, or `None` if the existing certificate can
    /// stay.
    fn due_for_issue(
        self,
        directory: &Path,
        existing: Option<&CertificateEntry>,
        renew: bool,
    ) -> Option<CertificateHolder> {
        let Some(existing) = existing.filter(|_| self.files(directory).iter().all(|file| file.exists()))
        else {
            return Some(self);
        };
        if existing.revoked {
            return Some(self).filter(|holder| !holder.is_role());
        }
        // A node keeps the addresses in its certificate unless the request names others.
        let found = existing.identity.clone()?;
        let same_addresses = Identity { addresses: found.addresses.clone(), ..self.identity.clone() };
        match found == self.identity || found == same_addresses && self.identity.addresses.is_empty() {
            true => renew.then_some(CertificateHolder { identity: found, ..self }),
            false => Some(self),
        }
    }

    /// Returns the directory of the holder's files.
    fn directory(&self, directory: &Path) -> PathBuf {
        if self.is_role() { directory.to_owned() } else { directory.join(&self.name) }
    }

    /// Returns the paths of its certificate and key.
    fn files(&self, directory: &Path) -> [PathBuf; 2] {
        let (directory, role) = (self.directory(directory), self.identity.role.name());
        ["pem", "key"].map(|extension| directory.join(format!("{role}.{extension}")))
    }
}

/// Issues each certificate that is missing, differs from the request, or was revoked and is
/// requested by name. With `renew`, it also renews all others except that of the CA. Returns the
/// files written.
///
/// # Errors
/// Returns an error if a file cannot be read or written, or if the name of a node, user or switch
/// is invalid.
pub fn make(directory: &Path, request: &CertificateRequest) -> Result<Vec<PathBuf>, MakeError> {
    request.holders.iter().try_for_each(CertificateHolder::check)?;
    let mut written = Vec::new();
    create_dir(directory)?;
    let authorities = Authorities::open_or_make(directory, request.days, &mut written)?;
    let existing = list(directory)?;
    let named = |entry: &CertificateEntry| request.holders.iter().any(|holder| holder.name == entry.name);
    let others = existing.iter().filter(|entry| request.renew && !entry.revoked && !named(entry));
    let others = others.filter_map(CertificateEntry::holder).filter(|holder| !holder.is_role());
    let all = Role::ALL.map(CertificateHolder::role).into_iter().chain(request.holders.clone()).chain(others);
    for holder in all {
        let entry = existing.iter().find(|entry| entry.name == holder.name);
        if let Some(holder) = holder.due_for_issue(directory, entry, request.renew) {
            issue(directory, &holder, authorities.first(), request.days, &mut written)?;
        }
    }
    publish(directory)?;
    Ok(written)
}

/// Revokes all certificates that were ever issued in `directory` under these names. Returns how
/// many there are. Programs must receive the updated `revoked.pem` to reject them.
///
/// # Errors
/// Returns an error if a name has no certificate, or if a file cannot be read or written.
pub fn revoke(directory: &Path, names: &[String]) -> Result<usize, MakeError> {
    let authorities = Authorities::open(directory)?;
    let (existing, issued) = (list(directory)?, issued(directory)?);
    let mut serials = BTreeSet::new();
    for name in names {
        let present = existing.iter().filter(|entry| entry.name == *name && entry.identity.is_some());
        let former = issued.iter().filter(|(_, holder)| holder == name).map(|(serial, _)| serial.clone());
        let named: Vec<Vec<u8>> = present.map(|entry| entry.serial.clone()).chain(former).collect();
        if named.is_empty() {
            return Err(MakeError::Unknown(name.clone()));
        }
        serials.extend(named);
    }
    authorities.revoke(directory, &serials)?;
    publish(directory)?;
    Ok(serials.len())
}

/// Creates a new CA, which signs from now on. The certificate of the previous CA stays in `ca.pem`,
/// so that programs with this file accept certificates of both.
///
/// # Errors
/// Returns an error if a replacement is already in progress, or if a file cannot be read or
/// written.
pub fn new_authority(directory: &Path, days: u16) -> Result<Vec<PathBuf>, MakeError> {
    let mut written = Vec::new();
    Authorities::open(directory)?.replace(directory, days, &mut written)?;
    publish(directory)?;
    Ok(written)
}

/// Removes the previous CA's certificate from `ca.pem`.
///
/// # Errors
/// Returns an error if there is no previous CA, if a certificate in the directory is still signed
/// by it, or if a file cannot be read or written.
pub fn drop_old_authority(directory: &Path) -> Result<Vec<PathBuf>, MakeError> {
    let authorities = Authorities::open(directory)?;
    let signed_by_old = |entry: &&CertificateEntry| {
        entry.identity.is_some() && !entry.revoked && !authorities.first().has_issued(&entry.issuer)
    };
    if let Some(entry) = list(directory)?.iter().find(signed_by_old) {
        return Err(MakeError::InUse(entry.name.clone()));
    }
    let mut written = Vec::new();
    authorities.drop_old(directory, &mut written)?;
    publish(directory)?;
    Ok(written)
}

/// Copies the CA certificates and the revocation lists to each holder's directory.
fn publish(directory: &Path) -> Result<(), MakeError> {
    for holder in inventory::directories(directory)? {
        for name in [AUTHORITIES_FILE, REVOKED_FILE] {
            let (from, to) = (directory.join(name), holder.join(name));
            if !from.exists() {
                continue;
            }
            let text = read(&from)?;
            if !to.exists() || read(&to)? != text {
                write_file(&to, &text, 0o644, &mut Vec::new())?;
            }
        }
    }
    Ok(())
}

fn create_dir(path: &Path) -> Result<(), MakeError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| MakeError::File { path: path.to_owned(), error })
}

/// Issues a certificate with a new key.
fn issue(
    directory: &Path,
    holder: &CertificateHolder,
    authority: &Authority,
    days: u16,
    written: &mut Vec<PathBuf>,
) -> Result<(), MakeError> {
    let identity = &holder.identity;
    create_dir(&holder.directory(directory))?;
    let [certificate, key] = holder.files(directory);
    let pair = KeyPair::generate()?;
    let mut params = params(days, identity.dns_names())?;
    params.subject_alt_names.extend(identity.addresses.iter().map(|address| SanType::IpAddress(*address)));
    params.distinguished_name.push(DnType::CommonName, identity.to_string());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match identity.role {
        Role::Controller => ExtendedKeyUsagePurpose::ServerAuth,
        Role::Agent | Role::Tool | Role::Switch => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    params.use_authority_key_identifier_extension = true;
    let signed = authority.sign(&params, &pair)?;
    // Record the certificate first, because it must be possible to revoke every certificate that
    // exists.
    record(directory, signed.der(), &holder.name)?;
    // Open vSwitch reloads both files when the key changes, so the certificate must be written
    // first.
    write_file(&certificate, &signed.pem(), 0o644, written)?;
    write_file(&key, &pair.serialize_pem(), 0o600, written)
}

fn params(days: u16, names: Vec<String>) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::new(names)?;
    let now = OffsetDateTime::now_utc();
    params.not_before = now - CLOCK_SKEW;
    // Subtract a second, so that a certificate with a validity of 0 days has already expired.
    params.not_after = now + Duration::days(days.into()) - Duration::SECOND;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

fn read(path: &Path) -> Result<String, MakeError> {
    fs::read_to_string(path).map_err(|error| MakeError::File { path: path.to_owned(), error })
}

/// Writes a file atomically. A file that replaces another gets its owner, group and mode, because
/// these determine which users can read a key.
fn write_file(path: &Path, text: &str, mode: u32, written: &mut Vec<PathBuf>) -> Result<(), MakeError> {
    let temporary = path.with_extension("new");
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&temporary)?;
        if let Ok(before) = fs::metadata(path) {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
            file.set_permissions(before.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| MakeError::File { path: path.to_owned(), error })?;
    written.push(path.to_owned());
    Ok(())
}
