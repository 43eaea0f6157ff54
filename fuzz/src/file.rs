//! A file for parsers that read files.

use std::path::Path;

/// A file in memory.
#[derive(Debug)]
pub struct File(tempfile::NamedTempFile);

impl File {
    /// An empty one, whose name ends so.
    ///
    /// # Panics
    /// If the system gives none.
    pub fn new(ending: &str) -> File {
        File(tempfile::Builder::new().suffix(ending).tempfile_in("/dev/shm").expect("a temporary file"))
    }

    /// Where it is, once it holds these bytes and no others.
    ///
    /// # Panics
    /// If the system does not write them.
    pub fn holding(&self, bytes: &[u8]) -> &Path {
        std::fs::write(self.0.path(), bytes).expect("written");
        self.0.path()
    }

    /// An error is one about this file, in words.
    ///
    /// # Panics
    /// If it does not name it.
    pub fn assert_named(&self, error: &impl ToString) {
        let (text, name) = (error.to_string(), self.0.path().display().to_string());
        assert!(text.starts_with(&name) && text.len() > name.len() + 2, "{text:?} does not name {name}");
    }
}
