//! Reads the files of the workspace for the rules.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the directory of the checkout.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the text of a file; `path` is relative to the checkout.
///
/// # Panics
/// Panics if the file cannot be read.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns all files of the workspace with one of these endings: their paths, relative to the
/// checkout, and their texts.
pub(crate) fn texts(endings: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                directories.push(path);
            } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
                let relative = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Returns one line for each file of these endings about which `complaint` has something to report.
pub(crate) fn complaints(endings: &[&str], complaint: impl Fn(&str) -> Option<String>) -> String {
    let files = texts(endings);
    assert!(!files.is_empty(), "no file of {endings:?} in {}", root().display());
    let lines = files.into_iter().filter_map(|(path, text)| Some(format!("{path}: {}\n", complaint(&text)?)));
    lines.collect()
}

/// A package of the workspace.
pub(crate) struct Package {
    /// Directory, relative to the checkout.
    pub(crate) directory: String,
    /// Name in its manifest.
    pub(crate) name: String,
    /// Names of the packages of the workspace on which its library and programs depend, sorted.
    pub(crate) uses: Vec<String>,
}

/// Returns the packages of the workspace, sorted by directory.
pub(crate) fn packages() -> Vec<Package> {
    let manifests = texts(&["toml"]).into_iter().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    let mut packages: Vec<Package> = manifests
        .map(|(path, text)| {
            let manifest: toml::Table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
            Package {
                directory: path.strip_suffix("/Cargo.toml").unwrap().to_owned(),
                name: manifest["package"]["name"].as_str().unwrap().to_owned(),
                uses: manifest
                    .get("dependencies")
                    .and_then(|d| d.as_table())
                    .map(dependencies)
                    .unwrap_or_default(),
            }
        })
        .collect();
    let names: Vec<String> = packages.iter().map(|package| package.name.clone()).collect();
    for package in &mut packages {
        package.uses.retain(|name| names.contains(name));
        package.uses.sort();
    }
    packages
}

/// Returns the package names of a table of dependencies, which may rename them.
fn dependencies(table: &toml::Table) -> Vec<String> {
    let name = |(key, value): (&String, &toml::Value)| {
        let package = value.get("package").and_then(|package| package.as_str());
        package.unwrap_or(key).to_owned()
    };
    table.iter().map(name).collect()
}

/// Returns whether a Rust file is product code rather than a test, a benchmark, an example or a
/// rule.
pub(crate) fn is_product(path: &str) -> bool {
    let mut parts = path.split('/');
    let top = parts.clone().next().unwrap_or_default();
    !["tests", "fuzz"].contains(&top)
        && !parts
            .any(|part| ["tests", "tests.rs", "testing.rs", "testing", "benches", "examples"].contains(&part))
}
