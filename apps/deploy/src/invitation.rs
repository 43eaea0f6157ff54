//! The tokens that are valid: each for a limited time and a limited number of machines.

use crate::deployment_dir::DeploymentDir;
use crate::error::DeployError;
use crate::join_token::JoinSecret;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

const FILE: &str = "invitations.json";
const LOCK: &str = "invitations.lock";

/// Maximum number of valid tokens. The oldest becomes invalid if there are more, because the join
/// server tries all of them.
const INVITATIONS_MAX: usize = 16;

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Invitation {
    secret: String,
    /// When the token becomes invalid.
    expires: SystemTime,
    /// How many more machines may use it.
    uses: u32,
}

impl Invitation {
    fn is_valid(&self, now: SystemTime) -> bool {
        self.uses > 0 && now < self.expires
    }
}

/// Creates a token with this secret, or a random one, for `uses` machines, which is valid for a
/// time. Returns its secret.
///
/// # Errors
/// If the list of tokens cannot be read or written, or the system has no random bytes.
pub fn invite(
    directory: &DeploymentDir,
    (now, valid_for): (SystemTime, Duration),
    uses: u32,
    secret: Option<JoinSecret>,
) -> Result<JoinSecret, DeployError> {
    let secret = secret.map_or_else(JoinSecret::generate, Ok);
    let secret = secret.map_err(DeployError::file(directory.path()))?;
    let _lock = directory.lock_file(LOCK)?;
    let mut invitations = read(directory, now)?;
    invitations.push(Invitation { secret: secret.text(), expires: now + valid_for, uses });
    let excess = invitations.len().saturating_sub(INVITATIONS_MAX);
    invitations.drain(..excess);
    directory.write(FILE, &invitations)?;
    Ok(secret)
}

/// Returns the secrets of all valid tokens.
///
/// # Errors
/// If the list of tokens cannot be read.
pub(crate) fn valid(directory: &DeploymentDir, now: SystemTime) -> Result<Vec<JoinSecret>, DeployError> {
    let invitations = read(directory, now)?;
    Ok(invitations.iter().filter_map(|invitation| JoinSecret::parse(&invitation.secret)).collect())
}

/// Counts a use of a valid token.
///
/// # Errors
/// If the list of tokens cannot be read or written.
pub(crate) fn count_use(
    directory: &DeploymentDir,
    now: SystemTime,
    secret: &JoinSecret,
) -> Result<(), DeployError> {
    let _lock = directory.lock_file(LOCK)?;
    let mut invitations = read(directory, now)?;
    let secret = secret.text();
    invitations
        .iter_mut()
        .filter(|invitation| invitation.secret == secret)
        .for_each(|invitation| invitation.uses -= 1);
    directory.write(FILE, &invitations)
}

/// Makes all tokens invalid.
///
/// # Errors
/// If the list of tokens cannot be written.
pub fn revoke_all(directory: &DeploymentDir) -> Result<(), DeployError> {
    let _lock = directory.lock_file(LOCK)?;
    directory.write(FILE, &Vec::<Invitation>::new())
}

fn read(directory: &DeploymentDir, now: SystemTime) -> Result<Vec<Invitation>, DeployError> {
    let mut invitations: Vec<Invitation> = directory.read(FILE)?.unwrap_or_default();
    invitations.retain(|invitation| invitation.is_valid(now));
    Ok(invitations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_for_a_time_and_a_number_of_machines() {
        let state = tempfile::tempdir().unwrap();
        let directory = DeploymentDir::open(Some(state.path()), Some("h1")).unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let first = invite(&directory, (now, hour), 2, None).unwrap();
        let second = invite(&directory, (now, 2 * hour), 1, None).unwrap();
        assert_eq!(valid(&directory, now).unwrap(), [first, second]);
        count_use(&directory, now, &first).unwrap();
        assert_eq!(valid(&directory, now + hour).unwrap(), [second]);
        count_use(&directory, now, &first).unwrap();
        assert_eq!(valid(&directory, now).unwrap(), [second]);
        assert!(valid(&directory, now + 2 * hour).unwrap().is_empty());
        for _ in 0..INVITATIONS_MAX {
            invite(&directory, (now, hour), 1, None).unwrap();
        }
        assert!(!valid(&directory, now).unwrap().contains(&second));
        revoke_all(&directory).unwrap();
        assert!(valid(&directory, now).unwrap().is_empty());
    }
}
