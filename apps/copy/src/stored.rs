//! Copies out of a node's store and into it: where a rank reads the content, and where it writes a
//! copy.

use crate::destination::{DestinationCopy, DestinationOptions};
use crate::errors::CopyFileError;
use crate::manifest_scan::scan;
use crate::protocol::{CopyTask, PutTask};
use cool_content::Manifest;
use cool_peer::SourceIndex;
use cool_store::{ObjectReading, PutRequest, Store};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The content of a copy, on a node that has it.
pub(crate) struct CopySource {
    pub(crate) manifest: Arc<Manifest>,
    /// Path of its files.
    pub(crate) root: PathBuf,
    /// The store keeps the object until this is dropped.
    _held: Option<ObjectReading>,
}

impl CopySource {
    /// Scans the source, or opens the object in this node's store.
    pub(crate) fn open(task: &CopyTask, node: &str) -> Result<CopySource, CopyFileError> {
        let stored = task.store.as_ref().and_then(|stored| Some((stored, stored.object?)));
        let Some((stored, id)) = stored else {
            let (manifest, root) = (Arc::new(scan(&task.source)?), task.source.clone());
            return Ok(CopySource { manifest, root, _held: None });
        };
        let store = Store::open(&stored.store.on(node))?;
        let held = store.read(id)?.ok_or_else(|| CopyFileError::Removed(store.tree(id)))?;
        Ok(CopySource { manifest: Arc::clone(&held.manifest), root: held.tree.clone(), _held: Some(held) })
    }
}

impl CopyTask {
    fn destination_options(&self, node: &str) -> DestinationOptions {
        let source = Some(&self.source).filter(|_| node == self.from).and_then(|path| path.metadata().ok());
        let source = source.filter(Metadata::is_dir).map(|about| (about.dev(), about.ino()));
        DestinationOptions { source, delete: self.delete, verify: self.verify }
    }

    /// Returns the nodes besides the source's that have the content, and get no copy.
    pub(crate) fn others(&self) -> &[String] {
        self.store.as_ref().map_or(&[], |stored| &stored.others)
    }

    /// Returns a node's index among the nodes that have the content, and the number of these nodes.
    /// Returns `None` if the node does not have the content.
    pub(crate) fn source_index(&self, node: &str) -> Option<SourceIndex> {
        let mut holders = iter::once(&self.from).chain(self.others());
        // There are only a few such nodes, so their number fits.
        let index = holders.position(|holder| holder == node)? as u16;
        Some(SourceIndex { index, of: 1 + self.others().len() as u16 })
    }

    /// Returns a more precise error about the source: an object in a store that differs from its
    /// manifest is damaged, because no program may change it.
    pub(crate) fn source_error(&self, root: &Path, error: CopyFileError) -> CopyFileError {
        let is_stored = self.store.as_ref().is_some_and(|stored| stored.object.is_some());
        match error {
            CopyFileError::Changed(path) if is_stored => CopyFileError::Damaged(path),
            CopyFileError::Path { path, reason }
                if is_stored && reason.kind() == ErrorKind::NotFound && path.starts_with(root) =>
            {
                CopyFileError::Damaged(path)
            }
            error => error,
        }
    }
}

/// Prepares a node's copy, with all blocks that are on the node already. On the source's node, the
/// copy must not be inside the source.
pub(crate) fn open_destination(
    task: &CopyTask,
    node: &str,
    manifest: Arc<Manifest>,
) -> Result<DestinationCopy, CopyFileError> {
    let dest = task.dest_on(node);
    check_apart(task, node, &dest)?;
    let Some(stored) = &task.store else {
        return DestinationCopy::open(&dest, manifest, task.destination_options(node));
    };
    let directory = stored.store.on(node);
    let Some(PutTask { put_ms, quota }) = stored.put else {
        let mut destination = DestinationCopy::open(&dest, manifest, task.destination_options(node))?;
        // A store that cannot be read here does not matter, because the source sends the blocks.
        let local = Store::open_existing(&directory).ok().flatten();
        reuse(&mut destination, local.and_then(|store| store.read_name(&stored.name).ok()).flatten());
        return Ok(destination);
    };
    let is_new = stored.object.is_none();
    let request = PutRequest { name: stored.name.clone(), put_ms, is_new, quota };
    let put = Store::open(&directory)?.put(request, &manifest)?;
    let options = DestinationOptions { delete: true, ..task.destination_options(node) };
    match DestinationCopy::open(&put.tree(), manifest, options) {
        Ok(mut destination) => {
            reuse(&mut destination, put.earlier());
            Ok(destination.into_store(put))
        }
        Err(error) => {
            if let Err(later) = put.abandon() {
                eprintln!("{later}");
            }
            Err(error)
        }
    }
}

