//! Copies between folders of one machine, by ranks in threads.

use super::fault::Fault;
use super::rank::{Lacking, copy};
use super::rates::LinkRates;
use super::said::{CopyVia, Task};
use super::scan::scan;
use super::secret::Secret;
use super::source;
use super::target::{Habits, Target};
use cool::embedded::{Embedded, run};
use cool_content::{BlockSet, ItemContent, Manifest, Piece, pieces};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

pub(super) const MIB: usize = 1 << 20;

/// Bytes without structure, the same on every run.
pub(super) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        // xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A folder with all that folders have.
pub(super) fn make_folder(path: &Path) {
    std::fs::create_dir_all(path.join("d/e")).unwrap();
    std::fs::write(path.join("d/large"), noise(1, 3 * MIB)).unwrap();
    std::fs::write(path.join("d/again"), noise(1, 3 * MIB)).unwrap();
    std::fs::write(path.join("d/e/program"), "#!/bin/sh\n").unwrap();
    std::fs::write(path.join("empty"), "").unwrap();
    let sparse = File::create(path.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&noise(2, 100_000), 32 << 20).unwrap();
    symlink("d/e/program", path.join("link")).unwrap();
    symlink("/nowhere", path.join("dangling")).unwrap();
    for (name, mode) in [("d/large", 0o440), ("d/e/program", 0o751), ("empty", 0o600), ("d/e", 0o555)] {
        std::fs::set_permissions(path.join(name), Permissions::from_mode(mode)).unwrap();
    }
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(path.join("d/e/program")).unwrap().set_modified(old).unwrap();
}

pub(super) fn task(folder: &Path) -> Task {
    Task {
        from: "n0".into(),
        source: folder.join("source"),
        dest: folder.join("{node}/copy").display().to_string(),
        own: true,
        via: CopyVia::Auto,
        address: [127, 0, 0, 1].into(),
        rate: 0,
        rates: LinkRates::default(),
        limit: None,
        piece_max: MIB,
        background: false,
        compress: false,
        delete: false,
        verify: false,
        store: None,
        tell_every_ms: 60_000,
        late: None,
        secret: Some(Secret::new().unwrap()),
    }
}

/// Copies to four nodes; what each of them says was wrong.
pub(super) fn copied(task: &Task) -> Vec<Option<String>> {
    let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
    run(ranks, |comm| copy(comm, task, Instant::now()).error).unwrap()
}

pub(super) fn all_well(task: &Task) {
    assert_eq!(copied(task), vec![None; 4]);
}

fn check_copies(folder: &Path) {
    let source = scan(&folder.join("source")).unwrap();
    for node in 0..4 {
        let at = folder.join(format!("n{node}"));
        assert_eq!(scan(&at.join("copy")).unwrap(), source, "node {node}");
        let names: Vec<_> = std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["copy"], "nothing else is left");
    }
}

#[test]
fn a_folder_is_the_same_on_all_nodes_with_modes_times_links_and_holes() {
    let folder = TempDir::new().unwrap();
    make_folder(&folder.path().join("source"));
    for (via, compress) in [
        (CopyVia::Auto, false),
        (CopyVia::Auto, true),
        (CopyVia::Tree, false),
        (CopyVia::Chain, false),
        (CopyVia::Swarm, false),
    ] {
        let task = Task { via, compress, verify: compress, delete: true, ..task(folder.path()) };
        all_well(&task);
        check_copies(folder.path());
        let sparse = folder.path().join("n2/copy/sparse").metadata().unwrap();
        assert!(sparse.blocks() * 512 < MIB as u64, "holes stay holes: {} blocks", sparse.blocks());
        // The next one is of another version.
        std::fs::write(folder.path().join("source/d/new"), noise(3, 200_000)).unwrap();
        std::fs::remove_file(folder.path().join("source/empty")).unwrap();
        all_well(&task);
        check_copies(folder.path());
        std::fs::write(folder.path().join("source/empty"), "").unwrap();
    }
}

