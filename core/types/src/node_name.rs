//! Names of nodes, as used in options, certificates, directories and LLDP frames.

/// Length of the longest name in bytes, which is that of a DNS label (RFC 1035, section 2.3.4).
pub const NODE_NAME_MAX: usize = 63;

/// The rule for names, as error messages print it.
pub const NODE_NAME_RULE: &str = "a name has 1 to 63 of a-z A-Z 0-9 . _ - and does not begin with a dot";

/// The text is not a valid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid node name: {NODE_NAME_RULE}")]
pub struct NodeNameError {
    /// The text, cut after [`NODE_NAME_MAX`] + 1 characters if it is longer.
    pub name: String,
}

/// Checks that a text is a valid node name.
///
/// # Errors
/// Returns an error that states the rule if the text breaks it.
pub fn check_node_name(name: &str) -> Result<(), NodeNameError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let long = name.is_empty() || name.len() > NODE_NAME_MAX;
    if long || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(NodeNameError { name: name.chars().take(NODE_NAME_MAX + 1).collect() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_suit_certificates_folders_and_lldp() {
        for name in ["h1", "rack-2.node_7", "-", "A", &"x".repeat(NODE_NAME_MAX)] {
            check_node_name(name).unwrap();
        }
        for name in ["", ".", "..", ".h1", "h/1", "h 1", "ü", "h\0", &"x".repeat(NODE_NAME_MAX + 1)] {
            let error = check_node_name(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains(NODE_NAME_RULE), "{error}");
        }
        assert!(NODE_NAME_RULE.contains(&format!("1 to {NODE_NAME_MAX} of")));
        assert_eq!(check_node_name(&"x".repeat(1 << 20)).unwrap_err().name.len(), NODE_NAME_MAX + 1);
    }
}
