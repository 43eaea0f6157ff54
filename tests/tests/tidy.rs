//! What holds of the text of all Rust files: they have one subject, and say first which.

use std::fs;
use std::path::{Path, PathBuf};

/// Of a file; a longer one has more than one subject.
const LINES_MAX: usize = 600;

/// All Rust files of the workspace, with their text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 300, "only {} files in {}", found.len(), root.display());
    found
}

/// The files of which something is said, a line each.
fn complaints(say: impl Fn(&str) -> Option<String>) -> String {
    let lines = sources()
        .into_iter()
        .filter_map(|(path, text)| Some(format!("{}: {}\n", path.display(), say(&text)?)));
    lines.collect()
}

#[test]
fn no_file_is_longer_than_one_subject() {
    let long = complaints(|text| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{lines} lines, expected at most {LINES_MAX}"))
    });
    assert!(long.is_empty(), "{long}");
}

#[test]
fn every_file_begins_with_what_it_is_for() {
    let silent = complaints(|text| {
        let says = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
        (!says).then(|| "expected //! and what the file is for".to_owned())
    });
    assert!(silent.is_empty(), "{silent}");
}
