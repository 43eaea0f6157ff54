//! Rust files have one subject each and state it first; comments fit a line.

use crate::workspace::{complaints, texts};

/// Maximum number of lines of a file. A longer file has more than one subject.
const LINES_MAX: usize = 600;

/// Maximum width of a comment, in columns. Rustfmt does not wrap comments.
const COMMENT_COLUMNS_MAX: usize = 100;

/// Maximum number of letters in the name of a test. Longer names are not read.
const TEST_NAME_LETTERS_MAX: usize = 60;

/// Endings of the files that people read.
const TEXTS: [&str; 7] = ["rs", "py", "md", "proto", "h", "sh", "toml"];

#[test]
fn no_file_has_more_than_one_subject() {
    let long = complaints(&["rs"], |text| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{lines} lines, expected at most {LINES_MAX}"))
    });
    assert!(long.is_empty(), "{long}");
}

#[test]
fn every_file_begins_with_its_purpose() {
    let silent = complaints(&["rs"], |text| {
        let stated = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
        (!stated).then(|| "expected //! and the purpose of the file".to_owned())
    });
    assert!(silent.is_empty(), "{silent}");
}

#[test]
fn comments_name_the_number_they_are_about() {
    // The phrase is assembled from words, because this rule would find it here.
    let vague = ["so", "many"].join(" ");
    let found = complaints(&TEXTS, |text| {
        let line = text.lines().position(|line| line.to_lowercase().contains(&vague))?;
        Some(format!("line {}: {vague:?}; name the number", line + 1))
    });
    assert!(found.is_empty(), "{found}");
}

/// Returns the numbers of the lines of a Rust file with a comment that is too wide. Code, diagrams,
/// tables and links do not count, because they cannot be wrapped.
fn wide_comments(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut wide = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        let fence = comment.trim_start().starts_with("```");
        in_code ^= fence;
        let is_prose = !in_code && !fence && !comment.starts_with("  ") && !comment.contains(['|']);
        if is_prose && !comment.contains("://") && line.chars().count() > COMMENT_COLUMNS_MAX {
            wide.push(number);
        }
    }
    wide
}

#[test]
fn comments_fit_a_line() {
    let wide = complaints(&["rs"], |text| {
        let lines = wide_comments(text);
        (!lines.is_empty()).then(|| format!("lines {lines:?}: wider than {COMMENT_COLUMNS_MAX} columns"))
    });
    assert!(wide.is_empty(), "{wide}");
}

/// Returns the names of the tests in a text of Rust or Python.
fn test_names(path: &str, text: &str) -> Vec<String> {
    let name_of = |line: &str| line.split('(').next().unwrap().trim().to_owned();
    if path.ends_with(".py") {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("def "));
        return lines.map(name_of).filter(|name| name.starts_with("test_")).collect();
    }
    let mut names = Vec::new();
    let mut follows_attribute = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            follows_attribute = true;
        } else if follows_attribute && let Some((_, rest)) = line.split_once("fn ") {
            names.push(name_of(rest));
            follows_attribute = false;
        }
    }
    names
}

#[test]
fn names_of_tests_are_short_enough_to_be_read() {
    let mut tests = 0;
    let mut long = String::new();
    for (path, text) in texts(&["rs", "py"]) {
        for name in test_names(&path, &text) {
            tests += 1;
            if name.len() > TEST_NAME_LETTERS_MAX {
                long += &format!("{path}: {name} has {} letters\n", name.len());
            }
        }
    }
    assert!(tests > 1000, "only {tests} tests found");
    assert!(long.is_empty(), "expected at most {TEST_NAME_LETTERS_MAX} letters:\n{long}");
}
