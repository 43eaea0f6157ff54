//! A content that comes into a store: there is room for it first, then it comes, then it has its name.

use crate::error::StoreError;
use crate::files;
use crate::name::StoreName;
use crate::object::{ObjectReading, StoredObject};
use crate::quota::{EvictionCandidate, evictions};
use crate::store::Store;
use cool_content::{Digest, Manifest};
use std::fs::File;
use std::path::PathBuf;
use std::time::SystemTime;

/// What is asked of a store.
#[derive(Clone, Debug)]
pub struct PutRequest {
    /// What it is to be called by.
    pub name: StoreName,
    /// When, in milliseconds since 1970: of two nodes the later one has the newer content.
    pub put_ms: u64,
    /// What all objects may have from now on; 0: any. As before if nothing is said.
    pub quota: Option<u64>,
}

/// A content that is coming. Its object is locked; what has come stays if this is dropped, for the next put of the same content.
#[derive(Debug)]
pub struct Put {
    store: Store,
    request: PutRequest,
    object: StoredObject,
    /// What the name stands for now.
    before: Option<Digest>,
    lock: File,
}

impl Store {
    /// Makes room for a content, and locks its object. Nothing has changed if there is none.
    ///
    /// # Errors
    /// If it does not fit, or what the system says.
    pub fn put(&self, request: PutRequest, manifest: &Manifest) -> Result<Put, StoreError> {
        let _lock = self.lock()?;
        let encoded = manifest.encode();
        let object = self.object(Digest::of(&encoded));
        let before = match self.entry(&request.name) {
            Err(StoreError::Damaged { .. }) => None,
            entry => entry?.map(|entry| entry.id),
        };
        self.make_room(&request, &object, before, manifest.bytes())?;
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

    /// Evicts what has to go.
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

    /// The objects that count beside the one that is put. What only its name stands for is replaced, and does not count; nor does
    /// what an interrupted put has left, which is collected.
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
            // One that is damaged is nobody's to evict before it was looked at.
            let bytes = object.manifest().map_or(0, |manifest| manifest.bytes());
            let used = object.manifest_path().metadata().and_then(|about| about.modified());
            kept.push(EvictionCandidate { id, bytes, used: used.unwrap_or(SystemTime::UNIX_EPOCH), free });
        }
        Ok(kept)
    }
}

impl Put {
    /// Where the content is to be, whole.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.object.tree()
    }

    /// What the name stands for so far, of which blocks may be taken; nothing if that is this content, or cannot be read.
    #[must_use]
    pub fn earlier(&self) -> Option<ObjectReading> {
        let id = self.before.filter(|id| *id != self.object.id)?;
        self.store.read(id).ok().flatten()
    }

    /// Gives the content its name. What the name stood for before goes, unless it has another one.
    ///
    /// # Errors
    /// What the system says; the content is there without this name then.
    pub fn commit(self) -> Result<(), StoreError> {
        let Put { store, request, object, .. } = &self;
        let _lock = store.lock()?;
        // Another put of the same name may have ended meanwhile.
        let before = store.entry(&request.name).ok().flatten();
        let entry = format!("{} {}\n", object.id, request.put_ms);
        files::write(&store.names_folder(), request.name.as_str(), entry.as_bytes())?;
        match before {
            Some(before) if before.id != object.id => store.remove_unnamed(before.id),
            _ => Ok(()),
        }
    }

    /// Leaves nothing of a content that cannot come.
    ///
    /// # Errors
    /// What the system says.
    pub fn abandon(self) -> Result<(), StoreError> {
        let Put { store, object, lock, .. } = self;
        let _lock = store.lock()?;
        drop(lock);
        if object.is_whole() { Ok(()) } else { store.remove_unnamed(object.id) }
    }
}
