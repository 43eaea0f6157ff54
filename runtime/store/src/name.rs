//! Names of contents, which are also names of files.

use crate::error::StoreError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Longest name in bytes. File names have at most 255; some are reserved for files being written.
const BYTES_MAX: usize = 200;

/// Name of a content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreName(String);

impl StoreName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for StoreName {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<StoreName, StoreError> {
        let why = match text {
            "" => "it is empty",
            _ if text.len() > BYTES_MAX => "it is longer than 200 bytes",
            _ if text.starts_with('.') => "it begins with a dot",
            _ if text.contains('/') => "it contains a slash",
            _ if text.contains(|c: char| c.is_control() || c.is_whitespace()) => {
                "it contains blanks or control characters"
            }
            _ => return Ok(StoreName(text.to_owned())),
        };
        Err(StoreError::Name { name: text.to_owned(), why })
    }
}

impl TryFrom<String> for StoreName {
    type Error = StoreError;

    fn try_from(text: String) -> Result<StoreName, StoreError> {
        text.parse()
    }
}

impl From<StoreName> for String {
    fn from(name: StoreName) -> String {
        name.0
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_name_and_stays_in_its_directory() {
        for good in ["a", "model-7b.v2", "a:b@c+d", "\u{e9}t\u{e9}", &"x".repeat(BYTES_MAX)] {
            assert_eq!(good.parse::<StoreName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/a", "a b", "a\n", "a\0", &"x".repeat(BYTES_MAX + 1)] {
            let text = bad.parse::<StoreName>().unwrap_err().to_string();
            assert!(text.contains("invalid name ") && text.contains(": it "), "{text}");
        }
    }
}
