//! What holds of the text of all files: Rust files have one subject and say first which, comments name the number they speak
//! of, and a public name stands for one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Of a file; a longer one has more than one subject.
const LINES_MAX: usize = 600;

/// The kinds of files that people read.
const TEXTS: [&str; 7] = ["rs", "py", "md", "proto", "h", "sh", "toml"];

/// Public names that stand in several crates, and why a reader is not misled. Applications are not counted: they speak of
/// what they are about, and nobody uses them.
const SHARED_NAMES: [(&str, &[&str]); 8] = [
    ("of each crate, and used by its module", &["Error", "Input", "Options", "Output", "Stats"]),
    (
        "the same thing, as the next crate shows it",
        &["CallRequest", "FailureKind", "GroupError", "TransferRequest"],
    ),
    ("where a rank runs, as far as each crate needs it", &["Place"]),
    ("an array of a rank: of a schedule, by its role; of a program, registered", &["Buffer"]),
    ("in which order ranks go to nodes: of a job, of a simulated one", &["Placement"]),
    ("an agent: what runs on a node, and what the controller knows of it", &["Agent"]),
    ("the ends of a stream, of each kind of streams", &["Receiver", "Sender"]),
    ("the words of OpenFlow, in its codec, beside ours", &["Action", "Body", "Message", "Port"]),
];

/// Crates whose public names are their own business.
const APPLICATIONS: [&str; 4] =
    ["apps/kmeans", "apps/kmeans/classify", "apps/kmeans/distance", "apps/mapcollective"];

/// All files of the workspace that have one of these endings, with their text.
fn texts(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 300, "only {} files in {}", found.len(), root.display());
    found
}

/// The files of these endings of which something is said, a line each.
fn complaints(endings: &[&str], say: impl Fn(&str) -> Option<String>) -> String {
    let lines = texts(endings)
        .into_iter()
        .filter_map(|(path, text)| Some(format!("{}: {}\n", path.display(), say(&text)?)));
    lines.collect()
}

/// The crate that a source file is of; none if it is no library's or program's, or a test's.
fn crate_of(path: &Path) -> Option<String> {
    let (name, file) = path.to_str()?.split_once("/src/")?;
    let of_tests = file.split('/').any(|part| ["tests", "tests.rs", "testing.rs"].contains(&part));
    let counts = !of_tests && !["fuzz", "tests"].contains(&name) && !APPLICATIONS.contains(&name);
    counts.then(|| name.to_owned())
}

/// The types and traits that a text makes public.
fn public_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let item = line.trim_start().strip_prefix("pub ")?;
        let (kind, rest) = item.split_once(' ')?;
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
        ["struct", "enum", "trait", "type", "union"].contains(&kind).then_some(name)
    })
}

#[test]
fn no_file_is_longer_than_one_subject() {
    let long = complaints(&["rs"], |text| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{lines} lines, expected at most {LINES_MAX}"))
    });
    assert!(long.is_empty(), "{long}");
}

#[test]
fn every_file_begins_with_what_it_is_for() {
    let silent = complaints(&["rs"], |text| {
        let says = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
        (!says).then(|| "expected //! and what the file is for".to_owned())
    });
    assert!(silent.is_empty(), "{silent}");
}

#[test]
fn comments_name_the_number_they_speak_of() {
    // Not written out here, where it would be found.
    let vague = ["so", "many"].join(" ");
    let found = complaints(&TEXTS, |text| {
        let line = text.lines().position(|line| line.to_lowercase().contains(&vague))?;
        Some(format!("line {}: {vague:?}; name the number", line + 1))
    });
    assert!(found.is_empty(), "{found}");
}

#[test]
fn a_public_name_stands_for_one_thing() {
    let mut crates: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in texts(&["rs"]) {
        let Some(of) = crate_of(&path) else { continue };
        for name in public_names(&text) {
            crates.entry(name.to_owned()).or_default().insert(of.clone());
        }
    }
    crates.retain(|_, crates| crates.len() > 1);
    let shared: BTreeSet<&str> = SHARED_NAMES.iter().flat_map(|(_, names)| *names).copied().collect();
    let misleading: BTreeMap<_, _> =
        crates.iter().filter(|(name, _)| !shared.contains(name.as_str())).collect();
    assert!(misleading.is_empty(), "in several crates, for different things: {misleading:?}");
    let unused: Vec<_> = shared.iter().filter(|name| !crates.contains_key(**name)).collect();
    assert!(unused.is_empty(), "permitted, but not shared any more: {unused:?}");
}
