//! Copies out of a node's store, and into it: where the source is read, and where a copy comes into being.

use super::fault::Fault;
use super::said::Task;
use super::scan::scan;
use super::target::{Habits, Target};
use crate::store::StorePlace;
use cool_content::{Digest, Manifest};
use cool_peer::Share;
use cool_store::{ObjectReading, PutRequest, Store, StoreName};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What ranks of a copy do with their stores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoreTask {
    pub(crate) store: StorePlace,
    /// Blocks of what it stands for on a node are taken from there.
    pub(crate) name: StoreName,
    /// The source is the tree of this object.
    pub(crate) object: Option<Digest>,
    /// The copy is to be in the store, not at a path.
    pub(crate) put: Option<PutTask>,
    /// Nodes whose stores have the object, too: by swarm it comes from them as well. They get no copy.
    #[serde(default)]
    pub(crate) others: Vec<String>,
}

/// How a copy gets into a store.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PutTask {
    /// When, in milliseconds since 1970.
    pub(crate) put_ms: u64,
    /// What the store may have from then on.
    pub(crate) quota: Option<u64>,
}

/// What is copied.
pub(super) struct CopySource {
    pub(super) manifest: Arc<Manifest>,
    /// Where it is.
    pub(super) root: PathBuf,
    /// Kept by its store until this is dropped.
    _held: Option<ObjectReading>,
}

impl CopySource {
    /// On a node that has it.
    pub(super) fn open(task: &Task, node: &str) -> Result<CopySource, Fault> {
        let stored = task.store.as_ref().and_then(|stored| Some((stored, stored.object?)));
        let Some((stored, id)) = stored else {
            let (manifest, root) = (Arc::new(scan(&task.source)?), task.source.clone());
            return Ok(CopySource { manifest, root, _held: None });
        };
        let store = Store::open(&stored.store.on(node))?;
        let held = store.read(id)?.ok_or_else(|| Fault::Gone(store.tree(id)))?;
        Ok(CopySource { manifest: Arc::clone(&held.manifest), root: held.tree.clone(), _held: Some(held) })
    }
}

impl Task {
    /// Nodes besides the source's that have what is copied, and get no copy.
    pub(super) fn others(&self) -> &[String] {
        self.store.as_ref().map_or(&[], |stored| &stored.others)
    }

    /// Which of those that have what is copied a node is.
    pub(super) fn share(&self, node: &str) -> Option<Share> {
        let mut having = iter::once(&self.from).chain(self.others());
        // No more than are named.
        let index = having.position(|having| having == node)? as u16;
        Some(Share { index, of: 1 + self.others().len() as u16 })
    }

    /// Why the source cannot be read: what is in a store changes by no program.
    pub(super) fn blame(&self, root: &Path, fault: Fault) -> Fault {
        let is_stored = self.store.as_ref().is_some_and(|stored| stored.object.is_some());
        match fault {
            Fault::Changed(path) if is_stored => Fault::Damaged(path),
            Fault::Path { path, reason }
                if is_stored && reason.kind() == ErrorKind::NotFound && path.starts_with(root) =>
            {
                Fault::Damaged(path)
            }
            fault => fault,
        }
    }
}

/// Prepares a node's copy, out of all that is there already; beside the source itself, not within it.
pub(super) fn open(task: &Task, node: &str, manifest: Arc<Manifest>) -> Result<Target, Fault> {
    let dest = task.dest_on(node);
    if node == task.from && dest.starts_with(&task.source) {
        return Err(Fault::Within(dest));
    }
    let Some(stored) = &task.store else {
        return Target::open(&dest, manifest, task.habits());
    };
    let folder = stored.store.on(node);
    let Some(PutTask { put_ms, quota }) = stored.put else {
        let mut target = Target::open(&dest, manifest, task.habits())?;
        // What cannot be read here comes from the source.
        let here = Store::open_existing(&folder).ok().flatten();
        take(&mut target, here.and_then(|store| store.read_name(&stored.name).ok()).flatten());
        return Ok(target);
    };
    let request = PutRequest { name: stored.name.clone(), put_ms, quota };
    let put = Store::open(&folder)?.put(request, &manifest)?;
    let habits = Habits { delete: true, ..task.habits() };
    match Target::open(&put.tree(), manifest, habits) {
        Ok(mut target) => {
            take(&mut target, put.earlier());
            Ok(target.into_store(put))
        }
        Err(fault) => {
            put.abandon()?;
            Err(fault)
        }
    }
}

/// Takes what a node's store has already. A block that cannot be read, or written, is lacking as before.
fn take(target: &mut Target, here: Option<ObjectReading>) {
    if let Some(ObjectReading { tree, manifest, .. }) = &here {
        drop(target.take_from(tree, manifest));
    }
}

#[cfg(test)]
mod tests {
    use super::super::said::CopyVia;
    use super::super::tests::{MIB, all_well, copied, make_folder, noise, task};
    use super::*;
    use std::os::unix::fs::FileExt;
    use tempfile::TempDir;

    const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

    fn stored(folder: &Path, name: &str, object: Option<Digest>, put: Option<PutTask>) -> Task {
        let place = folder.join("stores/{node}").display().to_string();
        let store = StorePlace::new(place);
        let (name, others) = (name.parse().unwrap(), Vec::new());
        Task { store: Some(StoreTask { store, name, object, put, others }), ..task(folder) }
    }

