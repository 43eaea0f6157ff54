//! Makes the certificates of a deployment in one folder: a CA of its own, and for each role, node, user and switch a key and a
//! certificate that says what it is; lists and revokes them, and replaces the CA.

mod authority;
mod inventory;

pub use inventory::{CertificateEntry, list};

use crate::folder::{AUTHORITIES, REVOKED};
use crate::role::{Identity, Role};
use authority::{Authorities, Authority};
use cool_types::{NodeNameError, UserNameError, check_node_name, check_user_name};
use inventory::{issued, note};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Clocks may differ by this much.
const EARLIER: Duration = Duration::days(1);
/// Folders of users and switches; those of nodes have the nodes' names.
const USERS: &str = "users";
const SWITCHES: &str = "switches";

/// Who gets a certificate of its own, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is called in a folder of certificates: a role, NODE, users/USER or switches/SWITCH.
    pub name: String,
    /// What its certificate says.
    pub identity: Identity,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct CertificateRequest {
    /// Who gets certificates beside the roles, each in a folder of its own.
    pub holders: Vec<Holder>,
    /// How long all is valid.
    pub days: u16,
    /// Make all certificates anew that are there; the CA stays.
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
    /// A file holds something else.
    #[error("{}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
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
    /// A name that other files of the folder have.
    #[error("a node cannot be called {0} here: the folder has files of that name")]
    Reserved(String),
    /// There is nothing to revoke.
    #[error("no certificate of {0} was made in this folder; --list shows the names")]
    Unknown(String),
    /// The CA is being replaced.
    #[error("two CAs are in ca.pem already; end that by --drop-old-ca first")]
    Replacing,
    /// It is not.
    #[error("there is one CA in ca.pem, and no older one to drop")]
    Single,
    /// It is, and is not over.
    #[error("the certificate of {0} is still of the old CA; make it anew with --renew first")]
    InUse(String),
    /// Cryptography failed.
    #[error("cannot make a certificate: {0}")]
    Sign(#[from] rcgen::Error),
}

impl Holder {
    /// Any holder of a role.
    pub fn role(role: Role) -> Holder {
        Holder { name: role.name().to_owned(), identity: Identity::of(role) }
    }

    /// A node's agent, good for no other node, and if there are addresses for none but these.
    pub fn node(name: &str, addresses: Vec<IpAddr>) -> Holder {
        Holder { name: name.to_owned(), identity: Identity::node(name, addresses) }
    }

    /// A user's tools, by which the user asks in no other name.
    pub fn user(name: &str) -> Holder {
        Holder { name: format!("{USERS}/{name}"), identity: Identity::user(name) }
    }

    /// A switch, good for no other datapath id than these.
    pub fn switch(name: &str, datapaths: Vec<u64>) -> Holder {
        Holder { name: format!("{SWITCHES}/{name}"), identity: Identity::switch(datapaths) }
    }

    fn is_role(&self) -> bool {
        self.name == self.identity.role.name()
    }

    fn check(&self) -> Result<(), MakeError> {
        let folder = match self.identity.role {
            Role::Tool => format!("{USERS}/"),
            Role::Switch => format!("{SWITCHES}/"),
            Role::Agent | Role::Controller => String::new(),
        };
        let name = self.name.strip_prefix(&folder).unwrap_or(&self.name);
        match self.identity.role {
            Role::Tool => check_user_name(name)?,
            _ => check_node_name(name)?,
        }
        let reserved = Role::ALL.map(Role::name).into_iter().chain(["ca", USERS, SWITCHES]);
        match self.identity.role == Role::Agent && reserved.into_iter().any(|reserved| reserved == name) {
            true => Err(MakeError::Reserved(name.to_owned())),
            false => Ok(()),
        }
    }

    /// What is to be made of it, if anything, where this is there.
    fn due(self, folder: &Path, there: Option<&CertificateEntry>, renew: bool) -> Option<Holder> {
        let Some(there) = there.filter(|_| self.files(folder).iter().all(|file| file.exists())) else {
            return Some(self);
        };
        if there.revoked {
            return Some(self).filter(|holder| !holder.is_role());
        }
        // A node whose certificate has addresses keeps them, unless others are named.
        let found = there.identity.clone()?;
        let kept = Identity { addresses: found.addresses.clone(), ..self.identity.clone() };
        match found == self.identity || found == kept && self.identity.addresses.is_empty() {
            true => renew.then_some(Holder { identity: found, ..self }),
            false => Some(self),
        }
    }

    /// Where its files are.
    fn folder(&self, folder: &Path) -> PathBuf {
        if self.is_role() { folder.to_owned() } else { folder.join(&self.name) }
    }

    /// Its certificate, and its key.
    fn files(&self, folder: &Path) -> [PathBuf; 2] {
        let (folder, role) = (self.folder(folder), self.identity.role.name());
        ["pem", "key"].map(|extension| folder.join(format!("{role}.{extension}")))
    }
}

/// Makes what is missing in `folder`, says something else than is asked for, or was revoked and is asked for by name; with `renew`
/// also what is there, except the CA. Returns the files written.
///
/// # Errors
/// If a file cannot be read or written, or the name of a node, user or switch is none.
pub fn make(folder: &Path, request: &CertificateRequest) -> Result<Vec<PathBuf>, MakeError> {
    request.holders.iter().try_for_each(Holder::check)?;
    let mut written = Vec::new();
    create_folder(folder)?;
    let authorities = Authorities::open_or_make(folder, request.days, &mut written)?;
    let there = list(folder)?;
    let named = |entry: &CertificateEntry| request.holders.iter().any(|holder| holder.name == entry.name);
    let others = there.iter().filter(|entry| request.renew && !entry.revoked && !named(entry));
    let others = others.filter_map(CertificateEntry::holder).filter(|holder| !holder.is_role());
    let all = Role::ALL.map(Holder::role).into_iter().chain(request.holders.clone()).chain(others);
    for holder in all {
        let entry = there.iter().find(|entry| entry.name == holder.name);
        if let Some(holder) = holder.due(folder, entry, request.renew) {
            leaf(folder, &holder, authorities.first(), request.days, &mut written)?;
        }
    }
    publish(folder)?;
    Ok(written)
}

/// Revokes all certificates that `folder` has ever made under these names; returns how many that are. Whoever is given the folder's
/// `revoked.pem` refuses them.
///
/// # Errors
/// If a name has none, or a file cannot be read or written.
pub fn revoke(folder: &Path, names: &[String]) -> Result<usize, MakeError> {
    let authorities = Authorities::open(folder)?;
    let (there, issued) = (list(folder)?, issued(folder)?);
    let mut serials = BTreeSet::new();
    for name in names {
        let present = there.iter().filter(|entry| entry.name == *name && entry.identity.is_some());
        let former = issued.iter().filter(|(_, of)| of == name).map(|(serial, _)| serial.clone());
        let of_name: Vec<Vec<u8>> = present.map(|entry| entry.serial.clone()).chain(former).collect();
        if of_name.is_empty() {
            return Err(MakeError::Unknown(name.clone()));
        }
        serials.extend(of_name);
    }
    authorities.revoke(folder, &serials)?;
    publish(folder)?;
    Ok(serials.len())
}

/// Makes a new CA, which signs from now on. The old one's certificate stays in `ca.pem` behind it, so that whoever has that file
/// takes certificates of both.
///
/// # Errors
/// If that is so already, or a file cannot be read or written.
pub fn new_authority(folder: &Path, days: u16) -> Result<Vec<PathBuf>, MakeError> {
    let mut written = Vec::new();
    Authorities::open(folder)?.replace(folder, days, &mut written)?;
    publish(folder)?;
    Ok(written)
}

/// Takes the old CA's certificate out of `ca.pem`.
///
/// # Errors
/// If there is none, a certificate of the folder is still of that CA, or a file cannot be read or written.
pub fn drop_old_authority(folder: &Path) -> Result<Vec<PathBuf>, MakeError> {
    let authorities = Authorities::open(folder)?;
    let of_old = |entry: &&CertificateEntry| {
        entry.identity.is_some() && !entry.revoked && !authorities.first().has_issued(&entry.issuer)
    };
    if let Some(entry) = list(folder)?.iter().find(of_old) {
        return Err(MakeError::InUse(entry.name.clone()));
    }
    let mut written = Vec::new();
    authorities.drop_old(folder, &mut written)?;
    publish(folder)?;
    Ok(written)
}

/// Gives every holder's folder the certificates of the CAs, and what they have revoked.
fn publish(folder: &Path) -> Result<(), MakeError> {
    for holder in inventory::folders(folder)? {
        for name in [AUTHORITIES, REVOKED] {
            let (from, to) = (folder.join(name), holder.join(name));
            if !from.exists() {
                continue;
            }
            let text = read(&from)?;
            if !to.exists() || read(&to)? != text {
                put(&to, &text, 0o644, &mut Vec::new())?;
            }
        }
    }
    Ok(())
}

fn create_folder(path: &Path) -> Result<(), MakeError> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| MakeError::File { path: path.to_owned(), error })
}