/// Checks that neither the destination nor the source contains the other.
fn check_apart(task: &CopyTask, node: &str, dest: &Path) -> Result<(), CopyFileError> {
    let (source, dest_path) = (resolve(&task.source), resolve(dest));
    if node == task.from && (dest.starts_with(&task.source) || dest_path.starts_with(&source)) {
        return Err(CopyFileError::InsideSource(dest.to_owned()));
    }
    // A put replaces nothing but its own object.
    let puts = task.store.as_ref().is_some_and(|stored| stored.put.is_some());
    // On the other nodes, too, because they may share the file system with the source's node.
    if !puts && source != dest_path && source.starts_with(&dest_path) && source.symlink_metadata().is_ok() {
        return Err(CopyFileError::ContainsSource {
            dest: dest.to_owned(),
            source_path: task.source.clone(),
        });
    }
    Ok(())
}

/// Returns a path without symbolic links, as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    let existing =
        path.ancestors().find_map(|at| Some((at.canonicalize().ok()?, path.strip_prefix(at).ok()?)));
    match existing {
        Some((at, rest)) if rest.as_os_str().is_empty() => at,
        Some((at, rest)) => at.join(rest),
        None => path.to_owned(),
    }
}

/// Copies blocks of an object in this node's store. Blocks that cannot be read or written stay
/// missing.
fn reuse(destination: &mut DestinationCopy, object: Option<ObjectReading>) {
    if let Some(ObjectReading { tree, manifest, .. }) = &object {
        drop(destination.take_from(tree, manifest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{CopyVia, StoreLocation, StoreTask};
    use crate::tests::{MIB, assert_all_copied, make_directory, noise, run_copy, task};
    use cool_content::Digest;
    use std::os::unix::fs::FileExt;
    use tempfile::TempDir;

    #[test]
    fn source_and_destination_must_not_contain_each_other() {
        let directory = TempDir::new().unwrap();
        let at = directory.path();
        std::fs::create_dir_all(at.join("data/a")).unwrap();
        std::os::unix::fs::symlink("data", at.join("link")).unwrap();
        let check = |node: &str, source: &str, dest: &str| {
            let task = CopyTask { source: at.join(source), ..task(at) };
            check_apart(&task, node, &at.join(dest)).map_err(|error| error.to_string())
        };
        for (source, dest) in [("data/a", "data"), ("link/a", "data"), ("data/a", "link")] {
            for node in ["n0", "n1"] {
                let text = check(node, source, dest).unwrap_err();
                assert!(text.contains(": contains the source"), "{text}");
            }
        }
        for (source, dest) in [("data", "data/a/new/x"), ("data", "link/new"), ("link", "data/a")] {
            assert!(check("n0", source, dest).unwrap_err().ends_with("is inside the source"));
            check("n1", source, dest).unwrap();
        }
        for (source, dest) in [("data/a", "data2"), ("data/a", "data/b"), ("data", "data2/x")] {
            check("n0", source, dest).unwrap();
        }
        check("n1", "nowhere/a", "nowhere").unwrap();
    }

    const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

    fn stored(directory: &Path, name: &str, object: Option<Digest>, put: Option<PutTask>) -> CopyTask {
        let location = directory.join("stores/{node}").display().to_string();
        let store = StoreLocation::new(Some(location));
        let (name, others) = (name.parse().unwrap(), Vec::new());
        CopyTask { store: Some(StoreTask { store, name, object, put, others }), ..task(directory) }
    }

    fn put(directory: &Path, name: &str, quota: Option<u64>) -> CopyTask {
        stored(directory, name, None, Some(PutTask { put_ms: 1, quota }))
    }

    fn store(directory: &Path, node: &str) -> Store {
        Store::open_existing(&directory.join("stores").join(node)).unwrap().unwrap()
    }

    fn names(directory: &Path, node: &str) -> Vec<String> {
        store(directory, node).list().unwrap().iter().map(|named| named.name.to_string()).collect()
    }

    #[test]
    fn every_way_puts_a_directory_into_all_stores_and_gets_it() {
        let directory = TempDir::new().unwrap();
        let at = directory.path();
        make_directory(&at.join("source"));
        for via in [CopyVia::Auto, CopyVia::Chain, CopyVia::Swarm] {
            let name = format!("{via:?}");
            std::fs::write(at.join("source/way"), &name).unwrap();
            assert_all_copied(&CopyTask { via, ..put(at, &name, None) });
            let source = scan(&at.join("source")).unwrap();
            let id = source.identity();
            for node in NODES {
                let reading = store(at, node).read_name(&name.parse().unwrap()).unwrap().unwrap();
                assert_eq!((&*reading.manifest, &scan(&reading.tree).unwrap()), (&source, &source), "{node}");
            }
            // Two nodes have dropped it, and the source is a store.
            let tree = store(at, "n0").tree(id);
            for node in ["n1", "n2"] {
                store(at, node).drop_object(id).unwrap();
            }
            let get = CopyTask { via, source: tree, delete: true, ..stored(at, &name, Some(id), None) };
            assert_all_copied(&get);
            assert!(NODES.iter().all(|node| scan(&at.join(node).join("copy")).unwrap() == source));
            assert_eq!((names(at, "n3").contains(&name), names(at, "n1").contains(&name)), (true, false));
        }
    }

    /// Three of four nodes have the object; in each round one more of them has damaged files.
    #[test]
    fn a_swarm_gets_an_object_from_all_holders_that_are_intact() {
        let directory = TempDir::new().unwrap();
        let at = directory.path();
        let bytes = noise(3, 8 * MIB);
        std::fs::write(at.join("source"), &bytes).unwrap();
        assert_all_copied(&put(at, "a", None));
        let id = scan(&at.join("source")).unwrap().identity();
        store(at, "n3").drop_object(id).unwrap();
        let tree = |node| store(at, node).tree(id);
        let mut get = stored(at, "a", Some(id), None);
        get.store.as_mut().unwrap().others = vec!["n1".to_owned(), "n2".to_owned()];
        let get = CopyTask { via: CopyVia::Swarm, source: tree("n0"), copy_on_source: false, ..get };
        for damaged in [None, Some("n0"), Some("n2")] {
            if let Some(node) = damaged {
                std::fs::write(tree(node), noise(4, 8 * MIB)).unwrap();
            }
            assert_all_copied(&get);
            assert!(std::fs::read(at.join("n3/copy")).unwrap() == bytes, "without {damaged:?}");
            assert!(["n0", "n1", "n2"].iter().all(|node| !at.join(node).join("copy").exists()));
            std::fs::remove_file(at.join("n3/copy")).unwrap();
        }
    }

    #[test]
    fn a_full_store_is_named_and_a_damaged_object_is_no_source() {
        let directory = TempDir::new().unwrap();
        let at = directory.path();
        std::fs::write(at.join("source"), noise(1, MIB)).unwrap();
        assert_all_copied(&put(at, "a", None));
        let id = scan(&at.join("source")).unwrap().identity();
        std::fs::write(at.join("source"), noise(2, 2 * MIB)).unwrap();
        let outcomes = run_copy(&put(at, "b", Some(MIB as u64)));
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
            let other = stored(at, "other", Some(id), None);
            let get = CopyTask { via, source: tree.clone(), copy_on_source: false, ..other };
            let outcomes = run_copy(&get);
            let why = format!("{}: is damaged; `cool verify --drop`", tree.display());
            assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().contains(&why)), "{outcomes:?}");
        }
        std::fs::remove_file(&tree).unwrap();
        std::fs::create_dir(&tree).unwrap();
        let outcomes = run_copy(&CopyTask { source: tree.clone(), ..stored(at, "a", Some(id), None) });
        assert!(
            outcomes[0].is_some() && outcomes[1..] == [const { None }; 3],
            "the others have it: {outcomes:?}"
        );
        assert_eq!(std::fs::read_dir(at.join("n0")).unwrap().count(), 0, "nothing is left of it");
        // Another put repairs it.
        std::fs::write(at.join("source"), noise(2, MIB)).unwrap();
        assert_all_copied(&put(at, "a", Some(0)));
        assert!(NODES.iter().all(|node| names(at, node) == ["a"]));
    }
}