    fn put(folder: &Path, name: &str, quota: Option<u64>) -> Task {
        stored(folder, name, None, Some(PutTask { put_ms: 1, quota }))
    }

    fn store(folder: &Path, node: &str) -> Store {
        Store::open_existing(&folder.join("stores").join(node)).unwrap().unwrap()
    }

    fn names(folder: &Path, node: &str) -> Vec<String> {
        store(folder, node).list().unwrap().iter().map(|named| named.name.to_string()).collect()
    }

    #[test]
    fn a_folder_gets_into_every_store_and_out_of_it_by_every_way() {
        let folder = TempDir::new().unwrap();
        let at = folder.path();
        make_folder(&at.join("source"));
        for via in [CopyVia::Auto, CopyVia::Chain, CopyVia::Swarm] {
            let name = format!("{via:?}");
            std::fs::write(at.join("source/way"), &name).unwrap();
            all_well(&Task { via, ..put(at, &name, None) });
            let source = scan(&at.join("source")).unwrap();
            let id = source.identity();
            for node in NODES {
                let reading = store(at, node).read_name(&name.parse().unwrap()).unwrap().unwrap();
                assert_eq!((&*reading.manifest, &scan(&reading.tree).unwrap()), (&source, &source), "{node}");
            }
            // Two of them have lost it, and the source is a store.
            let tree = store(at, "n0").tree(id);
            for node in ["n1", "n2"] {
                store(at, node).drop_object(id).unwrap();
            }
            let get = Task { via, source: tree, delete: true, ..stored(at, &name, Some(id), None) };
            all_well(&get);
            assert!(NODES.iter().all(|node| scan(&at.join(node).join("copy")).unwrap() == source));
            assert_eq!((names(at, "n3").contains(&name), names(at, "n1").contains(&name)), (true, false));
        }
    }

    /// Of four nodes three have it, and fewer and fewer of them as it was put.
    #[test]
    fn by_swarm_it_comes_from_all_that_have_it_and_goes_on_without_those_whose_is_damaged() {
        let folder = TempDir::new().unwrap();
        let at = folder.path();
        let bytes = noise(3, 8 * MIB);
        std::fs::write(at.join("source"), &bytes).unwrap();
        all_well(&put(at, "a", None));
        let id = scan(&at.join("source")).unwrap().identity();
        store(at, "n3").drop_object(id).unwrap();
        let tree = |node| store(at, node).tree(id);
        let mut get = stored(at, "a", Some(id), None);
        get.store.as_mut().unwrap().others = vec!["n1".to_owned(), "n2".to_owned()];
        let get = Task { via: CopyVia::Swarm, source: tree("n0"), own: false, ..get };
        for damaged in [None, Some("n0"), Some("n2")] {
            if let Some(node) = damaged {
                std::fs::write(tree(node), noise(4, 8 * MIB)).unwrap();
            }
            all_well(&get);
            assert!(std::fs::read(at.join("n3/copy")).unwrap() == bytes, "without {damaged:?}");
            assert!(["n0", "n1", "n2"].iter().all(|node| !at.join(node).join("copy").exists()));
            std::fs::remove_file(at.join("n3/copy")).unwrap();
        }
    }

    #[test]
    fn a_store_without_room_is_named_and_a_damaged_source_is_no_source() {
        let folder = TempDir::new().unwrap();
        let at = folder.path();
        std::fs::write(at.join("source"), noise(1, MIB)).unwrap();
        all_well(&put(at, "a", None));
        let id = scan(&at.join("source")).unwrap().identity();
        std::fs::write(at.join("source"), noise(2, 2 * MIB)).unwrap();
        let outcomes = copied(&put(at, "b", Some(MIB as u64)));
        for (node, outcome) in NODES.iter().zip(&outcomes) {
            let text = outcome.as_deref().unwrap();
            assert!(
                text.contains("2097152 bytes do not fit into the quota of 1048576; nothing was changed"),
                "{text}"
            );
            assert_eq!(names(at, node), ["a"]);
        }
        let tree = store(at, "n0").tree(id);
        std::fs::File::options().write(true).open(&tree).unwrap().write_all_at(b"wrong", 5).unwrap();
        for via in [CopyVia::Auto, CopyVia::Swarm] {
            let get = Task { via, source: tree.clone(), own: false, ..stored(at, "other", Some(id), None) };
            let outcomes = copied(&get);
            let why = format!("{}: is not what was put; `cool verify --drop`", tree.display());
            assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().contains(&why)), "{outcomes:?}");
        }
        std::fs::remove_file(&tree).unwrap();
        std::fs::create_dir(&tree).unwrap();
        let outcomes = copied(&Task { source: tree.clone(), ..stored(at, "a", Some(id), None) });
        assert!(
            outcomes[0].is_some() && outcomes[1..] == [const { None }; 3],
            "others have it: {outcomes:?}"
        );
        assert_eq!(std::fs::read_dir(at.join("n0")).unwrap().count(), 0, "nothing is left of it");
        // Put again it is mended.
        std::fs::write(at.join("source"), noise(2, MIB)).unwrap();
        all_well(&put(at, "a", Some(0)));
        assert!(NODES.iter().all(|node| names(at, node) == ["a"]));
    }
}
