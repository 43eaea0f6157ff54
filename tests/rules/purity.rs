//! Protocols and schedules perform no I/O: no crate that does is among their dependencies.

use std::process::Command;

use crate::workspace::{Package, packages, root};

/// The pure crates outside `core/`; each has a link to its `clippy.toml`.
const PURE_APPLICATIONS: [&str; 2] = ["apps/mpi", "apps/kmeans/classify"];
const CRATES_WITH_IO: [&str; 8] =
    ["tokio", "mio", "socket2", "pnet", "rustix", "libc", "getrandom", "memmap2"];

/// Returns the pure packages: all of `core/`, and those of applications.
fn pure_packages() -> Vec<Package> {
    let is_pure = |package: &Package| {
        package.directory.starts_with("core/") || PURE_APPLICATIONS.contains(&package.directory.as_str())
    };
    let pure: Vec<Package> = packages().into_iter().filter(is_pure).collect();
    assert!(pure.len() > 10, "only {} pure crates found", pure.len());
    pure
}

#[test]
fn pure_crates_share_one_list_of_forbidden_calls() {
    let list = root().join("core/clippy.toml");
    for package in pure_packages() {
        // Clippy reads the nearest file at or above a crate.
        let directory = root().join(&package.directory);
        let nearest = directory.ancestors().map(|d| d.join("clippy.toml")).find(|file| file.exists());
        let nearest = nearest.and_then(|file| file.canonicalize().ok());
        assert_eq!(nearest.as_ref(), Some(&list), "{}", package.directory);
    }
}

#[test]
fn no_crate_that_does_io_is_below_a_pure_one() {
    for Package { name, .. } in pure_packages() {
        let tree = Command::new(env!("CARGO"))
            // The rule checks one target, because on others some crates ask the system for the
            // CPU's features.
            .args(["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--edges", "normal"])
            .args(["--prefix", "none", "--package", &name])
            .output()
            .expect("cargo tree runs");
        let text = String::from_utf8_lossy(&tree.stdout);
        assert!(tree.status.success(), "{name}: {}", String::from_utf8_lossy(&tree.stderr));
        assert!(text.starts_with(&name), "{name}: {text}");
        let below: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let found: Vec<&&str> = CRATES_WITH_IO.iter().filter(|name| below.contains(name)).collect();
        assert!(found.is_empty(), "below {name}: {found:?}");
    }
}
