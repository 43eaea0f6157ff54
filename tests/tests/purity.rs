//! Protocols and schedules do no I/O: nothing below their crates could.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pure crates outside `core/`, each with a link to its `clippy.toml`.
const PURE_APPLICATIONS: [&str; 2] = ["apps/mpi", "apps/kmeans/classify"];
const DOES_IO: [&str; 8] = ["tokio", "mio", "socket2", "pnet", "rustix", "libc", "getrandom", "memmap2"];

/// Returns the folders of the pure crates: all of `core/`, and those of applications.
fn pure_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let core = fs::read_dir(root.join("core")).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = core.filter(|path| path.is_dir()).collect();
    folders.extend(PURE_APPLICATIONS.iter().map(|folder| root.join(folder)));
    assert!(folders.len() > 10, "only {} pure crates in {}", folders.len(), root.display());
    folders
}

/// Returns the package name that a crate's manifest states.
fn package(folder: &Path) -> String {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
    name.expect("a package has a name").trim_matches('"').to_owned()
}

#[test]
fn pure_crates_share_one_list_of_forbidden_calls() {
    for folder in pure_folders() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        // Clippy reads the nearest file at or above a crate.
        let nearest = folder.ancestors().map(|f| f.join("clippy.toml")).find(|file| file.exists());
        let list = nearest.and_then(|file| file.canonicalize().ok());
        assert_eq!(list, root.join("core/clippy.toml").canonicalize().ok(), "{}", folder.display());
    }
}

#[test]
fn no_crate_that_does_io_is_below_a_pure_one() {
    for folder in pure_folders() {
        let pure = package(&folder);
        let tree = Command::new(env!("CARGO"))
            // Of one target, since some crates ask the system for the processor's abilities on others.
            .args(["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--edges", "normal"])
            .args(["--prefix", "none", "--package", &pure])
            .output()
            .expect("cargo tree runs");
        let text = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.status.success(), "{pure}: {}", String::from_utf8_lossy(&tree.stderr));
        assert!(text.starts_with(&pure), "{pure}: {text}");
        let below: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let found: Vec<&&str> = DOES_IO.iter().filter(|name| below.contains(name)).collect();
        assert!(found.is_empty(), "below {pure}: {found:?}");
    }
}
