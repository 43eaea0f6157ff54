//! The directory of a store: opening, listing, removing.

use crate::error::StoreError;
use crate::files::{self, found, make_folder, remove_tree, try_lock};
use crate::name::StoreName;
use crate::object::{NameEntry, NamedObject, ObjectReading, StoredObject, damaged};
use cool_content::Digest;
use rustix::fs::FlockOperation;
use rustix::process::geteuid;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Content of the file `format`.
const FORMAT: &str = "cool-store 1";
/// Entries of a store. Some may exist before `format`, when several processes open a new store at
/// once.
const OWN: [&str; 6] = ["format", "gone", "lock", "names", "objects", "quota"];
/// Mode bits that permit other users to write, none of which may be set.
const OTHERS_WRITE: u32 = 0o022;

/// A user's store on this node.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) root: PathBuf,
}

/// Space used by a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes of all readable objects.
    pub bytes: u64,
    /// Limit in bytes, or `None` if unlimited.
    pub quota: Option<u64>,
}

/// Held while names, objects or the quota change.
pub(crate) struct Lock(#[expect(dead_code, reason = "unlocked when it is closed")] File);

impl Store {
    /// Returns the default directory of this user's store.
    #[must_use]
    pub fn default_folder() -> PathBuf {
        format!("/var/tmp/cool-store-{}", geteuid().as_raw()).into()
    }

    /// Opens a store, and creates it if the directory is empty or does not exist.
    ///
    /// # Errors
    /// Returns an error if the directory does not belong to this user alone, or has other content.
    pub fn open(root: &Path) -> Result<Store, StoreError> {
        if let Some(parent) = root.parent() {
            std::fs::create_dir_all(parent).map_err(StoreError::at(parent))?;
        }
        make_folder(root)?;
        check_folder(root)?;
        let store = Store { root: root.to_owned() };
        store.check_format()?;
        ["names", "objects", "gone"].iter().try_for_each(|name| make_folder(&root.join(name)))?;
        Ok(store)
    }

    /// Opens an existing store, or returns `None` if the directory does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Store::open`].
    pub fn open_existing(root: &Path) -> Result<Option<Store>, StoreError> {
        let there = found(root.symlink_metadata()).map_err(StoreError::at(root))?;
        there.map(|_| Store::open(root)).transpose()
    }

    /// Checks that the store has this format, and turns an empty directory into a store.
    fn check_format(&self) -> Result<(), StoreError> {
        let path = self.root.join("format");
        let format = match files::read(&path)? {
            Some(format) => format,
            None => {
                let other = files::names(&self.root)?.into_iter().find(|name| !OWN.contains(&name.as_str()));
                if let Some(other) = other {
                    let reason = format!("has {other} and is not a store");
                    return Err(StoreError::Foreign { path: self.root.clone(), reason });
                }
                let _lock = self.lock()?;
                files::write(&self.root, "format", format!("{FORMAT}\n").as_bytes())?;
                return Ok(());
            }
        };
        let format = String::from_utf8_lossy(&format).trim_end().to_owned();
        if format == FORMAT {
            Ok(())
        } else {
            Err(StoreError::Format { path: self.root.clone(), found: format, known: FORMAT })
        }
    }

    /// Locks the store for changes. It blocks while another process holds the lock, which is never
    /// long.
    pub(crate) fn lock(&self) -> Result<Lock, StoreError> {
        let path = self.root.join("lock");
        let file = files::open_lock(&path)?;
        try_lock(&path, &file, FlockOperation::LockExclusive)?;
        Ok(Lock(file))
    }

    pub(crate) fn names_folder(&self) -> PathBuf {
        self.root.join("names")
    }

    pub(crate) fn object(&self, id: Digest) -> StoredObject {
        StoredObject { id, folder: self.root.join("objects").join(id.to_string()) }
    }

    /// Returns the path of the file or directory of an object, which need not exist.
    #[must_use]
    pub fn tree(&self, id: Digest) -> PathBuf {
        self.object(id).tree()
    }

    /// Returns the content of a name file, or `None` if there is no such name.
    pub(crate) fn entry(&self, name: &StoreName) -> Result<Option<NameEntry>, StoreError> {
        let path = self.names_folder().join(name.as_str());
        let Some(bytes) = files::read(&path)? else { return Ok(None) };
        let parse = || {
            let (id, put_ms) = std::str::from_utf8(&bytes).ok()?.trim_end().split_once(' ')?;
            Some(NameEntry { id: id.parse().ok()?, put_ms: put_ms.parse().ok()? })
        };
        parse().map(Some).ok_or_else(|| damaged(&path, "it names no object"))
    }

    /// Returns all names with the contents of their files, which are `None` if a file is damaged.
    pub(crate) fn entries(&self) -> Result<Vec<(StoreName, Option<NameEntry>)>, StoreError> {
        let names = files::names(&self.names_folder())?;
        let names = names.into_iter().filter_map(|name| name.parse::<StoreName>().ok());
        names
            .map(|name| match self.entry(&name) {
                Ok(entry) => Ok((name, entry)),
                Err(StoreError::Damaged { .. }) => Ok((name, None)),
                Err(error) => Err(error),
            })
            .collect()
    }

    /// Returns all objects, including incomplete ones.
    pub(crate) fn objects(&self) -> Result<Vec<StoredObject>, StoreError> {
        let names = files::names(&self.root.join("objects"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).map(|id| self.object(id)).collect())
    }

    /// Returns all names, sorted, with their objects.
    ///
    /// # Errors
    /// Returns an error if the directories cannot be read.
    pub fn list(&self) -> Result<Vec<NamedObject>, StoreError> {
        let _lock = self.lock()?;
        let named = self.entries()?.into_iter().map(|(name, entry)| NamedObject {
            about: match entry {
                Some(NameEntry { id, .. }) => self.object(id).about(),
                None => Err(damaged(&self.names_folder().join(name.as_str()), "it names no object")),
            },
            name,
            entry,
        });
        Ok(named.collect())
    }

    /// Returns the bytes of all readable objects, and the quota.
    ///
    /// # Errors
    /// Returns an error if the directories cannot be read.
    pub fn usage(&self) -> Result<StoreUsage, StoreError> {
        let _lock = self.lock()?;
        let bytes = self.objects()?.iter().filter_map(|object| Some(object.manifest().ok()?.bytes())).sum();
        Ok(StoreUsage { bytes, quota: self.quota()? })
    }

    pub(crate) fn quota(&self) -> Result<Option<u64>, StoreError> {
        let path = self.root.join("quota");
        let Some(bytes) = files::read(&path)? else { return Ok(None) };
        let quota = std::str::from_utf8(&bytes).ok().and_then(|text| text.trim_end().parse().ok());
        quota.map(Some).ok_or(StoreError::Quota(path))
    }

    /// Locks an object for reading, and records the use. Returns `None` if it does not exist or is
    /// incomplete.
    ///
    /// # Errors
    /// Returns an error if it is damaged.
    pub fn read(&self, id: Digest) -> Result<Option<ObjectReading>, StoreError> {
        self.reading(id, true)
    }

    /// Locks an object for reading like [`Store::read`], but does not record a use.
    ///
    /// # Errors
    /// Returns an error if it is damaged.
    pub fn examine(&self, id: Digest) -> Result<Option<ObjectReading>, StoreError> {
        self.reading(id, false)
    }

    fn reading(&self, id: Digest, uses: bool) -> Result<Option<ObjectReading>, StoreError> {
        let _lock = self.lock()?;
        let object = self.object(id);
        if object.is_whole() { object.read(uses).map(Some) } else { Ok(None) }
    }

    /// Locks the object of a name for reading. Returns `None` if there is no such name.
    ///
    /// # Errors
    /// Returns an error if it is damaged.
    pub fn read_name(&self, name: &StoreName) -> Result<Option<ObjectReading>, StoreError> {
        let _lock = self.lock()?;
        match self.entry(name)? {
            Some(NameEntry { id, .. }) => self.object(id).read(true).map(Some),
            None => Ok(None),
        }
    }

    /// Removes a name, and its object if that was its last name. Returns whether the name existed.
    /// Readers of the object may continue.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn remove(&self, name: &StoreName) -> Result<bool, StoreError> {
        let _lock = self.lock()?;
        let entry = match self.entry(name) {
            Err(StoreError::Damaged { .. }) => None,
            entry => entry?,
        };
        let was_there = files::unlink(&self.names_folder(), name.as_str())?;
        if let Some(NameEntry { id, .. }) = entry {
            self.remove_unnamed(id)?;
        }
        Ok(was_there)
    }

    /// Removes an object with all its names.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn drop_object(&self, id: Digest) -> Result<(), StoreError> {
        let _lock = self.lock()?;
        self.evict(id)
    }

    pub(crate) fn evict(&self, id: Digest) -> Result<(), StoreError> {
        for (name, entry) in self.entries()? {
            if entry.is_some_and(|entry| entry.id == id) {
                files::unlink(&self.names_folder(), name.as_str())?;
            }
        }
        self.remove_unnamed(id)
    }

    /// Removes an object if it has no name and no reader or writer.
    pub(crate) fn remove_unnamed(&self, id: Digest) -> Result<(), StoreError> {
        let object = self.object(id);
        let is_named = self.entries()?.iter().any(|(_, entry)| entry.is_some_and(|entry| entry.id == id));
        if is_named || !object.is_free()? {
            return Ok(());
        }
        // The object is removed by one rename. If the rest is interrupted, `collect` completes it
        // later.
        let gone = self.root.join("gone").join(id.to_string());
        remove_tree(&gone).map_err(StoreError::at(&gone))?;
        let moved = found(std::fs::rename(&object.folder, &gone)).map_err(StoreError::at(&object.folder))?;
        moved.map_or(Ok(()), |()| remove_tree(&gone).map_err(StoreError::at(&gone)))
    }

    /// Removes the remains of interrupted programs, except for the object `but`, which is being
    /// put.
    pub(crate) fn collect(&self, but: Digest) -> Result<(), StoreError> {
        let gone = self.root.join("gone");
        for name in files::names(&gone)? {
            let path = gone.join(name);
            remove_tree(&path).map_err(StoreError::at(&path))?;
        }
        self.objects()?
            .iter()
            .filter(|object| object.id != but)
            .try_for_each(|object| self.remove_unnamed(object.id))
    }
}

/// Checks that a directory belongs to this user, and that no other user may write it.
fn check_folder(root: &Path) -> Result<(), StoreError> {
    let about = root.symlink_metadata().map_err(StoreError::at(root))?;
    let reason = match () {
        () if about.is_symlink() => "is a symbolic link",
        () if !about.is_dir() => "is not a directory",
        () if about.uid() != geteuid().as_raw() => "belongs to another user",
        () if about.mode() & OTHERS_WRITE != 0 => "is writable by other users",
        () => return Ok(()),
    };
    Err(StoreError::Foreign { path: root.to_owned(), reason: reason.to_owned() })
}