/// A certificate and its key.
fn leaf(
    folder: &Path,
    holder: &Holder,
    authority: &Authority,
    days: u16,
    written: &mut Vec<PathBuf>,
) -> Result<(), MakeError> {
    let identity = &holder.identity;
    create_folder(&holder.folder(folder))?;
    let [certificate, key] = holder.files(folder);
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
    // Noted first, so that every certificate that there is can be revoked.
    note(folder, signed.der(), &holder.name)?;
    // Open vSwitch reads both again when it sees that the key has changed, so the certificate has to be there by then.
    put(&certificate, &signed.pem(), 0o644, written)?;
    put(&key, &pair.serialize_pem(), 0o600, written)
}

fn params(days: u16, names: Vec<String>) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::new(names)?;
    let now = OffsetDateTime::now_utc();
    params.not_before = now - EARLIER;
    // A second less, so that what is valid for no day has ended.
    params.not_after = now + Duration::days(days.into()) - Duration::SECOND;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}

fn read(path: &Path) -> Result<String, MakeError> {
    fs::read_to_string(path).map_err(|error| MakeError::File { path: path.to_owned(), error })
}

/// Writes a file whole or not at all. One that replaces another has its owner, group and rights: they say who is to read a key.
fn put(path: &Path, text: &str, mode: u32, written: &mut Vec<PathBuf>) -> Result<(), MakeError> {
    let beside = path.with_extension("new");
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
        if let Ok(before) = fs::metadata(path) {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
            file.set_permissions(before.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| MakeError::File { path: path.to_owned(), error })?;
    written.push(path.to_owned());
    Ok(())
}
