//! Documents agree with the sources and with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::workspace::{packages, read, root, texts};

/// The most words of README.md, which a stranger reads first.
const README_WORDS_MAX: usize = 800;

/// Where dated figures may appear, apart from the measurements: pages about changes themselves.
const DATED_PAGES: [&str; 2] = ["CHANGELOG.md", "docs/design/layout.md"];

/// Returns all Markdown documents: their paths and texts.
fn documents() -> Vec<(String, String)> {
    let found = texts(&["md"]);
    assert!(found.len() > 20, "only {} documents found", found.len());
    found
}

/// Returns the lines of a document outside code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut in_code = false;
    let is_prose = |line: &&str| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    };
    text.lines().filter(is_prose).collect()
}

/// Returns the targets of the links of a document, as they are written.
fn links(text: &str) -> Vec<String> {
    let text = prose(text).join("\n");
    let ends = text.match_indices("](").map(|(start, _)| &text[start + 2..]);
    ends.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

/// Returns the anchor that GitHub and mdBook generate for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns a path without `.` and `..`.
fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents: BTreeMap<String, String> = documents().into_iter().collect();
    let mut broken = String::new();
    for (path, text) in &documents {
        for link in links(text).iter().filter(|link| !link.contains("://")) {
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                PathBuf::from(path)
            } else {
                normalized(&Path::new(path).parent().unwrap().join(file))
            };
            let headings = || {
                let document = documents.get(target.to_str().unwrap()).map_or("", String::as_str);
                prose(document)
                    .into_iter()
                    .filter(|line| line.starts_with('#'))
                    .map(|l| l.trim_start_matches('#'))
            };
            if !root().join(&target).exists() {
                broken += &format!("{path}: no file {link}\n");
            } else if !fragment.is_empty() && !headings().any(|heading| anchor(heading) == fragment) {
                broken += &format!("{path}: no heading for {link}\n");
            }
        }
    }
    assert!(broken.is_empty(), "{broken}");
}

#[test]
fn the_book_has_every_page_of_the_documents() {
    let summary: BTreeSet<String> = links(&read("docs/SUMMARY.md")).into_iter().collect();
    let pages = documents().into_iter().map(|(path, _)| path);
    let pages = pages.filter_map(|path| path.strip_prefix("docs/").map(str::to_owned));
    let missing: Vec<String> = pages.filter(|page| page != "SUMMARY.md" && !summary.contains(page)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not list {missing:?}");
}

#[test]
fn dated_figures_are_in_the_measurements_only() {
    let is_date = |word: &str| {
        let parts: Vec<&str> = word.trim_matches(|c: char| !c.is_ascii_digit()).split('-').collect();
        let is_number = |part: &str, digits| part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
        matches!(parts[..], [y, m, d] if y.starts_with("20") && is_number(y, 4) && is_number(m, 2) && is_number(d, 2))
    };
    let mut found = String::new();
    for (path, text) in documents() {
        if path.starts_with("docs/measurements/") || DATED_PAGES.contains(&path.as_str()) {
            continue;
        }
        for line in prose(&text).into_iter().filter(|line| line.split_whitespace().any(is_date)) {
            found += &format!("{path}: {line}\n");
        }
    }
    assert!(found.is_empty(), "{found}");
}

#[test]
fn the_readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= README_WORDS_MAX, "{words} words, expected at most {README_WORDS_MAX}");
}

/// Returns the rows of the table of crates in the architecture: directory, package, used packages.
fn crate_table() -> BTreeMap<String, (String, Vec<String>)> {
    let text = read("docs/design/architecture.md");
    let table =
        text.split_once("<!-- crates -->").and_then(|(_, rest)| rest.split_once("<!-- end of crates -->"));
    let rows = table.expect("a table of crates").0.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`'));
        let cells: Vec<&str> = cells.collect();
        let [directory, package, .., uses] = cells[..] else { panic!("too few cells: {line}") };
        let uses = uses.split(", ").filter(|name| *name != "-").map(str::to_owned).collect();
        (directory.trim_end_matches('/').to_owned(), (package.to_owned(), uses))
    };
    rows.map(row).collect()
}

#[test]
fn the_table_of_crates_agrees_with_the_manifests() {
    let short = |name: &String| name.strip_prefix("cool-").unwrap_or(name).to_owned();
    let manifests = packages().into_iter().map(|package| {
        let uses: Vec<String> = package.uses.iter().map(short).collect();
        (package.directory, (package.name, uses))
    });
    let manifests: BTreeMap<_, _> = manifests.collect();
    let expected: String = manifests
        .iter()
        .map(|(directory, (name, uses))| {
            let uses = if uses.is_empty() { "-".to_owned() } else { uses.join(", ") };
            format!("| `{directory}/` | `{name}` | ... | {uses} |\n")
        })
        .collect();
    assert_eq!(crate_table(), manifests, "docs/design/architecture.md; the manifests have\n{expected}");
}

#[test]
fn the_architecture_names_every_command_of_cool() {
    let text = read("docs/design/architecture.md");
    let line =
        text.lines().find(|line| line.starts_with("Commands of `cool`: ")).expect("a list of commands");
    let named: BTreeSet<&str> = line.split('`').skip(3).step_by(2).collect();
    let commands = cool_cli::command();
    let visible = commands.get_subcommands().filter(|command| !command.is_hide_set());
    let commands: BTreeSet<&str> =
        visible.map(clap::Command::get_name).filter(|name| *name != "help").collect();
    assert_eq!(named, commands);
}
