//! As whom a job's processes may run.

use crate::account::{Account, AccountError};

/// As whom a job's processes may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As the account of this process, and no other.
    Own,
    /// As any account but these.
    Privileged {
        /// Those of smaller numbers.
        min_uid: u32,
        /// That of the agent, which holds keys.
        agent: u32,
    },
}

/// Why a job's processes do not run here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no such account.
    #[error(transparent)]
    Account(#[from] AccountError),
    /// Only jobs of one user.
    #[error(
        "this agent runs as {own} and has no launcher: it runs jobs of {own} only, not of {user}; start cool-launcher here and \
         name it by --launcher (or, as an operator, run the job with --user {own})"
    )]
    NotOwn {
        /// Whose job it is.
        user: String,
        /// The agent's account.
        own: String,
    },
    /// A system account.
    #[error("user {name} has number {uid}, and cool-launcher starts nothing below {min} (--min-uid)")]
    Small {
        /// Who.
        name: String,
        /// Its number.
        uid: u32,
        /// The limit.
        min: u32,
    },
    /// The account that holds the keys.
    #[error("user {0} is the agent's account, as which no job runs")]
    Agent(String),
    /// The controller is one of before.
    #[error("the controller does not say whose job it is; install the release of this agent there")]
    Nobody,
}

impl Policy {
    /// The account as which processes of a job of `user` run; empty: nobody says whose it is.
    ///
    /// # Errors
    /// If none may.
    pub fn account(self, user: &str) -> Result<Account, PolicyError> {
        match self {
            Policy::Own => {
                let own = Account::own()?;
                if user.is_empty() || user == own.name || user == own.uid.to_string() {
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
        for user in ["", &own.name, &own.uid.to_string()] {
            assert_eq!(Policy::Own.account(user).unwrap(), own);
        }
        let says = Policy::Own.account("ann").unwrap_err().to_string();
        assert!(says.contains("not of ann") && says.contains("--launcher"), "{says}");
    }

    #[test]
    fn a_launcher_starts_nothing_as_root_or_system_accounts_or_the_agent() {
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
