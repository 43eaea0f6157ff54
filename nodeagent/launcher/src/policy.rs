//! The policy that decides as which user a job's processes may run.

use crate::account::{Account, AccountError};

/// The accounts as which a job's processes may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Only the account of this process.
    Own,
    /// Any account, except for those that the fields exclude.
    Privileged {
        /// The smallest permitted user id.
        min_uid: u32,
        /// The user id of the agent's account. It is excluded, because it owns the agent's keys.
        agent: u32,
    },
}

/// The reasons why a job's processes may not run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no such account.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// The agent has no launcher, so that only jobs of the agent's own user may run.
    #[error(
        "this agent runs as {own} and has no launcher: it runs jobs of {own} only, not of {user}; start cool-launcher here and \
         name it by --launcher (or, as an operator, run the job with --user {own})"
    )]
    NotOwn {
        /// The owner of the job.
        user: String,
        /// The agent's account.
        own: String,
    },
    /// The user's number is below the permitted ones, as those of system accounts are.
    #[error("user {name} has number {uid}, and cool-launcher starts nothing below {min} (--min-uid)")]
    Small {
        /// The name of the account.
        name: String,
        /// Its number.
        uid: u32,
        /// The smallest permitted number.
        min: u32,
    },
    /// The user is the agent's account, which owns keys.
    #[error("user {0} is the agent's account, as which no job runs")]
    Agent(String),
    /// The controller is of an earlier version, which does not name the owner of a job.
    #[error("the controller does not name the owner of the job; install the same release there")]
    Nobody,
}

impl Policy {
    /// Returns the account as which the processes of a job of `user` must run. `user` is empty if
    /// the owner is unknown.
    ///
    /// # Errors
    /// Returns an error if no account is permitted.
    pub fn account(self, user: &str) -> Result<Account, PolicyError> {
        match self {
            Policy::Own => {
                let own = Account::own()?;
                // An account without an entry has only a number, unless this is another one's name.
                let is_own = match Account::look_up(user) {
                    Ok(account) => account.uid == own.uid,
                    Err(_) => user == own.name,
                };
                if user.is_empty() || is_own {
                    return Ok(own);
                }
                Err(PolicyError::NotOwn { user: user.to_owned(), own: own.name })
            }
            Policy::Privileged { .. } if user.is_empty() => Err(PolicyError::Nobody),
            Policy::Privileged { .. } => self.check(Account::look_up(user)?),
        }
    }

    fn check(self, account: Account) -> Result<Account, PolicyError> {
        match self {
            Policy::Privileged { min_uid, .. } if account.uid < min_uid => {
                Err(PolicyError::Small { name: account.name, uid: account.uid, min: min_uid })
            }
            Policy::Privileged { agent, .. } if account.uid == agent => Err(PolicyError::Agent(account.name)),
            _ => Ok(account),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: u32) -> Account {
        let (home, shell) = ("/".into(), "/bin/sh".into());
        Account { name: format!("user{uid}"), uid, gid: uid, groups: vec![uid], home, shell }
    }

    #[test]
    fn an_agent_without_launcher_runs_its_own_jobs_only() {
        let own = Account::own().unwrap();
        assert!(matches!(Policy::Own.account(&format!("0{}", own.uid)), Err(PolicyError::NotOwn { .. })));
        for user in ["", &own.name, &own.uid.to_string()] {
            assert_eq!(Policy::Own.account(user).unwrap(), own);
        }
        let error = Policy::Own.account("ann").unwrap_err().to_string();
        assert!(error.contains("not of ann") && error.contains("--launcher"), "{error}");
    }

    #[test]
    fn a_launcher_refuses_root_system_and_agent_accounts() {
        let policy = Policy::Privileged { min_uid: 1000, agent: 2000 };
        assert_eq!(policy.check(account(1000)).unwrap().uid, 1000);
        for small in [0, 999] {
            assert!(matches!(policy.check(account(small)), Err(PolicyError::Small { .. })));
        }
        assert!(matches!(policy.check(account(2000)), Err(PolicyError::Agent(_))));
        assert!(matches!(policy.account("root"), Err(PolicyError::Small { uid: 0, .. })));
        assert_eq!(policy.account(""), Err(PolicyError::Nobody));
        let permitted = Policy::Privileged { min_uid: 0, agent: 2000 };
        assert_eq!(permitted.account("root").unwrap().uid, 0);
    }
}
