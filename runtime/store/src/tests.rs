//! Stores in temporary directories: their contents after each step, and after interrupted steps.

use super::*;
use cool_content::{Builder, Cutter, Digest, Digester, ItemPath, Manifest, ModificationTime};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

fn name(text: &str) -> StoreName {
    text.parse().unwrap()
}

/// Returns the manifest of a file with these bytes.
fn content(bytes: &[u8]) -> Manifest {
    let mut made = Builder::default();
    let mut digester = Digester::default();
    digester.update(bytes);
    let blocks = Cutter::new(bytes).map(|block| block.unwrap().0).collect();
    made.file(
        (ItemPath::root(), 0o644, ModificationTime::default()),
        bytes.len() as u64,
        [(0, blocks)],
        digester.digest(),
    );
    made.finish().unwrap()
}

fn request(text: &str, quota: Option<u64>) -> PutRequest {
    PutRequest { name: name(text), put_ms: 7, is_new: true, quota }
}

fn begin(store: &Store, text: &str, bytes: &[u8], quota: Option<u64>) -> Result<Put, StoreError> {
    store.put(request(text, quota), &content(bytes))
}

/// Puts a file as a copy does, and returns its identity. Files that are put later count as used
/// later.
fn put(store: &Store, text: &str, bytes: &[u8], quota: Option<u64>) -> Result<Digest, StoreError> {
    let put = begin(store, text, bytes, quota)?;
    std::fs::write(put.tree(), bytes).unwrap();
    put.commit()?;
    Ok(content(bytes).identity())
}

fn make() -> (TempDir, Store) {
    let folder = TempDir::new().unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    (folder, store)
}

fn names(store: &Store) -> Vec<String> {
    store.list().unwrap().iter().map(|named| named.name.to_string()).collect()
}

fn objects(store: &Store) -> usize {
    std::fs::read_dir(store.root.join("objects")).unwrap().count()
}

/// Sets the time of the last use.
fn used(store: &Store, id: Digest, seconds_ago: u64) {
    let path = store.object(id).manifest_path();
    let when = SystemTime::now() - Duration::from_secs(seconds_ago);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(when).unwrap();
}

#[test]
fn a_content_is_stored_once_and_removed_with_its_last_name() {
    let (_folder, store) = make();
    put(&store, "one", b"same", None).unwrap();
    put(&store, "two", b"same", None).unwrap();
    assert_eq!((names(&store), objects(&store)), (vec!["one".into(), "two".into()], 1));
    let reading = store.read_name(&name("two")).unwrap().unwrap();
    assert_eq!(std::fs::read(&reading.tree).unwrap(), b"same");
    assert!(store.remove(&name("one")).unwrap() && !store.remove(&name("one")).unwrap());
    assert_eq!(store.usage().unwrap(), StoreUsage { bytes: 4, quota: None });
    // A reader may continue.
    assert!(store.remove(&name("two")).unwrap());
    assert_eq!(std::fs::read(&reading.tree).unwrap(), b"same");
    drop(reading);
    put(&store, "other", b"other", None).unwrap();
    assert_eq!((names(&store), objects(&store)), (vec!["other".to_owned()], 1));
}

#[test]
fn of_concurrent_puts_the_later_one_wins_on_every_node() {
    let ids = [b"early", b"later"].map(|bytes| content(bytes).identity());
    let begin = |store: &Store, bytes: &[u8], put_ms, is_new| {
        let request = PutRequest { name: name("a"), put_ms, is_new, quota: None };
        let put = store.put(request, &content(bytes))?;
        std::fs::write(put.tree(), bytes).unwrap();
        Ok::<Put, StoreError>(put)
    };
    let named = |store: &Store| store.list().unwrap()[0].entry.unwrap();
    for first_completes in [true, false] {
        let (_folder, store) = make();
        let (early, later) =
            (begin(&store, b"early", 1, true).unwrap(), begin(&store, b"later", 2, true).unwrap());
        if first_completes {
            early.commit().unwrap();
            later.commit().unwrap();
        } else {
            later.commit().unwrap();
            assert!(matches!(early.commit(), Err(StoreError::Superseded(_))));
        }
        assert_eq!((named(&store), objects(&store)), (NameEntry { id: ids[1], put_ms: 2 }, 1));
        // A repeated put does not replace a later one, but a new put does, even if a clock is
        // wrong.
        assert!(matches!(begin(&store, b"early", 1, false), Err(StoreError::Superseded(_))));
        begin(&store, b"early", 1, true).unwrap().commit().unwrap();
        assert_eq!((named(&store), objects(&store)), (NameEntry { id: ids[0], put_ms: 1 }, 1));
    }
}