#[test]
fn a_node_that_cannot_have_a_copy_is_named_and_the_others_have_it() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("source"), noise(4, 2 * MIB)).unwrap();
    std::fs::create_dir_all(folder.path().join("n2/copy/x")).unwrap();
    for via in [CopyVia::Auto, CopyVia::Swarm] {
        let outcomes = copied(&Task { via, ..task(folder.path()) });
        let text = outcomes[2].as_deref().unwrap();
        assert!(text.contains("n2/copy: is a folder, and the source is a file"), "{text}");
        assert_eq!([&outcomes[0], &outcomes[1], &outcomes[3]], [&None; 3]);
        for node in [0, 1, 3] {
            let copy = folder.path().join(format!("n{node}/copy"));
            assert!(std::fs::read(&copy).unwrap() == noise(4, 2 * MIB));
            std::fs::remove_file(&copy).unwrap();
        }
    }
}

#[test]
fn a_source_that_cannot_be_read_is_told_to_all() {
    let folder = TempDir::new().unwrap();
    let outcomes = copied(&task(folder.path()));
    let text = format!("{}: No such file or directory (os error 2)", folder.path().join("source").display());
    check_given_up(&outcomes, &text);
}

fn check_given_up(outcomes: &[Option<String>], why: &str) {
    assert_eq!(outcomes[0].as_deref(), Some(why));
    let others = format!("n0 gives up: {why}");
    assert!(outcomes[1..].iter().all(|outcome| outcome.as_ref() == Some(&others)), "{outcomes:?}");
}

/// Blocks that have changed since they were cut are found as a member of the swarm reads them. Of ten generations it reads four
/// at first, which take seconds.
#[test]
fn a_source_that_changes_while_a_swarm_spreads_it_is_told_to_all() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source");
    std::fs::write(&source, noise(8, 20 * MIB)).unwrap();
    let change = noise(11, 20 * MIB);
    let task = Task { via: CopyVia::Swarm, limit: Some(2 << 20), ..task(folder.path()) };
    let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
    let work = folder.path().join("n3/.copy.cool-copy");
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !work.exists() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            std::fs::write(&source, change).unwrap();
        });
        run(ranks, |comm| copy(comm, &task, Instant::now()).error).unwrap()
    });
    check_given_up(
        &outcomes,
        &format!("{}: changed while it was read; copy it again when nobody writes it", source.display()),
    );
}

/// A file's manifest.
fn file(folder: &Path, bytes: &[u8]) -> Arc<Manifest> {
    std::fs::write(folder.join("source"), bytes).unwrap();
    Arc::new(scan(&folder.join("source")).unwrap())
}

fn put(target: &mut Target, piece: &Piece, manifest: &Manifest, bytes: &[u8]) -> Result<(), Fault> {
    let (_, content) = manifest.files().next().unwrap();
    let of = |block: u32| {
        let (at, _) = manifest.blocks_of(content).find(|(_, found)| *found == block).unwrap();
        &bytes[at as usize..][..manifest.blocks()[block as usize].bytes as usize]
    };
    let sent: Vec<u8> = piece.blocks.iter().flat_map(|block| of(*block)).copied().collect();
    target.put_piece(piece, &sent)
}

#[test]
fn an_interrupted_copy_goes_on_with_what_it_had_also_of_another_version() {
    let folder = TempDir::new().unwrap();
    let dest = folder.path().join("copy");
    let bytes = noise(5, 4 * MIB);
    let manifest = file(folder.path(), &bytes);
    let open =
        |manifest: &Arc<Manifest>| Target::open(&dest, Arc::clone(manifest), Habits::default()).unwrap();
    let mut target = open(&manifest);
    assert_eq!(target.lacking(), 4 << 20);
    let all = target.have().complement();
    for piece in pieces(&manifest, &all, MIB).take(2) {
        put(&mut target, &piece, &manifest, &bytes).unwrap();
    }
    let lacking = target.lacking();
    assert!(lacking < 3 << 20 && !dest.exists());
    drop(target);
    assert_eq!(open(&manifest).lacking(), lacking);
    // A byte more at the beginning.
    let bytes = [&[7], &bytes[..]].concat();
    let manifest = file(folder.path(), &bytes);
    let mut target = open(&manifest);
    assert!(target.lacking() < lacking + (MIB / 2) as u64);
    let rest = target.have().complement();
    for piece in pieces(&manifest, &rest, MIB) {
        put(&mut target, &piece, &manifest, &bytes).unwrap();
    }
    target.finish().unwrap();
    assert!(std::fs::read(&dest).unwrap() == bytes);
    // And what is the same is not touched.
    let inode = dest.metadata().unwrap().ino();
    let target = open(&manifest);
    assert_eq!(target.lacking(), 0);
    target.finish().unwrap();
    assert_eq!(dest.metadata().unwrap().ino(), inode);
}

