//! Copies between directories of one machine, by ranks in threads.

use crate::destination::{DestinationCopy, DestinationOptions};
use crate::errors::CopyFileError;
use crate::link_rates::NodeLinkRates;
use crate::manifest_scan::scan;
use crate::missing_blocks::MissingBlocks;
use crate::protocol::{CopyTask, CopyVia};
use crate::rank::take_part;
use crate::secret::CopySecret;
use crate::source::start_reading;
use cool::embedded::{Embedded, run};
use cool_content::{BlockSet, ItemContent, Manifest, Piece, pieces};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

pub(crate) const MIB: usize = 1 << 20;

/// Returns pseudorandom bytes, the same on every run.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
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

/// Creates a directory with every kind of item: nested and sparse files, links, modes and times.
pub(crate) fn make_directory(path: &Path) {
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

pub(crate) fn task(directory: &Path) -> CopyTask {
    CopyTask {
        from: "n0".into(),
        source: directory.join("source"),
        dest: directory.join("{node}/copy").display().to_string(),
        copy_on_source: true,
        via: CopyVia::Auto,
        address: [127, 0, 0, 1].into(),
        rate: 0,
        rates: NodeLinkRates::default(),
        limit: None,
        piece_max: MIB,
        background: false,
        compress: false,
        delete: false,
        verify: false,
        store: None,
        report_interval_ms: 60_000,
        late: None,
        secret: Some(CopySecret::new().unwrap()),
    }
}

/// Copies to four nodes, and returns the error of each.
pub(crate) fn run_copy(task: &CopyTask) -> Vec<Option<String>> {
    let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
    run(ranks, |comm| take_part(comm, task, Instant::now()).error).unwrap()
}

pub(crate) fn assert_all_copied(task: &CopyTask) {
    assert_eq!(run_copy(task), vec![None; 4]);
}

fn check_copies(directory: &Path) {
    let source = scan(&directory.join("source")).unwrap();
    for node in 0..4 {
        let at = directory.join(format!("n{node}"));
        assert_eq!(scan(&at.join("copy")).unwrap(), source, "node {node}");
        let names: Vec<_> = std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["copy"], "nothing else is left");
    }
}

#[test]
fn copies_of_a_directory_keep_modes_times_links_and_holes() {
    let directory = TempDir::new().unwrap();
    make_directory(&directory.path().join("source"));
    for (via, compress) in [
        (CopyVia::Auto, false),
        (CopyVia::Auto, true),
        (CopyVia::Tree, false),
        (CopyVia::Chain, false),
        (CopyVia::Swarm, false),
    ] {
        let task = CopyTask { via, compress, verify: compress, delete: true, ..task(directory.path()) };
        assert_all_copied(&task);
        check_copies(directory.path());
        let sparse = directory.path().join("n2/copy/sparse").metadata().unwrap();
        assert!(sparse.blocks() * 512 < MIB as u64, "holes stay holes: {} blocks", sparse.blocks());
        // The next copy is of another version.
        std::fs::write(directory.path().join("source/d/new"), noise(3, 200_000)).unwrap();
        std::fs::remove_file(directory.path().join("source/empty")).unwrap();
        assert_all_copied(&task);
        check_copies(directory.path());
        std::fs::write(directory.path().join("source/empty"), "").unwrap();
    }
}

#[test]
fn a_node_that_cannot_have_a_copy_does_not_stop_the_others() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("source"), noise(4, 2 * MIB)).unwrap();
    std::fs::create_dir_all(directory.path().join("n2/copy/x")).unwrap();
    for via in [CopyVia::Auto, CopyVia::Swarm] {
        let outcomes = run_copy(&CopyTask { via, ..task(directory.path()) });
        let text = outcomes[2].as_deref().unwrap();
        assert!(text.contains("n2/copy: is a directory, but the source is a file"), "{text}");
        assert_eq!([&outcomes[0], &outcomes[1], &outcomes[3]], [&None; 3]);
        for node in [0, 1, 3] {
            let copy = directory.path().join(format!("n{node}/copy"));
            assert!(std::fs::read(&copy).unwrap() == noise(4, 2 * MIB));
            std::fs::remove_file(&copy).unwrap();
        }
    }
}

#[test]
fn all_ranks_report_a_source_that_cannot_be_read() {
    let directory = TempDir::new().unwrap();
    let outcomes = run_copy(&task(directory.path()));
    let text = format!("{}: No such file or directory", directory.path().join("source").display());
    check_given_up(&outcomes, &text);
}

fn check_given_up(outcomes: &[Option<String>], why: &str) {
    assert_eq!(outcomes[0].as_deref(), Some(why));
    let others = format!("n0 stopped sending: {why}");
    assert!(outcomes[1..].iter().all(|outcome| outcome.as_ref() == Some(&others)), "{outcomes:?}");
}