#[test]
fn an_interrupted_put_is_invisible_and_its_data_is_collected() {
    let (folder, store) = make();
    put(&store, "a", b"first", None).unwrap();
    let second = begin(&store, "a", b"second", None).unwrap();
    assert_eq!(std::fs::read(second.earlier().unwrap().tree).unwrap(), b"first");
    put(&store, "b", b"third", None).unwrap();
    assert_eq!(objects(&store), 3, "what is being written is not collected");
    let work = second.tree().with_file_name(".tree.cool-copy");
    std::fs::create_dir(&work).unwrap();
    // The program is killed.
    drop(second);
    let store = Store::open(&folder.path().join("store")).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    // Another put of the same content finds the data.
    let again = begin(&store, "a", b"second", None).unwrap();
    assert!(work.exists());
    drop(again);
    put(&store, "b", b"fourth", None).unwrap();
    assert_eq!(objects(&store), 2);
    let given_up = begin(&store, "a", b"fifth", None).unwrap();
    given_up.abandon().unwrap();
    assert_eq!(objects(&store), 2);
    assert_eq!(std::fs::read(store.read_name(&name("a")).unwrap().unwrap().tree).unwrap(), b"first");
}

#[test]
fn the_least_recently_used_is_evicted_and_one_being_read_stays() {
    let (_folder, store) = make();
    let ids: Vec<Digest> =
        ["a", "b", "c"].iter().map(|text| put(&store, text, text.as_bytes(), Some(3)).unwrap()).collect();
    for (ago, id) in (10..).zip(&ids) {
        used(&store, *id, ago);
    }
    // Examining is not a use. c was used longest ago, but is being read, which is a use.
    drop(store.examine(ids[1]).unwrap().unwrap());
    let reading = store.read(ids[2]).unwrap().unwrap();
    put(&store, "d", b"d", None).unwrap();
    assert_eq!(names(&store), ["a", "c", "d"]);
    let text = begin(&store, "e", b"eee", None).unwrap_err().to_string();
    assert!(
        text.ends_with("3 bytes do not fit into the quota of 3, of which 1 are being read or written; nothing was changed"),
        "{text}"
    );
    assert!(begin(&store, "e", b"eee", Some(2)).is_err());
    assert_eq!(
        (names(&store), store.usage().unwrap().quota),
        (vec!["a".into(), "c".into(), "d".into()], Some(3))
    );
    drop(reading);
    put(&store, "e", b"eee", None).unwrap();
    assert_eq!(names(&store), ["e"]);
    // The replaced content makes room.
    put(&store, "e", b"fff", None).unwrap();
    put(&store, "f", b"more", Some(0)).unwrap();
    assert_eq!((names(&store), store.usage().unwrap().quota), (vec!["e".into(), "f".into()], None));
}

#[test]
fn damaged_contents_are_named_and_can_be_replaced_or_dropped() {
    let (_folder, store) = make();
    let id = put(&store, "a", b"first", None).unwrap();
    let manifest = store.object(id).manifest_path();
    let whole = std::fs::read(&manifest).unwrap();
    for bytes in [&whole[1..], b""] {
        std::fs::write(&manifest, bytes).unwrap();
        let text = store.read(id).unwrap_err().to_string();
        assert!(text.contains("manifest: is damaged (it is not the manifest that was put)"), "{text}");
        assert!(store.list().unwrap()[0].about.is_err());
        assert_eq!(put(&store, "b", b"other", Some(100)).unwrap(), content(b"other").identity());
    }
    assert_eq!(put(&store, "a", b"first", None).unwrap(), id);
    assert!(store.read(id).unwrap().is_some());
    std::fs::remove_file(store.object(id).tree()).unwrap();
    assert!(store.read_name(&name("a")).unwrap_err().to_string().contains("tree: is damaged"));
    store.drop_object(id).unwrap();
    assert_eq!(names(&store), ["b"]);
    // A damaged name is listed and can be removed.
    std::fs::write(store.names_folder().join("c"), "nothing").unwrap();
    let listed = store.list().unwrap();
    assert!(listed[1].entry.is_none() && listed[1].about.is_err());
    assert!(store.remove(&name("c")).unwrap());
    assert_eq!(names(&store), ["b"]);
    // A damaged quota is reported until a new one replaces it.
    std::fs::write(store.root.join("quota"), "much").unwrap();
    let text = put(&store, "d", b"more", None).unwrap_err().to_string();
    assert!(text.ends_with("quota: is not a number; `cool put --quota` replaces it"), "{text}");
    put(&store, "d", b"more", Some(100)).unwrap();
    assert_eq!((names(&store), store.usage().unwrap().quota), (vec!["b".into(), "d".into()], Some(100)));
}

