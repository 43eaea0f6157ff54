//! The names of users: who runs jobs, as systems know their accounts, in options, certificates and folders alike.

/// The longest name, in bytes, as useradd(8) has it.
pub const USER_NAME_MAX: usize = 32;

/// The rule, in words.
pub const USER_NAME_RULE: &str = "a name has 1 to 32 of a-z A-Z 0-9 . _ - and begins with a letter or _";

/// A text that is no name of a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no name of a user: {USER_NAME_RULE}")]
pub struct UserNameError {
    /// The text, or the beginning of a longer one.
    pub name: String,
}

/// Whether a text is a name of a user. A number is none, so that nobody is taken for the account of that number.
///
/// # Errors
/// If it is not; the text says the rule.
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
    fn names_are_what_accounts_certificates_and_folders_can_carry() {
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
