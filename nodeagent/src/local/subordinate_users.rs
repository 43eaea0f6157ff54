//! The user numbers that belong to accounts of this node in addition to their own (subuid(5)).
//! An account can run processes as any of them, so all of them count as one user in limits.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The file in which the system's administrator assigns the numbers.
const SUBUID: &str = "/etc/subuid";

/// The assigned numbers, as of the latest change of the file.
#[derive(Debug)]
pub(super) struct SubordinateUsers {
    path: PathBuf,
    read: Mutex<(Option<SystemTime>, AccountNumbers)>,
}

/// The numbers that are assigned to accounts.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountNumbers(Arc<[NumberRange]>);

/// A range of numbers of one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NumberRange {
    first: u32,
    count: u32,
    /// The first number of the account's first range.
    account: u32,
}

impl Default for SubordinateUsers {
    fn default() -> SubordinateUsers {
        SubordinateUsers::of_file(SUBUID.into())
    }
}

impl SubordinateUsers {
    fn of_file(path: PathBuf) -> SubordinateUsers {
        SubordinateUsers { path, read: Mutex::default() }
    }

    /// Returns the numbers as the file assigns them now.
    pub(super) fn current(&self) -> AccountNumbers {
        let changed = fs::metadata(&self.path).and_then(|file| file.modified()).ok();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.0 != changed {
            // Without a readable file there are no such numbers.
            let ranges = ranges(&fs::read_to_string(&self.path).unwrap_or_default());
            *read = (changed, AccountNumbers(ranges.into()));
        }
        read.1.clone()
    }
}

impl AccountNumbers {
    /// Returns the number under which a user counts in limits. It is the same for all numbers that
    /// the file assigns to one account, and the user's own number for all others.
    pub(super) fn account(&self, user: u32) -> u32 {
        let is_in = |range: &&NumberRange| user.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.0.iter().find(is_in).map_or(user, |range| range.account)
    }
}

/// Parses lines of the form `ACCOUNT:FIRST:COUNT`. Other lines are ignored.
fn ranges(text: &str) -> Vec<NumberRange> {
    let mut found: Vec<(&str, NumberRange)> = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [name, first, count] = fields[..] else { continue };
        let (Ok(first), Ok(count)) = (first.parse(), count.parse()) else { continue };
        let account =
            found.iter().find(|(other, _)| *other == name).map_or(first, |(_, range)| range.account);
        found.push((name, NumberRange { first, count, account }));
    }
    found.into_iter().map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_an_account_count_as_one_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("subuid");
        let users = SubordinateUsers::of_file(path.clone());
        assert_eq!(users.current().account(100_000), 100_000);
        fs::write(&path, "ann:100000:65536\n# none\nbob:165536:65536\nann:300000:10\n").unwrap();
        let accounts = |numbers: [u32; 3]| numbers.map(|number| users.current().account(number));
        assert_eq!(accounts([100_000, 165_535, 300_009]), [100_000; 3]);
        assert_eq!(accounts([165_536, 200_000, 231_071]), [165_536; 3]);
        assert_eq!(accounts([99_999, 1000, 300_010]), [99_999, 1000, 300_010]);
    }
}
