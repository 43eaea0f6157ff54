//! Accounts of this system: what a user's processes are to run as.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;

/// Where programs without a path are looked for.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user as this system knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name; its number, if it has none.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its own group.
    pub gid: u32,
    /// All its groups.
    pub groups: Vec<u32>,
    /// Its directory.
    pub home: PathBuf,
    /// Its shell.
    pub shell: PathBuf,
}

/// Why there is no account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// Nobody is called so.
    #[error("this node has no user {0}")]
    Unknown(String),
    /// The system does not say.
    #[error("cannot look up user {name}: {reason}")]
    System {
        /// Who.
        name: String,
        /// Why.
        reason: String,
    },
}

impl Account {
    /// The account of this name, or of this number.
    ///
    /// # Errors
    /// If there is none.
    pub fn look_up(user: &str) -> Result<Account, AccountError> {
        let found = match user.parse() {
            Ok(number) => User::from_uid(Uid::from_raw(number)),
            Err(_) => User::from_name(user),
        };
        let system = |e: nix::Error| AccountError::System { name: user.to_owned(), reason: e.to_string() };
        let found = found.map_err(system)?.ok_or_else(|| AccountError::Unknown(user.to_owned()))?;
        let name = CString::new(found.name.clone()).map_err(|_| AccountError::Unknown(user.to_owned()))?;
        let groups = getgrouplist(&name, found.gid).map_err(system)?;
        Ok(Account {
            name: found.name,
            uid: found.uid.as_raw(),
            gid: found.gid.as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
            home: found.dir,
            shell: found.shell,
        })
    }

    /// The account as which this process runs; in a container it may be a number only.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn own() -> Result<Account, AccountError> {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        match Account::look_up(&uid.to_string()) {
            Err(AccountError::Unknown(name)) => {
                let (home, shell) = (PathBuf::from("/"), PathBuf::from("/bin/sh"));
                Ok(Account { name, uid, gid, groups: vec![gid], home, shell })
            }
            found => found,
        }
    }

    /// The variables that every process of it has.
    pub fn environment(&self) -> BTreeMap<&'static str, String> {
        let shell = if self.shell.as_os_str().is_empty() { "/bin/sh".into() } else { self.shell.clone() };
        BTreeMap::from([
            ("PATH", PATH.to_owned()),
            ("HOME", self.home.display().to_string()),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name.clone()),
            ("SHELL", shell.display().to_string()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_number() {
        let root = Account::look_up("root").unwrap();
        assert_eq!((root.uid, root.gid, root.name.as_str()), (0, 0, "root"));
        assert!(root.groups.contains(&0));
        assert_eq!(Account::look_up("0").unwrap(), root);
        let environment = root.environment();
        assert_eq!((environment["USER"].as_str(), environment["HOME"].as_str()), ("root", "/root"));
    }

    #[test]
    fn who_is_unknown_is_named() {
        for unknown in ["cool-test-nobody-is-called-so", "3999999999"] {
            assert_eq!(Account::look_up(unknown), Err(AccountError::Unknown(unknown.to_owned())));
        }
        assert_eq!(Account::own().unwrap().uid, rustix::process::geteuid().as_raw());
    }
}