/// A member of the swarm detects blocks that have changed since the scan when it reads them. It
/// first reads four of ten generations, and sending these takes seconds because of the limit.
#[test]
fn all_ranks_report_a_source_that_changes_during_a_swarm() {
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("source");
    std::fs::write(&source, noise(8, 20 * MIB)).unwrap();
    let change = noise(11, 20 * MIB);
    let task = CopyTask { via: CopyVia::Swarm, limit: Some(2 << 20), ..task(directory.path()) };
    let ranks = Embedded { ranks: 4, ranks_per_node: 1, racks: 2 };
    let work = directory.path().join("n3/.copy.cool-copy");
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !work.exists() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            std::fs::write(&source, change).unwrap();
        });
        run(ranks, |comm| take_part(comm, &task, Instant::now()).error).unwrap()
    });
    check_given_up(
        &outcomes,
        &format!(
            "{}: changed while it was being read; copy it again when no program writes to it",
            source.display()
        ),
    );
}

/// Writes the source file, and returns its manifest.
fn file(directory: &Path, bytes: &[u8]) -> Arc<Manifest> {
    std::fs::write(directory.join("source"), bytes).unwrap();
    Arc::new(scan(&directory.join("source")).unwrap())
}

fn put(
    destination: &mut DestinationCopy,
    piece: &Piece,
    manifest: &Manifest,
    bytes: &[u8],
) -> Result<(), CopyFileError> {
    let (_, content) = manifest.files().next().unwrap();
    let of = |block: u32| {
        let (at, _) = manifest.blocks_of(content).find(|(_, found)| *found == block).unwrap();
        &bytes[at as usize..][..manifest.blocks()[block as usize].bytes as usize]
    };
    let sent: Vec<u8> = piece.blocks.iter().flat_map(|block| of(*block)).copied().collect();
    destination.put_piece(piece, &sent)
}

#[test]
fn an_interrupted_copy_resumes_even_for_another_version() {
    let directory = TempDir::new().unwrap();
    let dest = directory.path().join("copy");
    let bytes = noise(5, 4 * MIB);
    let manifest = file(directory.path(), &bytes);
    let open = |manifest: &Arc<Manifest>| {
        DestinationCopy::open(&dest, Arc::clone(manifest), DestinationOptions::default()).unwrap()
    };
    let mut destination = open(&manifest);
    assert_eq!(destination.missing_bytes(), 4 << 20);
    let all = destination.have().complement();
    for piece in pieces(&manifest, &all, MIB).take(2) {
        put(&mut destination, &piece, &manifest, &bytes).unwrap();
    }
    let missing_bytes = destination.missing_bytes();
    assert!(missing_bytes < 3 << 20 && !dest.exists());
    drop(destination);
    assert_eq!(open(&manifest).missing_bytes(), missing_bytes);
    // Another version, with one more byte at the beginning.
    let bytes = [&[7], &bytes[..]].concat();
    let manifest = file(directory.path(), &bytes);
    let mut destination = open(&manifest);
    assert!(destination.missing_bytes() < missing_bytes + (MIB / 2) as u64);
    let rest = destination.have().complement();
    for piece in pieces(&manifest, &rest, MIB) {
        put(&mut destination, &piece, &manifest, &bytes).unwrap();
    }
    destination.finish().unwrap();
    assert!(std::fs::read(&dest).unwrap() == bytes);
    // A copy that is up to date is not replaced.
    let inode = dest.metadata().unwrap().ino();
    let destination = open(&manifest);
    assert_eq!(destination.missing_bytes(), 0);
    destination.finish().unwrap();
    assert_eq!(dest.metadata().unwrap().ino(), inode);
}

#[test]
fn wrong_bytes_are_never_visible() {
    let directory = TempDir::new().unwrap();
    let dest = directory.path().join("copy");
    let bytes = noise(6, MIB);
    let manifest = file(directory.path(), &bytes);
    let mut destination =
        DestinationCopy::open(&dest, Arc::clone(&manifest), DestinationOptions::default()).unwrap();
    let all = destination.have().complement();
    let mut wrong = bytes.clone();
    wrong[MIB / 2] ^= 1;
    let piece = pieces(&manifest, &all, 2 * MIB).next().unwrap();
    let text = put(&mut destination, &piece, &manifest, &wrong).unwrap_err().to_string();
    assert!(text.ends_with("copy: received bytes differ from those that were sent"), "{text}");
    // Right when it arrived, but changed by another program before the end.
    put(&mut destination, &piece, &manifest, &bytes).unwrap();
    std::fs::write(directory.path().join(".copy.cool-copy/tree"), &wrong).unwrap();
    destination.finish().unwrap_err();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the source is there");
}

