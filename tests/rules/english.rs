//! Comments are plain English, measured by rates of a few words.
//!
//! Seven well-read Rust projects (quinn, rustls, ripgrep, iroh, openraft, raft-rs, holo) stay
//! within the limits of `RARE` and above those of `FREQUENT` in their comments. A rate is a
//! symptom, not the fault: to fix a file, rewrite its sentences from their meaning, because
//! exchanging single words does not make them easier to understand. CONTRIBUTING.md, "Language",
//! has examples.

use std::collections::BTreeMap;

use crate::workspace::{packages, texts};

/// Words that the field uses rarely: the name of the group, its words, and their maximum number per
/// 1,000 words.
const RARE: [(&str, &[&str], f64); 6] = [
    ("say, tell", &["say", "says", "said", "tell", "tells", "told"], 0.8),
    ("what", &["what"], 1.5),
    ("who", &["who", "whom", "whoever", "whose"], 0.8),
    ("come", &["come", "comes", "came"], 1.2),
    ("nobody", &["nobody", "somebody", "anybody", "everybody"], 0.1),
    ("lack", &["lack", "lacks", "lacking", "lacked"], 0.1),
];

/// Words that state contracts: the name of the group, its words, and their minimum number per 1,000
/// words.
const FREQUENT: [(&str, &[&str], f64); 2] =
    [("must, should", &["must", "should"], 2.5), ("returns", &["return", "returns"], 3.0)];

/// Minimum number of words in a crate's comments for rates to be meaningful. In a smaller crate,
/// the rule for `RARE` permits as many occurrences as in one of this size.
const WORDS_MIN: usize = 1500;

/// Returns the words of the comments of a Rust file, in lower case.
fn comment_words(text: &str) -> Vec<String> {
    let comments = text.lines().filter_map(|line| line.split_once("//").map(|(_, comment)| comment));
    let words = comments.filter(|comment| !comment.contains("http")).flat_map(|comment| {
        comment.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(|word| !word.is_empty())
    });
    words.map(str::to_ascii_lowercase).collect()
}

/// Returns the directory of the package that a file belongs to.
fn package_of<'a>(path: &str, directories: &'a [String]) -> Option<&'a String> {
    let inside =
        |directory: &&String| path.strip_prefix(directory.as_str()).is_some_and(|rest| rest.starts_with('/'));
    directories.iter().filter(inside).max_by_key(|directory| directory.len())
}

fn occurrences(words: &[String], group: &[&str]) -> usize {
    words.iter().filter(|word| group.contains(&word.as_str())).count()
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "counts of words are small")]
fn comments_are_plain_english() {
    let directories: Vec<String> = packages().into_iter().map(|package| package.directory).collect();
    let mut words: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts(&["rs"]) {
        if let Some(package) = package_of(&path, &directories) {
            words.entry(package).or_default().extend(comment_words(&text));
        }
    }
    let all: Vec<String> = words.values().flatten().cloned().collect();
    assert!(all.len() > 100_000, "only {} words of comments found", all.len());
    let mut found = String::new();
    for (package, words) in &words {
        for (name, group, most) in RARE {
            let count = occurrences(words, group);
            let allowed = most * words.len().max(WORDS_MIN) as f64 / 1000.0;
            if count as f64 > allowed.max(1.0) {
                found += &format!(
                    "{package}: {name:?} {count} times in {} words, at most {allowed:.0}\n",
                    words.len()
                );
            }
        }
    }
    // Contracts are counted over the workspace, because small crates have few functions.
    for (name, group, fewest) in FREQUENT {
        let rate = 1000.0 * occurrences(&all, group) as f64 / all.len() as f64;
        if rate < fewest {
            found += &format!("{name:?}: {rate:.2} of 1,000 words of all comments, at least {fewest}\n");
        }
    }
    assert!(found.is_empty(), "{found}");
}
