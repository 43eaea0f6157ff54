//! Names of users, as used for system accounts, options, certificates and directories.

/// Length of the longest name in bytes, as in useradd(8).
pub const USER_NAME_MAX: usize = 32;

/// The rule for names, as error messages print it.
pub const USER_NAME_RULE: &str = "a name has 1 to 32 of a-z A-Z 0-9 . _ - and begins with a letter or _";

/// The text is not a valid user name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid user name: {USER_NAME_RULE}")]
pub struct UserNameError {
    /// The text, cut after [`USER_NAME_MAX`] + 1 characters if it is longer.
    pub name: String,
}

/// Checks that a text is a valid user name. A number is not one, because it could be mistaken for a
/// user ID.
///
/// # Errors
/// Returns an error that states the rule if the text breaks it.
pub fn check_user_name(name: &str) -> Result<(), UserNameError> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > USER_NAME_MAX || !name.starts_with(first) || !name.chars().all(allowed) {
        return Err(UserNameError { name: name.chars().take(USER_NAME_MAX + 1).collect() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suit_accounts_certificates_and_folders() {
        for name in ["ann", "_apt", "a.b-c_7", "Z", &"x".repeat(USER_NAME_MAX)] {
            check_user_name(name).unwrap();
        }
        for name in ["", "0", "1000", "-a", ".a", "a b", "a/b", "ü", "a\0", &"x".repeat(USER_NAME_MAX + 1)] {
            let error = check_user_name(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains(USER_NAME_RULE), "{error}");
        }
        assert!(USER_NAME_RULE.contains(&format!("1 to {USER_NAME_MAX} of")));
    }
}