#[test]
fn files_at_the_destination_are_not_replaced_by_accident() {
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("source");
    make_directory(&source);
    let manifest = Arc::new(scan(&source).unwrap());
    let dest = directory.path().join("copy");
    let refused = |options| match DestinationCopy::open(&dest, Arc::clone(&manifest), options) {
        Ok(_) => panic!("the destination was replaced"),
        Err(error) => error.to_string(),
    };
    std::fs::write(&dest, "mine").unwrap();
    assert!(
        refused(DestinationOptions::default())
            .ends_with("copy: exists and is not a directory, but the source is one")
    );
    std::fs::remove_file(&dest).unwrap();
    symlink(&source, &dest).unwrap();
    let reached = DestinationCopy::open(&dest, Arc::clone(&manifest), DestinationOptions::default()).unwrap();
    reached.finish().unwrap();
    assert!(dest.is_symlink(), "a link to the same content is left as it is");
    std::fs::remove_file(&dest).unwrap();
    symlink(directory.path(), &dest).unwrap();
    assert!(
        refused(DestinationOptions { delete: true, ..DestinationOptions::default() })
            .ends_with("copy: is a symbolic link")
    );
    std::fs::remove_file(&dest).unwrap();
    std::fs::create_dir(&dest).unwrap();
    std::fs::write(dest.join("mine"), "").unwrap();
    let text = refused(DestinationOptions::default());
    assert!(
        text.ends_with("copy: has mine, which is not in the source; --delete removes such files"),
        "{text}"
    );
    // Two copies at once.
    let one = DestinationCopy::open(
        &dest,
        Arc::clone(&manifest),
        DestinationOptions { delete: true, ..DestinationOptions::default() },
    )
    .unwrap();
    let text = refused(DestinationOptions { delete: true, ..DestinationOptions::default() });
    assert!(
        text.contains("another copy is writing there; if nodes share a file system, use {node} in DEST"),
        "{text}"
    );
    drop(one.discard(CopyFileError::Corrupt(dest.clone())));
    assert!(dest.join("mine").exists());
}

/// Returns a copy of a directory, of which all but one file is at the destination already. The test
/// can thus complete it.
fn nearly_complete(directory: &Path, delete: bool) -> DestinationCopy {
    let (source, dest) = (directory.join("source"), directory.join("copy"));
    for at in [&source, &dest] {
        std::fs::create_dir(at).unwrap();
        std::fs::write(at.join("same"), "same").unwrap();
    }
    std::fs::write(source.join("more"), "").unwrap();
    let manifest = Arc::new(scan(&source).unwrap());
    DestinationCopy::open(&dest, manifest, DestinationOptions { delete, ..DestinationOptions::default() })
        .unwrap()
}

#[test]
fn what_appears_during_a_copy_is_kept_without_delete() {
    let changes: [fn(&Path); 2] = [
        |dest| std::fs::write(dest.join("results"), "").unwrap(),
        |dest| std::fs::write(dest.join("same"), "edited").unwrap(),
    ];
    for change in changes {
        let directory = TempDir::new().unwrap();
        let destination = nearly_complete(directory.path(), false);
        let dest = destination.dest().to_owned();
        change(&dest);
        let before = scan(&dest).unwrap();
        let error = destination.finish().unwrap_err().to_string();
        assert!(error.contains(": was created or changed during the copy"), "{error}");
        assert_eq!(scan(&dest).unwrap(), before);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
    }
    let directory = TempDir::new().unwrap();
    let destination = nearly_complete(directory.path(), true);
    std::fs::write(directory.path().join("copy/results"), "").unwrap();
    destination.finish().unwrap();
    let [source, copy] = ["source", "copy"].map(|name| scan(&directory.path().join(name)).unwrap());
    assert_eq!(source, copy);
}

#[test]
fn a_resumed_copy_writes_through_no_link() {
    let directory = TempDir::new().unwrap();
    let (source, dest) = (directory.path().join("source"), directory.path().join("copy"));
    let (file, folder) = (directory.path().join("file"), directory.path().join("folder"));
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::write(source.join("x"), "").unwrap();
    std::fs::write(&file, "mine").unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mode = || folder.metadata().unwrap().permissions().mode();
    let (manifest, before) = (Arc::new(scan(&source).unwrap()), mode());
    let open = || DestinationCopy::open(&dest, Arc::clone(&manifest), DestinationOptions::default());
    for (name, target) in [("x", &file), ("d", &folder)] {
        // A copy that was killed has left a tree that differs from its note.
        drop(open().unwrap());
        let item = directory.path().join(".copy.cool-copy/tree").join(name);
        cool_store::remove_tree(&item).unwrap();
        symlink(target, &item).unwrap();
        open().unwrap_err();
    }
    assert_eq!((std::fs::read(&file).unwrap(), mode()), (b"mine".to_vec(), before));
    open().unwrap().finish().unwrap();
}

