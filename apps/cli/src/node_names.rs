//! Names of nodes in messages: failures grouped by their reason, and names as ranges.

use std::collections::BTreeMap;

/// Groups with fewer nodes are printed node by node.
const GROUPED_MIN: usize = 3;

/// Returns one line for each reason if several nodes share it, in the order of the first node; for
/// example, `h1-h4, h6 (5 nodes): No space left on device`. A node's own name in a reason appears
/// as `{node}` in such a line.
pub(crate) fn failure_lines<'a>(failures: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let failures: Vec<(&str, &str)> = failures.collect();
    let mut groups: Vec<(String, Vec<(&str, &str)>)> = Vec::new();
    let mut index: BTreeMap<String, usize> = BTreeMap::new();
    for (node, reason) in failures {
        let common = replace_word(reason, node, "{node}");
        let group = *index.entry(common.clone()).or_insert_with(|| {
            groups.push((common, Vec::new()));
            groups.len() - 1
        });
        groups[group].1.push((node, reason));
    }
    let mut lines = Vec::new();
    for (common, members) in groups {
        if members.len() < GROUPED_MIN {
            lines.extend(members.iter().map(|(node, reason)| format!("{node}: {reason}")));
        } else {
            let names: Vec<&str> = members.iter().map(|(node, _)| *node).collect();
            lines.push(format!("{} ({} nodes): {common}", ranges(&names), names.len()));
        }
    }
    lines
}

/// Replaces a word that has no letter or digit next to it.
fn replace_word(text: &str, word: &str, with: &str) -> String {
    if word.is_empty() {
        return text.to_owned();
    }
    let (mut result, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(word) {
        let (before, after) = (&rest[..at], &rest[at + word.len()..]);
        let joined = before.chars().next_back().is_some_and(char::is_alphanumeric)
            || after.chars().next().is_some_and(char::is_alphanumeric);
        result += before;
        result += if joined { word } else { with };
        rest = after;
    }
    result + rest
}

/// Returns names in a short form: `h1, h2, h3, h7` becomes `h1-h3, h7`.
fn ranges(names: &[&str]) -> String {
    let mut sorted: Vec<(&str, Option<u64>, &str)> = names.iter().map(|name| split_number(name)).collect();
    sorted.sort_unstable();
    let mut parts: Vec<String> = Vec::new();
    let mut run: Vec<(&str, Option<u64>, &str)> = Vec::new();
    let mut flush = |run: &mut Vec<(&str, Option<u64>, &str)>| match run[..] {
        [] => {}
        [(.., only)] => parts.push(only.to_owned()),
        [(.., first), (.., second)] => parts.extend([first.to_owned(), second.to_owned()]),
        [(.., first), .., (.., last)] => parts.push(format!("{first}-{last}")),
    };
    for name in sorted {
        let follows = run.last().is_some_and(|(prefix, number, _)| {
            *prefix == name.0 && number.is_some() && name.1 == number.map(|number| number + 1)
        });
        if !follows {
            flush(&mut run);
            run.clear();
        }
        run.push(name);
    }
    flush(&mut run);
    parts.join(", ")
}

/// Splits a name into the text before its last number, that number, and the whole name.
fn split_number(name: &str) -> (&str, Option<u64>, &str) {
    let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[prefix.len()..];
    // Names with leading zeros do not form ranges.
    let number = digits.parse().ok().filter(|number: &u64| number.to_string() == digits);
    (prefix, number, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_reason_share_a_line() {
        let reason = |node: &str| format!("/tmp/{node}/x: another copy");
        let names: Vec<String> = (1..=12).filter(|n| *n != 5).map(|n| format!("h{n}")).collect();
        let mut all: Vec<(String, String)> = names.iter().map(|n| (n.clone(), reason(n))).collect();
        all.insert(2, ("h5".to_owned(), "it was lost".to_owned()));
        let lines = failure_lines(all.iter().map(|(node, why)| (&**node, &**why)));
        assert_eq!(lines, ["h1-h4, h6-h12 (11 nodes): /tmp/{node}/x: another copy", "h5: it was lost"]);
    }

    #[test]
    fn two_nodes_with_the_same_reason_are_listed_one_by_one() {
        let all = [("a", "full"), ("b", "full")];
        assert_eq!(failure_lines(all.into_iter()), ["a: full", "b: full"]);
    }

    #[test]
    fn names_form_ranges_only_if_their_numbers_follow_each_other() {
        assert_eq!(ranges(&["h10", "h9", "h8", "a", "h07", "h2", "h1"]), "a, h07, h1, h2, h8-h10");
        assert_eq!(replace_word("h1 h11 xh1 /h1/", "h1", "{node}"), "{node} h11 xh1 /{node}/");
    }
}
