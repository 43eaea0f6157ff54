//! The accounts of this system. The processes of a job run as the account of the job's user.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;

/// The search path for programs without a directory.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user of this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user's name, or the number if there is no name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The id of the user's primary group.
    pub gid: u32,
    /// The ids of all groups of the user.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: PathBuf,
    /// The login shell.
    pub shell: PathBuf,
}

/// The reasons why an account cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// There is no user with this name.
    #[error("this node has no user {0}")]
    Unknown(String),
    /// The system cannot look up the user.
    #[error("cannot look up user {name}: {reason}")]
    System {
        /// The user.
        name: String,
        /// The system's error.
        reason: String,
    },
}

impl Account {
    /// Looks up the account with a name, or with a number if no account has this name. A number is
    /// a decimal without leading zeros or sign, because `007` would otherwise be another spelling
    /// of user 7.
    ///
    /// # Errors
    /// Returns an error if there is no such account, or if the system cannot look it up.
    pub fn look_up(user: &str) -> Result<Account, AccountError> {
        let system = |e: nix::Error| AccountError::System { name: user.to_owned(), reason: e.to_string() };
        if let Some(named) = User::from_name(user).map_err(system)? {
            return Account::from_entry(named, user);
        }
        match user.parse::<u32>() {
            Ok(number) if number.to_string() == user => Account::with_number(number),
            _ => Err(AccountError::Unknown(user.to_owned())),
        }
    }

    /// Looks up the account with a number.
    fn with_number(number: u32) -> Result<Account, AccountError> {
        let system = |e: nix::Error| AccountError::System { name: number.to_string(), reason: e.to_string() };
        let found = User::from_uid(Uid::from_raw(number)).map_err(system)?;
        let found = found.ok_or_else(|| AccountError::Unknown(number.to_string()))?;
        Account::from_entry(found, &number.to_string())
    }

    /// Returns the account of an entry that was found for `user`.
    fn from_entry(found: User, user: &str) -> Result<Account, AccountError> {
        let system = |e: nix::Error| AccountError::System { name: user.to_owned(), reason: e.to_string() };
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

    /// Returns the account of this process. If the account has no entry, as may be the case in a
    /// container, the result has the number as its name, `/` as its home directory and `/bin/sh` as
    /// its shell.
    ///
    /// # Errors
    /// Returns an error if the system cannot look it up.
    pub fn own() -> Result<Account, AccountError> {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        match Account::with_number(uid) {
            Err(AccountError::Unknown(name)) => {
                let (home, shell) = (PathBuf::from("/"), PathBuf::from("/bin/sh"));
                Ok(Account { name, uid, gid, groups: vec![gid], home, shell })
            }
            found => found,
        }
    }

    /// Returns the variables that every process of the account must have.
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
        for other_spelling in ["00", "+0", "0x0", " 0", "-0"] {
            assert_eq!(
                Account::look_up(other_spelling),
                Err(AccountError::Unknown(other_spelling.to_owned()))
            );
        }
        let environment = root.environment();
        assert_eq!((environment["USER"].as_str(), environment["HOME"].as_str()), ("root", "/root"));
    }

    #[test]
    fn an_unknown_user_is_named() {
        for unknown in ["cool-test-nobody-is-called-so", "3999999999"] {
            assert_eq!(Account::look_up(unknown), Err(AccountError::Unknown(unknown.to_owned())));
        }
        assert_eq!(Account::own().unwrap().uid, rustix::process::geteuid().as_raw());
    }
}
