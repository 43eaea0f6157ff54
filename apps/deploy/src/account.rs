//! The account as which a deployment of root runs.

use crate::deployment_dir::SYSTEM_STATE;
use crate::error::DeployError;
use nix::unistd::{Gid, Uid, User, setegid, seteuid, setgroups};
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

/// The account of a deployment of root, unless another one is named. The packages create it.
pub const DEFAULT_ACCOUNT: &str = "cool";

/// Returns whether this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The account of a deployment, as which root reads and writes the deployment's files until the
/// value is dropped. Links that the account has put among its files thus give it no rights of root.
#[derive(Debug)]
pub struct DeploymentAccount {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl DeploymentAccount {
    /// Looks up the account of a node's deployment, and becomes it. Returns it and the directory
    /// for the state of deployments. If the node has a deployment, its account is the owner of the
    /// directory. Otherwise it is `name`, and the directory is created if `create` is set.
    ///
    /// Returns `None` if there is no deployment, or if it belongs to root.
    ///
    /// # Errors
    /// If the account does not exist, is root, or is not that of the existing deployment, or if the
    /// directory cannot be created.
    pub fn assume(
        state: Option<&Path>,
        node: &str,
        name: Option<&str>,
        create: bool,
    ) -> Result<Option<(DeploymentAccount, PathBuf)>, DeployError> {
        let state = state.unwrap_or(Path::new(SYSTEM_STATE));
        let state = std::path::absolute(state).map_err(DeployError::file(state))?;
        let directory = state.join(node);
        let owner = match fs::symlink_metadata(&directory) {
            Ok(metadata) => Some(Uid::from_raw(metadata.uid())),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(DeployError::file(&directory)(e)),
        };
        let account = match owner {
            None if !create => return Ok(None),
            Some(owner) if owner.is_root() && !create => return Ok(None),
            None => DeploymentAccount::named(name.unwrap_or(DEFAULT_ACCOUNT))?,
            Some(owner) => {
                let account = DeploymentAccount::of_owner(owner, &directory)?;
                if name.is_some_and(|name| name != account.name) {
                    return Err(DeployError::OtherAccount { directory, account: account.name.clone() });
                }
                account
            }
        };
        if owner.is_none() {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o755).create(&state).map_err(DeployError::file(&state))?;
            DirBuilder::new().mode(0o700).create(&directory).map_err(DeployError::file(&directory))?;
            let (uid, gid) = (account.uid.as_raw(), account.gid.as_raw());
            chown(&directory, Some(uid), Some(gid)).map_err(DeployError::file(&directory))?;
        }
        setgroups(&[account.gid]).map_err(system("change groups"))?;
        account.enter()?;
        Ok(Some((account, state)))
    }

    fn named(name: &str) -> Result<DeploymentAccount, DeployError> {
        let found = User::from_name(name).map_err(system("look up accounts"))?;
        DeploymentAccount::of(found.ok_or_else(|| DeployError::NoAccount(name.to_owned()))?)
    }

    fn of_owner(owner: Uid, directory: &Path) -> Result<DeploymentAccount, DeployError> {
        let found = User::from_uid(owner).map_err(system("look up accounts"))?;
        DeploymentAccount::of(found.ok_or_else(|| DeployError::ForeignDirectory(directory.to_owned()))?)
    }

    fn of(user: User) -> Result<DeploymentAccount, DeployError> {
        if user.uid.is_root() {
            return Err(DeployError::RootAccount);
        }
        Ok(DeploymentAccount { name: user.name, uid: user.uid, gid: user.gid })
    }

    /// Returns the account's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn enter(&self) -> Result<(), DeployError> {
        setegid(self.gid).and_then(|()| seteuid(self.uid)).map_err(system("change the user"))
    }

    /// Executes a task as root.
    ///
    /// # Errors
    /// If the system does not permit to become root or the account again, or if the task fails.
    pub fn as_root<T>(&self, task: impl FnOnce() -> Result<T, DeployError>) -> Result<T, DeployError> {
        leave()?;
        let result = task();
        self.enter()?;
        result
    }
}

impl Drop for DeploymentAccount {
    fn drop(&mut self) {
        if let Err(error) = leave() {
            eprintln!("cool: {error}");
        }
    }
}

fn leave() -> Result<(), DeployError> {
    seteuid(Uid::from_raw(0)).and_then(|()| setegid(Gid::from_raw(0))).map_err(system("become root again"))
}

/// Returns a conversion of a system's error.
fn system(what: &'static str) -> impl Fn(nix::Error) -> DeployError {
    move |source| DeployError::AccountChange { what, source: source.into() }
}
