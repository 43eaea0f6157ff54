//! Puts a content into a store in three steps: makes room, lets the caller copy the content, and
//! gives it its name.

use crate::error::StoreError;
use crate::files;
use crate::name::StoreName;
use crate::object::{NameEntry, ObjectReading, StoredObject};
use crate::quota::{EvictionCandidate, evictions};
use crate::store::Store;
use cool_content::{Digest, Manifest};
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

/// Parameters of a put.
#[derive(Clone, Debug)]
pub struct PutRequest {
    /// Name of the content.
    pub name: StoreName,
    /// Time of the put, in milliseconds since 1970. Of two nodes, the one with the later time has
    /// the newer content.
    pub put_ms: u64,
    /// Whether this is a new put. Otherwise it repeats the put of `put_ms`, and does not replace a
    /// later one.
    pub is_new: bool,
    /// New limit for the bytes of all objects, 0 for no limit, or `None` to keep the current one.
    pub quota: Option<u64>,
}

/// A put in progress. Its object is locked. If this value is dropped, the data copied so far stays
/// for the next put of the same content.
#[derive(Debug)]
pub struct Put {
    store: Store,
    request: PutRequest,
    object: StoredObject,
    /// The entry that the name had at the start.
    before: Option<NameEntry>,
    lock: File,
}

impl PutRequest {
    /// Returns whether the put of an entry with other content than `id` is later than this one, so
    /// that all nodes agree on one of them, whichever completes first.
    fn is_superseded(&self, id: Digest, entry: NameEntry) -> bool {
        entry.id != id && (entry.put_ms, entry.id) > (self.put_ms, id)
    }
}

impl Store {
    /// Makes room for a content, locks its object, and returns the put. The caller must then place
    /// the content at [`Put::tree`] and call [`Put::commit`].
    ///
    /// # Errors
    /// Returns an error if the content does not fit; nothing has changed then. Otherwise returns
    /// the system's error.
    pub fn put(&self, request: PutRequest, manifest: &Manifest) -> Result<Put, StoreError> {
        let _lock = self.lock()?;
        let encoded = manifest.encode();
        let object = self.object(Digest::of(&encoded));
        let before = match self.entry(&request.name) {
            Err(StoreError::Damaged { .. }) => None,
            entry => entry?,
        };
        if !request.is_new && before.is_some_and(|entry| request.is_superseded(object.id, entry)) {
            return Err(StoreError::Superseded(request.name));
        }
        self.make_room(&request, &object, before.map(|entry| entry.id), manifest.bytes())?;
        files::make_folder(&object.folder)?;
        files::sync(&self.root.join("objects"))?;
        let path = object.manifest_path();
        if files::read(&path)?.as_ref() != Some(&encoded) {
            files::write(&object.folder, "manifest", &encoded)?;
        }
        let lock = object.hold()?;
        object.touch(&lock)?;
        Ok(Put { store: self.clone(), request, object, before, lock })
    }

    /// Evicts objects until the content fits, and stores a new quota.
    fn make_room(
        &self,
        request: &PutRequest,
        object: &StoredObject,
        before: Option<Digest>,
        needed: u64,
    ) -> Result<(), StoreError> {
        let quota = match request.quota {
            Some(quota) => Some(quota).filter(|quota| *quota > 0),
            None => self.quota()?,
        };
        let gone = match quota {
            Some(quota) => evictions(self.kept(&request.name, object.id, before)?, needed, quota)
                .map_err(|unfit| StoreError::Full { path: self.root.clone(), unfit })?,
            None => Vec::new(),
        };
        match (request.quota, quota) {
            (None, _) => {}
            (Some(_), Some(quota)) => {
                files::write(&self.root, "quota", format!("{quota}\n").as_bytes())?;
            }
            (Some(_), None) => files::unlink(&self.root, "quota").map(drop)?,
        }
        gone.into_iter().try_for_each(|id| self.evict(id))?;
        self.collect(object.id)
    }

    /// Returns the objects that count in addition to the one that is put. An object to which only
    /// this name refers does not count, because it is replaced; nor do the remains of an
    /// interrupted put, because they are collected.
    fn kept(
        &self,
        name: &StoreName,
        put: Digest,
        before: Option<Digest>,
    ) -> Result<Vec<EvictionCandidate>, StoreError> {
        let entries = self.entries()?;
        let names_of = |id: Digest| {
            entries
                .iter()
                .filter(move |(_, entry)| entry.is_some_and(|entry| entry.id == id))
                .map(|(name, _)| name)
        };
        let mut kept = Vec::new();
        for object in self.objects()?.into_iter().filter(|object| object.id != put) {
            let (id, free) = (object.id, object.is_free()?);
            let is_replaced = before == Some(id) && names_of(id).all(|named| named == name);
            let is_left = free && names_of(id).next().is_none();
            if is_replaced || is_left {
                continue;
            }
            // A damaged object counts as empty and is thus not evicted, so that users can examine
            // it.
            let bytes = object.manifest().map_or(0, |manifest| manifest.bytes());
            let used = object.manifest_path().metadata().and_then(|about| about.modified());
            kept.push(EvictionCandidate { id, bytes, used: used.unwrap_or(SystemTime::UNIX_EPOCH), free });
        }
        Ok(kept)
    }
}

impl Put {
    /// Returns the path where the complete content must be placed.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.object.tree()
    }

    /// Returns the object that the name refers to so far, so that its blocks can be reused.
    /// Returns `None` if it is this content or cannot be read.
    #[must_use]
    pub fn earlier(&self) -> Option<ObjectReading> {
        let id = self.before.map(|entry| entry.id).filter(|id| *id != self.object.id)?;
        self.store.read(id).ok().flatten()
    }

    /// Gives the content its name, and removes the previous object of that name unless it has
    /// another one.
    ///
    /// # Errors
    /// Returns an error if a later put of the same name has completed since the start; that one
    /// stays. Otherwise returns the system's error; the content is then stored without this name.
    pub fn commit(self) -> Result<(), StoreError> {
        let Put { store, request, object, before, lock } = self;
        let _lock = store.lock()?;
        let current = store.entry(&request.name).ok().flatten();
        let concurrent = current.filter(|entry| Some(*entry) != before);
        if concurrent.is_some_and(|entry| request.is_superseded(object.id, entry)) {
            drop(lock);
            store.remove_unnamed(object.id)?;
            return Err(StoreError::Superseded(request.name));
        }
        // Of two puts of the same content, the later time counts.
        let same = concurrent.filter(|entry| entry.id == object.id);
        let put_ms = same.map_or(request.put_ms, |entry| entry.put_ms.max(request.put_ms));
        let entry = format!("{} {put_ms}\n", object.id);
        files::write(&store.names_folder(), request.name.as_str(), entry.as_bytes())?;
        match current {
            Some(current) if current.id != object.id => store.remove_unnamed(current.id),
            _ => Ok(()),
        }
    }

    /// Removes the data of a content that cannot be completed.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn abandon(self) -> Result<(), StoreError> {
        let Put { store, object, lock, .. } = self;
        let _lock = store.lock()?;
        drop(lock);
        if object.is_whole() { Ok(()) } else { store.remove_unnamed(object.id) }
    }
}