#[test]
fn an_interrupted_removal_is_completed() {
    let (folder, store) = make();
    let id = put(&store, "a", b"first", None).unwrap();
    let gone = store.root.join("gone").join(id.to_string());
    std::fs::rename(&store.object(id).folder, &gone).unwrap();
    std::fs::create_dir(gone.join("sealed")).unwrap();
    std::fs::write(gone.join("sealed/file"), "").unwrap();
    std::fs::set_permissions(gone.join("sealed"), Permissions::from_mode(0o500)).unwrap();
    let store = Store::open(&folder.path().join("store")).unwrap();
    put(&store, "b", b"other", None).unwrap();
    assert!(!gone.exists());
}

fn refused(path: &Path) -> String {
    Store::open(path).unwrap_err().to_string()
}

#[test]
fn a_directory_that_is_not_this_users_store_is_left_unchanged() {
    let folder = TempDir::new().unwrap();
    let at = |text: &str| folder.path().join(text);
    std::fs::create_dir(at("mine")).unwrap();
    std::fs::write(at("mine/letter"), "").unwrap();
    assert!(
        refused(&at("mine"))
            .contains("mine: has letter and is not a store; name another directory with --store")
    );
    assert_eq!(std::fs::read_dir(at("mine")).unwrap().count(), 1);
    std::fs::write(at("file"), "").unwrap();
    assert!(refused(&at("file")).contains("file: is not a directory"));
    drop(Store::open(&at("store")).unwrap());
    symlink("store", at("link")).unwrap();
    assert!(refused(&at("link")).contains("link: is a symbolic link"));
    std::fs::set_permissions(at("store"), Permissions::from_mode(0o770)).unwrap();
    assert!(refused(&at("store")).contains("store: is writable by other users"));
    std::fs::set_permissions(at("store"), Permissions::from_mode(0o755)).unwrap();
    std::fs::write(at("store/format"), "cool-store 2\n").unwrap();
    assert!(
        refused(&at("store"))
            .contains("is a store of format \"cool-store 2\", and this program supports \"cool-store 1\"")
    );
    // Another process is still creating the store, so its file `format` does not exist yet.
    std::fs::remove_file(at("store/format")).unwrap();
    Store::open(&at("store")).unwrap();
    assert!(Store::open_existing(&at("none")).unwrap().is_none() && !at("none").exists());
}

/// Executes random operations on a store, as a rank of a command could.
fn play(store: &Store, seed: u64) {
    let mut state = seed;
    let mut next = |below: u64| {
        // xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for turn in 0..40 {
        let (called, bytes) = (["a", "b", "c"][next(3) as usize], vec![b'x'; 1 + next(4) as usize]);
        match next(5) {
            0 => drop(store.remove(&name(called)).unwrap()),
            1 => {
                if let Some(reading) = store.read_name(&name(called)).unwrap() {
                    assert_eq!(content(&std::fs::read(&reading.tree).unwrap()), *reading.manifest);
                }
            }
            _ => match begin(store, called, &bytes, None) {
                Ok(put) => {
                    let coming = put.tree().with_file_name(format!(".{seed}.{turn}"));
                    std::fs::write(&coming, &bytes).unwrap();
                    std::fs::rename(coming, put.tree()).unwrap();
                    match put.commit() {
                        Ok(()) | Err(StoreError::Superseded(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                Err(StoreError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }
}

#[test]
fn concurrent_commands_see_complete_contents_within_the_quota() {
    let (_folder, store) = make();
    put(&store, "a", b"x", Some(8)).unwrap();
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let store = &store;
            scope.spawn(move || play(store, seed));
        }
    });
    let listed = store.list().unwrap();
    assert!(listed.iter().all(|named| named.about.is_ok()), "{listed:?}");
    // The next put collects objects that lost their names while they were read.
    put(&store, "a", b"x", None).unwrap();
    let kept: std::collections::BTreeSet<Digest> =
        store.list().unwrap().iter().filter_map(|named| Some(named.entry?.id)).collect();
    assert_eq!(objects(&store), kept.len());
    assert!(store.usage().unwrap().bytes <= 8);
}
