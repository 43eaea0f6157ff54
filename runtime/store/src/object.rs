//! Objects (contents with their manifests), and the names that refer to them.

use crate::error::StoreError;
use crate::files::{self, try_lock};
use crate::name::StoreName;
use cool_content::{Digest, Manifest};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The directory of one object.
#[derive(Clone, Debug)]
pub(crate) struct StoredObject {
    pub(crate) id: Digest,
    pub(crate) folder: PathBuf,
}

/// Size and use of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectAbout {
    /// Bytes of all its files' data, without holes.
    pub bytes: u64,
    /// Number of files, directories and links.
    pub items: usize,
    /// Time when it was last put or read.
    pub used: SystemTime,
}

/// Content of a name file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The identity of the object.
    pub id: Digest,
    /// Time of the put, in milliseconds since 1970.
    pub put_ms: u64,
}

/// A name and its object.
#[derive(Debug)]
pub struct NamedObject {
    /// The name.
    pub name: StoreName,
    /// Content of the name file, or `None` if it is damaged.
    pub entry: Option<NameEntry>,
    /// The object, or why it cannot be used.
    pub about: Result<ObjectAbout, StoreError>,
}

/// An object that is being read. It is not removed until this value is dropped.
#[derive(Debug)]
pub struct ObjectReading {
    /// Path of its file or directory.
    pub tree: PathBuf,
    /// Its manifest.
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

    /// Returns the manifest, or an error if its hash is not the identity of the object.
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

    /// Returns whether its content is complete and in place.
    pub(crate) fn is_whole(&self) -> bool {
        self.tree().symlink_metadata().is_ok()
    }

    fn check_whole(&self) -> Result<(), StoreError> {
        if self.is_whole() { Ok(()) } else { Err(damaged(&self.tree(), "it does not exist")) }
    }

    /// Locks the object for reading or writing, until the returned file is closed. The caller must
    /// hold the store's lock.
    pub(crate) fn hold(&self) -> Result<File, StoreError> {
        let path = self.manifest_path();
        let file = File::options().read(true).write(true).open(&path).map_err(StoreError::at(&path))?;
        // This does not block, because exclusive locks are held only together with the store's
        // lock.
        try_lock(&path, &file, FlockOperation::LockShared)?;
        Ok(file)
    }

    /// Sets the time of the last use to now.
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

    /// Returns whether the object has no reader or writer. The caller must hold the store's lock,
    /// because the result can change otherwise.
    pub(crate) fn is_free(&self) -> Result<bool, StoreError> {
        let path = self.manifest_path();
        match files::found(File::open(&path)).map_err(StoreError::at(&path))? {
            // A put ended before it wrote the manifest.
            None => Ok(true),
            Some(file) => try_lock(&path, &file, FlockOperation::NonBlockingLockExclusive),
        }
    }
}

pub(crate) fn damaged(path: &Path, why: &str) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), why: why.to_owned() }
}
