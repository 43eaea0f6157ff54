//! The store's folder: opened, listed, and what goes from it.

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

/// What the file `format` says.
const FORMAT: &str = "cool-store 1";
/// What is in it; some of that may be there before `format` is, when others begin with it, too.
const OWN: [&str; 6] = ["format", "gone", "lock", "names", "objects", "quota"];
/// Who else may write: nobody.
const OTHERS_WRITE: u32 = 0o022;

/// A user's store on this node.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) root: PathBuf,
}

/// How much is in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Of all objects that can be read.
    pub bytes: u64,
    /// What they may have; none: any.
    pub quota: Option<u64>,
}

/// Held while names, objects or the quota change.
pub(crate) struct Lock(#[expect(dead_code, reason = "unlocked when it is closed")] File);

impl Store {
    /// Where a user's store is if nothing else is said.
    #[must_use]
    pub fn default_folder() -> PathBuf {
        format!("/var/tmp/cool-store-{}", geteuid().as_raw()).into()
    }

    /// Opens a store, which is made if there is none.
    ///
    /// # Errors
    /// If the folder is not this user's alone, or is something else.
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

    /// Opens a store that is there; nothing if there is none.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_existing(root: &Path) -> Result<Option<Store>, StoreError> {
        let there = found(root.symlink_metadata()).map_err(StoreError::at(root))?;
        there.map(|_| Store::open(root)).transpose()
    }

    /// Whether it is a store of this format; an empty folder becomes one.
    fn check_format(&self) -> Result<(), StoreError> {
        let path = self.root.join("format");
        let format = match files::read(&path)? {
            Some(format) => format,
            None => {
                let other = files::names(&self.root)?.into_iter().find(|name| !OWN.contains(&name.as_str()));
                if let Some(other) = other {
                    let what = format!("has {other} and is no store");
                    return Err(StoreError::Foreign { path: self.root.clone(), what });
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

    /// Keeps others from changing the store; they never do so for long.
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

    /// Where the file or folder of an object is, if it is there.
    #[must_use]
    pub fn tree(&self, id: Digest) -> PathBuf {
        self.object(id).tree()
    }

    /// What a name says.
    pub(crate) fn entry(&self, name: &StoreName) -> Result<Option<NameEntry>, StoreError> {
        let path = self.names_folder().join(name.as_str());
        let Some(bytes) = files::read(&path)? else { return Ok(None) };
        let parse = || {
            let (id, put_ms) = std::str::from_utf8(&bytes).ok()?.trim_end().split_once(' ')?;
            Some(NameEntry { id: id.parse().ok()?, put_ms: put_ms.parse().ok()? })
        };
        parse().map(Some).ok_or_else(|| damaged(&path, "it names no object"))
    }

    /// All names, with what they stand for; a damaged one with nothing.
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

    /// All objects, whole or not.
    pub(crate) fn objects(&self) -> Result<Vec<StoredObject>, StoreError> {
        let names = files::names(&self.root.join("objects"))?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).map(|id| self.object(id)).collect())
    }

    /// All names in their order, each with what is there.
    ///
    /// # Errors
    /// If the folders cannot be read.
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

    /// How much is in it.
    ///
    /// # Errors
    /// If the folders cannot be read.
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

    /// Reads an object; nothing if it is not there, or not whole yet.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn read(&self, id: Digest) -> Result<Option<ObjectReading>, StoreError> {
        self.reading(id, true)
    }

    /// As [`Store::read`], but that does not count as a use.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn examine(&self, id: Digest) -> Result<Option<ObjectReading>, StoreError> {
        self.reading(id, false)
    }

    fn reading(&self, id: Digest, uses: bool) -> Result<Option<ObjectReading>, StoreError> {
        let _lock = self.lock()?;
        let object = self.object(id);
        if object.is_whole() { object.read(uses).map(Some) } else { Ok(None) }
    }

    /// Reads what a name stands for; nothing if there is no such name.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn read_name(&self, name: &StoreName) -> Result<Option<ObjectReading>, StoreError> {
        let _lock = self.lock()?;
        match self.entry(name)? {
            Some(NameEntry { id, .. }) => self.object(id).read(true).map(Some),
            None => Ok(None),
        }
    }

    /// Takes a name away, and the object if it was the last one; whether there was such a name. Who reads the object still can.
    ///
    /// # Errors
    /// What the system says.
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
    /// What the system says.
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

    /// Removes an object that has no name, unless it is being read or written.
    pub(crate) fn remove_unnamed(&self, id: Digest) -> Result<(), StoreError> {
        let object = self.object(id);
        let is_named = self.entries()?.iter().any(|(_, entry)| entry.is_some_and(|entry| entry.id == id));
        if is_named || !object.is_free()? {
            return Ok(());
        }
        // Gone at once, also if this is interrupted.
        let gone = self.root.join("gone").join(id.to_string());
        remove_tree(&gone).map_err(StoreError::at(&gone))?;
        let moved = found(std::fs::rename(&object.folder, &gone)).map_err(StoreError::at(&object.folder))?;
        moved.map_or(Ok(()), |()| remove_tree(&gone).map_err(StoreError::at(&gone)))
    }

    /// Removes what interrupted programs have left, but for the object that is to be put.
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

/// Whether a folder is this user's, and nobody else's to write.
fn check_folder(root: &Path) -> Result<(), StoreError> {
    let about = root.symlink_metadata().map_err(StoreError::at(root))?;
    let what = match () {
        () if about.is_symlink() => "is a symbolic link",
        () if !about.is_dir() => "is no folder",
        () if about.uid() != geteuid().as_raw() => "is another user's",
        () if about.mode() & OTHERS_WRITE != 0 => "may be written by others",
        () => return Ok(()),
    };
    Err(StoreError::Foreign { path: root.to_owned(), what: what.to_owned() })
}