#[test]
fn wrong_bytes_are_never_visible() {
    let folder = TempDir::new().unwrap();
    let dest = folder.path().join("copy");
    let bytes = noise(6, MIB);
    let manifest = file(folder.path(), &bytes);
    let mut target = Target::open(&dest, Arc::clone(&manifest), Habits::default()).unwrap();
    let all = target.have().complement();
    let mut wrong = bytes.clone();
    wrong[MIB / 2] ^= 1;
    let piece = pieces(&manifest, &all, 2 * MIB).next().unwrap();
    let text = put(&mut target, &piece, &manifest, &wrong).unwrap_err().to_string();
    assert!(text.ends_with("copy: bytes that came are not those that were sent"), "{text}");
    // Right when it came, and changed by another before the end.
    put(&mut target, &piece, &manifest, &bytes).unwrap();
    std::fs::write(folder.path().join(".copy.cool-copy/tree"), &wrong).unwrap();
    target.finish().unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the source is there");
}

#[test]
fn what_is_at_the_destination_is_not_lost_unasked() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source");
    make_folder(&source);
    let manifest = Arc::new(scan(&source).unwrap());
    let dest = folder.path().join("copy");
    let refused = |habits| match Target::open(&dest, Arc::clone(&manifest), habits) {
        Ok(_) => panic!("it is taken"),
        Err(fault) => fault.to_string(),
    };
    std::fs::write(&dest, "mine").unwrap();
    assert!(refused(Habits::default()).ends_with("copy: is there and no folder, and the source is one"));
    std::fs::remove_file(&dest).unwrap();
    symlink(&source, &dest).unwrap();
    assert!(refused(Habits { delete: true, verify: false }).ends_with("copy: is a symbolic link"));
    std::fs::remove_file(&dest).unwrap();
    std::fs::create_dir(&dest).unwrap();
    std::fs::write(dest.join("mine"), "").unwrap();
    let text = refused(Habits::default());
    assert!(text.ends_with("copy: has mine, which the source has not; --delete removes such"), "{text}");
    // Two at once.
    let one = Target::open(&dest, Arc::clone(&manifest), Habits { delete: true, verify: false }).unwrap();
    let text = refused(Habits { delete: true, verify: false });
    assert!(
        text.contains("another copy writes there; where nodes share a file system, let {node} stand"),
        "{text}"
    );
    one.give_up().unwrap();
    assert!(dest.join("mine").exists());
}

#[test]
fn a_file_that_changes_before_it_is_sent_is_named() {
    let folder = TempDir::new().unwrap();
    let bytes = noise(7, 2 * MIB);
    let manifest = file(folder.path(), &bytes);
    let all = Lacking { blocks: BlockSet::none(manifest.blocks().len()).complement(), first: 0 };
    let changes: [fn(&mut Vec<u8>); 2] = [|bytes| bytes[MIB] ^= 1, |bytes| bytes.truncate(MIB)];
    for change in changes {
        let mut changed = bytes.clone();
        change(&mut changed);
        std::fs::write(folder.path().join("source"), changed).unwrap();
        let sent: Vec<_> =
            source::read(&task(folder.path()), (&folder.path().join("source"), &manifest), all.clone(), MIB)
                .unwrap()
                .into_iter()
                .collect();
        let text = sent.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(text.contains("source: changed while it was read"), "{text}");
    }
}

#[test]
fn what_is_no_file_is_named() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let text = scan(folder.path()).unwrap_err().to_string();
    assert_eq!(
        text,
        format!("{}: is neither a file nor a folder nor a symbolic link; leave it out", path.display())
    );
}

#[test]
fn a_link_at_the_top_is_followed_and_one_below_is_not() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    symlink("/etc", folder.path().join("real/link")).unwrap();
    symlink("real", folder.path().join("top")).unwrap();
    let manifest = scan(&folder.path().join("top")).unwrap();
    let contents: Vec<&ItemContent> = manifest.items().iter().map(|item| &item.content).collect();
    assert_eq!(contents, [&ItemContent::Folder, &ItemContent::Link(b"/etc".to_vec())]);
}
