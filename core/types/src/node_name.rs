//! The names of nodes: what an operator calls a machine, in options, certificates, folders and LLDP alike.

/// The longest name, in bytes: a label of DNS (RFC 1035, 2.3.4).
pub const NODE_NAME_MAX: usize = 63;

/// The rule, in words.
pub const NODE_NAME_RULE: &str = "a name has 1 to 63 of a-z A-Z 0-9 . _ - and begins with no dot";

/// A text that is no name of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no name of a node: {NODE_NAME_RULE}")]
pub struct NodeNameError {
    /// The text, or the beginning of a longer one.
    pub name: String,
}

/// Whether a text is a name of a node.
///
/// # Errors
/// If it is not; the text says the rule.
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
    fn names_are_what_certificates_folders_and_lldp_can_carry() {
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
