//! Keeps what operators have requested for the next run of the controller: in etcd for a pair, and
//! in the state directory for a single controller.

use super::etcd::Etcd;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Maximum time for a request to etcd.
const ETCD_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of the state. Clones share it.
#[derive(Clone, Default)]
pub enum StateStore {
    /// The state ends with this run.
    #[default]
    Volatile,
    /// A directory.
    Directory(PathBuf),
    /// The etcd of a pair.
    Pair(Arc<PairStore>),
}

/// The state of a pair in etcd.
pub struct PairStore(pub(super) Arc<Etcd>);

impl fmt::Debug for StateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateStore::Volatile => f.write_str("Volatile"),
            StateStore::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            StateStore::Pair(_) => f.write_str("Pair"),
        }
    }
}

impl StateStore {
    /// Returns a value of an earlier run, if there is one. An unreadable value is reported and
    /// treated as missing.
    pub async fn load(&self, name: &str) -> Option<String> {
        let loaded = match self {
            StateStore::Volatile => Ok(None),
            StateStore::Directory(directory) => read_file(directory, name).map_err(|error| error.to_string()),
            StateStore::Pair(pair) => {
                pair.0.load(name, ETCD_TIMEOUT).await.map_err(|error| error.to_string())
            }
        };
        loaded.unwrap_or_else(|error| {
            warn!(name, error, "cannot read the state of an earlier run");
            None
        })
    }

    /// Replaces a value.
    ///
    /// # Errors
    /// Returns the reason in words if a later run may not have the value.
    pub async fn save(&self, name: &str, value: &str) -> Result<(), String> {
        match self {
            StateStore::Volatile => Ok(()),
            StateStore::Directory(directory) => replace_file(directory, name, value)
                .map_err(|error| format!("{}: {error}", directory.display())),
            StateStore::Pair(pair) => {
                pair.0.save(name, value, ETCD_TIMEOUT).await.map_err(|error| format!("etcd: {error}"))
            }
        }
    }
}

/// Returns the content of a file, or `None` if it does not exist.
pub(super) fn read_file(directory: &Path, name: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Replaces a file as a whole, so that a failure of the machine leaves the old or the new one.
pub(super) fn replace_file(directory: &Path, name: &str, content: &str) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    writeln!(file, "{content}")?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[tokio::test]
    async fn a_value_is_kept_in_the_directory() {
        let directory = TempDir::new().unwrap();
        let store = StateStore::Directory(directory.path().to_owned());
        assert_eq!(store.load("drain").await, None);
        store.save("drain", "one").await.unwrap();
        store.save("drain", "two").await.unwrap();
        assert_eq!(store.load("drain").await.as_deref(), Some("two\n"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let missing = StateStore::Directory("/nonexistent/directory".into());
        assert!(missing.save("drain", "x").await.unwrap_err().contains("/nonexistent/directory"));
    }
}
