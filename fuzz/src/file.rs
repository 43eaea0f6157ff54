//! A file for parsers that read files.

use std::path::Path;

/// A file in memory.
#[derive(Debug)]
pub(crate) struct File(tempfile::NamedTempFile);

impl File {
    /// Creates an empty file with the given ending.
    ///
    /// # Panics
    /// If the system cannot create a file.
    pub(crate) fn new(ending: &str) -> File {
        File(tempfile::Builder::new().suffix(ending).tempfile_in("/dev/shm").expect("a temporary file"))
    }

    /// Replaces the contents of the file, and returns its path.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub(crate) fn with_contents(&self, bytes: &[u8]) -> &Path {
        std::fs::write(self.0.path(), bytes).expect("written");
        self.0.path()
    }

    /// Checks that an error describes a problem of this file.
    ///
    /// # Panics
    /// If the error does not start with the file's name.
    pub(crate) fn assert_named(&self, error: &impl ToString) {
        let (text, name) = (error.to_string(), self.0.path().display().to_string());
        assert!(text.starts_with(&name) && text.len() > name.len() + 2, "{text:?} does not name {name}");
    }
}