#[test]
fn remains_beside_a_complete_copy_are_removed() {
    let directory = TempDir::new().unwrap();
    let (manifest, dest) = (file(directory.path(), b"same"), directory.path().join("copy"));
    let copy = || {
        let options = DestinationOptions::default();
        let mut destination = DestinationCopy::open(&dest, Arc::clone(&manifest), options).unwrap();
        destination.take_from(&directory.path().join("source"), &manifest).unwrap();
        destination.finish().unwrap();
    };
    copy();
    let work = directory.path().join(".copy.cool-copy");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("tree"), "replaced").unwrap();
    copy();
    assert!(!work.exists());
    // This content may be nowhere else.
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("before"), "mine").unwrap();
    copy();
    assert_eq!(std::fs::read(work.join("before")).unwrap(), b"mine");
}

#[test]
fn a_destination_that_appears_during_a_copy_is_kept() {
    let directory = TempDir::new().unwrap();
    let dest = directory.path().join("copy");
    let manifest = file(directory.path(), b"");
    let destination = DestinationCopy::open(&dest, manifest, DestinationOptions::default()).unwrap();
    std::fs::write(&dest, "mine").unwrap();
    let error = destination.finish().unwrap_err();
    assert!(matches!(error, CopyFileError::ChangedDestination(_)), "{error}");
    assert_eq!(std::fs::read(&dest).unwrap(), b"mine");
}

#[test]
fn special_files_at_the_destination_are_extra() {
    let directory = TempDir::new().unwrap();
    let (source, dest) = (directory.path().join("source"), directory.path().join("copy"));
    [&source, &dest].iter().for_each(|at| std::fs::create_dir(at).unwrap());
    let _socket = std::os::unix::net::UnixListener::bind(dest.join("socket")).unwrap();
    let manifest = Arc::new(scan(&source).unwrap());
    let open = |delete| {
        DestinationCopy::open(
            &dest,
            Arc::clone(&manifest),
            DestinationOptions { delete, ..DestinationOptions::default() },
        )
    };
    let error = open(false).unwrap_err().to_string();
    assert!(
        error.ends_with("socket: is not a file, directory or symbolic link; --delete removes it"),
        "{error}"
    );
    open(true).unwrap().finish().unwrap();
    assert_eq!(std::fs::read_dir(&dest).unwrap().count(), 0);
}

#[test]
fn a_file_with_more_content_than_its_size_is_refused() {
    let text = scan(Path::new("/proc/version")).unwrap_err().to_string();
    assert!(text.starts_with("/proc/version: its content has another length"), "{text}");
}

#[test]
fn a_file_that_changes_before_it_is_sent_is_named() {
    let directory = TempDir::new().unwrap();
    let bytes = noise(7, 2 * MIB);
    let manifest = file(directory.path(), &bytes);
    let all = MissingBlocks { blocks: BlockSet::none(manifest.blocks().len()).complement(), first: 0 };
    let changes: [fn(&mut Vec<u8>); 2] = [|bytes| bytes[MIB] ^= 1, |bytes| bytes.truncate(MIB)];
    for change in changes {
        let mut changed = bytes.clone();
        change(&mut changed);
        std::fs::write(directory.path().join("source"), changed).unwrap();
        let sent: Vec<_> = start_reading(
            &task(directory.path()),
            (&directory.path().join("source"), &manifest),
            all.clone(),
            MIB,
        )
        .unwrap()
        .into_iter()
        .collect();
        let text = sent.last().unwrap().as_ref().unwrap_err().to_string();
        assert!(text.contains("source: changed while it was being read"), "{text}");
    }
}

#[test]
fn a_socket_in_the_source_is_named() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let text = scan(directory.path()).unwrap_err().to_string();
    assert_eq!(text, format!("{}: is not a file, directory or symbolic link; exclude it", path.display()));
}

#[test]
fn a_link_at_the_top_is_followed_and_one_below_is_not() {
    let directory = TempDir::new().unwrap();
    std::fs::create_dir(directory.path().join("real")).unwrap();
    symlink("/etc", directory.path().join("real/link")).unwrap();
    symlink("real", directory.path().join("top")).unwrap();
    let manifest = scan(&directory.path().join("top")).unwrap();
    let contents: Vec<&ItemContent> = manifest.items().iter().map(|item| &item.content).collect();
    assert_eq!(contents, [&ItemContent::Folder, &ItemContent::Link(b"/etc".to_vec())]);
}
