//! Objects: contents, each with its manifest, and what names say of them.

use crate::error::StoreError;
use crate::files::{self, try_lock};
use crate::name::StoreName;
use cool_content::{Digest, Manifest};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The folder of one object.
#[derive(Clone, Debug)]
pub(crate) struct StoredObject {
    pub(crate) id: Digest,
    pub(crate) folder: PathBuf,
}

/// What is known of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectAbout {
    /// Of all its files' data, holes left out.
    pub bytes: u64,
    /// Files, folders and links.
    pub items: usize,
    /// When it was put or read last.
    pub used: SystemTime,
}

/// What a name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The identity of the object.
    pub id: Digest,
    /// When it was put, in milliseconds since 1970.
    pub put_ms: u64,
}

/// A name, and what it stands for.
#[derive(Debug)]
pub struct NamedObject {
    /// The name.
    pub name: StoreName,
    /// What it says; none if that cannot be read.
    pub entry: Option<NameEntry>,
    /// What is there.
    pub about: Result<ObjectAbout, StoreError>,
}

/// An object that is being read: until this is dropped it is not removed.
#[derive(Debug)]
pub struct ObjectReading {
    /// Where its file or folder is.
    pub tree: PathBuf,
    /// As it was put.
    pub manifest: Arc<Manifest>,
    _lock: File,
}

impl StoredObject {
    pub(crate) fn manifest_path(&self) -> PathBuf {
        self.folder.join("manifest")
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// The manifest, if it is the one that was put.
    pub(crate) fn manifest(&self) -> Result<Manifest, StoreError> {
        let path = self.manifest_path();
        let bytes = std::fs::read(&path).map_err(StoreError::at(&path))?;
        if Digest::of(&bytes) != self.id {
            return Err(damaged(&path, "it is not the manifest that was put"));
        }
        Manifest::decode(&bytes).map_err(StoreError::manifest(&path))
    }

    pub(crate) fn about(&self) -> Result<ObjectAbout, StoreError> {
        let path = self.manifest_path();
        let manifest = self.manifest()?;
        self.check_whole()?;
        let used = path.metadata().and_then(|about| about.modified()).map_err(StoreError::at(&path))?;
        Ok(ObjectAbout { bytes: manifest.bytes(), items: manifest.items().len(), used })
    }

    /// Whether its content has come into its place.
    pub(crate) fn is_whole(&self) -> bool {
        self.tree().symlink_metadata().is_ok()
    }

    fn check_whole(&self) -> Result<(), StoreError> {
        if self.is_whole() { Ok(()) } else { Err(damaged(&self.tree(), "it is not there")) }
    }

    /// Locks it for reading or writing, under the store's lock.
    pub(crate) fn hold(&self) -> Result<File, StoreError> {
        let path = self.manifest_path();
        let file = File::options().read(true).write(true).open(&path).map_err(StoreError::at(&path))?;
        // Who has it alone has the store's lock, too.
        try_lock(&path, &file, FlockOperation::LockShared)?;
        Ok(file)
    }

    /// It counts as used now.
    pub(crate) fn touch(&self, held: &File) -> Result<(), StoreError> {
        held.set_modified(SystemTime::now()).map_err(StoreError::at(&self.manifest_path()))
    }

    pub(crate) fn read(&self, uses: bool) -> Result<ObjectReading, StoreError> {
        let lock = self.hold()?;
        if uses {
            self.touch(&lock)?;
        }
        let manifest = Arc::new(self.manifest()?);
        self.check_whole()?;
        Ok(ObjectReading { tree: self.tree(), manifest, _lock: lock })
    }

    /// Whether nobody reads or writes it: true as long as the store's lock is held.
    pub(crate) fn is_free(&self) -> Result<bool, StoreError> {
        let path = self.manifest_path();
        match files::found(File::open(&path)).map_err(StoreError::at(&path))? {
            // It was only begun.
            None => Ok(true),
            Some(file) => try_lock(&path, &file, FlockOperation::NonBlockingLockExclusive),
        }
    }
}

pub(crate) fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), why: why.to_owned() }
}
